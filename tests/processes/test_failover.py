"""An owner falls silent at every stage of a message, with a stand-in that waits: nobody is engaged twice unseen."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentpost.protocol.errors import Refusal
from tests.processes.machines import FaultyMachine, eventually, faulty_mesh, is_over
from tests.processes.proxy import UP

pytestmark = pytest.mark.waits


class Failover:
    """`builder` lives at the owner, and the stand-in has been named for it; both count. The sender is a laptop."""

    def __init__(self, sender: FaultyMachine, owner: FaultyMachine, stand_in: FaultyMachine) -> None:
        self.sender = sender
        self.owner = owner
        self.stand_in = stand_in
        owner.add_counting_agent("builder")
        self.name_stand_in("wait")
        eventually(lambda: self._stand_in_takes_builder())
        eventually(lambda: sender.sees("builder", online=True))

    def name_stand_in(self, failover: str) -> None:
        said = {"nodeIds": [self.stand_in.node], "failover": failover}
        self.owner.post("/ansible/agents/builder/stand-ins", said)
        # The sender has heard of it once it has heard of what was said after it.
        marker = f"told-{failover}"
        self.owner.add_agent(marker)
        eventually(lambda: self.sender.knows(marker))

    def _stand_in_takes_builder(self) -> bool:
        # The room says who may; until it has come, the agent is refused.
        try:
            self.stand_in.add_counting_agent("builder")
        except Refusal:
            return False
        return True

    def send_to_owner(self, text: str, *directions: str) -> str:
        """A message for the owner, which was cut off right before: as far as the sender knows, it is there."""
        while True:
            self.owner_is(online=True)
            self.owner.proxy.hold(*directions)
            sent = self.sender.send("builder", text, sender="architect")
            if sent["recipients"][0]["nodeId"] == self.owner.node:
                return sent["eventId"]
            # This machine was so slow that the owner had been missed by then. That is another test.
            self.owner.proxy.release()
            eventually(lambda sent=sent: is_over(self.sender, sent["eventId"]))

    def send_to_a_stand_in_that_cannot_answer(self, text: str) -> str:
        """A message that the stand-in has on its disk and done, and cannot say so: what it sends is held."""
        while True:
            self.stand_in.proxy.hold(UP)
            event_id = self.sender.send("builder", text, sender="architect")["eventId"]
            with suppress(AssertionError):
                eventually(lambda event_id=event_id: self.counts(event_id) == (0, 1), patience_seconds=15)
                return event_id
            # This machine was so slow that the silent link was given up before the message was on it. Once more.
            self.stand_in.proxy.release()
            eventually(lambda event_id=event_id: is_over(self.sender, event_id))

    def counts(self, event_id: str) -> tuple[int, int]:
        """How often the agent was engaged with it, at its owner and at the stand-in."""
        return self.owner.counted().count(event_id), self.stand_in.counted().count(event_id)

    def owner_is(self, *, online: bool) -> None:
        eventually(lambda: self.sender.sees("builder", online=online))

    def wait_in_doubt(self, event_id: str) -> None:
        """The sender has said that nobody can know, and nobody else was given the message."""
        eventually(lambda: self.owner.node in self.sender.incidents("owner_silent"))
        assert self.sender.delivery(event_id)["toNodeId"] == self.owner.node
        assert self.counts(event_id)[1] == 0

    def ends_once_at_the_owner(self, event_id: str) -> None:
        eventually(lambda: is_over(self.sender, event_id))
        assert self.counts(event_id) == (1, 0)


@pytest.fixture(scope="module")
def failover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failover]:
    # One mesh for all: each test leaves it healed, and counts only its own messages.
    folder: Path = tmp_path_factory.mktemp("failover")
    with faulty_mesh(folder, "mbp-jane", "lab-one", "lab-two") as (_, sender, owner, stand_in):
        yield Failover(sender, owner, stand_in)


@pytest.fixture(autouse=True)
def healed(failover: Failover) -> Iterator[None]:
    # A test that fails in the middle fails alone.
    yield
    failover.owner.proxy.release()
    failover.stand_in.proxy.release()


@pytest.mark.req("ROUTE-2")
def test_an_owner_that_is_cut_off_before_it_has_a_message_gets_it_later(failover: Failover) -> None:
    """The owner is partitioned before the message reaches it: the mesh waits, says so, and the owner gets it once."""
    event_id = failover.send_to_owner("before")
    failover.wait_in_doubt(event_id)
    assert failover.counts(event_id) == (0, 0)
    failover.owner.proxy.release()
    failover.ends_once_at_the_owner(event_id)
    eventually(lambda: failover.sender.incidents("owner_silent") == [])


@pytest.mark.req("ROUTE-2", "CUR-2")
def test_an_owner_that_dies_after_accepting_keeps_the_message(failover: Failover) -> None:
    """The owner accepts, its word is lost with it before the agent is engaged, and it does the work when it is back."""
    failover.owner.post("/ansible/agents/builder/pause")
    event_id = failover.send_to_owner("accepted", UP)
    eventually(lambda: failover.owner.get("/ansible/agents")[0]["waiting"] == 1)
    failover.owner.kill()
    failover.wait_in_doubt(event_id)
    failover.owner.proxy.cut()
    failover.owner.proxy.release()
    failover.owner.start()
    failover.owner.post("/ansible/agents/builder/resume")
    failover.ends_once_at_the_owner(event_id)


@pytest.mark.req("ROUTE-2", "RTY-3", "ACK-2")
@pytest.mark.parametrize("dies", [False, True], ids=["partitioned", "killed"])
def test_what_was_processed_and_not_said_is_not_done_again(failover: Failover, dies: bool) -> None:
    """The agent has done it and the acknowledgement is stuck behind a link that loses one direction."""
    event_id = failover.send_to_owner("processed", UP)
    eventually(lambda: failover.counts(event_id) == (1, 0))
    eventually(lambda: failover.owner.get("/ansible/agents")[0]["waiting"] == 0)
    if dies:
        failover.owner.kill()
    failover.wait_in_doubt(event_id)
    if dies:
        failover.owner.proxy.cut()
        failover.owner.start()
    failover.owner.proxy.release()
    failover.ends_once_at_the_owner(event_id)


@pytest.mark.req("ROUTE-2")
def test_what_is_sent_while_the_owner_is_silent_is_the_stand_ins_alone(failover: Failover) -> None:
    """The stand-in engages the agent; the owner, back from its partition, never does, whatever the stand-in said."""
    failover.owner_is(online=True)
    failover.owner.proxy.hold()
    failover.owner_is(online=False)
    sent = [failover.sender.send("builder", f"silent {each}", sender="architect") for each in range(3)]
    assert {each["recipients"][0]["decision"] for each in sent} == {"fallback"}
    ids = [each["eventId"] for each in sent]
    eventually(lambda: all(failover.counts(each) == (0, 1) for each in ids))
    ids.append(failover.send_to_a_stand_in_that_cannot_answer("silent, unsaid"))
    failover.owner.proxy.release()
    failover.owner_is(online=True)
    eventually(lambda: failover.stand_in.node in failover.sender.incidents("owner_silent"))
    failover.stand_in.proxy.release()
    eventually(lambda: all(is_over(failover.sender, each) for each in ids))
    assert [failover.counts(each) for each in ids] == [(0, 1)] * len(ids)


@pytest.mark.req("ROUTE-2")
def test_an_agent_that_may_be_engaged_twice_does_not_wait_for_its_owner(failover: Failover) -> None:
    """With `failover: at_least_once` the stand-in gets what the silent owner may have: never lost, perhaps twice."""
    failover.owner_is(online=True)
    failover.name_stand_in("at_least_once")
    event_id = failover.send_to_owner("at least once")
    eventually(lambda: is_over(failover.sender, event_id))
    assert failover.counts(event_id) == (0, 1)
    failover.owner.proxy.release()
    failover.owner_is(online=True)
    # The owner still has it in its stream. That is the risk that the agent's owner has chosen.
    eventually(lambda: failover.counts(event_id) == (1, 1))
    failover.name_stand_in("wait")
