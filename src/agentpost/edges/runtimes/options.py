"""The options of a runtime: typed, and refused by name where they make no sense. A refusal repeats no secret."""

import re
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["AtOnce", "Bytes", "Options", "Timeout", "read_options"]

# The names that the command line and the API share with all runtimes.
AtOnce = Annotated[int, Meta(ge=1, le=256)]
Timeout = Annotated[float, Meta(gt=0, le=86_400)]
Bytes = Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)]

_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_NAMED = re.compile(r"(?:unknown|missing required) field `([^`]*)`")


class Options(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What every runtime has. With `max_concurrent` 1 the agent gets what a sender said in its order.

    `dispatch_incoming` is what the gateway does about this agent's mail (OPS-2); without it, what it does by default.

    Each runtime declares in `SECRETS` which of its options are secret, in camelCase: they are kept encrypted, and no
    list shows them.
    """

    SECRETS: ClassVar[frozenset[str]]

    max_concurrent: AtOnce = 1
    dispatch_incoming: bool | None = None


AnyOptions = TypeVar("AnyOptions", bound=Options)


def read_options(kind: type[AnyOptions], given: dict[str, Any]) -> AnyOptions:
    """The options as `kind`. Names are camelCase or snake_case, numbers may be text: the command line has only text."""
    named = {_camel(name): value for name, value in given.items()}
    try:
        return msgspec.convert(named, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise _refused(kind, str(problem)) from None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _refused(kind: type[Options], problem: str) -> Refusal:
    place = _PLACE.search(problem)
    named = _NAMED.search(problem)
    name = named.group(1) if named else place.group(1) if place else None
    text = _PLACE.sub("", problem)
    known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
    return Refusal(
        Code.INVALID_FIELD,
        f"options{'.' + name if name and not named else ''}: {text[:1].lower() + text[1:]}",
        field=f"options.{name}" if name else "options",
        hint=f"Its options are: {known}.",
    )
