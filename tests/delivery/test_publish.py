"""Publishing: an agent's words become one sealed event with a delivery for each recipient, or nothing happens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.delivery.ports import Content, Wakeups
from agentpost.delivery.publish import NO_ROUTE, Publisher, Receipt, SendRequest
from agentpost.delivery.sealing import MAX_CONTENT_BYTES, Sealer
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import (
    DeadLetterEvent,
    Event,
    MessageEvent,
    ReplyEvent,
    TaskUpdateEvent,
    is_engaged_by,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId, TaskId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind, Priority, TaskUpdate
from agentpost.protocol.routing import Decision, RejectReason
from agentpost.protocol.timestamps import format_ms
from agentpost.store.blobs import CHUNK_BYTES
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.transaction import Transaction
from agentpost.store.values import Appended, LocalAgent
from agentpost.testing import START_MS, FakeClock, FixedRoom, MemoryStore, SeededChance, a_message
from agentpost.world import IdMaker
from tests.store.building import refused

OWN, PEER, THIRD = "node-a", "node-b", "node-c"
ADA = LocalAgent(agent_id="ada", runtime="none", options={}, created_at_ms=START_MS)
CONTENT = Content(subject="the fence", body="paint it green, please")


class Heard(Wakeups):
    """Wake-ups that remember what was said, and how far the outbox was durable by then."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.heard: list[tuple[str, int]] = []
        self.listen(
            outbox=lambda _: self.heard.append(("outbox", store.head().seq)),
            timer=lambda _: self.heard.append(("timer", store.head().seq)),
        )


class Post:
    """One gateway with an agent, ada, in a room with two others; bob is at node-b and cyd at node-c."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = FakeClock()
        self.room = FixedRoom(self.clock)
        for node_id in (OWN, PEER, THIRD):
            self.room.add_node(node_id)
        for agent_id, node_id in (("ada", OWN), ("bob", PEER), ("cyd", THIRD)):
            self.room.add_agent(agent_id, node_id)
        self.ids = IdMaker(self.clock, SeededChance(1))
        self.heard = Heard(store)
        self.publisher = self.publisher_with()

    def publisher_with(self, *, max_inline_bytes: int = 1024) -> Publisher:
        return Publisher(
            store=self.store,
            room=self.room,
            sealer=self.sealer(OWN),
            maker=EventMaker(node_id=OWN, clock=self.clock, ids=self.ids),
            ids=self.ids,
            clock=self.clock,
            wakeups=self.heard,
            max_inline_bytes=max_inline_bytes,
        )

    def sealer(self, node_id: str) -> Sealer:
        return Sealer(
            node_id=node_id,
            sealing=self.room.identity(node_id).sealing,
            room=self.room,
            clock=self.clock,
            chance=SeededChance(2),
            store=self.store,
        )

    def events(self) -> list[Event]:
        return [decode_event(stored.raw) for stored in self.store.read_outbox(0).events]

    def message(self) -> MessageEvent:
        event = self.events()[0]
        assert isinstance(event, MessageEvent)
        return event

    def states(self, event_id: EventId) -> dict[str, DeliveryState]:
        return {each.to_agent_id: each.state for each in self.store.deliveries_of(event_id)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory that is its owner's alone."""
    tmp_path.chmod(0o700)
    return tmp_path


async def open_store(home: Path) -> SqliteStore:
    store = SqliteStore.open(home, node_id=OWN, epoch="first", now_ms=START_MS)
    await store.put_agent(ADA)
    return store


