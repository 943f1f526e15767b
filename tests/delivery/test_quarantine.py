"""The quarantine: told to the operator, shown as far as it can be made out, and read anew by a newer version."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.delivery.quarantine import Quarantine
from agentpost.delivery.reader import Verdict
from agentpost.protocol.codec import Unreadable, encode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import IncidentKind, hint_for
from agentpost.store.values import Acceptance
from agentpost.testing import START_MS, a_message
from tests.delivery.linking import Node, World, a_batch
from tests.store.building import refused

STRANGE = encode_event(a_message(2, seq=2)).replace(b"message", b"massage", 1)


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path if request.param == "sqlite" else None)
    await world.add("node-a", "ada")
    await world.add("node-b", "bob")
    yield world
    await world.close()


def quarantine_of(node: Node) -> Quarantine:
    return Quarantine(store=node.store, clock=node.world.clock, take_again=node.hub.intake.take_again)


async def take(world: World, *events: bytes, after_seq: int = 0) -> None:
    reader = world.nodes["node-b"].hub.reader("node-a", is_whole=False)
    cursor = reader.position()
    chain = bytes(32) if cursor is None else cursor.last_chain
    batch = a_batch(world, "node-a", "node-b", list(events), after_seq=after_seq, chain=chain)
    assert await reader.take(batch, is_direct=True) is Verdict.TAKEN


@pytest.mark.req("ENV-6")
async def test_events_of_a_newer_version_are_an_incident_that_says_to_upgrade(world: World) -> None:
    """The incident names the source, the reason and the next step; a second such event is the same story."""
    b = world.nodes["node-b"]
    await take(world, encode_event(a_message(1, seq=1)), STRANGE)
    (incident,) = b.store.incidents()
    assert (incident.kind, incident.subject) == ("unknown_event_kind", "node-a")
    assert incident.detail["eventId"] == a_message(2).event_id
    assert "massage" in str(incident.detail["reason"])
    assert "Upgrade this gateway" in hint_for(incident.kind, subject=incident.subject)
    await take(world, STRANGE, after_seq=2)
    assert len(b.store.incidents()) == 1


@pytest.mark.req("ENV-6")
async def test_rubbish_is_an_incident_of_its_own(world: World) -> None:
    """Bytes that are no event say something else about their sender than an unknown kind does."""
    b = world.nodes["node-b"]
    await take(world, b"\xc1 rubbish", STRANGE)
    assert sorted(b.incidents()) == ["malformed_events", "unknown_event_kind"]
    assert "repair node-a" in hint_for("malformed_events", subject="node-a")


@pytest.mark.req("ENV-6")
async def test_what_can_be_made_out_of_an_event_is_shown(world: World) -> None:
    """The fields of one that is well-formed, the first bytes of one that is not; what is not there is refused."""
    await take(world, STRANGE, b"\xc1 rubbish")
    quarantine = quarantine_of(world.nodes["node-b"])
    strange, rubbish = quarantine.list()
    shown = quarantine.show(strange.id)
    assert shown.fields is not None
    assert (shown.fields["kind"], shown.fields["sourceAgentId"]) == ("massage", "ada")
    assert (quarantine.show(rubbish.id).fields, quarantine.show(rubbish.id).begins) == (None, "wSBydWJiaXNo")
    assert [source.source_node_id for source in quarantine.sources()] == ["node-a"]
    with refused(Code.NOT_FOUND):
        quarantine.show(99)


@pytest.mark.req("ENV-6", "RTY-3")
async def test_a_newer_version_takes_what_it_can_read(world: World) -> None:
    """After an upgrade the mail reaches its agent, once, and is acknowledged; the rest stays; incidents close."""
    b = world.nodes["node-b"]
    mail, newer = a_message(1, seq=1), Refusal(Code.UNKNOWN_KIND, "kind 'message' is not one that this protocol knows")
    # As an older version kept it.
    await b.store.accept(
        Acceptance(
            source_node_id="node-a",
            source_epoch="epoch_1",
            after_seq=0,
            through_seq=1,
            unreadable=(Unreadable(raw=encode_event(mail), refusal=newer, seq=1, event_id=mail.event_id),),
            at_ms=START_MS,
        )
    )
    await b.hub.intake.report(IncidentKind.UNKNOWN_EVENT_KIND, "node-a")
    quarantine = quarantine_of(b)
    assert await quarantine.read_anew() == 1
    assert b.inbox("bob") == [mail.event_id]
    assert b.store.head().seq == 1
    assert "bob" in b.woken
    assert (b.store.quarantined(), b.incidents()) == ([], [])
    assert await quarantine.read_anew() == 0
    assert b.inbox("bob") == [mail.event_id]


@pytest.mark.req("ENV-6")
async def test_what_this_version_cannot_read_either_stays(world: World) -> None:
    """Reading anew takes nothing then, and the incident stays open, until the events are pruned."""
    b = world.nodes["node-b"]
    await take(world, STRANGE)
    quarantine = quarantine_of(b)
    assert await quarantine.read_anew() == 0
    assert b.incidents() == ["unknown_event_kind"]
    await b.store.prune_records(now_ms=0, before_ms=world.clock.now_ms() + 1)
    await quarantine.close_incidents()
    assert b.incidents() == []
