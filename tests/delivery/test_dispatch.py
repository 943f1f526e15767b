"""Dispatch: each event reaches its agent once, in order, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.delivery.dispatch import Resolution
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.protocol.backoff import RetryPolicy
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import AckType, Kind, PayloadRef
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LedgerState, Outcome
from agentpost.testing import START_MS, MemoryStore, a_reply
from tests.delivery.dispatching import AGAIN, DONE, NEVER, NODE, PEER, Gateway, Scripted, replied, until
from tests.store.building import EPOCH, open_sqlite, refused

EXACT = RetryPolicy(base_seconds=2, factor=2, max_delay_seconds=300, max_attempts=3, jitter_share=0)


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store: Store = open_sqlite(home) if request.param == "sqlite" else MemoryStore(node_id=NODE, epoch=EPOCH)
    yield store
    await store.close()


@pytest.fixture
async def gateway(store: Store) -> AsyncIterator[Gateway]:
    gateway = Gateway(store)
    yield gateway
    await gateway.close()


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
    ref, blob = gateway.sealer_of(PEER).seal_blob(
        b"\x81\xa4body\xa5large", event_id=gateway.message(1).event_id, to_nodes=(NODE,)
    )
    assert isinstance(ref, PayloadRef)
    large = gateway.message(1)
    large = replace(large, payload_ref=ref, payload=replace(large.payload, sealed=None))
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

    await gateway.store.begin_blob(replace(blob.blob, complete=False), at_ms=START_MS)
    for part, chunk in enumerate(blob.chunks):
        await gateway.store.put_chunk(ref.sha256, part, chunk)
    await gateway.store.complete_blob(ref.sha256)
    gateway.wakeups.inbox_grew("ada")
    await gateway.settled(event)
    assert [(engagement.content.body, engagement.attempt) for engagement in ada.engaged] == [("large", 1)]


# Crashes


class CutStore:
    """The store of a process that dies at its n-th write of dispatch: before it is made, or right after."""

    def __init__(self, store: Store, *, at: int, after: bool) -> None:
        self._store = store
        self._left = at
        self._after = after
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("engage", "settle", "postpone"):
            return found

        async def cut(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            left = self._left
            if left > 0 or (left == 0 and self._after):
                result = await found(*args, **kwargs)
                if left > 0:
                    return result
            if left == 0:
                self.died.set()
            return await asyncio.Event().wait()

        return cut


POINTS = [(at, after) for at in range(1, 7) for after in (False, True)]


async def die_and_start_again(gateway: Gateway, *, at: int, after: bool) -> None:
    """Run until the cut, end the process there, and start another one over what is on the disk."""
    cut = CutStore(gateway.store, at=at, after=after)
    first = gateway.start(cut)  # pyright: ignore[reportArgumentType] - a proxy
    await asyncio.wait_for(cut.died.wait(), 30)
    await first.close()
    # The writer finishes what was handed to it before, so that the test knows what is on the disk.
    await gateway.store.append(())
    gateway.start()


@pytest.mark.req("RTY-3", "OPS-3")
@pytest.mark.parametrize(("at", "after"), POINTS)
async def test_a_crash_at_any_point_injects_each_event_exactly_once(gateway: Gateway, at: int, after: bool) -> None:
    """A runtime that knows what it had is asked after a crash: nothing is left out and nothing happens twice."""
    ada = Scripted(lambda engagement: replied("yes"), knows=True)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 5)))
    await die_and_start_again(gateway, at=at, after=after)
    await gateway.settled(*events)
    assert ada.bodies == ["bob 1", "bob 2", "bob 3", "bob 4"]
    for event in events:
        assert len(gateway.outcomes(event)) == 1
        assert len(gateway.replies(event)) == 1
    assert gateway.store.incidents() == []


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize(("at", "after"), POINTS)
async def test_after_a_crash_nothing_is_repeated_that_may_have_happened(gateway: Gateway, at: int, after: bool) -> None:
    """A runtime that cannot say is not given the event again; an operator decides, and the rest goes on."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 5)))
    await die_and_start_again(gateway, at=at, after=after)
    dispatcher = gateway.dispatchers[-1]
    unclear = [entry.event_id for entry in gateway.store.engaged_entries()]
    assert len(unclear) <= 1
    await gateway.settled(*(event for event in events if event.event_id not in unclear))
    await until(lambda: len(gateway.store.incidents()) == len(unclear))
    assert max(ada.times().values()) == 1
    for event_id in unclear:
        assert [item.entry.state for item in gateway.store.inbox_items("ada") if item.entry.event_id == event_id] == [
            LedgerState.ENGAGED
        ]
        (incident,) = gateway.store.incidents()
        assert (incident.kind, incident.subject) == ("indeterminate", f"{event_id}/ada")
        handed_over = ada.times()[event_id]
        await dispatcher.resolve(event_id, "ada", Resolution.RETRY, actor="operator")
        assert gateway.store.incidents() == []
        await gateway.settled(*events)
        assert ada.times()[event_id] == handed_over + 1
    assert all(len(gateway.outcomes(event)) == 1 for event in events)


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize(("at", "after"), POINTS)
async def test_after_a_crash_an_idempotent_runtime_gets_the_event_again(gateway: Gateway, at: int, after: bool) -> None:
    """Who can tell a repeat by its id is handed what is unclear once more, and there is one outcome."""
    ada = Scripted(is_idempotent=True, max_concurrent=2)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 5)))
    await die_and_start_again(gateway, at=at, after=after)
    await gateway.settled(*events)
    assert set(ada.times()) == {event.event_id for event in events}
    assert all(len(gateway.outcomes(event)) == 1 for event in events)
    assert gateway.store.incidents() == []


