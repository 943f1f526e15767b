"""A machine stands still for ten seconds, as a laptop that is closed and opened: sender, receiver and seed in turn."""

import os
import time
from collections.abc import Iterator

import pytest

from tests.processes.machines import FaultyMachine, eventually, faulty_mesh, is_over

pytestmark = pytest.mark.waits

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
# Twice as long as silence has to last here before a link is given up.
PAUSE_SECONDS = 10

Machines = tuple[FaultyMachine, ...]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with faulty_mesh(tmp_path_factory.mktemp("pauses"), "mbp-jane", "lab-jane") as machines:
        machines[2].add_counting_agent("builder")
        eventually(lambda: machines[1].knows("builder"))
        yield machines


@pytest.mark.req("RTY-3", "CUR-1", "RTY-5")
@pytest.mark.parametrize("who", ["seed", "sender", "receiver"])
def test_a_machine_that_stood_still_goes_on_where_it_was(machines: Machines, who: str) -> None:
    """What was under way before the pause, and what was sent during it, is processed once each, in order."""
    _, sender, receiver = machines
    paused = dict(zip(("seed", "sender", "receiver"), machines, strict=True))[who]
    sent: list[str] = []

    def send(what: str) -> None:
        sent.extend(sender.send("builder", f"{what} {each}", sender="architect")["eventId"] for each in range(4))

    for number in range(1 + (ROUNDS > 1) * 5):
        send(f"before {number}")
        paused.pause()
        try:
            if paused is not sender:
                send(f"meanwhile {number}")
            time.sleep(PAUSE_SECONDS)  # the fault itself, not a wait for something
        finally:
            paused.go_on()
        send(f"after {number}")
    eventually(lambda: all(is_over(sender, each) for each in sent))
    assert [each for each in receiver.counted() if each in set(sent)] == sent
    assert sender.get("/ansible/dead-letters") == []
