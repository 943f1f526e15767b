"""What is past its time is not given to an agent, and does not vanish either."""

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import DeadLetterEvent, is_expired
from agentpost.protocol.errors import Code
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.payloads import DeadLetter, Kind
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.store.values import LedgerState, Outcome, Settlement
from agentpost.testing import START_MS, a_message, an_event_id
from tests.store.building import NODE, a_batch, a_change, deliveries_of, from_peer, incoming, refused

EXPIRES_MS = START_MS + 60_000
MORTAL = replace(from_peer(1), expires_at=format_ms(EXPIRES_MS))


def dead_letter() -> DeadLetterEvent:
    return DeadLetterEvent(
        event_id=an_event_id("dead letter"),
        source_node_id=NODE,
        source_agent_id="ada",
        corr_id=MORTAL.corr_id,
        created_at=format_ms(EXPIRES_MS),
        payload=DeadLetter(
            ref_event_id=MORTAL.event_id,
            ref_kind=Kind.MESSAGE,
            to_agent_id="ada",
            reason="expired",
            attempts=0,
            dead_lettered_at=format_ms(EXPIRES_MS),
        ),
    )


@pytest.mark.req("ENV-7")
def test_an_event_expires_at_its_time_and_not_before() -> None:
    """The last millisecond before `expiresAt` is in time; an event without one never expires."""
    assert not is_expired(MORTAL, now_ms=EXPIRES_MS - 1)
    assert is_expired(MORTAL, now_ms=EXPIRES_MS)
    assert not is_expired(from_peer(1), now_ms=2**52)


@pytest.mark.req("ENV-7")
async def test_an_expired_event_is_not_engaged(store: Store) -> None:
    """An agent does not get what is past its time, however often it is tried, and no attempt is counted."""
    await store.accept(a_batch(incoming(MORTAL)))
    with refused(Code.EXPIRED):
        await store.engage(MORTAL.event_id, "ada", at_ms=EXPIRES_MS)
    entry = store.ledger_entry(MORTAL.event_id, "ada")
    assert entry is not None
    assert (entry.state, entry.attempts) == (LedgerState.QUEUED, 0)


@pytest.mark.req("ENV-7")
async def test_what_expired_and_is_with_nobody_is_found(store: Store) -> None:
    """At its time and not before; neither what an agent has, nor what has its outcome, nor what never expires."""
    await store.accept(a_batch(incoming(MORTAL, "ada", "eve"), incoming(from_peer(2))))
    assert store.expired_mail(now_ms=EXPIRES_MS - 1) == []
    found = store.expired_mail(now_ms=EXPIRES_MS)
    assert [(each.entry.event_id, each.entry.to_agent_id) for each in found] == [
        (MORTAL.event_id, "ada"),
        (MORTAL.event_id, "eve"),
    ]
    assert found[0] == store.inbox_item(MORTAL.event_id, "ada")
    await store.engage(MORTAL.event_id, "ada", at_ms=START_MS)
    assert [each.entry.to_agent_id for each in store.expired_mail(now_ms=EXPIRES_MS)] == ["eve"]
    await store.postpone(MORTAL.event_id, "ada", due_at_ms=EXPIRES_MS, error="busy")
    assert [each.entry.to_agent_id for each in store.expired_mail(now_ms=EXPIRES_MS, limit=1)] == ["ada"]
    for agent_id in ("ada", "eve"):
        settlement = Settlement(
            event_id=MORTAL.event_id, to_agent_id=agent_id, outcome=Outcome.EXPIRED, at_ms=EXPIRES_MS, events=()
        )
        assert await store.settle(settlement)
    assert store.expired_mail(now_ms=EXPIRES_MS) == []


@pytest.mark.req("ENV-7")
async def test_an_event_that_is_still_in_time_is_engaged(store: Store) -> None:
    """An expiry in the future keeps nobody from working."""
    await store.accept(a_batch(incoming(MORTAL)))
    assert await store.engage(MORTAL.event_id, "ada", at_ms=EXPIRES_MS - 1) == 1


@pytest.mark.req("ENV-7")
async def test_an_expired_event_ends_as_a_dead_letter(store: Store) -> None:
    """The receiver closes it with the outcome expired, and a dead letter with that reason stands in its outbox."""
    await store.accept(a_batch(incoming(MORTAL)))
    settlement = Settlement(
        event_id=MORTAL.event_id,
        to_agent_id="ada",
        outcome=Outcome.EXPIRED,
        at_ms=EXPIRES_MS,
        events=(dead_letter(),),
    )
    assert await store.settle(settlement)
    assert store.backlog("ada") == []
    last = decode_event(store.read_outbox(0).events[-1].raw)
    assert isinstance(last, DeadLetterEvent)
    assert last.payload.reason == "expired"


@pytest.mark.req("ENV-7", "RTY-6")
@pytest.mark.parametrize("before", [(), (DeliverySignal.ACK_TIMEOUT,)])
async def test_the_sender_closes_what_expired_unaccepted(store: Store, before: tuple[DeliverySignal, ...]) -> None:
    """An event that nobody accepted in time is a dead letter for its sender, whether or not a resend was waiting."""
    event = a_message(1, expires_at_ms=EXPIRES_MS)
    await store.append([event], deliveries=deliveries_of(event, "bob", due_at_ms=EXPIRES_MS))
    changes = [a_change(event, signal) for signal in (*before, DeliverySignal.EXPIRED)]
    await store.append([], changes=[*changes[:-1], replace(changes[-1], reason="expired")])
    (delivery,) = store.deliveries_of(event.event_id)
    assert (delivery.state, delivery.reason, delivery.due_at_ms) == (DeliveryState.DEAD_LETTER, "expired", None)
