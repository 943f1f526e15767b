"""Dispatch: each event reaches its agent once, in order, whatever happens in between."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.protocol.backoff import RetryPolicy
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import AckType, Kind
from agentpost.store.values import Outcome
from agentpost.testing import START_MS, a_reply
from tests.delivery.dispatching import (
    AGAIN,
    DONE,
    EXACT,
    NEVER,
    NODE,
    PEER,
    Gateway,
    Scripted,
    is_postponed,
    replied,
    turn_the_loop,
    until,
)

# One message


@pytest.mark.req("ACK-1", "ACK-2", "ROUTE-10")
async def test_a_message_reaches_its_agent_and_the_sender_gets_reply_and_ack(gateway: Gateway) -> None:
    """The agent's answer, `processed` and the closed ledger row are one transaction, the reply first."""
    ada = Scripted(lambda engagement: replied("yes"))
    await gateway.hire("ada", ada)
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    gateway.clock.advance(1)
    await gateway.settled(event)

    (engagement,) = ada.engaged
    assert engagement.content == Content(body="bob 1")
    assert (engagement.from_agent_id, engagement.from_node_id, engagement.attempt) == ("bob", PEER, 1)
    accepted, reply, processed = gateway.outbox()
    assert accepted.kind is Kind.ACK
    assert (reply,) == tuple(gateway.replies(event))
    assert gateway.sealer_of(PEER).open(reply) == Content(body="yes")
    assert reply.corr_id == event.corr_id
    (ack,) = gateway.outcomes(event)
    assert ack.event_id == processed.event_id
    assert ack.payload.ack_type is AckType.PROCESSED
    assert (ack.payload.ref_kind, ack.payload.acked_by_node_id, ack.payload.acked_by_agent_id) == (
        Kind.MESSAGE,
        NODE,
        "ada",
    )
    (delivery,) = gateway.store.deliveries_of(reply.event_id)
    assert (delivery.to_agent_id, delivery.state) == ("bob", DeliveryState.EMITTED)

    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert entry.outcome is Outcome.PROCESSED
    assert entry.accepted_at_ms == START_MS
    assert entry.engaged_at_ms is not None
    assert entry.settled_at_ms is not None


@pytest.mark.req("OPS-6")
async def test_a_message_that_was_delivered_is_not_read_thereby(gateway: Gateway) -> None:
    """Delivered and read are two facts: an agent's turn marks nothing as read."""
    await gateway.hire("ada", Scripted())
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(event)
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert (entry.attempts, entry.read_at_ms) == (1, None)


@pytest.mark.req("ACK-1")
async def test_an_agent_that_refuses_a_message_tells_its_sender_why(gateway: Gateway) -> None:
    """`failed_terminal` has a word in the clear, and the error itself sealed for the sender."""
    await gateway.hire("ada", Scripted(lambda engagement: NEVER))
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(event)
    (ack,) = gateway.outcomes(event)
    assert ack.payload.ack_type is AckType.FAILED_TERMINAL
    assert ack.payload.reason == "failed"
    assert ack.payload.error_summary is None
    assert gateway.sealer_of(PEER).open(ack).error_summary == "not for me"


async def test_a_reply_is_mail_for_the_agent_that_asked(gateway: Gateway) -> None:
    """The asker is engaged with the answer and is told what it answers; what it says then goes nowhere."""
    ada = Scripted(lambda engagement: replied("thanks"))
    await gateway.hire("ada", ada)
    gateway.start()
    asked = replace(gateway.message(1), source_node_id=NODE, source_agent_id="ada")
    answer = replace(a_reply(asked, body="yes", by_agent_id="bob", by_node_id=PEER), to_nodes=(NODE,))
    (event,) = await gateway.arrive(answer)
    await gateway.settled(event)
    (engagement,) = ada.engaged
    assert (engagement.kind, engagement.ref_event_id) == (Kind.REPLY, asked.event_id)
    assert engagement.content.body == "yes"
    assert gateway.replies(event) == []
    assert [ack.payload.ack_type for ack in gateway.outcomes(event)] == [AckType.PROCESSED]


async def test_nobody_answers_the_postmaster(gateway: Gateway) -> None:
    """A report of a message that did not arrive needs no answer, and gets none."""
    await gateway.hire("ada", Scripted(lambda engagement: replied("oh")))
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1, sender=POSTMASTER))
    await gateway.settled(event)
    assert gateway.replies(event) == []


async def test_a_reply_that_cannot_be_sent_does_not_undo_the_turn(gateway: Gateway) -> None:
    """The sender has left the mesh: the turn is over, and an operator sees that its answer went nowhere."""
    await gateway.hire("ada", Scripted(lambda engagement: replied("yes")))
    (event,) = await gateway.arrive(gateway.message(1))
    gateway.room.revoke(PEER)
    gateway.start()
    await gateway.settled(event)
    assert gateway.replies(event) == []
    assert [ack.payload.ack_type for ack in gateway.outcomes(event)] == [AckType.PROCESSED]
    assert [incident.kind for incident in gateway.store.incidents()] == ["reply_refused"]


