"""The disk is full, or breaks, at every write of everything that the store does."""

import contextlib
import itertools
import os
from collections.abc import Awaitable
from pathlib import Path
from traceback import extract_tb
from typing import Any

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from tests.faults.disk import Disk, Fault, Keep, Point
from tests.faults.playing import Run, open_store, play
from tests.faults.referee import Referee, Survivor, check_told, read_state
from tests.faults.scenarios import SCENARIOS
from tests.faults.words import message

DATABASE = "agentpost.db"
JOURNAL = "agentpost.db-journal"
WAL = "agentpost.db-wal"
# A fault that happens once strikes at every write. One that lasts does so in `make test-long`, and here at every third:
# what it does to the write that it begins with is the same.
STEP_OF_LASTING = 1 if int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1")) > 1 else 3


class Shortage:
    """No room, for one write or until somebody was refused twice."""

    def __init__(self, *, lasts: bool) -> None:
        self._refusals_left = 2 if lasts else 1

    def note_refusal(self) -> None:
        self._refusals_left -= 1
        assert self._refusals_left >= 0, "refused although there is room again"

    def strikes(self, point: Point) -> bool:
        # Only a write can say that there is no room; any other call that fails looks like a broken disk.
        return point.op == "write" and self._refusals_left > 0


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "for-a-while"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_full_disk_refuses_and_the_same_store_goes_on_when_there_is_room(
    name: str, lasts: bool, tmp_path: Path
) -> None:
    """What a full disk refuses can be done when there is room, and then all is as if it had never been full."""
    scenario = SCENARIOS[name]
    fault_at = 0
    with scenario.settings():
        referee = Referee(scenario, tmp_path)
        while True:
            shortage = Shortage(lasts=lasts)
            with Disk(fault=Fault.FULL, fault_at=fault_at, sticky=lasts, only=shortage.strikes) as disk:
                survivors: list[Survivor] = []

                async def lose_power(disk: Disk = disk, survivors: list[Survivor] = survivors) -> None:
                    survivors.append(await referee.survivor(disk, Keep.NOTHING))

                run = await play(
                    scenario,
                    home := await referee.home(),
                    disk=disk,
                    when_full=shortage.note_refusal,
                    before_close=None if lasts else lose_power,
                )
                if not disk.struck:
                    break
                check_nothing_failed(run)
                if disk.struck[0].file == WAL and scenario.cache_pages is None:
                    # What fits into the cache is written by its commit, so somebody was refused.
                    assert run.times_full == (2 if lasts else 1), disk.struck[0]
                course = await referee.course([operation for operation, _ in run.acknowledged])
                assert tuple(answer for _, answer in run.acknowledged) == course.answers
                assert read_state(home) == course.states[-1], disk.struck[0]
                # All of it is durable, and was so before the store was closed.
                assert survivors in ([], [Survivor(course.states[-1], ())]), disk.struck[0]
                fault_at = disk.struck[0].index + (STEP_OF_LASTING if lasts else 1)
    assert fault_at > 40


def check_nothing_failed(run: Run) -> None:
    """Everything was done in the end, except what is refused on a good disk too."""
    assert run.opening is None
    assert [refusal.code for _, refusal in run.refused] == [operation.answer for operation, _ in run.refused]
    assert run.failures == []
    assert run.failure is None
    assert run.closing is None


@pytest.mark.req("PIPE-3")
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_broken_disk_stops_the_store_and_nothing_is_tried_again(
    name: str, sticky: bool, tmp_path: Path
) -> None:
    """After a failed write or sync the store writes no more, and a restart finds all that was acknowledged."""
    scenario = SCENARIOS[name]
    with scenario.settings():
        referee = Referee(scenario, tmp_path)
        for fault_at in itertools.count(step=STEP_OF_LASTING if sticky else 1):
            with Disk(fault=Fault.EIO, fault_at=fault_at, sticky=sticky) as disk:
                run = await play(scenario, await referee.home(), disk=disk)
                if not disk.struck:
                    break
                struck, later = disk.points[fault_at], disk.points[fault_at + 1 :]
                check_told(run, struck)
                assert later == [] or undoes_creation(later, disk.points[:fault_at]), struck
                if later or not sticky:
                    # Either the gateway is started again, or the machine is. A disk that stays broken, and was asked
                    # for nothing more, is as it was after the first fault.
                    for keep in (Keep.NOTHING, Keep.EVERYTHING):
                        assert await referee.problems(run, disk, keep) == [], (struck, keep)
    assert fault_at > 40


