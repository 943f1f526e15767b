"""The retrier with a real store: resends, dead letters, reports and incidents, one transaction each."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.intake import Batch, Intake
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import Content
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.delivery.publish import SendRequest
from agentpost.protocol.backoff import RetryPolicy
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import DeadLetterEvent, Event, MessageEvent, SignalEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.payloads import AckType
from agentpost.protocol.snapshot import Failover
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import Appended
from agentpost.testing import START_MS, MemoryStore, a_reply, an_ack
from tests.delivery.timing import NODE, OTHER, PEER, Desk

QUICK = RetryPolicy(base_seconds=5, factor=2, max_delay_seconds=10, max_attempts=3)
DAY = 86_400


@pytest.fixture(params=["sqlite", "memory"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    store: Store
    if request.param == "sqlite":
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        store = SqliteStore.open(home, node_id=NODE, epoch="first", now_ms=START_MS)
    else:
        store = MemoryStore(node_id=NODE, epoch="first")
    yield await Desk(store, policy=DeliveryPolicy(resend=QUICK)).settle_in()
    await store.close()


@pytest.mark.req("RTY-1", "ENV-5")
async def test_a_message_is_sent_again_only_after_the_ack_timeout(desk: Desk) -> None:
    """Twenty seconds without an `accepted`, then a pause, then the same event with the next attempt and a new seq."""
    event = await desk.send()
    await desk.pass_time(19.999)
    assert desk.delivery(event).state is DeliveryState.EMITTED
    await desk.pass_time(0.001)
    assert desk.delivery(event).state is DeliveryState.RETRY_PENDING
    assert len(desk.sends_of(event)) == 1
    await desk.pass_time(5)
    first, second = desk.sends_of(event)
    assert (first.trace.attempt, second.trace.attempt) == (1, 2)
    assert second.seq > first.seq
    assert replace(second, seq=first.seq, trace=first.trace) == first
    delivery = desk.delivery(event)
    assert (delivery.state, delivery.attempts, delivery.seq) == (DeliveryState.EMITTED, 2, second.seq)
    assert delivery.due_at_ms == desk.clock.now_ms() + 20_000


@pytest.mark.req("ACK-3")
async def test_an_accepted_message_is_not_sent_again(desk: Desk) -> None:
    """With `accepted` the fast retries end, also while a resend was waiting."""
    event = await desk.send()
    await desk.pass_time(20)
    await desk.change(event, DeliverySignal.ACCEPTED, due_at_ms=desk.clock.now_ms() + DAY * 1000)
    await desk.pass_time(3600)
    assert len(desk.sends_of(event)) == 1
    assert desk.delivery(event).state is DeliveryState.ACCEPTED


@pytest.mark.req("RTY-2", "RTY-6")
async def test_when_the_attempts_are_used_up_it_is_a_dead_letter(desk: Desk) -> None:
    """After the last attempt the outbox says so, with the reason and the attempts, and the delivery ends."""
    event = await desk.send()
    await desk.until_dead(event)
    delivery = desk.delivery(event)
    assert (delivery.state, delivery.reason, delivery.attempts) == (DeliveryState.DEAD_LETTER, "max_attempts", 3)
    assert [send.trace.attempt for send in desk.sends_of(event)] == [1, 2, 3]
    (letter,) = [each for each in desk.outbox() if isinstance(each, DeadLetterEvent)]
    assert (letter.payload.ref_event_id, letter.payload.to_agent_id) == (event.event_id, "bob")
    assert (letter.payload.reason, letter.payload.attempts) == ("max_attempts", 3)
    assert letter.corr_id == event.corr_id


@pytest.mark.req("RTY-2")
async def test_the_sender_hears_of_its_dead_letter_as_mail(desk: Desk) -> None:
    """A message from the postmaster in the sender's own inbox tells what was not delivered, why, and what to do."""
    event = await desk.send()
    await desk.until_dead(event)
    (report,) = [each for each in desk.outbox() if each.source_agent_id == POSTMASTER]
    assert isinstance(report, MessageEvent)
    assert (report.payload.to_agents, report.to_nodes, report.corr_id) == (("ada",), (NODE,), event.corr_id)
    assert report.payload.body is None
    content = desk.sealer.open(report)
    assert content.subject == "Not delivered to bob: max_attempts"
    assert content.context["refEventId"] == event.event_id
    assert desk.delivery(report, "ada").to_node_id == NODE


