"""JSON Schema in words."""

from collections.abc import Mapping
from typing import Any

import msgspec

from agentpost.edges.reference.markdown import anchor, code

__all__ = ["default_of", "kind_of", "limits_of"]

_LIMITS = ("minimum", "maximum", "minLength", "maxLength", "maxItems", "pattern")


def kind_of(schema: Mapping[str, Any], *, is_linked: bool = False) -> str:
    """What values there are. With `is_linked` the name of another shape leads to its heading on the page."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}]({anchor(name)})" if is_linked else name
    if several := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(dict.fromkeys(kind_of(each, is_linked=is_linked) for each in several))
    if "enum" in schema:
        return " or ".join(code(each) for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}), is_linked=is_linked)}"
    kind = schema.get("type", "anything")
    return kind if isinstance(kind, str) else " or ".join(kind)


def default_of(schema: Mapping[str, Any]) -> str:
    """What counts if nothing is said; nothing, if that is nothing."""
    return code(msgspec.json.encode(schema["default"]).decode()) if schema.get("default") is not None else ""


def limits_of(schema: Mapping[str, Any]) -> str:
    said = [f"{name} {code(schema[name])}" for name in _LIMITS if name in schema]
    return ", ".join(filter(None, [schema.get("description", ""), *said]))
