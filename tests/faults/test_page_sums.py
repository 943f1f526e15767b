"""The sums of pages survive power cuts, full and broken disks: a check never takes good pages for damaged ones."""

import contextlib
import itertools
import shutil
from pathlib import Path

import pytest

from agentpost.protocol.errors import Refusal
from agentpost.store import page_sums, writer
from agentpost.store.home import Home
from agentpost.store.integrity import Report, check_home
from agentpost.store.page_sums import sums_file
from tests.faults.disk import Disk, Fault, Keep
from tests.faults.playing import open_store
from tests.faults.words import message

STEP = 5


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint with nearly each commit, and few pages at a time that had no sum."""
    monkeypatch.setattr(writer, "_CHECKPOINT_AT_PAGES", 6)
    monkeypatch.setattr(writer, "_COMMITS_A_LOOK_AT_THE_LOG", 1)
    monkeypatch.setattr(page_sums, "_FILLED_AT_ONCE", 10)


async def live(home: Path, disk: Disk) -> None:
    with contextlib.suppress(Refusal):
        store = open_store(home, vfs=disk.name)
        try:
            for number in range(12):
                # Refused for as long as there is no room.
                with contextlib.suppress(Refusal):
                    await store.append([message(100 + number, size=3_000)])
        finally:
            await store.close()


async def a_home(home: Path) -> Path:
    store = open_store(home)
    for number in range(5):
        await store.append([message(number)])
    await store.close()
    return home


async def checked(home: Path) -> Report:
    """What a check says of the home as it is, and again after it was used for a while."""
    first = check_home(home)
    assert first.problems == ()
    store = open_store(home)
    await store.append([message(900)])
    await store.close()
    return check_home(home)


@pytest.mark.req("PIPE-3")
async def test_a_power_cut_leaves_no_sum_that_is_wrong(tmp_path: Path) -> None:
    """Wherever the power goes, the sums beside the file are those of what is in it, or are not used."""
    new = await a_home(tmp_path / "new")
    for cut_at in itertools.count(step=STEP):
        home = tmp_path / f"home{cut_at}"
        shutil.copytree(new, home)
        with Disk(cut_at=cut_at) as disk:
            await live(home, disk)
            if disk.has_power:
                break
            for keep in Keep:
                target = tmp_path / f"back{cut_at}{keep.value}"
                disk.survive(target, keep=keep, seed=cut_at)
                target.chmod(0o700)
                # The sums are written by the process itself, and last as soon as they are written.
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(sums_file(Home(home).database), sums_file(Home(target).database))
                report = await checked(target)
                assert report.problems == (), (cut_at, keep)
                shutil.rmtree(target)
        shutil.rmtree(home)
    assert cut_at > 100


@pytest.mark.req("PIPE-3")
@pytest.mark.parametrize("fault", Fault)
async def test_a_disk_that_fails_leaves_no_sum_that_is_wrong(tmp_path: Path, fault: Fault) -> None:
    """A full disk, or a broken one: the next gateway opens the home, and a check finds it whole."""
    new = await a_home(tmp_path / "new")
    for fault_at in itertools.count(step=STEP):
        home = tmp_path / f"home{fault_at}"
        shutil.copytree(new, home)
        with Disk(fault=fault, fault_at=fault_at) as disk:
            await live(home, disk)
            if not disk.struck:
                break
        report = await checked(home)
        assert report.problems == (), fault_at
        shutil.rmtree(home)
    assert fault_at > 100


async def test_sums_that_cannot_be_written_are_given_up(tmp_path: Path) -> None:
    """Where the file of sums cannot be written the gateway runs on, and a check says that no page has a sum."""
    home = await a_home(tmp_path / "home")
    sums = sums_file(Home(home).database)
    sums.unlink()
    sums.mkdir()
    store = open_store(home)
    for number in range(12):
        await store.append([message(100 + number, size=3_000)])
    await store.close()
    report = check_home(home)
    assert (report.problems, report.pages_checked) == ((), 0)
    sums.rmdir()
    assert (await checked(home)).pages_checked > 0
