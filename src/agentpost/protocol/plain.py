"""Free-form values that travel: what JSON and msgpack can both say, and not too deep.

Pure. A value that passes `check_plain` can be stored, forwarded in either format and read by any client.
"""

import math
import re
from typing import Any, Final, TypeAlias, cast

from agentpost.protocol.errors import Code, Refusal

__all__ = ["MAX_DEPTH", "Plain", "check_plain"]

# Recursive in truth; msgspec and the checker both read it as "anything", and check_plain holds it.
Plain: TypeAlias = Any

MAX_DEPTH: Final = 32
_INTEGERS: Final = range(-(2**63), 2**64)

# A refusal says where the trouble is; names that somebody else chose must not make it long.
_NAME_LENGTH: Final = 40
_PATH_LENGTH: Final = 200


def check_plain(value: Plain, *, field: str) -> None:
    """Refuse a value that JSON or msgpack cannot carry, or that is nested more than MAX_DEPTH levels.

    `field` is where the value stands; with "" it is a whole object, whose fields then speak for themselves.
    """
    if type(value) is not dict and type(value) is not list:
        _check_leaf(value, field)
        return
    # A list as the stack: nesting made by an attacker must not become our own recursion.
    pending: list[tuple[object, str, int]] = [(value, field, 1)]
    while pending:
        container, path, depth = pending.pop()
        if depth > MAX_DEPTH:
            # The way down says nothing to anybody; where it began does.
            place = field or re.split(r"[.\[]", path)[0]
            raise Refusal(Code.TOO_DEEP, f"{place} is nested more than {MAX_DEPTH} levels", field=place)
        if type(container) is dict:
            mapping = cast(dict[object, object], container)
            _check_keys(mapping, path)
            items = mapping.items()
        else:
            items = enumerate(cast(list[object], container))
        for key, child in items:
            kind = type(child)
            if kind is dict or kind is list:
                pending.append((child, _inside(path, key), depth + 1))
            elif not (child is None or kind is bool or (kind is str and cast(str, child).isascii())):
                _check_leaf(child, path, key)


def _check_leaf(leaf: object, path: str, key: object = None) -> None:
    if leaf is None:
        return
    kind = type(leaf)
    if kind is str:
        problem = None if _is_unicode(cast(str, leaf)) else "is text with half a surrogate pair, which is not Unicode"
    elif kind is int:
        problem = None if leaf in _INTEGERS else "is a number beyond 64 bits"
    elif kind is float:
        problem = None if math.isfinite(cast(float, leaf)) else "is a number that JSON cannot say"
    elif kind is bool:
        problem = None
    else:
        problem = f"is a value of type {kind.__name__}, which cannot travel"
    if problem is not None:
        place = path if key is None else _inside(path, key)
        raise Refusal(Code.INVALID_FIELD, f"{_shown(place)} {problem}", field=place or None)


def _check_keys(mapping: dict[object, object], path: str) -> None:
    for key in mapping:
        if type(key) is not str:
            raise Refusal(Code.INVALID_FIELD, f"{_shown(path)} has a key that is not text", field=path or None)
        if not (key.isascii() or _is_unicode(key)):
            raise Refusal(Code.INVALID_FIELD, f"{_shown(path)} has a key that is not Unicode", field=path or None)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _inside(path: str, key: object) -> str:
    if len(path) > _PATH_LENGTH:
        return path
    if type(key) is int:
        return f"{path}[{key}]"
    name = cast(str, key)[:_NAME_LENGTH]
    return f"{path}.{name}" if path else name


def _shown(path: str) -> str:
    return path or "the object"
