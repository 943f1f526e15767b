"""Messages that were handed out to somebody who never heard of it: they are there again, and no attempt was counted."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentpost.edges.mailbox.carriers import UnixCarrier
from agentpost.edges.mailbox.connecting import connect_mailbox
from agentpost.edges.mailbox.serving import serve_http
from agentpost.edges.mailbox.unix import serve_unix
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import ServedMailbox
from agentpost.mailbox.memory import MemoryMailbox
from agentpost.mailbox.remote import PushingMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import MailboxMessage
from agentpost.testing import FakeClock
from tests.mailboxes.building import message

PATIENCE_SECONDS = 30
UNTOUCHED = [("m1", "pending", 0)]


async def seen(mailbox: ServedMailbox) -> list[tuple[str, str, int]]:
    return [(each.msg_id, each.state.value, each.attempt) for each in await mailbox.peek("bob")]


async def eventually(mailbox: ServedMailbox, wanted: list[tuple[str, str, int]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await seen(mailbox) != wanted:  # noqa: ASYNC110 - the server does not know of this test
            await asyncio.sleep(0.01)


async def remote(address: str) -> PushingMailbox:
    mailbox = await connect_mailbox(address)
    assert isinstance(mailbox, PushingMailbox)
    return mailbox


async def following(pushes: AsyncIterator[MailboxMessage]) -> MailboxMessage:
    return await asyncio.wait_for(anext(pushes), PATIENCE_SECONDS)


async def following_line(reader: asyncio.StreamReader) -> dict[str, Any]:
    return json.loads(await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS))


def call(method: str, **parameters: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode() + b"\n"


@pytest.fixture
async def socket(file: FileMailbox, tmp_path: Path) -> AsyncIterator[Path]:
    async with serve_unix(file, tmp_path / "mail.sock"):
        yield tmp_path / "mail.sock"


@pytest.fixture
async def url(file: FileMailbox) -> AsyncIterator[str]:
    async with serve_http(file, host="127.0.0.1", port=0, token=None) as where:
        yield where


@pytest.mark.req("MBX-4")
@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_only_what_is_still_handed_out_is_given_back(kind: str, file: FileMailbox, clock: FakeClock) -> None:
    """Given back, a message stands where it stood; a later hand-over, and what was settled, is left as it is."""
    mailbox: ServedMailbox = file if kind == "file" else MemoryMailbox(clock=clock)
    await mailbox.enqueue_many([message("m1"), message("m2"), message("m3")])
    await mailbox.dequeue_many("bob", 3)
    await mailbox.ack("bob", "m3")
    await mailbox.give_back("bob", {"m1": 0, "m2": 1, "m3": 0, "m4": 0})
    assert await seen(mailbox) == [("m2", "in_flight", 0), ("m1", "pending", 0)]
    assert (await mailbox.enqueue(message("m5"))).pending == 2
    assert [each.msg_id for each in await mailbox.dequeue_many("bob", 9)] == ["m1", "m5"]


@pytest.mark.req("MBX-4", "MBX-6")
@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_a_late_undo_leaves_the_next_hand_over_alone(kind: str, file: FileMailbox, clock: FakeClock) -> None:
    """A hand-over times out, the message is handed out again, and only then is the first one given back."""
    mailbox: ServedMailbox = file if kind == "file" else MemoryMailbox(clock=clock)
    await mailbox.enqueue(message("m1"))
    assert [each.attempt for each in await mailbox.dequeue_many("bob", 1)] == [0]
    clock.advance(10 * 60_000)
    assert [each.attempt for each in await mailbox.dequeue_many("bob", 1)] == [1]
    await mailbox.give_back("bob", {"m1": 0})
    assert await seen(mailbox) == [("m1", "in_flight", 1)]
    await mailbox.ack("bob", "m1")
    assert await seen(mailbox) == []


@pytest.mark.req("MBX-4")
async def test_a_cancelled_dequeue_takes_nothing(file: FileMailbox) -> None:
    """Whenever its caller is cancelled, either the caller has the message or it is pending."""
    await file.enqueue(message("m1"))
    for turns in range(20):
        taking = asyncio.ensure_future(file.dequeue("bob"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if taking.cancel():
            await asyncio.wait([taking])
        if taking.cancelled():
            await eventually(file, UNTOUCHED)
        else:
            assert taking.result() is not None
            await file.give_back("bob", {"m1": 0})


@pytest.mark.req("MBX-4")
async def test_who_leaves_a_long_poll_is_handed_nothing(file: FileMailbox, url: str) -> None:
    """An HTTP client that gives up waiting does not take what comes afterwards."""
    async with httpx.AsyncClient(base_url=url) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/ansible/mailbox/bob/dequeue", json={"wait_seconds": 60}, timeout=0.3)
    await asyncio.sleep(0.3)
    await file.enqueue(message("m1"))
    await asyncio.sleep(0.3)
    await eventually(file, UNTOUCHED)


@pytest.mark.req("MBX-10")
async def test_who_only_stops_talking_gets_its_answers(file: FileMailbox, socket: Path) -> None:
    """A Unix client may end its side as soon as it has asked, as a shell pipe does."""
    await file.enqueue(message("m1"))
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(call("dequeue", session="bob"))
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    assert json.loads(answer)["result"]["msg_id"] == "m1"
    writer.close()


@pytest.mark.req("MBX-4")
@pytest.mark.parametrize("half_first", [False, True])
async def test_who_hangs_up_while_it_waits_is_handed_nothing(file: FileMailbox, socket: Path, half_first: bool) -> None:
    """A Unix client that waited and is gone does not take what comes afterwards, also if it stopped talking first."""
    _, writer = await asyncio.open_unix_connection(socket)
    writer.write(call("dequeue", session="bob", wait_seconds=60))
    if half_first:
        writer.write_eof()
    await asyncio.sleep(0.2)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.2)
    await file.enqueue(message("m1"))
    await asyncio.sleep(0.3)
    await eventually(file, UNTOUCHED)


async def test_who_wants_no_answer_is_handed_nothing(file: FileMailbox, socket: Path) -> None:
    """A dequeue without an id has no answer that could carry a message; and a refusal of such a call is not told."""
    await file.enqueue(message("m1"))
    reader, writer = await asyncio.open_unix_connection(socket)
    for method, parameters in (("dequeue", {}), ("ack", {"msg_id": "m9"})):
        notification = {"jsonrpc": "2.0", "method": method, "params": {"session": "bob", **parameters}}
        writer.write(json.dumps(notification).encode() + b"\n")
    writer.write(call("peek", session="eve"))
    answer = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS))
    assert answer["result"] == []
    await eventually(file, UNTOUCHED)
    writer.close()


@pytest.mark.req("MBX-5", "MBX-7")
@pytest.mark.parametrize("transport", ["unix", "websocket"])
async def test_what_was_pushed_can_be_acked_over_the_next_connection(
    file: FileMailbox, socket: Path, url: str, transport: str
) -> None:
    """A subscriber whose connection breaks may be at work: nobody else gets the message, and its ack counts."""
    await file.enqueue(message("m1"))
    address = f"unix:{socket}" if transport == "unix" else url.replace("http", "ws")
    mailbox = await remote(address)
    pushes = mailbox.subscribe("bob", credit=2)
    assert (await following(pushes)).msg_id == "m1"
    await mailbox.close()
    await pushes.aclose()
    async with await remote(address) as again:
        assert await again.dequeue("bob") is None
        await again.ack("bob", "m1")
    assert await seen(file) == []


@pytest.mark.req("MBX-5", "MBX-7")
async def test_a_message_that_ends_its_subscribers_is_a_dead_letter(
    file: FileMailbox, socket: Path, clock: FakeClock
) -> None:
    """It is not pushed for ever: each hand-over that nobody settles in time is an attempt."""
    await file.enqueue(message("m1"))
    attempts: list[int] = []
    while not await file.peek_dead_letter("bob"):
        async with await remote(f"unix:{socket}") as mailbox, aclosing(mailbox.subscribe("bob")) as pushes:
            attempts.append((await following(pushes)).attempt)
        # Longer than a message is in flight, and than any pause before the next try.
        clock.advance(120_000)
        await file.sweep()
        clock.advance(120_000)
    assert attempts == [0, 1, 2, 3]


async def test_a_subscription_outlives_what_goes_wrong(
    file: FileMailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mailbox that refuses for a moment does not end the pushing; a name that is none is refused at once."""
    monkeypatch.setattr("agentpost.edges.mailbox.rpc._AFTER_TROUBLE_SECONDS", 0.01)
    troubles = iter([Refusal(Code.STORAGE_FULL, "the disk is full; nothing was written")])
    dequeue_many = file.dequeue_many

    async def troubled(session: str, limit: int, *, wait_seconds: float = 0) -> list[MailboxMessage]:
        for trouble in troubles:
            raise trouble
        return await dequeue_many(session, limit, wait_seconds=wait_seconds)

    monkeypatch.setattr(file, "dequeue_many", troubled)
    await file.enqueue(message("m1"))
    async with serve_unix(file, tmp_path / "other.sock"):
        carrier = await UnixCarrier.connect(str(tmp_path / "other.sock"))
        for name in ("", "x" * 70_000):
            with pytest.raises(Refusal) as refused:
                await carrier.call("subscribe", {"session": name})
            assert refused.value.code is Code.INVALID_FIELD
        async with PushingMailbox(carrier) as mailbox, aclosing(mailbox.subscribe("bob")) as pushes:
            assert (await following(pushes)).msg_id == "m1"