@pytest.mark.req("RTY-3")
async def test_a_crash_while_the_agent_works_is_unclear_and_can_be_settled(gateway: Gateway) -> None:
    """An operator who knows that the agent had it closes it as processed; it is not handed over again."""
    working = asyncio.Event()

    async def work() -> Result:
        working.set()
        await asyncio.Event().wait()
        return DONE

    ada = Scripted(lambda engagement: work() if engagement.content.body == "bob 1" else DONE)
    await gateway.hire("ada", ada)
    first = gateway.start()
    events = await gateway.arrive(gateway.message(1), gateway.message(2))
    await working.wait()
    with refused(Code.INVALID_TRANSITION):
        await first.resolve(events[0].event_id, "ada", Resolution.RETRY, actor="operator")
    await first.close()
    second = gateway.start()
    await gateway.settled(events[1])
    await second.resolve(events[0].event_id, "ada", Resolution.SETTLE, actor="operator")
    assert ada.bodies == ["bob 1", "bob 2"]
    assert [ack.payload.ack_type for ack in gateway.outcomes(events[0])] == [AckType.PROCESSED]
    with refused(Code.INVALID_TRANSITION):
        await second.resolve(events[0].event_id, "ada", Resolution.SETTLE, actor="operator")
    with refused(Code.NOT_FOUND):
        await second.resolve(events[0].event_id, "eve", Resolution.SETTLE, actor="operator")


@pytest.mark.req("RTY-4")
async def test_a_message_that_ends_the_gateway_each_time_is_given_up(gateway: Gateway) -> None:
    """Attempts that ended in a crash count, so a poisonous message does not keep a gateway from living."""
    started = asyncio.Event()

    async def poison() -> Result:
        started.set()
        await asyncio.Event().wait()
        return DONE

    ada = Scripted(lambda engagement: poison(), is_idempotent=True)
    await gateway.hire("ada", ada)
    (event,) = await gateway.arrive(gateway.message(1))
    for _ in range(EXACT.max_attempts):
        started.clear()
        dispatcher = gateway.start(policy=EXACT)
        await started.wait()
        await dispatcher.close()
    gateway.start(policy=EXACT)
    await gateway.settled(event)
    assert len(ada.engaged) == EXACT.max_attempts
    (ack,) = gateway.outcomes(event)
    assert ack.payload.reason == "max_attempts"


