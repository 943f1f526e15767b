"""Edits of configuration files: pure functions from bytes to bytes. What is not ours stays as it was.

None stands for a file that is not there.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final, Protocol, cast

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Edit", "JsonEdit", "TomlEdit", "WholeFile"]

_INDENT: Final = re.compile(r"^[\[{]\s*\n([ \t]+)\S")
_HOOK: Final = re.compile(r"agentpost'? hook (start|stop) ")
_BEGIN: Final = "# >>> agentpost: written by `agentpost setup`, taken away by `agentpost setup --remove`\n"
_END: Final = "# <<< agentpost\n"


class Edit(Protocol):
    """A change of one file."""

    @property
    def path(self) -> Path: ...

    def made(self, before: bytes | None) -> bytes:
        """The file with the edit. Making it twice is making it once."""
        ...

    def undone(self, after: bytes) -> bytes | None:
        """The file without the edit, whatever else was changed in it since; None if nothing is left of it.

        One that has nothing of the edit in it stays as it is, to the byte.
        """
        ...


class WholeFile(Struct, frozen=True):
    """A file that is ours alone, until somebody changes it: then it is theirs."""

    path: Path
    content: bytes

    def made(self, before: bytes | None) -> bytes:
        return self.content

    def undone(self, after: bytes) -> bytes | None:
        return None if after == self.content else after


class JsonEdit(Struct, frozen=True):
    """Values at their places in a JSON object. A list gets our items at its end; anything else is ours to set."""

    path: Path
    values: tuple[tuple[tuple[str, ...], Any], ...]

    def made(self, before: bytes | None) -> bytes:
        text, document = self._read(before)
        for place, value in self.values:
            holder = self._holder(document, place)
            if isinstance(value, list):
                items = self._list(holder, place)
                items[:] = [each for each in items if not _is_ours(each)] + cast("list[Any]", value)
            else:
                holder[place[-1]] = value
        return before if before is not None and document == self._read(before)[1] else _written(document, text)

    def undone(self, after: bytes) -> bytes | None:
        text, document = self._read(after)
        for place, value in self.values:
            holder = self._holder(document, place)
            if isinstance(value, list):
                items = self._list(holder, place)
                items[:] = [each for each in items if not _is_ours(each)]
            else:
                holder.pop(place[-1], None)
            _drop_empty(document, place)
        if document == self._read(after)[1]:
            return after
        return _written(document, text) if document else None

    def _read(self, content: bytes | None) -> tuple[str, dict[str, Any]]:
        try:
            text = (content or b"").decode()
            document: object = json.loads(text) if text.strip() else {}
        except (UnicodeDecodeError, json.JSONDecodeError) as problem:
            raise self._refused(f"is not JSON: {problem}") from None
        if not isinstance(document, dict):
            raise self._refused("is not a JSON object")
        return text, cast("dict[str, Any]", document)

    def _holder(self, document: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
        holder = document
        for key in place[:-1]:
            inner = holder.setdefault(key, {})
            if not isinstance(inner, dict):
                raise self._refused(f"has no object at {key!r}")
            holder = cast("dict[str, Any]", inner)
        return holder

    def _list(self, holder: dict[str, Any], place: tuple[str, ...]) -> list[Any]:
        items = holder.setdefault(place[-1], [])
        if not isinstance(items, list):
            raise self._refused(f"has no list at {place[-1]!r}")
        return cast("list[Any]", items)

    def _refused(self, problem: str) -> Refusal:
        return Refusal(
            Code.CONFLICT, f"{self.path} {problem}; nothing was changed", hint="Mend the file, or change it by hand."
        )


class TomlEdit(Struct, frozen=True):
    """A table at the end of a TOML file, between two comments that say whose it is."""

    path: Path
    table: str
    lines: tuple[str, ...]

    def made(self, before: bytes | None) -> bytes:
        text = self._text(before or b"")
        rest = _without_block(text)
        if self.table in _tables(tomllib.loads(rest)):
            raise self._refused(f"has a table [{self.table}] that is not ours")
        gap = "" if not rest or rest.endswith("\n\n") else ("\n" if rest.endswith("\n") else "\n\n")
        block = f"{_BEGIN}[{self.table}]\n" + "".join(f"{line}\n" for line in self.lines) + _END
        return text.encode() if block in text else f"{rest}{gap}{block}".encode()

    def undone(self, after: bytes) -> bytes | None:
        text = self._text(after)
        rest = _without_block(text).rstrip("\n")
        if _without_block(text) == text:
            return after
        return f"{rest}\n".encode() if rest else None

    def _text(self, content: bytes) -> str:
        try:
            text = content.decode()
            tomllib.loads(text)
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise self._refused(f"is not TOML: {problem}") from None
        return text

    def _refused(self, problem: str) -> Refusal:
        return Refusal(
            Code.CONFLICT, f"{self.path} {problem}; nothing was changed", hint="Mend the file, or change it by hand."
        )


def _written(document: dict[str, Any], text: str) -> bytes:
    """JSON as the file had it: with its indentation, and with a line end at its end if there was one."""
    found = _INDENT.match(text.lstrip())
    indent = found[1] if found else "  "
    end = "" if text.strip() and not text.endswith("\n") else "\n"
    return (json.dumps(document, indent=indent, ensure_ascii=False) + end).encode()


def _is_ours(item: object) -> bool:
    """Whether a hook is one of ours: it runs `agentpost hook …`, however that is started."""
    if isinstance(item, dict):
        return any(_is_ours(value) for value in cast("dict[str, object]", item).values())
    if isinstance(item, list):
        return any(_is_ours(each) for each in cast("list[object]", item))
    return isinstance(item, str) and _HOOK.search(item) is not None


def _drop_empty(document: dict[str, Any], place: tuple[str, ...]) -> None:
    """Take away what is left empty on the way to a place."""
    for depth in range(len(place), 0, -1):
        holder: dict[str, Any] = document
        for key in place[: depth - 1]:
            holder = holder.get(key, {})
        if holder.get(place[depth - 1]) in ({}, []):
            del holder[place[depth - 1]]


def _without_block(text: str) -> str:
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        return text
    return text[:begin] + text[end + len(_END) :]


def _tables(document: dict[str, Any], before: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in document.items():
        if isinstance(value, dict):
            found |= {before + key} | _tables(cast("dict[str, Any]", value), f"{before}{key}.")
    return found
