"""Gateways are killed at random instants while mail is under way: each message is processed once, none vanishes."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.edges.mailing import Machine, three_machines
from tests.edges.meshing import eventually

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
# 50 kills in `make test`, 1,000 in `make test-long` (20 rounds, which can run side by side).
KILLS = 50


@pytest.mark.waits
@pytest.mark.req("PIPE-3", "CUR-2", "RTY-3", "ACK-2", "OPS-3")
@pytest.mark.parametrize("part", range(ROUNDS))
def test_killing_gateways_at_random_loses_nothing_and_repeats_nothing(tmp_path: Path, part: int) -> None:
    """Sender, receiver and seed die in turn, at any instant; a counting agent has had each message exactly once.

    A command cannot be asked what it did, so what was cut off between engaging and settling is left unclear and shown,
    never repeated by itself: it is the one way in which a message may not end as processed.
    """
    where = random.Random(7 + part)
    with three_machines(tmp_path) as machines:
        _, laptop, lab = machines
        sent: list[str] = []
        for number in range(KILLS):
            sent += [
                laptop.send("builder", f"{number}.{each}", sender="architect")["eventId"]
                for each in range(where.randint(1, 3))
            ]
            victim = where.choice(machines)
            time.sleep(where.random() * 0.2)
            victim.gateway.end(signal.SIGKILL)
            victim.start()
        eventually(lambda: all(_is_over(laptop, lab, event_id) for event_id in sent), patience_seconds=180)
        counted = lab.counted()
        assert len(counted) == len(set(counted)), "an agent was engaged twice"
        assert set(counted) <= set(sent)
        for event_id in set(sent) - set(counted):
            assert _is_unclear(lab, event_id), f"{event_id} vanished: {laptop.states(event_id)}"


def _is_over(laptop: Machine, lab: Machine, event_id: str) -> bool:
    return laptop.states(event_id)[0] in ("Processed", "Replied") or _is_unclear(lab, event_id)


def _is_unclear(lab: Machine, event_id: str) -> bool:
    open_incidents = lab.get("/ansible/incidents?limit=500")
    return any(each["kind"] == "indeterminate" and event_id in each["subject"] for each in open_incidents)