class Spied:
    """A store that notes which of its operations were asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._store, name)


async def until_served(gateway: Gateway, number: int = 1) -> None:
    """Until the dispatcher has read all that there was: what comes next is handed to it."""
    (first,) = await gateway.arrive(gateway.message(number))
    await gateway.settled(first)


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_only_who_may_get_an_event_twice_runs_before_the_attempt_is_recorded(
    gateway: Gateway, is_idempotent: bool
) -> None:
    """The attempt of an idempotent runtime with new mail is written with its outcome, any other one before it runs."""
    states: list[LedgerState] = []

    def look(engagement: Engagement) -> Result:
        entry = gateway.store.ledger_entry(engagement.event_id, "ada")
        assert entry is not None
        states.append(entry.state)
        return DONE

    spied = Spied(gateway.store)
    await gateway.hire("ada", Scripted(look, is_idempotent=is_idempotent))
    gateway.start(spied)  # pyright: ignore[reportArgumentType] - a proxy
    await until_served(gateway)
    spied.asked.clear()
    (event,) = await gateway.arrive(gateway.message(2))
    await gateway.settled(event)
    assert states[-1] is (LedgerState.QUEUED if is_idempotent else LedgerState.ENGAGED)
    assert ("engage" in spied.asked) is not is_idempotent
    assert "backlog" not in spied.asked
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert (entry.attempts, entry.engaged_at_ms) == (1, gateway.clock.now_ms())


async def test_an_attempt_that_lasts_can_be_seen(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an idempotent runtime is busy with an event for a while, the ledger says so, and counts it once."""
    monkeypatch.setattr("agentpost.delivery.worker._NOTE_AFTER_SECONDS", 0.001)
    may_end = asyncio.Event()

    async def work() -> Result:
        await may_end.wait()
        return DONE

    ada = Scripted(lambda engagement: DONE if engagement.content.body == "bob 1" else work(), is_idempotent=True)
    await gateway.hire("ada", ada)
    gateway.start()
    await until_served(gateway)
    (event,) = await gateway.arrive(gateway.message(2))
    await until(lambda: ada.times()[event.event_id])
    gateway.clock.advance(1_000)
    await until(lambda: [each.event_id for each in gateway.store.engaged_entries()] == [event.event_id])
    may_end.set()
    await gateway.settled(event)
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    assert entry is not None
    assert entry.attempts == 1


@pytest.mark.req("RTY-4")
async def test_an_attempt_that_failed_counts_however_it_was_recorded(gateway: Gateway) -> None:
    """An idempotent runtime that fails with new mail has as many attempts as anybody else."""
    ada = Scripted(lambda engagement: DONE if engagement.content.body == "bob 1" else AGAIN, is_idempotent=True)
    await gateway.hire("ada", ada)
    gateway.start(policy=EXACT)
    await until_served(gateway)
    (event,) = await gateway.arrive(gateway.message(2))
    for attempt in range(1, EXACT.max_attempts):
        await until(lambda attempt=attempt: _attempts(gateway, event) == (attempt, LedgerState.QUEUED))
        gateway.pass_time(3_600_000)
    await gateway.settled(event)
    assert [engagement.attempt for engagement in ada.engaged[1:]] == list(range(1, EXACT.max_attempts + 1))
    assert _attempts(gateway, event) == (EXACT.max_attempts, LedgerState.SETTLED)


def _attempts(gateway: Gateway, event: Event) -> tuple[int, LedgerState] | None:
    entry = gateway.store.ledger_entry(event.event_id, "ada")
    return None if entry is None else (entry.attempts, entry.state)


