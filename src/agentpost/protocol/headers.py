"""The header convention of free-text messages (OPS-7): a few `name: value` lines, a blank line, the body.

    kind: request
    priority: high
    corr: 7f3a
    thread: release 1.3

    Please validate the release notes.

Knows nothing of envelopes; this is for people and agents who write plain text. A message is never refused for
its header: whatever does not follow the convention is body, word for word. A text has a header block when

- its first lines, up to a blank line or the end, all read `name: value`;
- at least one of the four names is among them, and none of the four twice ("TODO: call Ann" is not a header);
- the kind and the priority, where they say something, say one of the known words (in any case).

Other names are kept, in their order. A name without a value says nothing. Rendering uses that: where a text
would be misread without a block, because its body looks like one or its only headers are unknown, it starts
with a bare `kind:`. So `parse_headers(render_headers(text)) == text` holds for every value.
"""

import re
from enum import StrEnum
from typing import Final

import msgspec

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Priority

__all__ = ["HeadedText", "HeaderKind", "parse_headers", "render_headers", "with_headers"]


class HeaderKind(StrEnum):
    """What the writer wants with the message."""

    REQUEST = "request"
    STATUS = "status"
    RESULT = "result"
    ALERT = "alert"
    DECISION = "decision"


_KNOWN: Final = ("kind", "priority", "corr", "thread")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_BLANKS: Final = " \t\r"


class HeadedText(msgspec.Struct, frozen=True, kw_only=True):
    """A message text, taken apart. `extra` holds the headers that the convention does not name, as written.

    Values are trimmed, since a header line cannot show the blanks around them; an empty `corr` or `thread` is
    None.
    """

    body: str
    kind: HeaderKind | None = None
    priority: Priority | None = None
    corr: str | None = None
    thread: str | None = None
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        set_field(self, "corr", _one_line("corr", self.corr or "") or None)
        set_field(self, "thread", _one_line("thread", self.thread or "") or None)
        extra: list[tuple[str, str]] = []
        for position, (name, value) in enumerate(self.extra):
            field = f"extra[{position}]"
            if not _NAME.fullmatch(name) or name.lower() in _KNOWN:
                raise Refusal(Code.INVALID_FIELD, f"{field}: {name!r} cannot be a header's name", field=field)
            extra.append((name, _one_line(field, value)))
        set_field(self, "extra", tuple(extra))

    @property
    def has_headers(self) -> bool:
        """Whether any header says something."""
        return bool(self.extra or self.kind or self.priority or self.corr or self.thread)


def parse_headers(text: str) -> HeadedText:
    """Take a text apart. Never raises: a text without a proper header block is all body."""
    headed = _parse_block(text)
    return HeadedText(body=text) if headed is None else headed


def render_headers(text: HeadedText) -> str:
    """Write the text down so that every reader of the convention takes it apart the same way."""
    if not text.has_headers and _parse_block(text.body) is None:
        return text.body
    values = zip(_KNOWN, (text.kind, text.priority, text.corr, text.thread), strict=True)
    known = [f"{name}: {value}" for name, value in values if value is not None]
    others = [f"{name}: {value}".rstrip() for name, value in text.extra]
    return "\n".join([*(known or ["kind:"]), *others]) + "\n\n" + text.body


def with_headers(text: str | None, *, kind: HeaderKind | None = None, thread: str | None = None) -> str | None:
    """The text with these headers. Headers that it has already stay, apart from those that are given here."""
    if kind is None and not thread:
        return text
    headed = parse_headers(text or "")
    return render_headers(
        msgspec.structs.replace(headed, kind=kind or headed.kind, thread=thread or headed.thread),
    )


def _parse_block(text: str) -> HeadedText | None:
    known: dict[str, str] = {}
    extra: list[tuple[str, str]] = []
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end]
        start = end + 1
        if not line.strip(_BLANKS):
            break
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name):
            return None
        if name.lower() not in _KNOWN:
            extra.append((name, value.strip()))
        elif name.lower() in known:
            return None  # two answers to one question: let a person read them
        else:
            known[name.lower()] = value.strip()
    if not known:
        return None
    try:
        return HeadedText(
            kind=HeaderKind(known["kind"].lower()) if known.get("kind") else None,
            priority=Priority(known["priority"].lower()) if known.get("priority") else None,
            corr=known.get("corr"),
            thread=known.get("thread"),
            extra=tuple(extra),
            body=text[start:],
        )
    except (ValueError, Refusal):
        return None


def _one_line(field: str, value: str) -> str:
    if "\n" in value or "\r" in value:
        raise Refusal(Code.INVALID_FIELD, f"{field}: a header's value is one line", field=field)
    return value.strip()
