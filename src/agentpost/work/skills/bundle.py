"""A skill as one archive: the same folder gives the same bytes everywhere, so its checksum is its name.

A plain tar of regular files, sorted, with no times and no owners. Reading one trusts nothing: links, devices, paths
that lead out, names that only differ in case, and sizes beyond the caps are refused before anything is written.
"""

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["MAX_BUNDLE_BYTES", "MAX_FILES", "MAX_FILE_BYTES", "BundleFile", "Bundle", "pack", "unpack"]

MAX_FILES: Final = 512
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_BUNDLE_BYTES: Final = 16 * 1024 * 1024
_MAX_PATH: Final = 200
_MAX_DEPTH: Final = 8
# What tools leave behind in a folder; no part of a skill.
_PASSED_OVER: Final = frozenset({".git", ".hg", ".svn", "__pycache__", ".DS_Store", ".agentpost"})


class BundleFile(Struct, frozen=True, kw_only=True):
    path: str
    data: bytes
    is_executable: bool = False


class Bundle(Struct, frozen=True, kw_only=True):
    """The archive and its checksum."""

    raw: bytes
    sha256: str


def pack(folder: Path) -> Bundle:
    """The folder as a bundle. A link or a device in it is refused: the others could not have the same."""
    files = sorted(_files(folder, folder, 1), key=lambda file: file.path)
    _check(files)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.size = len(file.data)
            entry.mode = 0o755 if file.is_executable else 0o644
            archive.addfile(entry, io.BytesIO(file.data))
    raw = out.getvalue()
    return Bundle(raw=raw, sha256=hashlib.sha256(raw).hexdigest())


def unpack(raw: bytes, *, sha256: str) -> list[BundleFile]:
    """The files of a bundle that somebody sent; a refusal if it is not what the checksum says, or not harmless."""
    if len(raw) > 2 * MAX_BUNDLE_BYTES:
        raise Refusal(Code.TOO_LARGE, f"the bundle has {len(raw)} bytes; {MAX_BUNDLE_BYTES} is the most")
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise _unsafe("its checksum is another than the one that was announced")
    files: list[BundleFile] = []
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            for entry in archive:
                if len(files) >= MAX_FILES:
                    raise Refusal(Code.TOO_LARGE, f"the bundle has more than {MAX_FILES} files")
                if not entry.isreg() or entry.issparse():
                    raise _unsafe(f"{entry.name!r:.80} is no regular file")
                total += entry.size
                if entry.size > MAX_FILE_BYTES or total > MAX_BUNDLE_BYTES:
                    raise Refusal(Code.TOO_LARGE, f"{entry.name!r:.80} makes the bundle too large")
                opened = archive.extractfile(entry)
                data = b"" if opened is None else opened.read()
                files.append(BundleFile(path=entry.name, data=data, is_executable=bool(entry.mode & 0o100)))
    except Refusal:
        raise
    except Exception:  # noqa: BLE001 - tarfile stumbles in many ways: headers in headers end in a RecursionError
        raise _unsafe("it is no archive") from None
    _check(files)
    return files


def _files(root: Path, folder: Path, depth: int) -> Iterator[BundleFile]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name in _PASSED_OVER:
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if depth >= _MAX_DEPTH:
                raise _unsafe(f"{path} lies too deep")
            yield from _files(root, path, depth + 1)
            continue
        info = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise _unsafe(f"{path} is no regular file")
        if info.st_size > MAX_FILE_BYTES:
            raise Refusal(Code.TOO_LARGE, f"{path} has {info.st_size} bytes; {MAX_FILE_BYTES} is the most")
        yield BundleFile(
            path=path.relative_to(root).as_posix(),
            data=_read(path),
            is_executable=bool(info.st_mode & stat.S_IXUSR),
        )


def _read(path: Path) -> bytes:
    # O_NOFOLLOW: what was a file a moment ago may have become a link.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _check(files: list[BundleFile]) -> None:
    if len(files) > MAX_FILES:
        raise Refusal(Code.TOO_LARGE, f"the skill has more than {MAX_FILES} files")
    if sum(len(file.data) for file in files) > MAX_BUNDLE_BYTES:
        raise Refusal(Code.TOO_LARGE, f"the skill has more than {MAX_BUNDLE_BYTES} bytes")
    seen: set[str] = set()
    folders: set[str] = set()
    for file in files:
        parts = file.path.split("/")
        if len(file.path) > _MAX_PATH or len(parts) > _MAX_DEPTH or not all(map(_is_name, parts)):
            raise _unsafe(f"{file.path!r:.80} is no path inside it")
        # Two names that only differ in case are one file on some machines.
        folded = file.path.casefold()
        if folded in seen:
            raise _unsafe(f"{file.path!r:.80} is in it twice")
        seen.add(folded)
        folders.update("/".join(parts[:depth]).casefold() for depth in range(1, len(parts)))
    if both := seen & folders:
        raise _unsafe(f"{min(both)!r:.80} is a file and a folder in it")


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and part.isprintable() and not set(part) & set('\\:*?"<>|')


def _unsafe(problem: str) -> Refusal:
    return Refusal(
        Code.INVALID_FIELD,
        f"the skill cannot be bundled or unpacked: {problem}",
        field="bundle",
        hint="A bundle is a plain archive of regular files below one folder.",
    )
