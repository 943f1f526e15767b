"""The files of a lake or of a warehouse: a path or a `pyarrow.fs` URL, as pyarrow and as Spark name it.

Knows nothing of what is in the files.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import fs

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Files", "Listed"]

# How Hadoop, which reads for Spark, calls what pyarrow calls otherwise.
_HADOOP: Final = {"s3": "s3a", "gcs": "gs", "abfs": "abfs", "hdfs": "hdfs", "file": "file"}


class Listed(NamedTuple):
    """A file as a listing shows it; `stamp` changes when it is written anew."""

    name: str
    size: int
    stamp: int


class Files:
    """All files below one root. Names are relative to it, with slashes."""

    def __init__(self, where: str) -> None:
        scheme = where.split("://", 1)[0] if "://" in where else "file"
        try:
            if scheme == "file":
                path = where.removeprefix("file://")
                self._root = str(Path(path).expanduser().absolute())
                self.system: fs.FileSystem = fs.LocalFileSystem()
            else:
                self.system, self._root = fs.FileSystem.from_uri(where)
        except (pa.ArrowInvalid, OSError, ValueError) as problem:
            raise Refusal(
                Code.INVALID_FIELD,
                f"{scheme}:// is not a place that can be opened: {str(problem).splitlines()[0][:200]}",
                field="lake",
                hint="Use a path, or a URL that pyarrow.fs knows: file://, s3://, gs://, hdfs://.",
            ) from None
        self.is_local = scheme == "file"
        # As any process finds it, wherever that was started.
        self.where = self._root if self.is_local else where
        self._scheme = _HADOOP.get(scheme, scheme)

    def at(self, name: str) -> str:
        """The path of a file, for pyarrow with `system`."""
        return f"{self._root}/{name}" if name else self._root

    def url(self, name: str) -> str:
        """The same for Spark. The name is taken as it is: a `%` in it is a letter like any other."""
        return f"{self._scheme}://{self.at(name)}"

    def below(self, name: str) -> "Files":
        """A directory of this place, as a place of its own."""
        return Files(f"{self.where.rstrip('/')}/{name}")

    def exists(self, name: str) -> bool:
        return self.system.get_file_info(self.at(name)).type != fs.FileType.NotFound

    def size(self, name: str) -> int:
        return self.system.get_file_info(self.at(name)).size

    def read(self, name: str) -> bytes | None:
        """What is in a file; None if it is not there."""
        try:
            with self.system.open_input_stream(self.at(name)) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def listing(self, name: str, *, recursive: bool = True) -> list[Listed]:
        """The files below a directory, in no particular order; none if it is not there."""
        selector = fs.FileSelector(self.at(name), allow_not_found=True, recursive=recursive)
        found = self.system.get_file_info(selector)
        cut = len(self._root) + 1
        return [Listed(i.path[cut:], i.size, i.mtime_ns or 0) for i in found if i.type == fs.FileType.File]

    def directories(self, name: str) -> list[str]:
        """The names of the directories right below one."""
        found = self.system.get_file_info(fs.FileSelector(self.at(name), allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def make_directory(self, name: str) -> None:
        self.system.create_dir(self.at(name), recursive=True)

    def delete_directory(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_dir(self.at(name))

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(self.at(name))

    def create(self, name: str, content: bytes) -> bool:
        """Write a file that is not there yet, whole or not at all; False if somebody has written it before."""
        if self.is_local:
            path = Path(self.at(name))
            draft = self._draft(path, content)
            try:
                path.hardlink_to(draft)
            except FileExistsError:
                return False
            finally:
                draft.unlink()
            _sync(path.parent)
            return True
        # pyarrow has no conditional put: two who write at the same moment find out by reading back.
        if self.exists(name):
            return False
        self._put(name, content)
        return self.read(name) == content

    def replace(self, name: str, content: bytes) -> None:
        """Write a file in the place of what was there; a reader sees the one or the other."""
        if self.is_local:
            path = Path(self.at(name))
            self._draft(path, content).replace(path)
            _sync(path.parent)
        else:
            self._put(name, content)

    def sync(self, names: Iterable[str]) -> None:
        """Have files that somebody else wrote on the disk. An object store has them once they are there."""
        if not self.is_local:
            return
        paths = [Path(self.at(name)) for name in names]
        for path in (*paths, *{path.parent for path in paths}):
            _sync(path)

    @contextlib.contextmanager
    def locked(self, name: str) -> Generator[None]:
        """Be the only one at work here. Ends with the process, however that ends. Object stores have no such thing."""
        if not self.is_local:
            yield
            return
        path = Path(self.at(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refusal(
                    Code.CONFLICT,
                    f"another pipeline works on {self.where}",
                    hint="Wait for it, or give this one a place of its own with --warehouse.",
                ) from None
            yield

    def _put(self, name: str, content: bytes) -> None:
        with self.system.open_output_stream(self.at(name)) as stream:
            stream.write(content)

    def _draft(self, path: Path, content: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return draft


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