async def test_more_time_is_no_more_credit(file: FileMailbox, socket: Path) -> None:
    """Extending a pushed message does not bring another one; settling it does, however the call is spelled."""
    await file.enqueue_many([message("m1"), message("m2"), message("m3")])
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(call("subscribe", session="bob"))
    answers = [await following_line(reader) for _ in range(2)]
    assert sorted(each.get("method", "") for each in answers) == ["", "message"]
    writer.write(call("extend", session="bob", msg_id="m1", seconds=60))
    assert "result" in await following_line(reader)
    await asyncio.sleep(0.2)
    assert [each[1] for each in await seen(file)] == ["in_flight", "pending", "pending"]
    writer.write(call("ackMany", session="bob", msgIds=["m1"]))
    answers = [await following_line(reader) for _ in range(2)]
    (pushed,) = [each["params"]["message"] for each in answers if "method" in each]
    assert pushed["msg_id"] == "m2"
    writer.close()


async def test_a_loop_over_what_is_pushed(file: FileMailbox, socket: Path) -> None:
    """A client takes and acks messages as they come; what was pushed and not taken when it leaves costs no attempt."""
    async with await remote(f"unix:{socket}") as mailbox:
        await file.enqueue_many([message(f"m{n}") for n in range(4)])
        taken: list[str] = []
        async with aclosing(mailbox.subscribe("bob", credit=2)) as pushes:
            async for each in pushes:
                taken.append(each.msg_id)
                await mailbox.ack("bob", each.msg_id)
                if len(taken) == 2:
                    break
        assert taken == ["m0", "m1"]
        await eventually(file, [("m2", "pending", 0), ("m3", "pending", 0)])
        # What it did take is its own, also after the end.
        async with aclosing(mailbox.subscribe("bob")) as pushes:
            assert (await following(pushes)).msg_id == "m2"
        await mailbox.ack("bob", "m2")
        assert await seen(file) == [("m3", "pending", 0)]
