"""Contracts: JSON Schema, for what goes into a task and what comes out of it (CAP-5). Knows nothing of tasks.

A contract is somebody else's text, so it is kept on a short lead: it refers to nothing outside itself, and is not long.
"""

from functools import lru_cache
from typing import Any, Final

import jsonschema_rs
import msgspec

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.plain import check_plain

__all__ = ["MAX_SCHEMA_BYTES", "check_contract", "check_schema"]

MAX_SCHEMA_BYTES: Final = 64 * 1024
_MOST_KEPT: Final = 256
_MOST_PROBLEMS: Final = 3
_MOST_TEXT: Final = 200
# Patterns that take linear time, whatever they are matched with.
_LINEAR: Final = jsonschema_rs.RegexOptions()


def check_schema(schema: Any, *, field: str = "schema") -> None:
    """Refuse what is not a JSON Schema, is too large, or refers to something that is not in it."""
    _validator(_encoded(schema, field), field)


def check_contract(schema: Any, value: Any, *, field: str) -> None:
    """Refuse a value that is not what the schema describes; the refusal says where, and repeats nothing of it."""
    # What could not travel is no matter for the validator, which gives up on it.
    check_plain(value, field=field)
    validator = _validator(_encoded(schema, field), field)
    # What travels is JSON in another dress, so it is looked at as JSON.
    plain: Any = msgspec.json.decode(msgspec.json.encode(value))
    problems = [error for error, _ in zip(validator.iter_errors(plain), range(_MOST_PROBLEMS), strict=False)]
    if problems:
        told = "; ".join(f"{_place(error)}: {_said(error)}" for error in problems)
        raise Refusal(Code.CONTRACT_MISMATCH, f"{field} breaks the contract: {told}", field=field)


def _encoded(schema: Any, field: str) -> bytes:
    try:
        # In a fixed order, so that the same schema is compiled once.
        encoded = msgspec.json.encode(schema, order="deterministic")
    except (TypeError, ValueError, RecursionError):
        raise Refusal(Code.INVALID_FIELD, f"{field}: the contract is not JSON", field=field) from None
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise Refusal(
            Code.TOO_LARGE,
            f"{field}: its contract has {len(encoded)} bytes; {MAX_SCHEMA_BYTES} is the most",
            field=field,
        )
    return encoded


@lru_cache(maxsize=_MOST_KEPT)
def _validator(encoded: bytes, field: str) -> Any:
    try:
        return jsonschema_rs.validator_for(
            msgspec.json.decode(encoded), retriever=_nothing_from_outside, pattern_options=_LINEAR
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        problem = str(error).split("\n", maxsplit=1)[0][:_MOST_TEXT]
        raise Refusal(
            Code.INVALID_FIELD, f"{field}: the contract is not a JSON Schema: {problem}", field=field
        ) from None


def _nothing_from_outside(uri: str) -> Any:
    raise ValueError(f"it refers to {uri[:80]}, and a contract is complete by itself")


def _place(error: Any) -> str:
    return "/" + "/".join(str(part) for part in error.instance_path)


def _said(error: Any) -> str:
    """Which rule was broken. The validator's own words would quote the value, and refusals are logged."""
    where = [str(part) for part in error.schema_path]
    return f"does not fit `{'/'.join(where)}`"