@pytest.mark.req("RTY-2")
async def test_a_report_takes_the_way_of_all_mail(desk: Desk) -> None:
    """The reader of the local stream puts it into the sender's inbox, and its own delivery is accepted."""
    event = await desk.send()
    await desk.until_dead(event)
    intake = Intake(desk.store, desk.room, maker=desk.maker, clock=desk.clock, wakeups=desk.wakeups)
    for _ in range(2):  # the report, then the `accepted` that it leads to
        cursor = desk.store.cursor(NODE)
        after_seq = cursor.last_seq if cursor else 0
        stream = desk.store.read_stream(NODE, after_seq)
        await intake.take(
            Batch(
                source_node_id=NODE,
                epoch="first",
                after_seq=after_seq,
                through_seq=stream.through_seq,
                chain=stream.chain,
                raws=[each.raw for each in stream.events],
            )
        )
    (item,) = desk.store.inbox_items("ada")
    report = decode_event(item.raw)
    assert report.source_agent_id == POSTMASTER
    assert desk.delivery(report, "ada").state is DeliveryState.ACCEPTED


@pytest.mark.req("RTY-2")
async def test_a_report_never_causes_a_report(desk: Desk) -> None:
    """A report that nobody takes, and an answer to the postmaster, end as dead letters without a word."""
    await desk.send()
    await desk.send(2, to={POSTMASTER: NODE})
    for _ in range(100):
        await desk.pass_time(20)
    reports = [each for each in desk.outbox() if each.source_agent_id == POSTMASTER and isinstance(each, MessageEvent)]
    assert len({report.event_id for report in reports}) == 1
    assert desk.store.next_due_at_ms() is None


@pytest.mark.req("RTY-1")
async def test_no_attempt_is_spent_on_a_gateway_that_is_away(desk: Desk) -> None:
    """Mail for a laptop that sleeps all weekend is not sent again and again: it waits, and is then taken."""
    event = await desk.send()
    desk.room.set_offline(PEER)
    for _ in range(200):
        await desk.pass_time(1000)
    delivery = desk.delivery(event)
    assert (delivery.state, delivery.attempts) == (DeliveryState.EMITTED, 1)
    assert len(desk.outbox()) == 1


@pytest.mark.req("RTY-1")
async def test_a_gateway_that_comes_back_has_the_usual_time_to_accept(desk: Desk) -> None:
    """What waited gets its ACK timeout from the moment of the return, in batches, and no attempt is spent on that."""
    desk.room.set_offline(PEER)
    events = [await desk.send(number) for number in range(1, 301)]
    elsewhere = await desk.send(301, to={"carl": OTHER})
    await desk.pass_time(60)
    desk.room.set_online(PEER)
    back_at_ms = desk.clock.now_ms()
    assert await desk.retrier.node_is_back(PEER) == 300
    due = [desk.delivery(event).due_at_ms or 0 for event in events]
    assert min(due) >= back_at_ms + 20_000
    assert max(due) <= back_at_ms + 20_000 + 2_000
    assert max(due) - min(due) > 1_000
    assert {desk.delivery(event).attempts for event in events} == {1}
    assert desk.delivery(elsewhere, "carl").attempts == 1
    await desk.pass_time(30)
    assert desk.delivery(events[0]).state is DeliveryState.RETRY_PENDING or desk.delivery(events[0]).attempts == 2
    assert await desk.retrier.node_is_back(PEER) == 0


@pytest.mark.req("RTY-1")
async def test_a_return_is_noticed_even_if_nobody_tells(desk: Desk) -> None:
    """The retrier sees for itself who is there now and was not before; who stayed is no news."""
    desk.room.set_offline(PEER)
    event = await desk.send()
    await desk.pass_time(20)
    assert await desk.retrier.look_around() == 0
    desk.room.set_online(PEER)
    assert await desk.retrier.look_around() == 1
    assert (desk.delivery(event).due_at_ms or 0) <= desk.clock.now_ms() + 21_000
    assert await desk.retrier.look_around() == 0


