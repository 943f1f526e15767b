"""Mail for agents of the mesh that programs put into the gateway's mailbox: sent once, in order, or told why not."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.delivery.forwarding import Forwarder
from agentpost.mailbox.file import FileMailbox
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.mailbox import MailboxMessage
from agentpost.testing import FakeClock, MemoryStore
from tests.delivery.test_publish import ADA, OWN, PEER, Post
from tests.mailboxes.building import message

ADDRESS = f"bob@{PEER}"
# Longer than a message may be in flight, and than the first pause.
SILENCE_MS = 36_000


def to_bob(msg_id: str, *, sender: str = "ada", to: str = ADDRESS, **beside: Any) -> MailboxMessage:
    return replace(message(msg_id, sender=sender, to=to, payload=f"say {msg_id}"), extra=beside)


@pytest.fixture
async def post() -> Post:
    store = MemoryStore(node_id=OWN, epoch="first")
    await store.put_agent(ADA)
    return Post(store)


@pytest.fixture
async def forwarder(post: Post, file: FileMailbox) -> Forwarder:
    return Forwarder(file, store=post.store, room=post.room, publisher=post.publisher)


def sent(post: Post) -> list[MessageEvent]:
    return [event for event in post.events() if isinstance(event, MessageEvent)]


def said(post: Post) -> list[str | None]:
    """What bob's gateway reads, in order."""
    return [post.sealer(PEER).open(event).body for event in sent(post)]


@pytest.mark.req("MBX-8", "ROUTE-1")
async def test_what_is_put_under_an_address_is_sent_there(post: Post, forwarder: Forwarder, file: FileMailbox) -> None:
    """Messages to agent@node are published for that agent's gateway in their order, and acked; other mail stays."""
    await file.enqueue_many([to_bob("m1"), to_bob("m2", sender=f"ada@{OWN}"), message("local", to="ada")])
    assert await forwarder.forward() == 2
    assert said(post) == ["say m1", "say m2"]
    assert [(event.source_agent_id, event.payload.to_agents, event.to_nodes) for event in sent(post)] == [
        ("ada", ("bob",), (PEER,))
    ] * 2
    assert await file.peek(ADDRESS) == []
    assert [each.msg_id for each in await file.peek("ada")] == ["local"]
    assert await forwarder.forward() == 0


async def test_what_stands_beside_the_payload_travels(post: Post, forwarder: Forwarder, file: FileMailbox) -> None:
    """Subject, context, conversation and the wish for an answer are taken over, in either spelling."""
    corr_id = "corr_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    await file.enqueue(
        to_bob("m1", subject="the fence", context={"colour": "green"}, corrId=corr_id, expects_reply=True)
    )
    await forwarder.forward()
    (event,) = sent(post)
    content = post.sealer(PEER).open(event)
    assert (content.subject, content.context) == ("the fence", {"colour": "green"})
    assert (event.corr_id, event.payload.expects_reply) == (corr_id, True)


@pytest.mark.req("MBX-9", "MBX-6")
async def test_a_crash_before_the_ack_sends_nothing_twice(
    post: Post, forwarder: Forwarder, file: FileMailbox, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway died between sending and the ack: the message comes again, its event is known, the ack is made up."""

    async def die(_session: str, _msg_id: str) -> None:
        raise KeyboardInterrupt

    await file.enqueue(to_bob("m1"))
    with monkeypatch.context() as patch:
        patch.setattr(file, "ack", die)
        with pytest.raises(KeyboardInterrupt):
            await forwarder.forward()
    assert said(post) == ["say m1"]
    clock.advance(SILENCE_MS)
    again = Forwarder(file, store=post.store, room=post.room, publisher=post.publisher)
    assert await again.forward() == 1
    assert said(post) == ["say m1"]
    assert await file.peek(ADDRESS) == []


@pytest.mark.req("MBX-5", "MBX-7", "ROUTE-3")
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (to_bob("m1", to="nobody@node-b"), "no_route"),
        (to_bob("m1", to="bob@node-c"), "no_route"),
        (to_bob("m1", to="@"), "no_route"),
        (to_bob("m1", sender="stranger"), "not_found"),
        (to_bob("m1", subject=7), "invalid_field"),
        (to_bob("m1", corr_id="../x"), "invalid_field"),
    ],
)
async def test_what_cannot_be_sent_ends_as_a_dead_letter(
    post: Post, forwarder: Forwarder, file: FileMailbox, clock: FakeClock, wrong: MailboxMessage, code: str
) -> None:
    """It is tried four times, holds back nobody else, and the dead letter has the code of the refusal."""
    await file.enqueue_many([wrong, to_bob("good")] if wrong.sender != "ada" or wrong.to != ADDRESS else [wrong])
    for _ in range(4):
        await forwarder.forward()
        clock.advance(SILENCE_MS)
    assert await file.peek(wrong.to) == []
    (dead,) = await file.peek_dead_letter(wrong.to)
    assert dead.attempts == 4
    assert code in dead.reason
    assert said(post) in ([], ["say good"])


@pytest.mark.req("MBX-8")
async def test_mail_waits_in_order_for_an_agent_that_appears_later(
    post: Post, forwarder: Forwarder, file: FileMailbox, clock: FakeClock
) -> None:
    """What could not be sent at first is sent once there is a way, before what came after it."""
    await file.enqueue_many([to_bob("m1", to=f"eve@{PEER}"), to_bob("m2", to=f"eve@{PEER}")])
    await forwarder.forward()
    assert said(post) == []
    post.room.add_agent("eve", PEER)
    clock.advance(SILENCE_MS)
    await forwarder.forward()
    assert said(post) == ["say m1", "say m2"]


async def test_a_node_that_was_revoked_gets_nothing(post: Post, forwarder: Forwarder, file: FileMailbox) -> None:
    """Nobody could open what is sealed for it: the message is nacked with no_route, and nothing is published."""
    post.room.revoke(PEER)
    await file.enqueue(to_bob("m1"))
    await forwarder.forward()
    assert sent(post) == []
    assert [each.attempt for each in await file.peek(ADDRESS)] == [1]


async def test_an_agent_with_an_at_in_its_name_keeps_its_mail(
    post: Post, forwarder: Forwarder, file: FileMailbox
) -> None:
    """A session that is an agent of this gateway is no address, whatever it is called."""
    await post.store.put_agent(replace(ADA, agent_id="ada@home"))
    await file.enqueue(message("m1", to="ada@home"))
    assert await forwarder.forward() == 0
    assert [each.state for each in await file.peek("ada@home")] == ["pending"]


async def test_the_event_follows_from_the_message_alone(post: Post, forwarder: Forwarder, file: FileMailbox) -> None:
    """Different messages have different events, and each has a readable id with the time of its message."""
    await file.enqueue_many([to_bob("m1"), to_bob("m2"), to_bob("m1", to="cyd@node-c")])
    await forwarder.forward()
    events = [decode_event(stored.raw) for stored in post.store.read_outbox(0).events]
    assert len({event.event_id for event in events}) == 3
    assert len({event.event_id[:14] for event in events}) == 1
