"""A file counts once it has its name: by then its bytes are on the disk, and then the name is as well."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentpost.lake.place import NameTaken, open_lake
from agentpost.store.home import Home, write_private
from agentpost.store.identity import load_identity
from agentpost.store.integrity import back_up
from tests.faults.naming import Naming
from tests.store.building import append_messages, open_sqlite


def a_key(root: Path) -> None:
    write_private(root / "signing.pem", b"a key")


def a_key_again(root: Path) -> None:
    a_key(root)
    a_key(root)


def an_identity(root: Path) -> None:
    (root / "keys").mkdir()
    home = Home(root)
    load_identity(home)
    for directory in (root, root / "keys"):
        fd = os.open(directory, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def a_segment(root: Path) -> None:
    open_lake(str(root)).create("outbox/node-a/epoch/1.parquet", b"rows")


def segments(root: Path) -> None:
    lake = open_lake(str(root))
    for number in range(3):
        lake.create(f"outbox/node-a/epoch/{number}.parquet", b"rows")
    with pytest.raises(NameTaken):
        lake.create("outbox/node-a/epoch/2.parquet", b"others")


@pytest.mark.req("PIPE-3", "OBS-4")
@pytest.mark.parametrize("write", [a_key, a_key_again, an_identity, a_segment, segments])
@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no-links"])
def test_what_counts_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], *, has_links: bool
) -> None:
    """Keys and segments: the bytes are synced before the name is given, and the directories after it."""
    if not has_links:

        def without_links(_source: Path, _target: Path) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", without_links)
    with Naming.recorded() as naming:
        write(tmp_path)
    assert naming.problems == []
    assert naming.named


async def test_a_backup_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    """The copy is synced as a draft, and the directory after the draft has become the backup."""
    home = tmp_path / "home"
    store = open_sqlite(home)
    await append_messages(store, 3)
    with Naming.recorded() as naming:
        back_up(home, tmp_path / "copy.db")
    await store.close()
    assert (naming.problems, naming.named) == ([], ["copy.db"])
