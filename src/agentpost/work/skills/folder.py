"""Skills in a directory: which there are, and whether one is there in a version. Reads, and changes nothing."""

from pathlib import Path
from typing import Final

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.work.skills.frontmatter import SKILL_NAME, SkillHead, read_head

__all__ = ["SKILL_FILE", "Skill", "list_skills", "resolve_skill"]

SKILL_FILE: Final = "SKILL.md"
_MAX_HEAD_BYTES: Final = 1024 * 1024


class Skill(Struct, frozen=True, kw_only=True):
    """A skill that is there: its head, and the folder that it really is in."""

    head: SkillHead
    path: Path


def resolve_skill(directory: Path, name: str, version: str | None = None) -> Skill:
    """The skill of this name; refused with `capability_unavailable` if it is not there, or in another version."""
    if not SKILL_NAME.fullmatch(name):
        raise Refusal(Code.INVALID_FIELD, f"{name!r:.80} is not the name of a skill", field="name")
    folder = directory / name
    try:
        with (folder / SKILL_FILE).open("rb") as file:
            raw = file.read(_MAX_HEAD_BYTES)
    except OSError as error:
        raise _unavailable(name, f"{folder / SKILL_FILE}: {error.strerror}", directory) from None
    try:
        head = read_head(raw.decode("utf-8"), where=str(folder / SKILL_FILE))
    except UnicodeDecodeError:
        raise _unavailable(name, f"{folder / SKILL_FILE} is not UTF-8", directory) from None
    if head.name != name:
        raise _unavailable(name, f"{folder / SKILL_FILE} calls itself {head.name}", directory)
    if version is not None and head.version != version:
        raise _unavailable(name, f"version {version} is asked for, and {head.version} is there", directory)
    return Skill(head=head, path=folder.resolve())


def list_skills(directory: Path) -> list[Skill]:
    """All that resolve, by name. What is no skill is passed over."""
    found: list[Skill] = []
    try:
        names = sorted(entry.name for entry in directory.iterdir() if SKILL_NAME.fullmatch(entry.name))
    except OSError:
        return []
    for name in names:
        try:
            found.append(resolve_skill(directory, name))
        except Refusal:
            continue
    return found


def _unavailable(name: str, problem: str, directory: Path) -> Refusal:
    return Refusal(
        Code.CAPABILITY_UNAVAILABLE,
        f"the skill {name} does not resolve: {problem}",
        field="name",
        hint=f"Put it into {directory}, or name the directory of the agent's skills: agentpost skill directory.",
    )
