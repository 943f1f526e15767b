"""The page of `agentpost.toml`: each key with its default and what it means."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.inspect import Field, Metadata, StructType, Type

from agentpost.config import CONFIG_FILE
from agentpost.config_keys import KEYS, TABLES
from agentpost.edges.reference.markdown import code, table

__all__ = ["configuration_page"]

_HEAD: Final = f"""# Configuration

A gateway's settings are in `{CONFIG_FILE}` in its home (`~/.agentpost/<node>`, `--home`, or `AGENTPOST_HOME`). The
first `agentpost up` writes down what it was told; later starts need no flags. A flag wins over the environment, that
over the file, and that over the default. A key that is not listed here is refused.
"""
_COLUMNS: Final = ("key", "default", "what it is")


def configuration_page() -> str:
    parts = [_HEAD, _single_keys()]
    for name, kind in TABLES.items():
        parts += [f"## [{name}]\n", f"{kind.what} More in docs/{kind.page}.\n", *_tables(name, kind.shape)]
    return "\n".join(parts)


def _single_keys() -> str:
    rows = [
        (
            code(name),
            "" if key.default is None else code(key.default),
            key.what,
            code("--" + name.replace("_", "-")),
            code(f"AGENTPOST_{name.upper()}"),
        )
        for name, key in KEYS.items()
    ]
    return table((*_COLUMNS, "flag of `up`", "environment"), rows)


def _tables(name: str, shape: type[Struct], defaults: Any = NODEFAULT) -> Iterator[str]:
    """The keys of a table, then those of the tables in it. `defaults` is what the table is if nothing is said."""
    info = msgspec.inspect.type_info(shape)
    if not isinstance(info, StructType):
        raise TypeError(f"{shape} is not a table")
    rows: list[tuple[str, str, str]] = []
    inner: list[tuple[str, type[Struct], Any]] = []
    for field in info.fields:
        default = _default(field) if defaults is NODEFAULT else getattr(defaults, field.name)
        kind, what = _described(field.type)
        if isinstance(kind, StructType):
            inner.append((f"{name}.{field.name}", kind.cls, default))
        else:
            rows.append((code(field.name), _shown(default), what))
    yield table(_COLUMNS, rows)
    for title, cls, default in inner:
        yield f"### [{title}]\n"
        yield from _tables(title, cls, default)


def _default(field: Field) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def _described(kind: Type) -> tuple[Type, str]:
    if not isinstance(kind, Metadata):
        return kind, ""
    inner, what = _described(kind.type)
    said: dict[str, Any] = msgspec.structs.asdict(kind)["extra_json_schema"] or {}
    return inner, said.get("description", what)


def _shown(default: Any) -> str:
    if default is NODEFAULT:
        return "has to be said"
    return code(msgspec.json.encode(default).decode())
