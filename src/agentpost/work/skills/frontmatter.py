"""The head of a SKILL.md: name, description and version between two lines of dashes. Pure.

It is the part of YAML that such heads use: `key: value`, quotes, folded and literal blocks, and one level of keys below
a key (`metadata:`). What a head may say beyond that is passed over, not refused: other tools read it too.
"""

import re
from typing import Final

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["SKILL_NAME", "SkillHead", "read_head"]

SKILL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
_ENTRY: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][\w-]*):(?:[ \t]+(?P<value>.*))?")
_MAX_DESCRIPTION: Final = 4096


class SkillHead(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    version: str


def read_head(text: str, *, where: str) -> SkillHead:
    """What the text of a SKILL.md says of itself; a refusal that names the file if it says too little."""
    values = _values(text.removeprefix("\ufeff"), where)
    name = values.get("name", "")
    description = values.get("description", "")
    version = values.get("version") or values.get("metadata.version", "")
    if not SKILL_NAME.fullmatch(name):
        raise _refused(where, "name", "a name of 1 to 64 letters, digits, dots, dashes and underscores")
    if not description or len(description) > _MAX_DESCRIPTION:
        raise _refused(where, "description", "a description")
    if not _VERSION.fullmatch(version):
        raise _refused(where, "version", "a version, as 1.2.0")
    return SkillHead(name=name, description=description, version=version)


def _values(text: str, where: str) -> dict[str, str]:
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise _refused(where, "front matter", "front matter: three dashes on the first line")
    end = next((place for place, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise _refused(where, "front matter", "an end of its front matter: three dashes on a line")
    values: dict[str, str] = {}
    parent = ""
    place = 1
    while place < end:
        found = _ENTRY.fullmatch(lines[place].rstrip())
        place += 1
        if found is None:
            continue
        indent, key, value = len(found["indent"]), found["key"], (found["value"] or "").strip()
        if not indent:
            parent = key
        if value[:1] in ("|", ">"):
            block: list[str] = []
            while place < end and (not lines[place].strip() or _indent(lines[place]) > indent):
                block.append(lines[place].strip())
                place += 1
            value = ("\n" if value[0] == "|" else " ").join(block).strip()
        values.setdefault(f"{parent}.{key}" if indent else key, _plain(value))
    return values


def _plain(value: str) -> str:
    if value[:1] in ("'", '"'):
        close = value.find(value[0], 1)
        return value[1:close] if close > 0 else value[1:]
    return value.split(" #", 1)[0].rstrip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _refused(where: str, field: str, wanted: str) -> Refusal:
    return Refusal(
        Code.INVALID_FIELD,
        f"{where} has no {wanted}" if field == "front matter" else f"{where}: its {field} must be {wanted}",
        field=field,
        hint="A SKILL.md begins with front matter that has name, description and version.",
    )