@pytest.mark.req("RTY-1", "ENV-5")
async def test_the_timers_survive_a_restart(tmp_path: Path) -> None:
    """A gateway that was down when a timer ran out resends after its start, with the right attempt."""
    before = await Desk(SqliteStore.open(tmp_path, node_id=NODE, epoch="first", now_ms=START_MS)).settle_in()
    event = await before.send()
    await before.pass_time(20)
    await before.store.close()
    after = Desk(SqliteStore.open(tmp_path, node_id=NODE, epoch="first", now_ms=START_MS))
    after.clock.advance(3_600_000)
    await after.run_timers()
    assert [send.trace.attempt for send in after.sends_of(event)] == [1, 2]
    await after.store.close()


@pytest.mark.req("ENV-7")
async def test_what_expires_is_a_dead_letter_even_if_nobody_is_there(desk: Desk) -> None:
    """A message with ten seconds to live is given up after ten seconds, with the reason `expired`."""
    desk.room.set_offline(PEER)
    event = await desk.send(expires_at_ms=desk.clock.now_ms() + 10_000)
    await desk.pass_time(10)
    assert (desk.delivery(event).state, desk.delivery(event).reason) == (DeliveryState.DEAD_LETTER, "expired")
    (letter,) = [each for each in desk.outbox() if isinstance(each, DeadLetterEvent)]
    assert letter.payload.reason == "expired"


@pytest.mark.req("ACK-4")
async def test_accepted_and_then_nothing_is_an_incident(desk: Desk) -> None:
    """When the SLA is over the delivery ends as an incident, once, and the recipient's gateway is asked."""
    event = await desk.send()
    await desk.change(event, DeliverySignal.ACCEPTED, due_at_ms=desk.clock.now_ms() + 120_000)
    await desk.pass_time(119)
    assert desk.store.incidents() == []
    await desk.pass_time(1)
    assert desk.delivery(event).state is DeliveryState.INCIDENT
    (incident,) = desk.store.incidents()
    assert (incident.kind, incident.corr_id) == ("sla_missed", event.corr_id)
    assert incident.subject == f"{event.event_id}/bob"
    (asked,) = [each for each in desk.outbox() if isinstance(each, SignalEvent)]
    assert (asked.payload.signal, asked.to_nodes) == ("status_request", (PEER,))
    assert (asked.payload.ref_event_id, asked.payload.details) == (event.event_id, {"toAgentId": "bob"})
    await desk.pass_time(DAY)
    assert len(desk.store.incidents()) == 1


@pytest.mark.req("ROUTE-3")
async def test_an_agent_that_nobody_owns_gives_a_dead_letter(desk: Desk) -> None:
    """Mail that no gateway can get ends with the reason `no_route`, and there is an incident."""
    desk.room.add_agent("nobody", None)
    event = await desk.send(to={"nobody": None})
    await desk.pass_time(20)
    delivery = desk.delivery(event, "nobody")
    assert (delivery.state, delivery.reason) == (DeliveryState.DEAD_LETTER, "no_route")
    assert [(each.kind, each.subject) for each in desk.store.incidents()] == [("no_route", "nobody")]


@pytest.mark.req("ACK-5", "RTY-1")
async def test_a_resend_goes_only_to_those_who_have_not_accepted(desk: Desk) -> None:
    """Of two recipients the one that accepted is left alone, and one event serves all that are due together."""
    desk.room.add_agent("carl", OTHER)
    desk.room.add_agent("dora", OTHER)
    event = await desk.send(to={"bob": PEER, "carl": OTHER, "dora": OTHER})
    await desk.change(event, DeliverySignal.ACCEPTED, due_at_ms=desk.clock.now_ms() + DAY * 1000)
    await desk.pass_time(20)
    await desk.pass_time(5)
    _, again = desk.sends_of(event)
    assert again.to_nodes == (OTHER,)
    attempts = {agent: desk.delivery(event, agent).attempts for agent in ("bob", "carl", "dora")}
    assert attempts == {"bob": 1, "carl": 2, "dora": 2}