@pytest.mark.req("RTY-3", "RTY-5")
async def test_a_gateway_that_is_opened_again_from_disk_goes_on(tmp_path: Path) -> None:
    """After the process is gone, what is on the disk is enough: the rest of the backlog, once, in order."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    store: SqliteStore = open_sqlite(home)
    gateway = Gateway(store)
    ada = Scripted(knows=True)
    await gateway.hire("ada", ada)
    events = await gateway.arrive(*(gateway.message(number) for number in range(1, 11)))
    cut = CutStore(store, at=7, after=True)
    first = gateway.start(cut)  # pyright: ignore[reportArgumentType] - a proxy
    await asyncio.wait_for(cut.died.wait(), 30)
    await first.close()
    await store.close()

    gateway.store = open_sqlite(home)
    gateway.start()
    await gateway.settled(*events)
    assert ada.bodies == [f"bob {number}" for number in range(1, 11)]
    await gateway.close()
    await gateway.store.close()


class FullDisk:
    """A store whose disk is full for as long as it says so."""

    def __init__(self, store: Store, operation: str) -> None:
        self._store = store
        self._operation = operation
        self.is_full = True
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        if name == self._operation and self.is_full:
            return self._refuse
        return getattr(self._store, name)

    async def _refuse(self, *args: Any, **kwargs: Any) -> None:
        self.refused += 1
        raise Refusal(Code.STORAGE_FULL, "the disk is full")


async def test_an_outcome_that_the_disk_does_not_take_is_written_later(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is full the outcome is kept in mind; the agent is not run again for it."""
    monkeypatch.setattr("agentpost.delivery.worker._WRITE_AGAIN_SECONDS", 0.001)
    ada = Scripted()
    await gateway.hire("ada", ada)
    disk = FullDisk(gateway.store, "settle")
    gateway.start(disk)  # pyright: ignore[reportArgumentType] - a proxy
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: disk.refused >= 2)
    disk.is_full = False
    await gateway.settled(event)
    assert len(ada.engaged) == 1


