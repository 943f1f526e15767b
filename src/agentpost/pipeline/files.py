"""The files of a lake or of a warehouse: a path or a `pyarrow.fs` URL, as pyarrow and as Spark name it.

Knows nothing of what is in the files.
"""

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import pyarrow as pa
from pyarrow import fs

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Files", "Listed"]

# The name of each store for Hadoop, which reads for Spark, where it differs from that of pyarrow.
_HADOOP: Final = {"s3": "s3a", "gcs": "gs"}
# Options in the query of an S3 URL, as pyarrow spells them, and the names that the Delta library knows them by.
_S3_OPTIONS: Final = {"region": "AWS_REGION", "access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}


class Listed(NamedTuple):
    """A file as a listing shows it; `stamp` changes when it is written anew."""

    name: str
    size: int
    stamp: int


class Files:
    """All files below one root. Names are relative to it, with slashes."""

    def __init__(self, where: str) -> None:
        scheme = where.split("://", 1)[0] if "://" in where else "file"
        self.is_local = scheme == "file"
        self._query = ""
        try:
            if self.is_local:
                path = Path(unquote(where.removeprefix("file://")) if "://" in where else where)
                self._root = str(path.expanduser().absolute())
                self.system: fs.FileSystem = fs.LocalFileSystem()
            else:
                self.system, self._root = fs.FileSystem.from_uri(where)
        except (pa.ArrowInvalid, OSError, ValueError) as problem:
            raise Refusal(
                Code.INVALID_FIELD,
                f"{scheme}:// is not a place that can be opened: {str(problem).splitlines()[0][:200]}",
                field="lake",
                hint="Use a path, or a URL that pyarrow.fs knows: file://, s3://, gs://, abfs://, hdfs://.",
            ) from None
        self._scheme = scheme
        if self.is_local:
            # As any process finds it, wherever that was started.
            self._url = self._root
        else:
            self._url, _, self._query = where.partition("?")
            self._url = self._url.rstrip("/")

    @property
    def where(self) -> str:
        """The root, as any process can open it again."""
        return f"{self._url}?{self._query}" if self._query else self._url

    def at(self, name: str) -> str:
        """The path of a file, for pyarrow with `system`."""
        return f"{self._root}/{name}" if name else self._root

    def url(self, name: str) -> str:
        """The URL of a file for Spark: the account of `abfs://container@account` stays, options in the query do not."""
        if self.is_local:
            return f"file://{self.at(name)}"
        scheme, _, rest = self._url.partition("://")
        return f"{_HADOOP.get(scheme, scheme)}://{rest}/{name}"

    def table_url(self, name: str) -> str:
        """The URL of a table for the Delta library."""
        return self.at(name) if self.is_local else f"{self._url}/{name}"

    @property
    def storage_options(self) -> dict[str, str]:
        """What the Delta library needs besides a URL; what is missing it takes from the environment, as pyarrow does."""
        if self._scheme != "s3":
            return {}
        told = dict(parse_qsl(self._query))
        options = {name: told[key] for key, name in _S3_OPTIONS.items() if key in told}
        if "endpoint_override" in told:
            scheme = told.get("scheme", "https")
            options["AWS_ENDPOINT_URL"] = f"{scheme}://{told['endpoint_override'].removeprefix(scheme + '://')}"
            options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
        return options

    def below(self, name: str) -> "Files":
        """A directory of this place, as a place of its own."""
        return Files(f"{self._url}/{name}?{self._query}" if self._query else f"{self._url}/{name}")

    def exists(self, name: str) -> bool:
        return self.system.get_file_info(self.at(name)).type != fs.FileType.NotFound

    def size(self, name: str) -> int:
        return self.system.get_file_info(self.at(name)).size

    def stat(self, name: str) -> Listed | None:
        """A file as a listing shows it; None if it is not there."""
        found = self.system.get_file_info(self.at(name))
        return None if found.type != fs.FileType.File else Listed(name, found.size, found.mtime_ns or 0)

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

    def sync(self, names: Iterable[str]) -> None:
        """Have files that somebody else wrote on the disk. An object store has them once they are there."""
        if not self.is_local:
            return
        paths = [Path(self.at(name)) for name in names]
        for path in (*paths, *{path.parent for path in paths}):
            _sync(path)

    @contextlib.contextmanager
    def locked(self, name: str, *, waits: bool = False) -> Generator[None]:
        """Be the only one at work here. Ends with the process, however that ends. Object stores have no such thing."""
        if not self.is_local:
            yield
            return
        path = Path(self.at(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                raise Refusal(
                    Code.CONFLICT,
                    f"another pipeline works on {self.where}",
                    hint="Wait for it, or give this one a place of its own with --warehouse.",
                ) from None
            yield


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