# Retries


@pytest.mark.req("RTY-4")
async def test_a_message_is_tried_again_after_the_waits_of_the_policy(gateway: Gateway) -> None:
    """A runtime that does not take a message gets it again, each time later, until it does."""
    answers = [AGAIN, AGAIN, DONE]
    ada = Scripted(lambda engagement: answers[engagement.attempt - 1])
    await gateway.hire("ada", ada)
    gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1))
    for attempt, wait_ms in ((1, 2_000), (2, 4_000)):
        await until(lambda attempt=attempt: is_postponed(gateway, event.event_id, attempt))
        entry = gateway.store.ledger_entry(event.event_id, "ada")
        assert entry is not None
        assert (entry.due_at_ms, entry.error) == (gateway.clock.now_ms() + wait_ms, "busy")
        assert entry.read_at_ms is None
        gateway.pass_time(wait_ms - 1)
        await turn_the_loop()
        assert len(ada.engaged) == attempt
        gateway.pass_time(1)
    await gateway.settled(event)
    assert [engagement.attempt for engagement in ada.engaged] == [1, 2, 3]
    assert [ack.payload.ack_type for ack in gateway.outcomes(event)] == [AckType.PROCESSED]


@pytest.mark.req("RTY-4")
async def test_a_message_that_will_not_go_ends_with_the_last_error(gateway: Gateway) -> None:
    """After the last attempt the sender hears `failed_terminal`, and what went wrong last."""
    ada = Scripted(lambda engagement: Result(kind=ResultKind.RETRY, error=f"error {engagement.attempt}"))
    await gateway.hire("ada", ada)
    gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1))
    for attempt in (1, 2):
        await until(lambda attempt=attempt: is_postponed(gateway, event.event_id, attempt))
        gateway.pass_time(4_000)
    await gateway.settled(event)
    assert len(ada.engaged) == 3
    (ack,) = gateway.outcomes(event)
    assert (ack.payload.ack_type, ack.payload.reason) == (AckType.FAILED_TERMINAL, "max_attempts")
    assert gateway.sealer_of(PEER).open(ack).error_summary == "error 3"
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert (entry.outcome, entry.error) == (Outcome.FAILED_TERMINAL, "error 3")


@pytest.mark.req("RTY-4")
async def test_a_runtime_that_raises_is_an_attempt_that_failed(gateway: Gateway) -> None:
    """A runtime that breaks its promise costs an attempt and nothing else."""

    def breaks(engagement: Engagement) -> Result:
        if engagement.attempt == 1:
            raise RuntimeError("out of order")
        return DONE

    await gateway.hire("ada", Scripted(breaks))
    gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: is_postponed(gateway, event.event_id, 1))
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert entry.error == "RuntimeError: out of order"
    gateway.pass_time(2_000)
    await gateway.settled(event)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def raises(error: Exception) -> Callable[[Engagement], Result]:
    def script(_: Engagement) -> Result:
        raise error

    return script


HALF = "cannot read caf\udce9.txt"
UNTELLABLE: dict[str, Callable[[Engagement], Result]] = {
    "raises half a character": raises(ValueError(HALF)),
    "raises what cannot be printed": raises(UnprintableError()),
    "asks for another try with half a character": lambda _: Result(kind=ResultKind.RETRY, error=HALF),
    "fails with half a character": lambda _: Result(kind=ResultKind.FAILED, error=HALF),
}


@pytest.mark.req("RTY-4")
@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize("how", UNTELLABLE)
async def test_an_error_that_cannot_be_told_is_an_error_all_the_same(
    gateway: Gateway, how: str, is_idempotent: bool
) -> None:
    """Whatever a runtime says of its failure, the message ends, and the next one of its sender comes after it."""

    def script(engagement: Engagement) -> Result:
        return UNTELLABLE[how](engagement) if engagement.content.body == "bob 1" else DONE

    await gateway.hire("ada", Scripted(script, is_idempotent=is_idempotent))
    gateway.start(policy=replace(EXACT, max_attempts=1))
    first, second = await gateway.arrive(gateway.message(1), gateway.message(2))
    await gateway.settled(first, second)
    entry = gateway.store.ledger_entry(first.event_id, "ada")
    assert entry is not None
    assert entry.outcome is Outcome.FAILED_TERMINAL
    assert entry.error in ("ValueError: cannot read caf?.txt", "UnprintableError", "cannot read caf?.txt")


