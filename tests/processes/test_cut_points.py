"""Processes that kill themselves at named points: a handful of those that tests/faults/test_lives.py has all of."""

import contextlib
import os
from collections.abc import Iterator

import pytest

from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import corr_id_of
from agentpost.testing import an_event_id
from tests.processes.machines import FaultyMachine, eventually, faulty_mesh, is_over, is_unclear

IN_LONG = pytest.mark.skipif("AGENTPOST_TEST_ROUNDS" not in os.environ, reason="`make test-long` runs it")
POINTS = [
    ("sender", "commit:append:after"),
    ("receiver", "commit:accept:after"),
    ("receiver", "commit:settle:before"),
    pytest.param("sender", "commit:append:before", marks=IN_LONG),
    pytest.param("sender", "send:events:before", marks=IN_LONG),
    pytest.param("sender", "send:events:after", marks=IN_LONG),
    pytest.param("sender", "commit:accept:before", marks=IN_LONG),
    pytest.param("seed", "send:events:before", marks=IN_LONG),
    pytest.param("seed", "send:events:after", marks=IN_LONG),
    pytest.param("receiver", "commit:accept:before", marks=IN_LONG),
    pytest.param("receiver", "commit:engage:before", marks=IN_LONG),
    pytest.param("receiver", "commit:engage:after", marks=IN_LONG),
    pytest.param("receiver", "commit:settle:after", marks=IN_LONG),
]
# Between engaging a program and writing its outcome: nobody can know whether it did the work.
UNCLEAR_AFTER = {"commit:engage:after", "commit:settle:before"}

Machines = tuple[FaultyMachine, ...]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with faulty_mesh(tmp_path_factory.mktemp("points"), "mbp-jane", "lab-jane") as machines:
        machines[2].add_counting_agent("builder")
        eventually(lambda: machines[1].knows("builder"))
        yield machines


@pytest.mark.long
@pytest.mark.req("CUR-2", "RTY-3", "PIPE-3")
@pytest.mark.parametrize(("who", "point"), POINTS)
def test_a_process_that_dies_at_a_named_point_loses_and_doubles_nothing(
    machines: Machines, who: str, point: str
) -> None:
    """The gateway is gone between two steps, comes back, and the agent has had the message once, or it is unclear."""
    _, sender, receiver = machines
    dying = dict(zip(("seed", "sender", "receiver"), machines, strict=True))[who]
    dying.kill()
    dying.start(die_at=point)
    # A conversation of its own, by which it is found whatever its sender was told.
    corr_id = corr_id_of(an_event_id(who, point))
    with contextlib.suppress(Refusal):
        sender.send("builder", point, sender="architect", corrId=corr_id)
    eventually(dying.has_died)
    dying.start()
    sent = _sent(sender, corr_id) or [sender.send("builder", point, sender="architect", corrId=corr_id)["eventId"]]
    (event_id,) = sent
    eventually(lambda: is_over(sender, event_id) or is_unclear(receiver, event_id))
    if is_over(sender, event_id):
        assert receiver.counted().count(event_id) == 1
    else:
        assert point in UNCLEAR_AFTER
        assert receiver.counted().count(event_id) == (point == "commit:settle:before")


def _sent(sender: FaultyMachine, corr_id: str) -> list[str]:
    """The message that a person finds after the crash; nothing, if it was not durable."""
    try:
        steps = sender.get(f"/ansible/trace/{corr_id}")["steps"]
    except Refusal:
        return []
    return sorted({step["eventId"] for step in steps if step["what"] == "emitted" and step.get("kind") == "message"})
