"""A bundle becomes the skill that a directory has, in one step, and the one before stays until then.

The files go to `.agentpost/<name>/<checksum>` inside the directory, and `<name>` is a link to them, replaced by a
rename: at every instant, a crash included, the directory has the old skill or the new one. A skill that somebody put
there by hand is never touched, and one that a gateway published is replaced by that gateway only: `.agentpost/<name>`
has its name in `publisher`.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import write_private
from agentpost.work.skills.bundle import BundleFile, unpack
from agentpost.work.skills.folder import SKILL_FILE, Skill, resolve_skill
from agentpost.work.skills.frontmatter import read_head

__all__ = ["install_skill", "remove_skill"]

_OWN: Final = ".agentpost"
_PUBLISHER: Final = "publisher"


def install_skill(directory: Path, raw: bytes, *, sha256: str, name: str, version: str, publisher: str) -> Skill:
    """Install a bundle that was received. Refused, and nothing changes, if it is not this skill in this version.

    `publisher` is the gateway that it comes from.
    """
    files = unpack(raw, sha256=sha256)
    _expect(files, name, version)
    link = directory / name
    if (link.is_symlink() or link.exists()) and not _is_ours(directory, name):
        raise Refusal(
            Code.CONFLICT,
            f"{link} is a skill that was not installed by agentpost",
            field="name",
            hint="Rename or remove it, then have the skill distributed again.",
        )
    place = directory / _OWN / name / sha256
    if link.is_symlink() and (other := _publisher(place.parent)) not in (None, publisher):
        raise Refusal(
            Code.CONFLICT,
            f"{link} is a skill of {other}, and {publisher} has another of this name",
            field="name",
            hint=f"Remove it if the one of {publisher} is to have the name, then have that distributed again.",
        )
    _note_publisher(place.parent, publisher)
    if not place.is_dir():
        _write(files, place)
    _point(link, place)
    _forget_others(place)
    return resolve_skill(directory, name, version)


def remove_skill(directory: Path, name: str) -> bool:
    """Take away a skill that was installed here; False if there is none of ours."""
    if not _is_ours(directory, name):
        return False
    (directory / name).unlink()
    shutil.rmtree(directory / _OWN / name, ignore_errors=True)
    return True


def _expect(files: list[BundleFile], name: str, version: str) -> None:
    text = next((file.data for file in files if file.path == SKILL_FILE), None)
    if text is None:
        raise Refusal(Code.INVALID_FIELD, f"the bundle has no {SKILL_FILE}", field="bundle")
    try:
        head = read_head(text.decode("utf-8"), where=SKILL_FILE)
    except UnicodeDecodeError:
        raise Refusal(Code.INVALID_FIELD, f"the {SKILL_FILE} of the bundle is not UTF-8", field="bundle") from None
    if (head.name, head.version) != (name, version):
        raise Refusal(
            Code.INVALID_FIELD,
            f"the bundle holds {head.name} {head.version}, and {name} {version} was announced",
            field="bundle",
        )


def _is_ours(directory: Path, name: str) -> bool:
    try:
        return (directory / name).readlink().parts[:2] == (_OWN, name)
    except OSError:
        return False


def _publisher(folder: Path) -> str | None:
    """The gateway whose skill this is; None for one that was installed before that was written down."""
    try:
        return (folder / _PUBLISHER).read_text("utf-8")
    except FileNotFoundError:
        return None


def _note_publisher(folder: Path, publisher: str) -> None:
    # Before the skill is there: a crash in between leaves a name for a skill that anybody may still install.
    if _publisher(folder) != publisher:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        write_private(folder / _PUBLISHER, publisher.encode())


def _write(files: list[BundleFile], place: Path) -> None:
    """Write the files beside their place, make them durable, and put them there by a rename."""
    incoming = place.with_name(f"{place.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True, mode=0o755)
    folders = {incoming}
    for file in files:
        path = incoming / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.add(path.parent)
        mode = 0o755 if file.is_executable else 0o644
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as out:
            out.write(file.data)
            out.flush()
            os.fsync(out.fileno())
    for folder in folders:
        _sync(folder)
    incoming.rename(place)
    _sync(place.parent)


def _point(link: Path, place: Path) -> None:
    beside = link.with_name(f".{link.name}.link")
    beside.unlink(missing_ok=True)
    beside.symlink_to(place.relative_to(link.parent))
    beside.replace(link)
    _sync(link.parent)


def _forget_others(place: Path) -> None:
    for other in place.parent.iterdir():
        if other != place and other.name != _PUBLISHER:
            shutil.rmtree(other, ignore_errors=True)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