@pytest.mark.req("ROUTE-1", "ROUTE-2", "PIPE-4")
async def test_mail_follows_an_agent_to_its_new_gateway(desk: Desk) -> None:
    """An agent that moved before anybody accepted gets its mail where it is now, sealed for that gateway."""
    receipt = await desk.publisher.send(
        SendRequest(source_agent_id="ada", to_agents=("bob",), content=Content(body="hello"))
    )
    desk.room.add_agent("bob", OTHER)
    desk.read_through[PEER] = receipt.seq
    await desk.pass_time(20)
    sends = [each for each in desk.outbox() if each.event_id == receipt.event_id]
    assert isinstance(sends[-1], MessageEvent)
    assert (len(sends), sends[-1].to_nodes, sends[-1].trace.attempt) == (2, (OTHER,), 2)
    assert sends[-1].payload.sealed is not None
    assert set(sends[-1].payload.sealed.keys) == {NODE, OTHER}
    delivery = desk.delivery(sends[0])
    assert (delivery.to_node_id, delivery.state, delivery.attempts) == (OTHER, DeliveryState.EMITTED, 2)


@pytest.mark.req("ROUTE-2")
async def test_a_stand_in_gets_nothing_while_the_owner_may_have_it(desk: Desk) -> None:
    """With a silent owner the mesh waits and raises one incident, which closes when the owner is back."""
    desk.room.add_fallback("bob", OTHER)
    events = [await desk.send(number) for number in (1, 2)]
    desk.room.set_offline(PEER)
    await desk.pass_time(20)
    assert [(each.kind, each.subject) for each in desk.store.incidents()] == [("owner_silent", PEER)]
    assert {desk.delivery(event).to_node_id for event in events} == {PEER}
    desk.room.set_online(PEER)
    await desk.retrier.node_is_back(PEER)
    assert desk.store.incidents() == []


@pytest.mark.req("ROUTE-2")
async def test_at_least_once_lets_a_stand_in_take_over(desk: Desk) -> None:
    """An agent whose routing accepts the risk is engaged by the first live stand-in."""
    desk.room.add_fallback("bob", OTHER, failover=Failover.AT_LEAST_ONCE)
    event = await desk.send()
    desk.room.set_offline(PEER)
    await desk.pass_time(20)
    assert desk.sends_of(event)[-1].to_nodes == (OTHER,)
    assert desk.delivery(event).route_decision == "fallback"


@pytest.mark.req("ROUTE-2", "ENV-8")
@pytest.mark.parametrize(("failover", "found"), [(Failover.AT_LEAST_ONCE, 1), (Failover.WAIT, 0)])
async def test_a_stand_in_that_was_asked_first_may_answer(desk: Desk, failover: Failover, found: int) -> None:
    """Where twice is no harm the owner may be asked after its stand-in, and both may answer. Elsewhere one lies."""
    desk.room.add_fallback("bob", OTHER, failover=Failover.AT_LEAST_ONCE)
    desk.room.set_offline(PEER)
    request = SendRequest(source_agent_id="ada", to_agents=("bob",), content=Content(body="hello"))
    await desk.publisher.send(request)
    event = desk.outbox()[-1]
    assert desk.delivery(event).to_node_id == OTHER
    desk.room.set_online(PEER)
    desk.room.set_offline(OTHER)
    await desk.pass_time(20)
    assert desk.delivery(event).to_node_id == PEER
    desk.room.add_fallback("bob", OTHER, failover=failover)
    intake = Intake(desk.store, desk.room, maker=desk.maker, clock=desk.clock, wakeups=desk.wakeups)
    said = [
        replace(an_ack(event, AckType.ACCEPTED, by_node_id=OTHER, seq=1), to_nodes=(NODE,)),
        replace(a_reply(event, by_node_id=OTHER, seq=2), to_nodes=(NODE,)),
    ]
    raws = [encode_event(each) for each in said]
    await intake.take(Batch(source_node_id=OTHER, epoch="x", after_seq=0, through_seq=2, chain=bytes(32), raws=raws))
    assert len(desk.store.inbox_items("ada")) == found
    assert ["forged_ack" in each.kind for each in desk.store.incidents()] == [True] * (1 - found)