def all_bytes(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.fixture(params=["sqlite", "memory"])
async def post(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Post]:
    store: Store
    if request.param == "sqlite":
        store = await open_store(home)
    else:
        store = MemoryStore(node_id=OWN, epoch="first")
        await store.put_agent(ADA)
    yield Post(store)
    await store.close()


def to(*to_agents: str, content: Content = CONTENT) -> SendRequest:
    return SendRequest(source_agent_id="ada", to_agents=to_agents, content=content)


@pytest.mark.req("PIPE-3", "PIPE-4", "ENV-1", "ENV-2", "ENV-3", "ENV-4")
async def test_a_message_is_one_sealed_event_for_its_recipients_gateway(post: Post) -> None:
    """What is sent stands in the outbox at the seq that the receipt says, sealed for node-b, with all its fields."""
    receipt = await post.publisher.send(
        SendRequest(
            source_agent_id="ada",
            to_agents=("bob",),
            content=CONTENT,
            priority=Priority.HIGH,
            expects_reply=True,
            expires_at=format_ms(START_MS + 60_000),
        )
    )
    event = post.message()
    assert (event.seq, event.event_id, event.corr_id) == (receipt.seq, receipt.event_id, receipt.corr_id)
    assert event.corr_id[5:] == event.event_id[4:]
    assert (event.source_node_id, event.source_agent_id, event.to_nodes) == (OWN, "ada", (PEER,))
    assert (event.created_at, event.expires_at) == (format_ms(START_MS), format_ms(START_MS + 60_000))
    assert (event.trace.attempt, event.trace.route_decision) == (1, "owner")
    payload = event.payload
    assert (payload.to_agents, payload.priority, payload.expects_reply) == (("bob",), Priority.HIGH, True)
    assert (payload.subject, payload.body) == (None, None)
    assert post.sealer(PEER).open(event) == post.sealer(OWN).open(event) == CONTENT
    with refused(Code.INVALID_FIELD):
        post.sealer(THIRD).open(event)


@pytest.mark.req("PIPE-3")
async def test_others_are_woken_once_it_is_durable(post: Post) -> None:
    """Links and timers hear of an event when it is in the outbox, and of a refused one never."""
    receipt = await post.publisher.send(to("bob"))
    assert post.heard.heard == [("outbox", receipt.seq), ("timer", receipt.seq)]
    with refused(Code.INVALID_TARGETS):
        await post.publisher.send(to("nobody"))
    assert len(post.heard.heard) == 2


@pytest.mark.req("PIPE-3")
async def test_a_message_with_a_receipt_is_there_after_a_restart(home: Path) -> None:
    """Once the receipt is given, event and deliveries are on the disk."""
    store = await open_store(home)
    before = Post(store)
    receipt = await before.publisher.send(to("bob", "cyd"))
    await store.close()
    store = await open_store(home)
    after = Post(store)
    assert after.message().event_id == receipt.event_id
    assert sorted(after.states(receipt.event_id)) == ["bob", "cyd"]
    assert after.sealer(OWN).open(after.message()) == CONTENT
    await store.close()


@pytest.mark.req("ACK-5", "ROUTE-10")
async def test_every_recipient_has_a_delivery_of_its_own(post: Post) -> None:
    """Three recipients on two gateways: one event, two copies of the key, and three states with route and time."""
    post.room.add_agent("bea", PEER)
    receipt = await post.publisher.send(to("bob", "cyd", "bea"))
    event = post.message()
    assert event.to_nodes == (PEER, THIRD)
    deliveries = {each.to_agent_id: each for each in post.store.deliveries_of(receipt.event_id)}
    assert {agent_id: each.to_node_id for agent_id, each in deliveries.items()} == {
        "bob": PEER,
        "cyd": THIRD,
        "bea": PEER,
    }
    for each in deliveries.values():
        assert (each.route_decision, each.emitted_at_ms, each.state) == ("owner", START_MS, DeliveryState.EMITTED)
        assert (each.corr_id, each.from_agent_id, each.due_at_ms) == (event.corr_id, "ada", START_MS + 20_000)
    assert post.sealer(PEER).open(event) == post.sealer(THIRD).open(event) == CONTENT


@pytest.mark.req("ROUTE-1", "ROUTE-2")
async def test_the_event_says_which_gateway_engages_whom(post: Post) -> None:
    """A gateway that gets an event for one agent does not engage another that it could only stand in for."""
    post.room.add_fallback("bob", THIRD)
    await post.publisher.send(to("bob", "cyd"))
    event = post.message()
    assert is_engaged_by(event, agent_id="bob", node_id=PEER)
    assert not is_engaged_by(event, agent_id="bob", node_id=THIRD)
    assert is_engaged_by(event, agent_id="cyd", node_id=THIRD)


@pytest.mark.req("ROUTE-2")
async def test_a_stand_in_gets_the_mail_of_a_silent_owner(post: Post) -> None:
    """With the owner away the event goes to the first live stand-in and to nobody else, and says so."""
    post.room.add_fallback("bob", THIRD)
    post.room.set_offline(PEER)
    receipt = await post.publisher.send(to("bob"))
    assert [(each.node_id, each.decision) for each in receipt.recipients] == [(THIRD, Decision.FALLBACK)]
    event = post.message()
    assert (event.to_nodes, event.trace.route_decision) == ((THIRD,), "fallback")


@pytest.mark.req("ROUTE-2")
async def test_nobody_stands_in_for_the_gateway_that_sends(post: Post) -> None:
    """A gateway that has not heard its own heartbeat yet still is where its agents are."""
    post.room.add_agent("amy", OWN)
    post.room.add_fallback("amy", PEER)
    post.room.set_offline(OWN)
    receipt = await post.publisher.send(to("amy"))
    (told,) = receipt.recipients
    assert (told.node_id, told.decision, told.is_online) == (OWN, Decision.OWNER, True)


@pytest.mark.req("ROUTE-3", "RTY-2")
async def test_an_agent_without_an_owner_gets_a_dead_letter(post: Post) -> None:
    """The message, its delivery and the dead letter are written together; the other recipient gets its mail."""
    post.room.add_agent("lost", None)
    receipt = await post.publisher.send(to("lost", "bob"))
    assert [each.decision for each in receipt.recipients] == [Decision.UNROUTABLE, Decision.OWNER]
    message, dead = post.events()
    assert isinstance(dead, DeadLetterEvent)
    assert (dead.payload.ref_event_id, dead.payload.to_agent_id) == (receipt.event_id, "lost")
    assert (dead.payload.reason, dead.payload.ref_kind) == (NO_ROUTE, Kind.MESSAGE)
    assert message.to_nodes == (PEER,)
    assert not is_engaged_by(message, agent_id="lost", node_id=PEER)
    assert post.states(receipt.event_id) == {"bob": DeliveryState.EMITTED, "lost": DeliveryState.DEAD_LETTER}
    assert [(each.kind, each.subject) for each in post.store.incidents()] == [(NO_ROUTE, "lost")]


@pytest.mark.req("ROUTE-3")
async def test_a_message_that_nobody_can_get_is_a_dead_letter_and_not_lost(post: Post) -> None:
    """Even the only recipient without an owner gives a dead letter, and the sender can still read what it said."""
    post.room.add_agent("lost", None)
    receipt = await post.publisher.send(to("lost"))
    event = post.message()
    assert event.to_nodes == ()
    assert post.states(receipt.event_id) == {"lost": DeliveryState.DEAD_LETTER}
    assert post.store.next_due_at_ms() is None
    assert post.sealer(OWN).open(event) == CONTENT


@pytest.mark.req("ROUTE-3", "PIPE-4")
async def test_the_agents_of_a_revoked_gateway_have_no_route(post: Post) -> None:
    """Nothing is sealed for a gateway that was revoked or never joined, and the mail of others is not held up by it."""
    post.room.revoke(PEER)
    post.room.add_agent("eve", "node-x")
    receipt = await post.publisher.send(to("bob", "eve", "cyd"))
    assert post.states(receipt.event_id) == {
        "bob": DeliveryState.DEAD_LETTER,
        "cyd": DeliveryState.EMITTED,
        "eve": DeliveryState.DEAD_LETTER,
    }
    sealed = post.message().payload.sealed
    assert sealed is not None
    assert sorted(sealed.keys) == [OWN, THIRD]


@pytest.mark.req("ROUTE-4")
async def test_targets_that_do_not_exist_are_named_and_the_rest_is_sent(post: Post) -> None:
    """One valid target is enough to send; with none the request is refused and nothing is written."""
    post.room.add_agent("retired", PEER, active=False)
    receipt = await post.publisher.send(to("nobody", "bob", "retired"))
    assert post.message().payload.to_agents == ("bob",)
    assert [(each.agent_id, each.reason) for each in receipt.rejected] == [
        ("nobody", RejectReason.UNKNOWN),
        ("retired", RejectReason.INACTIVE),
    ]
    with refused(Code.INVALID_TARGETS):
        await post.publisher.send(to("nobody", "retired"))
    assert post.store.head().seq == 1


@pytest.mark.req("ROUTE-5", "ROUTE-6", "ROUTE-7")
async def test_whoever_has_the_capabilities_gets_it(post: Post) -> None:
    """A message by capability names the agents that it went to; what nobody can do is refused with the reason."""
    post.room.add_capability("paint", "bob", "cyd")
    post.room.add_capability("weld", "cyd")
    request = SendRequest(source_agent_id="ada", required_capabilities=("paint", "weld"), content=CONTENT)
    await post.publisher.send(request)
    payload = post.message().payload
    assert (payload.to_agents, payload.required_capabilities) == (("cyd",), ("paint", "weld"))
    with refused(Code.NO_ROUTE):
        await post.publisher.send(replace(request, required_capabilities=("fly",)))
    with refused(Code.MISSING_ROUTE_FIELDS):
        await post.publisher.send(replace(request, required_capabilities=()))
    post.room.add_agent("cyd", THIRD, active=False)
    with refused(Code.CAPABILITY_UNAVAILABLE):
        await post.publisher.send(request)
    assert post.store.head().seq == 1


@pytest.mark.req("ROUTE-8", "ROUTE-9")
async def test_all_becomes_the_list_of_those_who_get_it(post: Post) -> None:
    """The event names the agents, not "all", and the versions of the policy under which they were found."""
    await post.publisher.send(to("all"))
    event = post.message()
    assert event.payload.to_agents == ("bob", "cyd")
    room = post.room.snapshot()
    assert event.trace.routing_policy_version == room.routing_policy_version
    assert event.trace.capability_policy_version == room.capability_policy_version


async def test_more_recipients_than_an_event_can_name_are_refused(post: Post) -> None:
    """An event that its readers would refuse does not get into the outbox."""
    for number in range(1001):
        post.room.add_agent(f"agent-{number}", PEER)
    with refused(Code.INVALID_TARGETS):
        await post.publisher.send(to("all"))
    assert post.store.head().seq == 0


async def test_a_receipt_says_who_is_there(post: Post) -> None:
    """The sender learns whether each gateway is awake, when it was heard last, and how much waits for each agent."""
    post.room.add_agent("amy", OWN)
    post.room.add_agent("ben", PEER)
    post.room.set_waiting(PEER, 7, bob=4, ben=0)
    post.room.set_waiting(OWN, 2)
    post.room.set_offline(THIRD)
    post.clock.advance(90_000)
    receipt = await post.publisher.send(to("bob", "ben", "cyd", "amy"))
    now_ms = START_MS + 90_000
    told = {each.agent_id: (each.is_online, each.last_seen_ms) for each in receipt.recipients}
    assert told == {"bob": (True, now_ms), "ben": (True, now_ms), "cyd": (False, START_MS), "amy": (True, now_ms)}
    waiting = {each.agent_id: (each.waiting, each.gateway_waiting) for each in receipt.recipients}
    assert waiting == {"bob": (4, 7), "ben": (0, 7), "cyd": (None, None), "amy": (None, 2)}
    assert msgspec.to_builtins(receipt)["recipients"][2]["isOnline"] is False


async def test_a_receipt_says_how_much_a_gateway_has_not_taken(post: Post) -> None:
    """What was sent to a gateway before, to any of its agents, and has no `accepted` yet; counted once a second."""
    post.room.add_agent("ben", PEER)
    for _ in range(3):
        await post.publisher.send(to("bob"))
    post.clock.advance(1_000)
    receipt = await post.publisher.send(to("ben", "cyd"))
    assert [each.not_taken for each in receipt.recipients] == [4, 1]


async def test_mail_between_two_local_agents_goes_the_same_way(post: Post) -> None:
    """A local recipient has a delivery too, and its event is for the own gateway."""
    post.room.add_agent("amy", OWN)
    receipt = await post.publisher.send(to("amy"))
    assert post.message().to_nodes == (OWN,)
    assert post.states(receipt.event_id) == {"amy": DeliveryState.EMITTED}
    assert post.sealer(OWN).open(post.message()) == CONTENT


@pytest.mark.req("ENV-3")
async def test_a_conversation_goes_on_under_its_corr_id(post: Post) -> None:
    """A corrId that is given is kept; one that is none is refused by field."""
    first = await post.publisher.send(to("bob"))
    second = await post.publisher.send(replace(to("bob"), corr_id=first.corr_id))
    assert second.corr_id == first.corr_id
    with refused(Code.INVALID_FIELD) as caught:
        await post.publisher.send(replace(to("bob"), corr_id=CorrId("the usual")))
    assert caught.value.field == "corrId"


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (replace(to("bob"), source_agent_id="bob"), Code.NOT_FOUND, "sourceAgentId"),
        (replace(to("bob"), source_agent_id=""), Code.NOT_FOUND, "sourceAgentId"),
        (replace(to("bob"), expires_at=format_ms(START_MS)), Code.EXPIRED, "expiresAt"),
        (replace(to("bob"), expires_at="tomorrow"), Code.INVALID_FIELD, "expiresAt"),
        (replace(to("bob"), priority="urgent"), Code.INVALID_FIELD, "payload.priority"),
        (replace(to("bob"), priority=object()), Code.INVALID_FIELD, "event"),
        (
            replace(to("bob"), required_capabilities=("x" * 200,)),
            Code.INVALID_FIELD,
            "payload.requiredCapabilities[0]",
        ),
        (to("bob", content=Content(title="a task")), Code.INVALID_FIELD, "payload.title"),
        (to("bob", content=Content(body=b"raw")), Code.INVALID_FIELD, "payload.body"),  # type: ignore[arg-type]
        (to("bob", content=Content(context={"at": object()})), Code.INVALID_FIELD, "payload.context.at"),
    ],
)
async def test_a_bad_request_is_refused_and_nothing_happens(
    post: Post, request_: SendRequest, code: Code, field: str
) -> None:
    """The refusal has the code and names the field, and the outbox stays as it was."""
    with refused(code) as caught:
        await post.publisher.send(request_)
    assert caught.value.field == field
    assert post.store.head().seq == 0
    assert post.heard.heard == []


