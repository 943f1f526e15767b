"""Where a lake is: bytes under names, on a disk or behind any URL that `pyarrow.fs` opens. Knows nothing of segments.

A name is there with all of its bytes, or it is not there. On a disk a name is taken by one writer only, whoever else
tries at the same moment. An object store cannot promise that through pyarrow: there a name is looked for, then written.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from agentpost.lake.settings import require_pyarrow
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import sync_directory

__all__ = ["Lake", "NameTaken", "open_lake"]

_DRAFT: Final = ".part"
# A draft this old has nobody any more who writes it.
_DRAFT_SECONDS: Final = 3600.0
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


class NameTaken(Exception):  # noqa: N818 - reads as what happened
    """Somebody else has written this name already."""


class Lake(Protocol):
    """Names are relative to the root of the lake, with slashes."""

    @property
    def where(self) -> str:
        """The root as people write it; never with a secret in it."""
        ...

    @property
    def is_exclusive(self) -> bool:
        """Whether `create` lets one writer only have a name, whatever happens at the same moment."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """Write a new name, whole and durable. Raises `NameTaken`."""
        ...

    def read(self, name: str) -> bytes | None:
        """The bytes under a name; None if there are none."""
        ...

    def names(self, directory: str) -> list[str]:
        """The files directly in a directory, in the order of their names; without the directory."""
        ...

    def directories(self, directory: str) -> list[str]:
        """The directories directly in a directory, in the order of their names; without the directory."""
        ...

    def remove(self, name: str) -> None: ...


def open_lake(where: str) -> Lake:
    """The lake at a path, or behind a URL such as s3://bucket/lake. Nothing is made or looked at yet."""
    parts = urlsplit(where)
    if "://" not in where:
        return _DiskLake(Path(where).expanduser().absolute())
    if parts.scheme == "file":
        return _DiskLake(Path(unquote(parts.path)))
    return _open_remote(where)


class _DiskLake:
    is_exclusive = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)

    def create(self, name: str, content: bytes) -> None:
        path = self._root / name
        with self._in_our_words():
            _make_directories(path.parent)
            draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_DRAFT}")
            try:
                with draft.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                _take(draft, path)
            finally:
                draft.unlink(missing_ok=True)
            sync_directory(path.parent)

    def read(self, name: str) -> bytes | None:
        with self._in_our_words():
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                return None

    def names(self, directory: str) -> list[str]:
        with self._in_our_words():
            return sorted(entry.name for entry in self._entries(directory) if not entry.is_dir())

    def directories(self, directory: str) -> list[str]:
        with self._in_our_words():
            return sorted(entry.name for entry in self._entries(directory) if entry.is_dir())

    def remove(self, name: str) -> None:
        with self._in_our_words():
            (self._root / name).unlink(missing_ok=True)

    def _entries(self, directory: str) -> Generator[os.DirEntry[str]]:
        path = self._root / directory
        if not path.is_dir():
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry
                elif entry.name.endswith(_DRAFT):
                    _drop_if_old(entry)

    @contextmanager
    def _in_our_words(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise _unreachable(self.where, error) from None


def _take(draft: Path, path: Path) -> None:
    """Give the draft its name, unless somebody has it: of those who try at once, one succeeds."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise NameTaken(path.name) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without links: the next best is to look first.
        if path.exists():
            raise NameTaken(path.name) from None
        draft.rename(path)


def _make_directories(path: Path) -> None:
    if path.is_dir():
        return
    _make_directories(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP)
    sync_directory(path.parent)


def _drop_if_old(entry: os.DirEntry[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        if time.time() - entry.stat().st_mtime > _DRAFT_SECONDS:
            Path(entry.path).unlink()


def _open_remote(where: str) -> Lake:
    require_pyarrow()
    from agentpost.lake.remote import RemoteLake

    return RemoteLake.open(where)


def _unreachable(where: str, error: OSError) -> Refusal:
    return Refusal(
        Code.UNAVAILABLE,
        f"the lake at {where} cannot be used: {error.strerror or error}",
        hint="Check the path and who may write there; what is not exported is kept until it is.",
    )
