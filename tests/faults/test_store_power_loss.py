"""The power goes at every write of everything that the store does, and three kinds of disk come back.

A caller who was told that something is done finds it done; what nobody was told of is there as a whole or not at all.
"""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentpost.protocol.delivery import Change
from agentpost.store import inbox
from agentpost.store.deliveries import apply_changes
from agentpost.store.transaction import Transaction
from tests.faults.disk import Disk, Keep
from tests.faults.playing import Scenario, play
from tests.faults.referee import HALF, LOST, Referee, check_told
from tests.faults.scenarios import SCENARIOS
from tests.faults.sessions import SESSIONS
from tests.faults.taskmoves import TASKS

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
OUTCOMES = [(Keep.NOTHING, 0), (Keep.EVERYTHING, 0), *((Keep.TORN, seed) for seed in range(ROUNDS))]


async def problems_after_power_cuts(
    scenario: Scenario,
    root: Path,
    *,
    outcomes: Sequence[tuple[Keep, int]] = OUTCOMES,
    synchronous: str = "FULL",
) -> dict[tuple[int, Keep, int], list[str]]:
    """What is wrong after a cut at each point of the scenario, by the point, the outcome and its seed."""
    found: dict[tuple[int, Keep, int], list[str]] = {}
    with scenario.settings():
        referee = Referee(scenario, root)
        for cut_at in itertools.count():
            with Disk(cut_at=cut_at) as disk:
                run = await play(scenario, await referee.home(), disk=disk, synchronous=synchronous)
                if disk.has_power:
                    assert [answer for _, answer in run.acknowledged] == [
                        operation.answer for operation in scenario.operations if not operation.is_refused
                    ]
                    break
                check_told(run, disk.points[-1])
                for keep, seed in outcomes:
                    # Seeded by the point too, or all of them would be torn alike.
                    if problems := await referee.problems(run, disk, keep, seed * 10_000 + cut_at):
                        found[cut_at, keep, seed] = problems
    assert cut_at > 40
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("append", marks=pytest.mark.req("PIPE-3", "ENV-2")),
        pytest.param("accept", marks=pytest.mark.req("CUR-2", "RTY-3")),
        pytest.param("settle", marks=pytest.mark.req("RTY-3")),
        pytest.param("compact", marks=pytest.mark.req("PIPE-7", "PIPE-8", "ENV-2")),
        pytest.param("payloads", marks=pytest.mark.req("PIPE-5", "PIPE-7")),
        pytest.param("checkpoint", marks=pytest.mark.req("PIPE-3", "ENV-2")),
        pytest.param("overflow", marks=pytest.mark.req("PIPE-3", "CUR-2")),
        "create",
        "migrate",
    ],
)
async def test_a_power_cut_at_any_point_loses_nothing_and_leaves_nothing_half_done(name: str, tmp_path: Path) -> None:
    """Wherever the power goes, the home opens again with all that was acknowledged, and goes on from there."""
    assert await problems_after_power_cuts(SCENARIOS[name], tmp_path) == {}


@pytest.mark.req("EXT-2", "EXT-4")
async def test_a_power_cut_leaves_all_of_an_exchange_or_nothing(tmp_path: Path) -> None:
    """An invite is used up with the session it opens, a token is spent with its successor; the audit tells of both."""
    assert await problems_after_power_cuts(SESSIONS, tmp_path) == {}


@pytest.mark.req("TASK-5", "TASK-8")
async def test_a_power_cut_leaves_a_task_as_its_events_say(tmp_path: Path) -> None:
    """A task and its events, a claim and its ACK, a question and the incident that remembers it: both or neither."""
    assert await problems_after_power_cuts(TASKS, tmp_path) == {}


@pytest.mark.req("PIPE-3")
async def test_a_store_that_does_not_sync_its_commits_is_caught(tmp_path: Path) -> None:
    """With synchronous=NORMAL the same test finds acknowledged events that are gone."""
    found = await problems_after_power_cuts(SCENARIOS["append"], tmp_path, synchronous="NORMAL")
    kinds = Counter((keep, problem) for (_, keep, _), problems in found.items() for problem in problems)
    assert set(kinds) == {(Keep.NOTHING, LOST), (Keep.TORN, LOST)}


@pytest.mark.req("CUR-2")
async def test_an_operation_in_two_transactions_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a batch is stored in one transaction and its cursor moves in the next, the same test finds halves."""

    def in_two(tx: Transaction, *arguments: Any) -> list[Change]:
        tx.flush()
        tx.database.commit()
        tx.database.begin()
        return apply_changes(tx, *arguments)

    monkeypatch.setattr(inbox, "apply_changes", in_two)
    found = await problems_after_power_cuts(SCENARIOS["accept"], tmp_path, outcomes=[(Keep.EVERYTHING, 0)])
    assert {problem for problems in found.values() for problem in problems} == {HALF}
