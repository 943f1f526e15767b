"""Content: which fields of which payload people and agents say to each other in, and those fields as bytes (PIPE-4).

Knows nothing of keys. A payload without its content keeps all that routing, SLAs and the pipeline need.
"""

from typing import Any, Final, TypeVar, get_args

import msgspec
from msgspec import structs

from agentpost.delivery.ports import Content
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Payload, Sealed
from agentpost.protocol.plain import check_plain

__all__ = [
    "CONTENT_FIELDS",
    "check_content",
    "check_fits",
    "content_of",
    "decode_content",
    "encode_content",
    "with_content",
    "without_content",
]

AnyPayload = TypeVar("AnyPayload", bound=Payload)

_NAMES: Final = tuple(info.name for info in structs.fields(Content))
_FREE_FORM: Final = ("context", "output")


def _content_fields(cls: type[msgspec.Struct]) -> tuple[str, ...]:
    names = {info.name for info in structs.fields(cls)}
    return tuple(name for name in _NAMES if name in names) if "sealed" in names else ()


# A content field has the same name in every contract and in `Content`. Contracts without content are not in here.
CONTENT_FIELDS: Final[dict[type[Payload], tuple[str, ...]]] = {
    cls: names for cls in get_args(Payload) if (names := _content_fields(cls))
}

_NOTHING: Final[dict[type[Payload], dict[str, None]]] = {
    cls: dict.fromkeys(names) for cls, names in CONTENT_FIELDS.items()
}
# What has no place in a payload of this class.
_FOREIGN: Final[dict[type[Payload], frozenset[str]]] = {
    cls: frozenset(name for name in _NAMES if name not in CONTENT_FIELDS.get(cls, ())) for cls in get_args(Payload)
}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Content)


def content_of(payload: Payload) -> Content:
    """What stands in the payload in the clear."""
    return Content(**{name: getattr(payload, name) for name in CONTENT_FIELDS.get(type(payload), ())})


def without_content(payload: AnyPayload, *, sealed: Sealed | None = None) -> AnyPayload:
    """The payload with nothing that anybody said in the clear, and with what is sealed instead."""
    names = CONTENT_FIELDS.get(type(payload))
    return payload if names is None else structs.replace(payload, **_NOTHING[type(payload)], sealed=sealed)


def with_content(payload: AnyPayload, content: Content) -> AnyPayload:
    """The payload as if nothing had ever been sealed, for its recipients to read."""
    names = CONTENT_FIELDS.get(type(payload))
    if names is None:
        return payload
    check_fits(content, type(payload))
    return _replaced(payload, {"sealed": None} | {name: getattr(content, name) for name in names})


def check_fits(content: Content, kind: type[Payload]) -> None:
    """Refuse content with a field that this contract does not have: its reader would never see it."""
    foreign = _FOREIGN[kind]
    for name, value in zip(_NAMES, structs.astuple(content), strict=True):
        if value is not None and name in foreign:
            said = _wire_name(name)
            raise Refusal(Code.INVALID_FIELD, f"{said} has no place in a {kind.__name__}", field=f"payload.{said}")


def check_content(content: Content) -> None:
    """Refuse content that its readers could not decode."""
    for name, value in zip(_NAMES, structs.astuple(content), strict=True):
        if value is None or (type(value) is str and value.isascii()):
            continue
        field = f"payload.{_wire_name(name)}"
        if name not in _FREE_FORM and type(value) is not str:
            raise Refusal(Code.INVALID_FIELD, f"{field} must be text", field=field)
        check_plain(value, field=field)


def encode_content(content: Content) -> bytes:
    """The bytes that are sealed. What could not be read again is refused."""
    check_content(content)
    return _encoder.encode(content)


def decode_content(raw: bytes) -> Content:
    """The content that these bytes say. A refusal repeats nothing of it: refusals are logged, content never is."""
    try:
        content = _decoder.decode(raw)
        check_content(content)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise Refusal(Code.MALFORMED, "what was sealed is not content that this protocol knows") from None
    except Refusal as refusal:
        raise Refusal(refusal.code, "what was sealed holds a value that cannot travel") from None
    return content


def _wire_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _replaced(payload: AnyPayload, fields: dict[str, Any]) -> AnyPayload:
    return structs.replace(payload, **fields)
