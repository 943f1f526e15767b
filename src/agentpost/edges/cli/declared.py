"""Files in which people declare something: TOML, or JSON by their ending."""

import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec

from agentpost.protocol.errors import Code, Refusal

__all__ = ["read_declared"]


def read_declared(file: Path) -> dict[str, Any]:
    """What a file declares; every field of it is checked by the gateway."""
    try:
        text = file.read_text("utf-8")
        found: object = msgspec.json.decode(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise Refusal(Code.NOT_FOUND, f"{file} cannot be read: {error.strerror}", field="file", hint=_HINT) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise Refusal(Code.MALFORMED, f"{file} is not valid: {error}", hint="Correct that line.") from None
    if not isinstance(found, dict):
        raise Refusal(Code.MALFORMED, f"{file} does not hold an object", field="file", hint=_HINT)
    return cast("dict[str, Any]", found)


_HINT = "Name a TOML or JSON file that is there."