@pytest.mark.req("ROUTE-3")
async def test_mail_for_a_revoked_gateway_does_not_wait_for_it(desk: Desk) -> None:
    """A node that was revoked, at whatever seed, will never accept anything: its mail is a dead letter."""
    event = await desk.send()
    desk.room.revoke(PEER)
    await desk.pass_time(20)
    assert desk.delivery(event).reason == "no_route"


@pytest.mark.req("ROUTE-3", "RTY-2")
async def test_an_agent_that_moved_to_a_revoked_gateway_holds_back_nobody(desk: Desk) -> None:
    """Its mail is sent to where it was until the attempts are used up, and so is that of the other recipient."""
    desk.room.add_agent("eve", PEER)
    request = SendRequest(source_agent_id="ada", to_agents=("bob", "eve"), content=Content(body="hello"))
    receipt = await desk.publisher.send(request)
    desk.room.add_agent("bob", OTHER)
    desk.room.revoke(OTHER)
    for _ in range(10):
        desk.read_through[PEER] = desk.store.head().seq
        await desk.pass_time(20)
    found = desk.store.deliveries_of(receipt.event_id)
    assert {each.to_agent_id: each.reason for each in found} == {"bob": "max_attempts", "eve": "max_attempts"}


@pytest.mark.req("ROUTE-2")
async def test_a_return_that_could_not_be_written_is_noticed_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full when the owner came back: once there is room its mail is due soon, and the incident closed."""
    desk.room.add_fallback("bob", OTHER)
    event = await desk.send()
    desk.room.set_offline(PEER)
    await desk.retrier.look_around()
    await desk.pass_time(20)
    assert [each.kind for each in desk.store.incidents()] == ["owner_silent"]
    waits_until_ms = desk.delivery(event).due_at_ms or 0
    desk.room.set_online(PEER)

    async def full(_pairs_due: object) -> None:
        raise Refusal(Code.STORAGE_FULL, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(desk.store, "reschedule", full)
        with pytest.raises(Refusal):
            await desk.retrier.look_around()
    await desk.retrier.look_around()
    assert desk.store.incidents() == []
    assert (desk.delivery(event).due_at_ms or 0) < waits_until_ms


@pytest.mark.req("ROUTE-2")
async def test_a_gateway_that_was_away_between_two_looks_is_back_all_the_same(desk: Desk) -> None:
    """Its mail came due while it was silent, and nobody looked around then: its return closes the incident."""
    desk.room.add_fallback("bob", OTHER)
    await desk.send()
    await desk.retrier.look_around()
    desk.room.set_offline(PEER)
    await desk.pass_time(20)
    assert [each.kind for each in desk.store.incidents()] == ["owner_silent"]
    desk.room.set_online(PEER)
    await desk.retrier.look_around()
    assert desk.store.incidents() == []


class Racing(MemoryStore):
    """A store in which an ACK arrives exactly between the retrier's reading and its writing."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.news: list[Change] = []

    async def append(
        self,
        events: Sequence[Event],
        *,
        deliveries: Sequence[Delivery] = (),
        changes: Sequence[Change] = (),
        **_more: Any,
    ) -> Appended:
        if news := self.news:
            self.news = []
            await super().append([], changes=news)
        return await super().append(events, deliveries=deliveries, changes=changes)

    async def reschedule(self, pairs_due: Sequence[tuple[Any, str, int]]) -> None:
        if news := self.news:
            self.news = []
            await super().append([], changes=news)
        await super().reschedule(pairs_due)


@pytest.mark.req("RTY-6", "ACK-3")
async def test_news_that_overtake_the_timer_win() -> None:
    """An ACK in the same moment as the timer withdraws that resend, and the others of the batch go out."""
    store = Racing(node_id=NODE, epoch="first")
    desk = await Desk(store, policy=DeliveryPolicy(resend=QUICK)).settle_in()
    overtaken, other = await desk.send(1), await desk.send(2)
    await desk.pass_time(20)
    sla_ms = desk.clock.now_ms() + DAY * 1000
    store.news = [
        Change(
            event_id=overtaken.event_id,
            to_agent_id="bob",
            signal=DeliverySignal.ACCEPTED,
            at_ms=desk.clock.now_ms(),
            due_at_ms=sla_ms,
        )
    ]
    await desk.pass_time(5)
    assert (desk.delivery(overtaken).state, len(desk.sends_of(overtaken))) == (DeliveryState.ACCEPTED, 1)
    assert desk.delivery(overtaken).due_at_ms == sla_ms
    assert len(desk.sends_of(other)) == 2