def test_a_request_with_a_field_that_does_not_exist_is_refused() -> None:
    """A sender that misspells a field hears of it instead of being half understood."""
    with pytest.raises(msgspec.ValidationError, match="toAgent"):
        msgspec.json.decode(b'{"sourceAgentId": "ada", "toAgent": ["bob"]}', type=SendRequest)


async def test_the_timer_of_a_delivery_does_not_outlive_its_event(post: Post) -> None:
    """A message that expires before the ACK timeout is looked at when it expires."""
    receipt = await post.publisher.send(replace(to("bob"), expires_at=format_ms(START_MS + 5_000)))
    assert post.store.deliveries_of(receipt.event_id)[0].due_at_ms == START_MS + 5_000


class TestLargeContent:
    """Content above the limit goes beside the event."""

    @pytest.mark.req("PIPE-5")
    async def test_it_is_kept_in_a_blob_that_only_the_recipients_can_open(self, post: Post) -> None:
        """The event has a reference instead; the blob is complete before the event is there."""
        content = Content(body="green " * CHUNK_BYTES)
        await post.publisher.send(to("bob", content=content))
        event = post.message()
        ref = event.payload_ref
        assert ref is not None
        assert event.payload.sealed is None
        blob = post.store.blob(ref.sha256)
        assert blob is not None
        assert (blob.complete, blob.size_bytes) == (True, ref.size_bytes)
        assert post.sealer(PEER).open(event) == content
        assert b"green" not in (post.store.chunk(ref.sha256, 0) or b"green")
        with refused(Code.INVALID_FIELD):
            post.sealer(THIRD).open(event)

    @pytest.mark.req("PIPE-5")
    async def test_the_limit_is_exact(self, post: Post) -> None:
        """What has just the limit stays in the event."""
        for size, is_inline in ((1024, True), (1025, False)):
            overhead = len(msgspec.msgpack.encode(Content(body="x" * 900))) - 900
            receipt = await post.publisher.send(to("bob", content=Content(body="x" * (size - overhead))))
            stored = post.store.find_event(receipt.event_id)
            assert stored is not None
            assert (decode_event(stored.raw).payload_ref is None) is is_inline

    @pytest.mark.req("PIPE-5")
    async def test_too_much_is_refused(self, post: Post) -> None:
        """There is an end to it, and nothing is kept of what was refused."""
        with refused(Code.TOO_LARGE):
            await post.publisher.send(to("bob", content=Content(body="x" * MAX_CONTENT_BYTES)))
        assert post.store.head().seq == 0

    @pytest.mark.req("PIPE-5")
    async def test_a_blob_whose_event_is_refused_does_not_stay(
        self, post: Post, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the event cannot be appended, its blob is taken back."""
        kept: list[str] = []
        complete_blob = post.store.complete_blob

        async def complete(sha256: str) -> None:
            kept.append(sha256)
            await complete_blob(sha256)

        async def full(*_: object, **__: object) -> None:
            raise Refusal(Code.STORAGE_FULL, "the disk is full")

        monkeypatch.setattr(post.store, "complete_blob", complete)
        monkeypatch.setattr(post.store, "append", full)
        with refused(Code.STORAGE_FULL):
            await post.publisher.send(to("bob", content=Content(body="x" * 2000)))
        assert len(kept) == 1
        assert post.store.blob(kept[0]) is None
        assert post.heard.heard == []

    @pytest.mark.req("PIPE-5")
    async def test_an_event_that_is_sealed_anew_keeps_nothing_of_the_seal_before(self, post: Post) -> None:
        """The same event with short, then with long content has one of seal and reference, never both."""
        event = a_message(1)
        short, long = Content(body="x"), Content(body="x" * 2000)
        inside = await post.publisher.seal_into(event, short)
        beside = await post.publisher.seal_into(inside, long)
        again = await post.publisher.seal_into(beside, short)
        assert (inside.payload.sealed is None, inside.payload_ref is None) == (False, True)
        assert (beside.payload.sealed is None, beside.payload_ref is None) == (True, False)
        assert (again.payload.sealed is None, again.payload_ref is None) == (False, True)
        assert post.sealer(OWN).open(beside) == long


class TestReplies:
    """What an agent answers."""

    def asked(self) -> MessageEvent:
        return a_message(
            7, body="how far are you?", source_node_id=PEER, source_agent_id="bob", to_agents=("ada",), seq=3
        )

    @pytest.mark.req("PIPE-2", "PIPE-4", "ENV-3")
    async def test_a_reply_goes_back_to_where_the_event_came_from(self, post: Post) -> None:
        """It has the corrId of what it answers, names it, is sealed for the asking gateway, and has a delivery."""
        asked = self.asked()
        reply, delivery = await post.publisher.make_reply(asked, agent_id="ada", content=Content(body="half way"))
        assert isinstance(reply, ReplyEvent)
        assert (reply.payload.ref_event_id, reply.corr_id) == (asked.event_id, asked.corr_id)
        assert (reply.source_node_id, reply.source_agent_id) == (OWN, "ada")
        assert (reply.to_agent_id, reply.to_nodes, reply.seq) == ("bob", (PEER,), 0)
        assert (delivery.event_id, delivery.to_agent_id, delivery.to_node_id) == (reply.event_id, "bob", PEER)
        assert (delivery.corr_id, delivery.from_agent_id) == (asked.corr_id, "ada")
        assert (delivery.due_at_ms, delivery.emitted_at_ms) == (START_MS + 20_000, START_MS)
        assert post.store.head().seq == 0
        await post.store.append((reply,), deliveries=(delivery,))
        assert post.sealer(PEER).open(post.events()[0]) == Content(body="half way")

    @pytest.mark.req("PIPE-5")
    async def test_a_large_reply_waits_for_its_blob_only(self, post: Post) -> None:
        """When the reply is there its blob is durable, and the reply itself is still the settlement's to append."""
        reply, _ = await post.publisher.make_reply(self.asked(), agent_id="ada", content=Content(body="x" * 2000))
        assert reply.payload_ref is not None
        assert post.store.head().seq == 0
        assert post.sealer(PEER).open(reply) == Content(body="x" * 2000)

    async def test_nothing_is_answered_to_a_gateway_that_has_left(self, post: Post) -> None:
        """The refusal says which gateway; whoever settles does so without the reply."""
        post.room.revoke(PEER)
        with refused(Code.NO_ROUTE) as caught:
            await post.publisher.make_reply(self.asked(), agent_id="ada", content=Content(body="x"))
        assert PEER in caught.value.message


@pytest.mark.req("PIPE-4")
async def test_any_kind_of_event_can_be_published(post: Post) -> None:
    """A task update is sealed and appended the same way; content in its payload does not slip through in the clear."""
    event_id = post.ids.make(EventId)
    update = TaskUpdateEvent(
        event_id=event_id,
        source_node_id=OWN,
        source_agent_id="ada",
        to_agent_id="bob",
        to_nodes=(PEER,),
        corr_id=CorrId("corr_" + event_id[4:]),
        created_at=format_ms(START_MS),
        payload=TaskUpdate(task_id=TaskId("tsk_" + event_id[4:]), progress=40, note="in the clear"),
    )
    appended = await post.publisher.publish(update, content=Content(note="nearly there"))
    assert (appended.first_seq, appended.last_seq) == (1, 1)
    (event,) = post.events()
    assert isinstance(event, TaskUpdateEvent)
    assert (event.payload.progress, event.payload.note) == (40, None)
    assert post.sealer(PEER).open(event) == Content(note="nearly there")


async def test_a_signal_is_published_as_it_is(post: Post) -> None:
    """A kind without content has nothing to seal, and takes none."""
    maker = EventMaker(node_id=OWN, clock=post.clock, ids=post.ids)
    signal = maker.signal("status", to_nodes=(PEER,))
    await post.publisher.publish(signal, content=Content())
    assert post.events() == [replace(signal, seq=1)]
    with refused(Code.INVALID_FIELD):
        await post.publisher.publish(signal, content=Content(body="psst"))


@pytest.mark.req("ROUTE-2", "PIPE-4")
async def test_an_event_can_be_given_to_another_gateway(post: Post) -> None:
    """A resend that follows an agent to its new gateway opens there, and does not engage those who have it already."""
    await post.publisher.send(to("bob", "cyd"))
    event = post.message()
    moved = post.publisher.readdress(event, {"cyd": PEER})
    assert (moved.event_id, moved.to_nodes) == (event.event_id, (PEER,))
    assert is_engaged_by(moved, agent_id="cyd", node_id=PEER)
    assert not is_engaged_by(moved, agent_id="bob", node_id=PEER)
    assert post.sealer(PEER).open(moved) == CONTENT


@pytest.mark.req("PIPE-4")
async def test_no_word_of_a_message_is_on_the_disk(home: Path) -> None:
    """The home of the sending gateway holds the event, and nowhere what it says."""
    store = await open_store(home)
    post = Post(store)
    await post.publisher.send(to("bob"))
    await post.publisher.send(to("bob", content=Content(body="paint it green, please" * 100)))
    await store.close()
    held = all_bytes(home)
    assert b"evt_" in held
    assert b"green" not in held


class Appends:
    """Counts the appends of a store, and refuses those with an event of one of these recipients."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, *, unwanted: str | None = None) -> None:
        self.sizes: list[int] = []
        append = store.append

        async def counted(events: Sequence[Event], **more: Any) -> Appended:
            self.sizes.append(len(events))
            if any(isinstance(event, MessageEvent) and unwanted in event.payload.to_agents for event in events):
                raise Refusal(Code.TOO_LARGE, "no")
            return await append(events, **more)

        monkeypatch.setattr(store, "append", counted)


@pytest.mark.req("PIPE-3", "ENV-2")
async def test_what_is_said_in_one_turn_is_appended_together(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three agents speak at once: one append, in the order in which they spoke, and a receipt for each."""
    appends = Appends(post.store, monkeypatch)
    said = ["one", "two", "three"]
    receipts = await asyncio.gather(
        *(
            post.publisher.send(to(agent, content=Content(body=body)))
            for agent, body in zip(("bob", "cyd", "bob"), said, strict=True)
        )
    )
    assert appends.sizes == [3]
    assert [receipt.seq for receipt in receipts] == [1, 2, 3]
    assert [event.event_id for event in post.events()] == [receipt.event_id for receipt in receipts]
    assert [post.sealer(OWN).open(event).body for event in post.events()] == said
    assert [receipt.recipients[0].node_id for receipt in receipts] == [PEER, THIRD, PEER]
    assert all(post.states(receipt.event_id) for receipt in receipts)
    assert post.heard.heard == [("outbox", 3), ("timer", 3)]


@pytest.mark.req("ROUTE-4", "PIPE-3")
async def test_who_is_refused_does_not_hold_up_the_others_of_its_turn(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One names nobody who exists, one is refused by the store: two others are sent all the same."""
    Appends(post.store, monkeypatch, unwanted="cyd")
    first, nobody, unwanted, last = await asyncio.gather(
        *(post.publisher.send(to(agent)) for agent in ("bob", "eve", "cyd", "bob")), return_exceptions=True
    )
    assert isinstance(nobody, Refusal)
    assert nobody.code is Code.INVALID_TARGETS
    assert isinstance(unwanted, Refusal)
    assert unwanted.code is Code.TOO_LARGE
    assert isinstance(first, Receipt)
    assert isinstance(last, Receipt)
    assert [event.event_id for event in post.events()] == [first.event_id, last.event_id]


@pytest.mark.req("PIPE-3")
async def test_one_refused_message_costs_the_others_of_its_turn_no_commit_each(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty-four messages are sent at once and one is refused: the others share a handful of commits, in order."""
    commits: list[None] = []
    commit = Transaction.commit

    def counted(transaction: Transaction) -> None:
        commits.append(None)
        commit(transaction)

    store = await open_store(home)
    post = Post(store)
    Appends(store, monkeypatch, unwanted="cyd")
    monkeypatch.setattr(Transaction, "commit", counted)
    answers = await asyncio.gather(
        *(post.publisher.send(to("cyd" if number == 32 else "bob")) for number in range(64)), return_exceptions=True
    )
    sent = [answer for answer in answers if isinstance(answer, Receipt)]
    assert [event.event_id for event in post.events()] == [receipt.event_id for receipt in sent]
    assert [receipt.seq for receipt in sent] == list(range(1, 64))
    assert len(commits) <= 4
    await store.close()


@pytest.mark.req("PIPE-3")
async def test_a_field_that_no_reader_takes_is_refused_beside_others_like_it(post: Post) -> None:
    """A corrId of the wrong form, and a 1 for a True, are found although messages to the same agent were fine."""
    fine, wrong_form, asks, wrong_type = await asyncio.gather(
        post.publisher.send(to("bob")),
        post.publisher.send(replace(to("bob"), corr_id=CorrId("corr_nonsense"))),
        post.publisher.send(replace(to("bob"), expects_reply=True)),
        post.publisher.send(replace(to("bob"), expects_reply=1)),
        return_exceptions=True,
    )
    assert isinstance(fine, Receipt)
    assert isinstance(asks, Receipt)
    for wrong in (wrong_form, wrong_type):
        assert isinstance(wrong, Refusal)
        assert wrong.code is Code.INVALID_FIELD
    assert len(post.events()) == 2


@pytest.mark.req("PIPE-3")
async def test_who_gives_up_waiting_does_not_hold_up_the_others(post: Post) -> None:
    """A caller that is cancelled before its turn comes is alone in that: its neighbour has its receipt."""
    impatient = asyncio.ensure_future(post.publisher.send(to("bob")))
    patient = asyncio.ensure_future(post.publisher.send(to("cyd")))
    await asyncio.sleep(0)
    impatient.cancel()
    receipt = await patient
    assert impatient.cancelled()
    assert receipt.event_id in {event.event_id for event in post.events()}


@pytest.mark.req("PIPE-3")
async def test_who_gives_up_while_it_is_written_has_sent_it_all_the_same(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large message whose sender is cancelled during the commit is durable, and those who send it on hear of it."""
    append = post.store.append

    def append_and_give_up(*args: Any, **named: Any) -> Any:
        sending.cancel()
        return append(*args, **named)

    monkeypatch.setattr(post.store, "append", append_and_give_up)
    sending = asyncio.ensure_future(post.publisher.send(to("bob", content=Content(body="x" * 5000))))
    with pytest.raises(asyncio.CancelledError):
        await sending
    async with asyncio.timeout(30):
        while not post.heard.heard:  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)
    assert post.heard.heard == [("outbox", 1), ("timer", 1)]
