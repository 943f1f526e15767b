"""A record of what a program makes durable: syncs, links and renames, each by the file that it is about."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["Naming"]


class Naming:
    """What happened, in its order. A file is known by its inode, so that a record outlives its draft's name."""

    def __init__(self) -> None:
        self.synced: list[int] = []
        self.problems: list[str] = []
        self.named: list[str] = []
        self._to_sync: dict[int, str] = {}

    def sync(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        self.synced.append(inode)
        self._to_sync.pop(inode, None)

    def name(self, target: Path) -> None:
        """A file has got the name by which it counts."""
        if target.stat().st_ino not in self.synced:
            self.problems.append(f"{target.name} has its name before it is synced")
        self.named.append(target.name)
        self.expect_sync_of(target.parent, target.name)

    def expect_sync_of(self, directory: Path, name: str) -> None:
        self._to_sync[directory.stat().st_ino] = name

    def finish(self) -> None:
        self.problems += [f"the name {name} is not synced" for name in self._to_sync.values()]

    @classmethod
    @contextmanager
    def recorded(cls) -> Iterator["Naming"]:
        naming = cls()
        fsync, link, rename, mkdir = os.fsync, os.link, os.rename, os.mkdir

        def synced(fd: int) -> None:
            fsync(fd)
            naming.sync(fd)

        def linked(source: Path, target: Path) -> None:
            link(source, target)
            naming.name(Path(target))

        def renamed(source: Path, target: Path) -> None:
            rename(source, target)
            naming.name(Path(target))

        def made(path: Path, mode: int = 0o777) -> None:
            mkdir(path, mode)
            naming.expect_sync_of(Path(path).parent, Path(path).name)

        with pytest.MonkeyPatch.context() as patch:
            for name, call in (("fsync", synced), ("link", linked), ("rename", renamed), ("mkdir", made)):
                patch.setattr(os, name, call)
            yield naming
        naming.finish()
