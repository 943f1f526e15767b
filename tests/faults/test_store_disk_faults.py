"""The disk is full, or breaks, at every write of everything that the store does."""

import itertools
from pathlib import Path

import pytest

from tests.faults.disk import Disk, Fault, Keep, Point
from tests.faults.referee import Referee, Survivor, check_told
from tests.faults.scenarios import SCENARIOS, Run, play

DATABASE = "agentpost.db"
JOURNAL = "agentpost.db-journal"
WAL = "agentpost.db-wal"


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
                    """The power goes before the store is closed, or after, if closing is when the disk was full."""
                    if disk.struck and not survivors:
                        survivors.append(await referee.survivor(disk, Keep.NOTHING))

                run = await play(
                    scenario,
                    await referee.home(),
                    disk=disk,
                    when_full=shortage.note_refusal,
                    before_close=lose_power,
                )
                if not disk.struck:
                    break
                await lose_power()
                check_nothing_failed(run)
                course = await referee.course([operation for operation, _ in run.acknowledged])
                assert tuple(answer for _, answer in run.acknowledged) == course.answers
                assert survivors == [Survivor(course.states[-1], ())], disk.struck[0]
                fault_at = disk.struck[0].index + 1
            referee.tidy()
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
        for fault_at in itertools.count():
            with Disk(fault=Fault.EIO, fault_at=fault_at, sticky=sticky) as disk:
                run = await play(scenario, await referee.home(), disk=disk)
                if not disk.struck:
                    break
                struck, later = disk.points[fault_at], disk.points[fault_at + 1 :]
                check_told(run, struck)
                assert later == [] or undoes_creation(later, disk.points[:fault_at]), struck
                # Either the gateway is started again, or the machine is.
                for keep in [Keep.NOTHING] if sticky else [Keep.NOTHING, Keep.EVERYTHING]:
                    assert await referee.problems(run, disk, keep) == [], (struck, keep)
            referee.tidy()
    assert fault_at > 40


def undoes_creation(points: list[Point], before: list[Point]) -> bool:
    """Whether SQLite does nothing but make a new file empty again.

    A new file becomes a WAL database in a transaction with a rollback journal, the only one there ever is. When that
    fails, SQLite empties the file and deletes the journal; it does not write. A commit to the log needs no such
    undoing: what follows the last good commit there counts for nothing.
    """
    undoing = {("truncate", DATABASE, 0), ("sync", DATABASE, 0), ("delete", JOURNAL, 0)}
    return WAL not in {point.file for point in before} and {(p.op, p.file, p.offset) for p in points} <= undoing
