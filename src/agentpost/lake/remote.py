"""A lake behind a URL that `pyarrow.fs` opens: S3, Google Cloud Storage, Azure, HDFS.

An object appears there with all of its bytes once it is closed. That nobody else has its name is looked up before it is
written, so two writers of one name at the very same moment are not kept apart: let one gateway export an outbox there.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from agentpost.lake.place import NameTaken
from agentpost.protocol.errors import Code, Refusal

__all__ = ["RemoteLake"]


class RemoteLake:
    is_exclusive = False

    def __init__(self, system: fs.FileSystem, root: str, *, where: str) -> None:
        self._system = system
        self._root = root.rstrip("/")
        self.where = where

    @classmethod
    def open(cls, url: str) -> "RemoteLake":
        shown = _without_secrets(url)
        try:
            system, root = fs.FileSystem.from_uri(url)
        except (pa.ArrowException, OSError, ValueError):
            # What pyarrow says may quote the URL, and that may hold a key.
            raise Refusal(
                Code.INVALID_FIELD,
                f"{shown} is no place that pyarrow can open",
                field="path",
                hint="Use a directory, or a URL such as s3://bucket/lake.",
            ) from None
        return cls(system, root, where=shown)

    def create(self, name: str, content: bytes) -> None:
        path = self._path(name)
        try:
            if self._system.get_file_info(path).type != fs.FileType.NotFound:
                raise NameTaken(name)
            self._system.create_dir(path.rpartition("/")[0], recursive=True)
            with self._system.open_output_stream(path) as stream:
                stream.write(content)
        except OSError as error:
            raise self._unreachable(error) from None

    def read(self, name: str) -> bytes | None:
        try:
            with self._system.open_input_file(self._path(name)) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreachable(error) from None

    def names(self, directory: str) -> list[str]:
        return [info.base_name for info in self._listed(directory) if info.type == fs.FileType.File]

    def directories(self, directory: str) -> list[str]:
        return [info.base_name for info in self._listed(directory) if info.type == fs.FileType.Directory]

    def remove(self, name: str) -> None:
        try:
            self._system.delete_file(self._path(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._unreachable(error) from None

    def _listed(self, directory: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(directory), allow_not_found=True)
        try:
            return sorted(self._system.get_file_info(selector), key=lambda info: info.base_name)
        except OSError as error:
            raise self._unreachable(error) from None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _unreachable(self, error: OSError) -> Refusal:
        return Refusal(
            Code.UNAVAILABLE,
            f"the lake at {self.where} cannot be used: {str(error).splitlines()[0]:.200}",
            hint="What is not exported is kept until it is.",
        )


def _without_secrets(url: str) -> str:
    """The URL without a user, a key or options, which may hold secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