def undoes_creation(points: list[Point], before: list[Point]) -> bool:
    """Whether SQLite does nothing but make a new file empty again.

    A new file becomes a WAL database in a transaction with a rollback journal, the only one there ever is. When that
    fails, SQLite empties the file and deletes the journal; it does not write. A commit to the log needs no such
    undoing: what follows the last good commit there counts for nothing.
    """
    undoing = {("truncate", DATABASE, 0), ("sync", DATABASE, 0), ("delete", JOURNAL, 0)}
    return WAL not in {point.file for point in before} and {(p.op, p.file, p.offset) for p in points} <= undoing


@pytest.mark.req("PIPE-3")
async def test_what_is_acknowledged_after_a_restart_is_not_behind_a_hole_in_the_log(tmp_path: Path) -> None:
    """A sync fails, the gateway is started again on the same machine, appends more, and then the power goes."""
    for number, keep in itertools.product(range(6), (Keep.NOTHING, Keep.TORN)):
        home, target = tmp_path / f"home{number}{keep.value}", tmp_path / f"back{number}{keep.value}"
        await open_store(home).close()
        acknowledged: list[str] = []
        syncs = itertools.count()
        with Disk(fault=Fault.EIO, fault_at=0, only=lambda p: p.op == "sync" and next(syncs) == number) as disk:  # noqa: B023
            for life in range(2):
                try:
                    store = open_store(home, vfs=disk.name)
                except Refusal:
                    continue
                for each in range(3):
                    event = message(10 * life + each)
                    with contextlib.suppress(Refusal):
                        await store.append([event])
                        acknowledged.append(event.event_id)
                if life:
                    disk.survive(target, keep=keep, seed=number)
                # The failing sync may be the one of its end.
                with contextlib.suppress(Refusal):
                    await store.close()
            assert len(acknowledged) > 2
            assert disk.struck
        (target / "keys").mkdir()
        target.chmod(0o700)
        (target / "keys").chmod(0o700)
        survivor = open_store(target)
        assert [each for each in acknowledged if survivor.find_event(EventId(each)) is None] == [], (number, keep)
        await survivor.close()


async def test_a_failed_store_keeps_nothing_of_those_whom_it_refuses(tmp_path: Path) -> None:
    """A store that has failed can be asked as often as one likes, and answers each time in the same words."""
    with Disk() as disk:
        store = open_store(tmp_path, vfs=disk.name)
        disk.cut()
        refusals = [await refusal_of(store.append([message(1)])) for _ in range(20)]
        assert {refusal.code for refusal in refusals} == {Code.STORAGE_FAILED}
        assert len({refusal.message for refusal in refusals}) == 1
        assert max(len(extract_tb(refusal.__traceback__)) for refusal in refusals[1:]) < 5
        await store.close()


async def refusal_of(answer: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await answer
    return refused.value


async def test_a_home_of_a_newer_version_is_refused_without_a_write(tmp_path: Path) -> None:
    """What a newer version has left in its log stays there for it."""
    scenario = SCENARIOS["migrate"]
    with scenario.settings():
        referee = Referee(scenario, tmp_path)
        home = await referee.home()
        with Disk(cut_at=30) as newer:
            run = await play(scenario, home, disk=newer)
        assert run.opened_at is not None
    with Disk() as disk:
        with pytest.raises(Refusal) as refused:
            open_store(home, vfs=disk.name)
        assert refused.value.code is Code.SCHEMA_TOO_NEW
        assert disk.points == []