@pytest.mark.req("ACK-4")
async def test_putting_mail_off_does_not_cost_an_accepted_one_its_sla() -> None:
    """Mail that is accepted in the moment in which it is put off keeps the time for its outcome."""
    store = Racing(node_id=NODE, epoch="first")
    desk = await Desk(store).settle_in()
    event = await desk.send()
    desk.room.set_offline(PEER)
    desk.clock.advance(20_000)
    store.news = [
        Change(event_id=event.event_id, to_agent_id="bob", signal=DeliverySignal.ACCEPTED, at_ms=desk.clock.now_ms())
    ]
    await desk.run_timers()
    delivery = desk.delivery(event)
    assert delivery.state is DeliveryState.ACCEPTED
    assert delivery.due_at_ms == desk.clock.now_ms() + DAY * 1000 + 120_000


async def test_a_timer_that_cannot_be_served_does_not_stop_the_others() -> None:
    """An event that the store refuses for ever is set aside with a word in the log; the rest goes on."""

    class Stubborn(MemoryStore):
        async def append(
            self,
            events: Sequence[Event],
            *,
            deliveries: Sequence[Delivery] = (),
            changes: Sequence[Change] = (),
            **_more: Any,
        ) -> Appended:
            if any(change.event_id == stuck.event_id for change in changes):
                raise Refusal(Code.TOO_LARGE, "it does not fit")
            return await super().append(events, deliveries=deliveries, changes=changes)

    desk = await Desk(Stubborn(node_id=NODE, epoch="first")).settle_in()
    stuck, fine = await desk.send(1), await desk.send(2)
    await desk.pass_time(20)
    assert desk.delivery(stuck).state is DeliveryState.EMITTED
    assert desk.delivery(fine).state is DeliveryState.RETRY_PENDING


@pytest.mark.req("RTY-1")
async def test_the_task_sleeps_until_it_is_woken(desk: Desk) -> None:
    """The running retrier serves a timer as soon as it is told that there is one, and ends when it is closed."""
    served = asyncio.Event()
    desk.wakeups.listen(outbox=lambda _: served.set())
    event = await desk.send()
    await desk.change(event, DeliverySignal.ACK_TIMEOUT, due_at_ms=desk.clock.now_ms() + 3_600_000)
    desk.retrier.start()
    await asyncio.sleep(0)
    assert not served.is_set()
    desk.clock.advance(3_600_000)
    desk.wakeups.timer_set()
    await asyncio.wait_for(served.wait(), timeout=10)
    await desk.retrier.close()
    assert desk.delivery(event).attempts == 2


class Weather(Struct, frozen=True, kw_only=True):
    """What happens in one step of a random history."""

    seconds: int
    peer_is_there: bool
    news: DeliverySignal | None
    about: int


weather = st.builds(
    Weather,
    seconds=st.integers(0, 900),
    peer_is_there=st.booleans(),
    news=st.none() | st.sampled_from([DeliverySignal.ACCEPTED, DeliverySignal.PROCESSED, DeliverySignal.REPLY]),
    about=st.integers(1, 3),
)


@pytest.mark.req("RTY-1", "RTY-2", "RTY-6", "ENV-5", "ACK-3")
@settings(max_examples=60, deadline=None)
@given(history=st.lists(weather, max_size=25))
def test_whatever_happens_every_delivery_ends_once_or_has_a_timer(history: list[Weather]) -> None:
    """Peers that come and go and news at any moment: no resend after an ACK, no attempt too many, one dead letter."""
    asyncio.run(_live_through(history))


