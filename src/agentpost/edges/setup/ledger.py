"""What `agentpost setup` changed, and what was there before: so that it can be put back, to the byte."""

import errno
import hashlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from agentpost.edges.setup.edits import Edit
from agentpost.protocol.errors import Code, Refusal

__all__ = ["Change", "Ledger", "state_directory"]


class Change(Struct, frozen=True):
    """One file as it is and as it is to be; None stands for no file."""

    path: Path
    before: bytes | None
    after: bytes | None

    @property
    def is_none(self) -> bool:
        return self.before == self.after


class _Entry(Struct, frozen=True, kw_only=True):
    """`before` is the name of the backup; None if there was no file."""

    after_sha256: str
    before: str | None = None


class Ledger:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "setup.json"
        self._entries: dict[str, _Entry] = {}
        if self._file.exists():
            self._entries = msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Entry])

    def to_make(self, edit: Edit) -> Change:
        before = _content(edit.path)
        return Change(edit.path, before, edit.made(before))

    def to_undo(self, edit: Edit) -> Change:
        """A file that nobody touched since is put back as it was; of any other our part is taken away."""
        now = _content(edit.path)
        if now is None:
            return Change(edit.path, None, None)
        entry = self._entries.get(str(edit.path))
        if entry is None:
            return Change(edit.path, now, now)
        if entry.after_sha256 == _sha256(now):
            return Change(edit.path, now, self._backup(entry))
        return Change(edit.path, now, edit.undone(now))

    def knows(self, edit: Edit) -> bool:
        return str(edit.path) in self._entries

    def make(self, edit: Edit, change: Change) -> Path | None:
        """Write a file, after what was there is safe; gives the backup."""
        original = self._original(edit, change)
        name = None
        if original is not None:
            name = f"{edit.path.name}.{_sha256(str(edit.path).encode())[:12]}.before"
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self._directory / name, original, mode=0o600)
        self._entries[str(edit.path)] = _Entry(after_sha256=_sha256(change.after or b""), before=name)
        self._save()
        _put(change)
        return None if name is None else self._directory / name

    def undo(self, edit: Edit, change: Change) -> None:
        _put(change)
        entry = self._entries.pop(str(edit.path), None)
        self._save()
        if entry is not None and entry.before is not None:
            (self._directory / entry.before).unlink(missing_ok=True)

    def _original(self, edit: Edit, change: Change) -> bytes | None:
        """What was there before we came: not what an earlier setup of ours has made of it."""
        entry = self._entries.get(str(edit.path))
        if entry is None or change.before is None:
            return change.before
        return self._backup(entry) if entry.after_sha256 == _sha256(change.before) else edit.undone(change.before)

    def _backup(self, entry: _Entry) -> bytes | None:
        return None if entry.before is None else (self._directory / entry.before).read_bytes()

    def _save(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(self._file, msgspec.json.encode(self._entries), mode=0o600)


def state_directory() -> Path:
    """Where programs keep what has to outlive them: $XDG_STATE_HOME/agentpost."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "agentpost"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _put(change: Change) -> None:
    if change.is_none:
        return
    if change.after is None:
        change.path.unlink()
        return
    change.path.parent.mkdir(parents=True, exist_ok=True)
    mode = change.path.stat().st_mode & 0o777 if change.before is not None else 0o644
    _write(change.path, change.after, mode=mode)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """The whole file or nothing of it; a link to a file stays a link."""
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.chmod(mode)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise Refusal(
            Code.STORAGE_FULL if is_full else Code.STORAGE_FAILED,
            f"{path} could not be written: {error.strerror}; it is as it was",
            hint="Make room, then run it again, or put back what was written before with --remove.",
        ) from None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