@pytest.mark.req("RTY-4")
async def test_what_a_runtime_asks_for_is_the_least_wait(gateway: Gateway) -> None:
    """A runtime that says when it can be asked again is not asked before."""
    busy = Result(kind=ResultKind.RETRY, error="busy", retry_after_seconds=60)
    await gateway.hire("ada", Scripted(lambda engagement: busy))
    gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: is_postponed(gateway, event.event_id, 1))
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert entry.due_at_ms == gateway.clock.now_ms() + 60_000


@pytest.mark.req("RTY-4")
async def test_a_retry_happens_by_itself_when_its_time_has_come(gateway: Gateway) -> None:
    """Nobody has to wake a worker for a retry: it has a timer."""
    answers = [AGAIN, DONE]
    await gateway.hire("ada", Scripted(lambda engagement: answers[engagement.attempt - 1]))
    real_time = RetryPolicy(base_seconds=0.01, factor=1, max_delay_seconds=0.01, max_attempts=2)
    gateway.start(policy=real_time)
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: is_postponed(gateway, event.event_id, 1))
    gateway.clock.advance(10)
    await gateway.settled(event)


# Order and neighbours


@pytest.mark.req("RTY-5")
async def test_the_backlog_comes_first_and_oldest_first(gateway: Gateway) -> None:
    """A dispatcher that starts works off all that waits, in the order in which it came, and then what is new."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    waiting = await gateway.arrive(*(gateway.message(number) for number in range(1, 601)))
    gateway.start()
    new = await gateway.arrive(gateway.message(601), gateway.message(602))
    await gateway.settled(*waiting, *new)
    assert ada.bodies == [f"bob {number}" for number in range(1, 603)]
    assert ada.most_at_once == 1


async def test_a_retry_holds_back_its_sender_and_nobody_else(gateway: Gateway) -> None:
    """While a message waits, what its sender said after it waits too, and other senders go on."""
    ada = Scripted(lambda engagement: AGAIN if engagement.content.body == "bob 1" and engagement.attempt == 1 else DONE)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(
        gateway.message(1), gateway.message(2), gateway.message(3, sender="eve"), gateway.message(4, sender="eve")
    )
    gateway.start(policy=EXACT)
    await gateway.settled(*events[2:])
    assert ada.bodies == ["bob 1", "eve 3", "eve 4"]
    gateway.pass_time(2_000)
    await gateway.settled(*events)
    assert ada.bodies == ["bob 1", "eve 3", "eve 4", "bob 1", "bob 2"]


async def test_a_hanging_agent_holds_back_nobody_else(gateway: Gateway) -> None:
    """An agent that never comes back costs its own mail time, and no other agent's."""
    stuck = asyncio.Event()

    async def hang() -> Result:
        await stuck.wait()
        return DONE

    ada, eve = Scripted(lambda engagement: hang()), Scripted()
    await gateway.hire("ada", ada)
    await gateway.hire("eve", eve)
    gateway.start()
    events = await gateway.arrive(*(gateway.message(number, to=("ada", "eve")) for number in range(1, 21)))
    await gateway.settled(*events, agent_id="eve")
    assert len(ada.engaged) == 1
    stuck.set()
    await gateway.settled(*events)


async def test_an_agent_that_takes_several_at_once_gets_them(gateway: Gateway) -> None:
    """As many as the runtime takes are with the agent together, never more, and a slow one blocks one place."""
    released = asyncio.Event()

    async def slowly() -> Result:
        await released.wait()
        return DONE

    ada = Scripted(lambda engagement: slowly() if engagement.content.body == "bob 1" else DONE, max_concurrent=8)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 301)))
    gateway.start()
    await gateway.settled(*events[1:])
    assert not gateway.is_settled(events[0])
    released.set()
    await gateway.settled(*events)
    assert ada.most_at_once <= 8
    assert set(ada.times().values()) == {1}


async def test_an_event_for_two_agents_has_two_outcomes(gateway: Gateway) -> None:
    """Each recipient has a turn and an end of its own."""
    await gateway.hire("ada", Scripted())
    await gateway.hire("eve", Scripted(lambda engagement: NEVER))
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1, to=("ada", "eve")))
    await gateway.settled(event, agent_id="ada")
    await gateway.settled(event, agent_id="eve")
    assert gateway.outcomes(event, "ada")[0].payload.ack_type is AckType.PROCESSED
    assert gateway.outcomes(event, "eve")[0].payload.ack_type is AckType.FAILED_TERMINAL


async def test_an_event_that_is_accepted_later_for_another_agent_is_found(gateway: Gateway) -> None:
    """A resend may name an agent that was not here at first; its place in the inbox is the old one."""
    eve = Scripted()
    await gateway.hire("eve", eve)
    gateway.start()
    (event, later) = await gateway.arrive(gateway.message(1, to=("ada",)), gateway.message(2, to=("eve",)))
    await gateway.settled(later, agent_id="eve")
    await gateway.arrive(replace(event, payload=replace(event.payload, to_agents=("ada", "eve"))))
    await gateway.settled(event, agent_id="eve")
    assert eve.bodies == ["bob 2", "bob 1"]


