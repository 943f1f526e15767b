"""Dead letters: listed, looked into, sent again, purged, and each of these in the audit."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.delivery.deadletters import DeadLetters, Filter
from agentpost.delivery.keeping import Keeper
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import Content
from agentpost.delivery.publish import SendRequest
from agentpost.delivery.trace import Step
from agentpost.protocol.backoff import RetryPolicy
from agentpost.protocol.envelope import Event, MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import Subscriber
from agentpost.testing import START_MS, MemoryStore, an_event_id
from tests.delivery.timing import NODE, OTHER, Desk

ONCE = DeliveryPolicy(resend=RetryPolicy(base_seconds=5, factor=1, max_delay_seconds=5, max_attempts=1))


@pytest.fixture(params=["sqlite", "memory"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    store: Store
    if request.param == "sqlite":
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        store = SqliteStore.open(home, node_id=NODE, epoch="first", now_ms=START_MS)
    else:
        store = MemoryStore(node_id=NODE, epoch="first")
    desk = await Desk(store, policy=ONCE, tells_senders=False).settle_in()
    for agent_id in ("carl", "dora"):
        desk.room.add_agent(agent_id, OTHER)
    yield desk
    await store.close()


@pytest.fixture
def letters(desk: Desk) -> DeadLetters:
    return DeadLetters(
        store=desk.store,
        room=desk.room,
        publisher=desk.publisher,
        sealer=desk.sealer,
        maker=desk.maker,
        clock=desk.clock,
        policy=desk.policy,
    )


async def _die(desk: Desk, *to_agents: str, body: str = "hello", ttl_seconds: int | None = None) -> Event:
    """A sealed message that none of these agents accepts."""
    expires_at = None if ttl_seconds is None else format_ms(desk.clock.now_ms() + ttl_seconds * 1000)
    receipt = await desk.publisher.send(
        SendRequest(
            source_agent_id="ada", to_agents=to_agents, content=Content(subject="s", body=body), expires_at=expires_at
        )
    )
    (event,) = [each for each in desk.outbox() if each.event_id == receipt.event_id]
    await desk.until_dead(event, to_agents[0])
    return event


def _audited(desk: Desk) -> list[tuple[str, str, str | None]]:
    return [(each.actor, each.action, each.subject) for each in desk.store.audit_log()]


@pytest.mark.req("RTY-7")
async def test_dead_letters_are_listed_in_pages_and_by_filter(desk: Desk, letters: DeadLetters) -> None:
    """An operator sees what failed, to whom and why, page by page, and can narrow it down."""
    first = await _die(desk, "bob", "carl")
    second = await _die(desk, "bob", ttl_seconds=3)
    everything = await letters.list(actor="op")
    assert [(each.event_id, each.to_agent_id, each.reason) for each in everything] == [
        (first.event_id, "bob", "max_attempts"),
        (first.event_id, "carl", "max_attempts"),
        (second.event_id, "bob", "expired"),
    ]
    assert {each.from_agent_id for each in everything} == {"ada"}
    page = await letters.list(limit=2, actor="op")
    rest = await letters.list(after=(page[-1].event_id, page[-1].to_agent_id), actor="op")
    assert [*page, *rest] == everything
    assert len(await letters.list(Filter(to_agent_id="carl"), actor="op")) == 1
    assert len(await letters.list(Filter(reason="expired"), actor="op")) == 1
    since_ms = everything[-1].dead_lettered_at_ms
    assert [each.event_id for each in await letters.list(Filter(since_ms=since_ms), actor="op")] == [second.event_id]
    assert ("op", "deadletters.list", None) in _audited(desk)


@pytest.mark.req("RTY-7")
async def test_a_dead_letter_can_be_looked_into(desk: Desk, letters: DeadLetters) -> None:
    """It shows what was said, what was tried and how it ended, and that somebody looked is written down."""
    event = await _die(desk, "bob", body="the plan")
    shown = await letters.show(event.event_id, actor="op")
    assert (shown.kind, shown.problem) == ("message", None)
    assert shown.content == Content(subject="s", body="the plan")
    assert [step.what for step in shown.history] == [Step.EMITTED, Step.ROUTED, Step.DEAD_LETTERED]
    assert ("op", "deadletters.show", event.event_id) in _audited(desk)
    with pytest.raises(Refusal) as refused:
        await letters.show(an_event_id("another"), actor="op")
    assert refused.value.code is Code.NOT_FOUND


@pytest.mark.req("RTY-7")
async def test_a_dead_letter_is_sent_again_as_a_new_event(desk: Desk, letters: DeadLetters) -> None:
    """The words go out once more in the same conversation, sealed anew, and the old letter says as what."""
    event = await _die(desk, "bob", "carl", body="again", ttl_seconds=60)
    done = await letters.resend(Filter(event_id=event.event_id), actor="op")
    assert done.refused == ()
    (resent,) = done.resent
    assert (resent.event_id, resent.to_agents) == (event.event_id, ("bob", "carl"))
    (again,) = [each for each in desk.outbox() if each.event_id == resent.resent_as]
    assert isinstance(again, MessageEvent)
    assert (again.corr_id, again.trace.attempt, again.payload.to_agents) == (event.corr_id, 1, ("bob", "carl"))
    assert again.expires_at is not None
    assert parse_ms(again.expires_at) == parse_ms(again.created_at) + 60_000
    assert desk.sealer.open(again) == Content(subject="s", body="again")
    assert desk.delivery(again).state is DeliveryState.EMITTED
    assert {each.resent_as for each in await letters.list(actor="op")} == {resent.resent_as}
    assert desk.delivery(event).state is DeliveryState.DEAD_LETTER
    assert _audited(desk).count(("op", "deadletters.resend", event.event_id)) == 2
    assert (await letters.resend(Filter(), actor="op")).resent == ()


@pytest.mark.req("RTY-7")
async def test_only_what_the_filter_names_is_sent_again(desk: Desk, letters: DeadLetters) -> None:
    """Of a message to several, those that got it are not bothered again."""
    event = await _die(desk, "bob", "carl")
    (resent,) = (await letters.resend(Filter(to_agent_id="carl"), actor="op")).resent
    (again,) = [each for each in desk.outbox() if each.event_id == resent.resent_as]
    assert isinstance(again, MessageEvent)
    assert (again.payload.to_agents, again.to_nodes) == (("carl",), (OTHER,))
    assert desk.delivery(event, "bob").answered_by_event_id is None


@pytest.mark.req("RTY-7")
async def test_a_dead_reply_can_be_sent_again(desk: Desk, letters: DeadLetters) -> None:
    """An answer that did not arrive goes out again as an answer to the same event."""
    asked = await desk.send()
    reply, delivery = await desk.publisher.make_reply(asked, agent_id="bob", content=Content(body="yes"))
    await desk.store.append([reply], deliveries=[delivery])
    await desk.until_dead(reply, "ada")
    (resent,) = (await letters.resend(Filter(event_id=reply.event_id), actor="op")).resent
    (again,) = [each for each in desk.outbox() if each.event_id == resent.resent_as]
    assert again.kind == "reply"
    assert again.payload.ref_event_id == asked.event_id
    assert desk.sealer.open(again).body == "yes"


@pytest.mark.req("RTY-7")
async def test_what_cannot_be_sent_again_stays_with_the_reason(desk: Desk, letters: DeadLetters) -> None:
    """A letter to an agent that is gone is not lost: it stays, and the operator hears why."""
    gone = await _die(desk, "bob")
    fine = await _die(desk, "carl")
    desk.room.remove_agent("bob")
    done = await letters.resend(Filter(), actor="op")
    assert [each.event_id for each in done.resent] == [fine.event_id]
    (refused,) = done.refused
    assert refused.event_id == gone.event_id
    assert "bob" in refused.reason
    assert desk.delivery(gone).answered_by_event_id is None


@pytest.mark.req("RTY-7", "ACK-5")
async def test_of_a_letter_to_several_only_what_is_sent_again_counts_as_sent(desk: Desk, letters: DeadLetters) -> None:
    """An agent whose gateway is out of the mesh keeps its letter until it lives elsewhere; the others get theirs."""
    event = await _die(desk, "bob", "carl")
    desk.room.add_node("node-out")
    desk.room.add_agent("bob", "node-out")
    desk.room.revoke("node-out")
    done = await letters.resend(Filter(event_id=event.event_id), actor="op")
    assert [each.to_agents for each in done.resent] == [("carl",)]
    assert [each.to_agents for each in done.refused] == [("bob",)]
    assert desk.delivery(event, "bob").answered_by_event_id is None
    desk.room.add_agent("bob", OTHER)
    done = await letters.resend(Filter(event_id=event.event_id), actor="op")
    assert [each.to_agents for each in done.resent] == [("bob",)]


@pytest.mark.req("RTY-7")
async def test_dead_letters_are_purged_and_nothing_else(desk: Desk, letters: DeadLetters) -> None:
    """One, by filter, or all of them: gone for good, named in the audit, and the rest of the mail untouched."""
    first = await _die(desk, "bob")
    second = await _die(desk, "carl")
    alive = await desk.send(9, to={"dora": OTHER})
    await desk.change(alive, DeliverySignal.ACCEPTED, agent="dora")
    assert await letters.purge(Filter(event_id=alive.event_id), actor="op") == 0
    assert await letters.purge(Filter(to_agent_id="carl"), actor="op") == 1
    assert desk.store.deliveries_of(second.event_id) == []
    assert await letters.purge(Filter(), actor="op") == 1
    assert await letters.list(actor="op") == []
    purged = [each.subject for each in desk.store.audit_log() if each.action == "deadletters.purge"]
    assert purged == [second.event_id, first.event_id]
    assert desk.delivery(alive, "dora").state is DeliveryState.ACCEPTED


@pytest.mark.req("RTY-7")
async def test_the_audit_never_repeats_what_was_said(desk: Desk, letters: DeadLetters) -> None:
    """Whoever reads the audit learns what was done, not what the mail says."""
    event = await _die(desk, "bob", body="a secret")
    await letters.show(event.event_id, actor="op")
    await letters.resend(Filter(), actor="op")
    await letters.purge(Filter(), actor="op")
    assert "secret" not in repr(desk.store.audit_log())


@pytest.mark.req("RTY-7", "PIPE-7")
async def test_a_dead_letter_keeps_what_it_says_until_it_is_purged(desk: Desk, letters: DeadLetters) -> None:
    """Compaction takes its event out of the outbox; it can be looked into and sent again all the same, until purged."""
    event = await _die(desk, "carl", body="do not lose me")
    last_seq = desk.store.head().seq
    await desk.store.note_subscriber(
        Subscriber(
            consumer_node_id=OTHER,
            epoch=desk.store.epoch,
            last_seq=last_seq,
            updated_at_ms=desk.clock.now_ms(),
            lease_expires_at_ms=desk.clock.now_ms() + 60_000,
        )
    )
    compacted = await desk.store.compact(desk.store.watermarks(now_ms=desk.clock.now_ms(), retention_events=0))
    assert compacted.outbox_floor_seq == last_seq
    assert desk.store.read_outbox(0).events == ()
    shown = await letters.show(event.event_id, actor="jane")
    assert shown.content is not None
    assert shown.content.body == "do not lose me"
    resent = await letters.resend(Filter(event_id=event.event_id), actor="jane")
    assert [each.event_id for each in resent.resent] == [event.event_id]
    await letters.purge(Filter(event_id=event.event_id), actor="jane")
    assert desk.store.find_event(event.event_id) is None


@pytest.mark.req("RTY-7", "PIPE-5", "PIPE-7")
async def test_a_large_dead_letter_keeps_its_payload_until_it_is_purged(desk: Desk, letters: DeadLetters) -> None:
    """Weeks later, with nothing else left of it, it is sent again in full; what is purged leaves nothing behind."""
    body = "do not lose me" * 30_000
    event = await _die(desk, "carl", body=body)
    assert event.payload_ref is not None
    await _read_and_pruned(desk)
    assert desk.store.read_outbox(0).events == ()
    shown = await letters.show(event.event_id, actor="jane")
    assert shown.content is not None
    assert shown.content.body == body
    resent = await letters.resend(Filter(event_id=event.event_id), actor="jane")
    again = desk.outbox()[-1]
    assert [each.resent_as for each in resent.resent] == [again.event_id]
    assert desk.sealer.open(again).body == body
    await letters.purge(Filter(event_id=event.event_id), actor="jane")
    await _read_and_pruned(desk)
    assert desk.store.blob(event.payload_ref.sha256) is None
    assert desk.sealer.open(again).body == body


async def _read_and_pruned(desk: Desk) -> None:
    """A reader has read everything, and for weeks the keeper does its rounds."""
    keeper = Keeper(
        store=desk.store,
        room=desk.room,
        clock=desk.clock,
        wakeups=desk.wakeups,
        policy=DeliveryPolicy(retention_events=0),
    )
    for _ in range(3):
        desk.clock.advance(14 * 86_400_000)
        await desk.store.note_subscriber(
            Subscriber(
                consumer_node_id=OTHER,
                epoch=desk.store.epoch,
                last_seq=desk.store.head().seq,
                updated_at_ms=desk.clock.now_ms(),
                lease_expires_at_ms=desk.clock.now_ms() + 60_000,
            )
        )
        await keeper.keep()


@pytest.mark.req("RTY-3", "RTY-7")
@pytest.mark.parametrize("word", [DeliverySignal.ACCEPTED, DeliverySignal.PROCESSED, DeliverySignal.REPLY])
async def test_a_dead_letter_that_did_arrive_is_not_sent_again(
    desk: Desk, letters: DeadLetters, word: DeliverySignal
) -> None:
    """If the receiver says after the end that it has it, another one would engage the agent twice: that is refused."""
    event = await _die(desk, "bob", "carl")
    await desk.until_dead(event, "carl")
    await desk.change(event, word)
    (bobs,) = await letters.list(Filter(to_agent_id="bob"), actor="op")
    assert bobs.late is word
    done = await letters.resend(Filter(event_id=event.event_id), actor="op")
    assert [each.to_agents for each in done.resent] == [("carl",)]
    (refused,) = done.refused
    assert refused.to_agents == ("bob",)
    assert refused.reason.startswith("it arrived after all (bob: ")
    assert desk.delivery(event).resent_as is None


@pytest.mark.req("RTY-7")
async def test_a_dead_letter_that_arrived_and_failed_is_sent_again(desk: Desk, letters: DeadLetters) -> None:
    """What arrived late and could not be handled there is worth another try."""
    event = await _die(desk, "bob")
    await desk.change(event, DeliverySignal.ACCEPTED)
    await desk.change(event, DeliverySignal.FAILED_TERMINAL, reason="max_attempts")
    (done,) = (await letters.resend(Filter(event_id=event.event_id), actor="op")).resent
    (again,) = [each for each in desk.outbox() if each.event_id == done.resent_as]
    assert again.trace.instead_of == event.event_id, "the receiver can tell what it has had"