async def _live_through(history: list[Weather]) -> None:
    desk = await Desk(policy=DeliveryPolicy(resend=QUICK), tells_senders=False).settle_in()
    events = {number: await desk.send(number) for number in (1, 2, 3)}
    heard: dict[int, int] = {}
    for step in history:
        if step.peer_is_there:
            desk.room.set_online(PEER)
        else:
            desk.room.set_offline(PEER)
        await desk.retrier.look_around()
        await desk.pass_time(step.seconds)
        if step.news is not None:
            due_at_ms = desk.clock.now_ms() + 600_000 if step.news is DeliverySignal.ACCEPTED else None
            await desk.change(events[step.about], step.news, due_at_ms=due_at_ms)
            heard.setdefault(step.about, len(desk.sends_of(events[step.about])))
    letters = [each.payload.ref_event_id for each in desk.outbox() if isinstance(each, DeadLetterEvent)]
    assert len(letters) == len(set(letters))
    for number, event in events.items():
        delivery = desk.delivery(event)
        sends = desk.sends_of(event)
        assert [send.trace.attempt for send in sends] == list(range(1, len(sends) + 1))
        assert len(sends) == delivery.attempts <= QUICK.max_attempts
        assert len(sends) == heard.get(number, len(sends))
        assert (delivery.state is DeliveryState.DEAD_LETTER) == (event.event_id in letters)
        assert (delivery.due_at_ms is None) == (delivery.state in DELIVERY.terminal)


@pytest.mark.req("RTY-1", "CUR-1")
async def test_mail_that_waits_its_turn_is_not_sent_again(desk: Desk) -> None:
    """Streams are in order: what a gateway has not come to yet it does not get sooner by being sent twice."""
    desk.read_through[PEER] = 0
    event = await desk.send()
    for _ in range(200):
        await desk.pass_time(60)
    delivery = desk.delivery(event)
    assert (delivery.state, delivery.attempts, len(desk.sends_of(event))) == (DeliveryState.EMITTED, 1, 1)


@pytest.mark.req("RTY-1", "ROUTE-2")
async def test_mail_that_its_reader_has_passed_is_sent_again(desk: Desk) -> None:
    """A gateway that has come to a message and passed over it gets it again, soon after that is known."""
    desk.read_through[PEER] = 0
    await desk.retrier.look_around()
    event = await desk.send()
    await desk.pass_time(3600)
    desk.read_through[PEER] = desk.delivery(event).seq
    await desk.retrier.look_around()
    await desk.run_timers()
    assert desk.delivery(event).state is DeliveryState.RETRY_PENDING
    await desk.pass_time(5)
    assert desk.delivery(event).attempts == 2
    # The second send waits for its turn, too.
    for _ in range(100):
        await desk.pass_time(60)
    assert desk.delivery(event).attempts == 2


@pytest.mark.req("RTY-1", "ACK-4")
async def test_a_gateway_that_is_read_through_a_seed_is_asked_how_far_it_is(desk: Desk) -> None:
    """No link tells how far it has read. It is asked once, and its answer is in order with all that it said before."""
    del desk.read_through[PEER]
    await desk.retrier.look_around()
    events = [await desk.send(number) for number in range(1, 4)]
    await desk.pass_time(20)
    for _ in range(10):
        await desk.pass_time(60)
    (request,) = [each for each in desk.outbox() if isinstance(each, SignalEvent)]
    assert (request.payload.signal, request.to_nodes) == ("status_request", (PEER,))
    assert {desk.delivery(event).state for event in events} == {DeliveryState.EMITTED}
    desk.retrier.hear([_status_of(request, by_node_id=OTHER)])
    await desk.retrier.look_around()
    await desk.run_timers()
    assert {desk.delivery(event).state for event in events} == {DeliveryState.EMITTED}, "nobody else can say it"
    desk.retrier.hear([_status_of(request, by_node_id=PEER)])
    await desk.retrier.look_around()
    await desk.run_timers()
    assert {desk.delivery(event).state for event in events} == {DeliveryState.RETRY_PENDING}


def _status_of(request: SignalEvent, *, by_node_id: str) -> SignalEvent:
    details = {"toAgentId": "bob", "requestEventId": request.event_id, "state": "unknown"}
    payload = replace(request.payload, signal="status", details=details)
    return replace(request, source_node_id=by_node_id, to_nodes=(request.source_node_id,), payload=payload)