@pytest.mark.req("RTY-3")
async def test_an_event_that_comes_twice_is_handed_over_once(gateway: Gateway) -> None:
    """A resend of what the agent had already changes nothing."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(event)
    (_, marker) = await gateway.arrive(gateway.message(1), gateway.message(2))
    await gateway.settled(marker)
    assert ada.bodies == ["bob 1", "bob 2"]
    assert len(gateway.outcomes(event)) == 1


# Mail that no agent gets


@pytest.mark.req("ENV-7")
async def test_an_expired_message_is_never_handed_over(gateway: Gateway) -> None:
    """Mail that waited too long ends as expired, and its sender hears of it."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    expired, good = await gateway.arrive(
        gateway.message(1, expires_at_ms=START_MS + 1_000), gateway.message(2, expires_at_ms=START_MS + 2_000)
    )
    gateway.clock.advance(1_000)
    gateway.start()
    await gateway.settled(expired, good)
    assert ada.bodies == ["bob 2"]
    (ack,) = gateway.outcomes(expired)
    assert (ack.payload.ack_type, ack.payload.reason) == (AckType.FAILED_TERMINAL, "expired")
    entry = gateway.store.ledger_entry(expired.event_id, "ada")
    assert entry is not None
    assert (entry.outcome, entry.attempts) == (Outcome.EXPIRED, 0)


@pytest.mark.req("ENV-7")
async def test_a_message_that_expires_between_two_attempts_is_not_tried_again(gateway: Gateway) -> None:
    """The expiry counts for every attempt."""
    ada = Scripted(lambda engagement: AGAIN)
    await gateway.hire("ada", ada)
    gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1, expires_at_ms=START_MS + 1_500))
    await until(lambda: is_postponed(gateway, event.event_id, 1))
    gateway.pass_time(2_000)
    await gateway.settled(event)
    assert len(ada.engaged) == 1
    assert [ack.payload.reason for ack in gateway.outcomes(event)] == ["expired"]


async def test_content_that_does_not_open_ends_as_unreadable(gateway: Gateway) -> None:
    """A message that was tampered with is not handed over; sender and operator hear of it."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    gateway.start()
    event = gateway.message(1)
    assert event.payload.sealed is not None
    flipped = bytes(byte ^ 1 for byte in event.payload.sealed.ciphertext)
    event = replace(event, payload=replace(event.payload, sealed=replace(event.payload.sealed, ciphertext=flipped)))
    (event,) = await gateway.arrive(event)
    await gateway.settled(event)
    assert ada.engaged == []
    (ack,) = gateway.outcomes(event)
    assert (ack.payload.ack_type, ack.payload.reason) == (AckType.FAILED_TERMINAL, "unreadable")
    assert [(each.kind, each.subject) for each in gateway.store.incidents()] == [
        ("unreadable", f"{event.event_id}/ada")
    ]


async def test_content_that_is_still_on_its_way_spends_no_attempt(gateway: Gateway) -> None:
    """A message whose blob is missing waits for it, and goes as soon as it is here."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    gateway.start(policy=EXACT)
    large, content = gateway.large_message(1)
    (event,) = await gateway.arrive(large)
    for _ in range(EXACT.max_attempts + 2):
        before = gateway.store.ledger_entry(event.event_id, "ada")
        assert before is not None
        await until(
            lambda before=before: (
                (now := gateway.store.ledger_entry(event.event_id, "ada")) is not None
                and now.due_at_ms > before.due_at_ms
            )
        )
        gateway.pass_time(15_000)
    assert ada.engaged == []

    await gateway.fetch_content(content, "ada")
    await gateway.settled(event)
    assert [(engagement.content.body, engagement.attempt) for engagement in ada.engaged] == [("large", 1)]


@pytest.mark.req("RTY-4")
async def test_a_large_reply_waits_for_room_on_the_disk(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small writes still fit, the payload of the reply does not: the agent is not run again, and its answer is kept."""
    monkeypatch.setattr("agentpost.delivery.worker._WRITE_AGAIN_SECONDS", 0.001)
    ada = Scripted(lambda _: replied("x" * 600_000))
    await gateway.hire("ada", ada)
    put_chunk, refused = gateway.store.put_chunk, 0

    async def full_at_first(*args: Any) -> None:
        nonlocal refused
        refused += 1
        if refused <= 5:
            raise Refusal(Code.STORAGE_FULL, "the disk is full")
        await put_chunk(*args)

    monkeypatch.setattr(gateway.store, "put_chunk", full_at_first)
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(event)
    assert len(ada.engaged) == 1
    assert len(gateway.replies(event)) == 1
    assert gateway.store.incidents() == []