async def test_an_agent_does_not_run_while_its_attempt_cannot_be_recorded(gateway: Gateway) -> None:
    """What is not on the disk before does not happen."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    disk = FullDisk(gateway.store, "engage")
    gateway.start(disk)  # pyright: ignore[reportArgumentType] - a proxy
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: disk.refused == 1)
    await turn_the_loop()
    assert ada.engaged == []
    disk.is_full = False
    gateway.pass_time(5_000)
    await gateway.settled(event)


# Agents that come, change and go


async def test_a_paused_agent_gets_nothing_until_it_is_resumed(gateway: Gateway) -> None:
    """Mail for a paused agent waits, and comes first when it is back."""
    ada = Scripted()
    await gateway.hire("ada", ada)
    agent = gateway.store.local_agent("ada")
    assert agent is not None
    dispatcher = gateway.start()
    (first,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(first)
    await gateway.store.put_agent(replace(agent, is_paused=True))
    dispatcher.refresh()
    await until(lambda: ada.closed == 1)
    (second,) = await gateway.arrive(gateway.message(2))
    await turn_the_loop()
    assert ada.bodies == ["bob 1"]
    await gateway.store.put_agent(agent)
    dispatcher.refresh()
    await gateway.settled(second)


async def test_a_changed_agent_ends_its_turn_under_the_old_runtime(gateway: Gateway) -> None:
    """A new runtime takes over when the running turn is over, never beside it."""
    release = asyncio.Event()

    async def wait() -> Result:
        await release.wait()
        return DONE

    before, afterwards = Scripted(lambda engagement: wait()), Scripted()
    await gateway.hire("ada", before)
    dispatcher = gateway.start()
    events = await gateway.arrive(gateway.message(1), gateway.message(2))
    await until(lambda: before.engaged)
    await gateway.hire("ada", afterwards, version=2)
    dispatcher.refresh()
    await turn_the_loop()
    assert afterwards.engaged == []
    release.set()
    await gateway.settled(*events)
    assert (before.bodies, afterwards.bodies) == (["bob 1"], ["bob 2"])
    assert before.closed == 1


async def test_an_agent_that_is_added_while_the_gateway_runs_is_served(gateway: Gateway) -> None:
    """Whoever is added gets its mail without a restart."""
    gateway.start()
    await gateway.hire("ada", Scripted())
    (event,) = await gateway.arrive(gateway.message(1))
    await gateway.settled(event)


async def test_a_runtime_that_cannot_be_made_is_an_incident_of_its_agent_alone(gateway: Gateway) -> None:
    """An agent with broken options waits for its operator; the others are served."""
    await gateway.hire("eve", Scripted())
    await gateway.hire("ada", Scripted())
    working = gateway.runtimes.pop("ada")

    class Missing(dict[str, Any]):
        def __missing__(self, agent_id: str) -> Any:
            raise Refusal(Code.INVALID_FIELD, "options.function cannot be loaded")

    gateway.runtimes = Missing(gateway.runtimes)
    dispatcher = gateway.start()
    (event,) = await gateway.arrive(gateway.message(1, to=("ada", "eve")))
    await gateway.settled(event, agent_id="eve")
    await until(lambda: [each.kind for each in gateway.store.incidents()] == ["runtime_unusable"])
    assert not gateway.is_settled(event)
    await gateway.hire("ada", working, version=2)
    dispatcher.refresh()
    await gateway.settled(event)
    assert gateway.store.incidents() == []


async def test_an_agent_that_pulls_is_left_alone(gateway: Gateway) -> None:
    """Who fetches its mail is not engaged."""
    ada = Scripted()
    await gateway.hire("ada", ada, kind="pull")
    await gateway.hire("eve", Scripted())
    gateway.start()
    (event,) = await gateway.arrive(gateway.message(1, to=("ada", "eve")))
    await gateway.settled(event, agent_id="eve")
    assert ada.engaged == []


async def test_a_message_that_was_answered_by_hand_is_not_handed_over(gateway: Gateway) -> None:
    """What a person settled while it waited for its retry has its outcome."""
    ada = Scripted(lambda engagement: AGAIN)
    await gateway.hire("ada", ada)
    dispatcher = gateway.start(policy=EXACT)
    (event,) = await gateway.arrive(gateway.message(1))
    await until(lambda: is_postponed(gateway, event.event_id, 1))
    assert await dispatcher.turns.end(event, "ada", DONE)
    gateway.pass_time(2_000)
    (marker,) = await gateway.arrive(gateway.message(2))
    await until(lambda: is_postponed(gateway, marker.event_id, 1))
    assert ada.bodies == ["bob 1", "bob 2"]
    assert len(gateway.outcomes(event)) == 1


# Stopping


async def test_drain_waits_for_what_runs_and_begins_nothing(gateway: Gateway) -> None:
    """A gateway that stops lets the turns end that have begun, and leaves the rest for the next start."""
    release = asyncio.Event()

    async def wait() -> Result:
        await release.wait()
        return DONE

    ada = Scripted(lambda engagement: wait())
    await gateway.hire("ada", ada)
    dispatcher = gateway.start()
    events = await gateway.arrive(gateway.message(1), gateway.message(2))
    await until(lambda: ada.engaged)
    draining = asyncio.ensure_future(dispatcher.drain())
    await turn_the_loop()
    assert not draining.done()
    release.set()
    assert await draining
    assert gateway.is_settled(events[0])
    assert not gateway.is_settled(events[1])
    assert len(ada.engaged) == 1
    await dispatcher.close()
    assert ada.closed == 1


async def test_drain_does_not_wait_for_ever(gateway: Gateway) -> None:
    """A turn that does not end keeps no gateway from stopping."""
    ada = Scripted(lambda engagement: hang_for_ever())
    await gateway.hire("ada", ada)
    dispatcher = gateway.start()
    await gateway.arrive(gateway.message(1))
    await until(lambda: ada.engaged)
    assert not await dispatcher.drain(timeout_seconds=0.01)
    await dispatcher.close()


async def hang_for_ever() -> Result:
    await asyncio.Event().wait()
    return DONE


def is_postponed(gateway: Gateway, event_id: EventId, attempt: int) -> bool:
    entry = gateway.store.ledger_entry(event_id, "ada")
    return entry is not None and entry.attempts == attempt and entry.state is LedgerState.QUEUED and entry.due_at_ms > 0


async def turn_the_loop() -> None:
    """Give every task that could do something the chance to do it."""
    for _ in range(50):
        await asyncio.sleep(0)
