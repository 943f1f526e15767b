"""What is particular to a transport: its wire, what it refuses, and what it adds."""

import asyncio
import json
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import agentpost
from agentpost.edges.http.patience import PatientHttp
from agentpost.edges.mailbox.carriers import UnixCarrier, WebSocketCarrier
from agentpost.edges.mailbox.connecting import connect_mailbox
from agentpost.edges.mailbox.rpc import MAX_REQUEST_BYTES
from agentpost.edges.mailbox.serving import serve_http
from agentpost.edges.mailbox.unix import serve_unix
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.remote import PushingMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.mailbox import to_wire
from tests.mailboxes.building import message
from tests.mailboxes.conftest import TOKEN

JSON = {"content-type": "application/json"}
CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "peek", "params": {"session": "bob"}}


async def lines(path: Path, *sent: bytes, answers: int) -> list[dict[str, Any]]:
    """Send raw bytes to the socket and give what it answers."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"".join(sent))
    got = [json.loads(await asyncio.wait_for(reader.readline(), 30)) for _ in range(answers)]
    writer.close()
    return got


@pytest.mark.req("MBX-10")
async def test_bad_lines_are_refused_and_the_next_is_answered(file: FileMailbox, tmp_path: Path) -> None:
    """What is not JSON, not a call, or no method is refused with a sentence, and the connection goes on."""
    bad: list[Any] = [
        {"id": 1},
        {**CALL, "method": 7},
        {**CALL, "params": [1]},
        {**CALL, "id": 2, "method": "drop_tables"},
        {**CALL, "id": 3, "params": {}},
        {**CALL, "id": 4, "params": {"session": "bob", "limit": "x"}},
        {**CALL, "id": 5, "params": {"session": "bob", "unknown": 1}},
        {**CALL, "id": 6, "params": {"session": "bob", "case": "kebab"}},
    ]
    sent = [b"{not json\n", *(json.dumps(each).encode() + b"\n" for each in bad)]
    async with serve_unix(file, tmp_path / "mail.sock"):
        answers = await lines(tmp_path / "mail.sock", *sent, json.dumps(CALL).encode() + b"\n", answers=len(sent) + 1)
    refused = [each for each in answers if "error" in each]
    assert len(refused) == len(sent)
    assert all(each["error"]["data"]["code"] in {"malformed", "not_found", "invalid_field"} for each in refused)
    assert [each["result"] for each in answers if "result" in each] == [[]]


@pytest.mark.req("MBX-1")
async def test_names_are_written_as_the_caller_likes(file: FileMailbox, tmp_path: Path) -> None:
    """A message in camelCase is read, and comes back in camelCase for who asks for that, in snake_case otherwise."""
    camel = {"msgId": "m1", "from": "ada", "to": "bob", "payload": "x", "createdAt": 5, "attempt": 0}
    async with serve_http(file, host="127.0.0.1", port=0, token=None) as url, httpx.AsyncClient(base_url=url) as http:
        queued = await http.post("/ansible/mailbox/bob/enqueue?case=camel", json=camel)
        assert queued.json() == {"msgId": "m1", "queued": True, "pending": 1}
        assert (await http.get("/ansible/mailbox/bob/peek")).json()[0]["msg_id"] == "m1"
        got = await http.post("/ansible/mailbox/bob/dequeue?case=camel", json={"waitSeconds": 0})
        assert got.json() == camel
        assert (await http.post("/ansible/mailbox/bob/dequeue", json={})).status_code == 204
        acked = await http.post("/ansible/mailbox/bob/ack", json={"msgId": "m1"})
        assert acked.status_code == 204


@pytest.mark.req("MBX-1", "MBX-10")
@pytest.mark.parametrize("transport", ["unix", "websocket"])
async def test_json_rpc_is_written_as_the_caller_likes(file: FileMailbox, tmp_path: Path, transport: str) -> None:
    """Methods, parameters and messages are read in camelCase on both sockets, and answered in it for who asks."""
    camel = {"msgId": "m1", "from": "ada", "to": "bob", "payload": "x", "createdAt": 5, "attempt": 0, "someThing": 1}
    async with (
        serve_unix(file, tmp_path / "mail.sock"),
        serve_http(file, host="127.0.0.1", port=0, token=None) as url,
    ):
        carrier = (
            await UnixCarrier.connect(str(tmp_path / "mail.sock"))
            if transport == "unix"
            else await WebSocketCarrier.connect(url.replace("http", "ws") + "/ansible/mailbox")
        )
        queued = await carrier.call("enqueueMany", {"messages": [camel], "case": "camel"})
        assert queued == [{"msgId": "m1", "queued": True, "pending": 1}]
        assert (await carrier.call("peek", {"session": "bob"}))[0]["created_at"] == 5
        got = await carrier.call("dequeueMany", {"session": "bob", "limit": 1, "waitSeconds": 0, "case": "camel"})
        assert got == [camel]
        await carrier.call("ackMany", {"session": "bob", "msgIds": ["m1"]})
        assert await carrier.call("peekDeadLetter", {"session": "bob"}) == []
        await carrier.close()
    assert await file.peek("bob") == []


async def test_http_refuses_with_the_code_and_a_sentence(file: FileMailbox) -> None:
    """A wrong session, an unknown operation, a bad body and an unknown id each have their status and code."""
    sent = to_wire(message())
    async with serve_http(file, host="127.0.0.1", port=0, token=None) as url, httpx.AsyncClient(base_url=url) as http:
        for path, body, status, code in (
            ("/ansible/mailbox/eve/enqueue", sent, 400, "invalid_field"),
            ("/ansible/mailbox/bob/explode", {}, 404, "not_found"),
            ("/ansible/mailbox/bob/ack", {"msg_id": "m9"}, 404, "not_found"),
            ("/ansible/mailbox/bob/ack", {}, 400, "invalid_field"),
            ("/ansible/mailbox/bob/dequeue", {"wait_seconds": 1e9}, 400, "invalid_field"),
            ("/ansible/mailbox/bob/extend", {"msg_id": "m1", "seconds": -1}, 400, "invalid_field"),
        ):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
        assert (await http.get("/ansible/mailbox/bob/peek?limit=0")).status_code == 400
        deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        for body, status, code in (
            (deep, 400, "malformed"),
            (b'{"a":"\xff"}', 400, "malformed"),
            (b"[]", 400, None),
            (b'{"a":"' + b"x" * MAX_REQUEST_BYTES + b'"}', 413, "too_large"),
        ):
            for path in ("", "/bob/enqueue", "/bob/ack"):
                answer = await http.post("/ansible/mailbox" + path, content=body, headers=JSON)
                assert answer.status_code == status
                assert answer.json()["error"]["code"] == (code or answer.json()["error"]["code"])
    assert await file.peek("bob") == []


@pytest.mark.req("MBX-11")
async def test_a_name_that_no_path_can_hold_is_refused(file: FileMailbox) -> None:
    """HTTP takes names as long as an address may be; a longer one is refused with the code, and nothing happens."""
    async with (
        serve_http(file, host="127.0.0.1", port=0, token=None) as url,
        await connect_mailbox(url) as mailbox,
    ):
        for name in ("€" * 10_000, "x" * 65_536):
            for call in (mailbox.enqueue(message(to=name)), mailbox.dequeue(name), mailbox.peek(name)):
                with pytest.raises(Refusal) as refused:
                    await call
                assert refused.value.code is Code.TOO_LARGE
            assert await file.peek(name) == []
        await mailbox.enqueue(message(to="x" * 60_000))


@pytest.mark.req("MBX-10")
async def test_nobody_comes_in_without_the_token(file: FileMailbox) -> None:
    """HTTP and WebSocket both want the token; without it nothing is told and nothing happens."""
    async with serve_http(file, host="127.0.0.1", port=0, token=TOKEN) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
                answer = await http.post("/ansible/mailbox/bob/enqueue", json=to_wire(message()), headers=headers)
                assert answer.status_code == 401
                assert TOKEN not in answer.text
        with pytest.raises(Refusal) as refused:
            await WebSocketCarrier.connect(url.replace("http", "ws") + "/ansible/mailbox", token="wrong")  # noqa: S106
        assert refused.value.code is Code.INVALID_TOKEN
    assert await file.peek("bob") == []


@pytest.mark.req("MBX-10")
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /ansible/mailbox/bob/enqueue HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /ansible/mailbox/bob/enqueue HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 1000\r\nContent-Type: application/json\r\n\r\n{",
    ],
    ids=["nothing", "half of the headers", "half of the body"],
)
async def test_who_sends_byte_by_byte_is_cut_off(
    file: FileMailbox, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """A caller of an HTTP mailbox that never brings a whole request is cut off; one that waits for mail is not."""
    monkeypatch.setattr(PatientHttp, "header_seconds", 0.3)
    monkeypatch.setattr(PatientHttp, "request_seconds", 0.3)
    async with serve_http(file, host="127.0.0.1", port=0, token=None) as url, await connect_mailbox(url) as mailbox:
        waiting = asyncio.ensure_future(mailbox.dequeue("bob", wait_seconds=30))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(begun)

        async def dribble() -> None:
            while begun:
                writer.write(b" ")
                await asyncio.sleep(0.05)

        dribbling = asyncio.ensure_future(dribble())
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        dribbling.cancel()
        writer.close()
        await file.enqueue(message("m1"))
        got = await waiting
        assert got is not None
        assert got.msg_id == "m1"


async def test_messages_are_pushed_as_long_as_there_is_credit(file: FileMailbox) -> None:
    """A subscriber is handed what comes, no more than its credit at a time, and gets the next after an ack."""
    async with serve_http(file, host="127.0.0.1", port=0, token=None) as url:
        carrier = await WebSocketCarrier.connect(url.replace("http", "ws") + "/ansible/mailbox")
        async with PushingMailbox(carrier) as mailbox, aclosing(mailbox.subscribe("bob", credit=2)) as pushes:
            first = asyncio.ensure_future(anext(pushes))
            await file.enqueue_many([message(f"m{n}") for n in range(3)])
            got = [await asyncio.wait_for(first, 30), await asyncio.wait_for(anext(pushes), 30)]
            assert [each.msg_id for each in got] == ["m0", "m1"]
            assert [each.msg_id for each in await file.peek("bob") if each.state == "pending"] == ["m2"]
            await mailbox.ack("bob", "m0")
            assert (await asyncio.wait_for(anext(pushes), 30)).msg_id == "m2"
            with pytest.raises(Refusal) as refused:
                await carrier.call("subscribe", {"session": "bob"})
            assert refused.value.code is Code.CONFLICT
            await carrier.call("unsubscribe", {"session": "bob"})
            await file.enqueue(message("m3"))
            assert [each.msg_id for each in await file.peek("bob") if each.state == "pending"] == ["m3"]
            with pytest.raises(Refusal) as refused:
                await carrier.call("unsubscribe", {"session": "eve"})
            assert refused.value.code is Code.NOT_FOUND


async def test_the_socket_is_the_owners_and_only_one_serves_it(file: FileMailbox, tmp_path: Path) -> None:
    """Others cannot open the socket, a second server is refused, a dead one is replaced, a file is left alone."""
    path = tmp_path / "mail.sock"
    async with serve_unix(file, path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(Refusal) as refused:
            async with serve_unix(file, path):
                pass
        assert refused.value.code is Code.CONFLICT
        assert (await lines(path, json.dumps(CALL).encode() + b"\n", answers=1))[0]["result"] == []
    path.write_text("somebody's file")
    with pytest.raises(Refusal):
        async with serve_unix(file, path):
            pass
    assert path.read_text() == "somebody's file"


async def test_of_two_servers_that_start_together_one_serves(file: FileMailbox, tmp_path: Path) -> None:
    """Where a dead server left its socket, one of several that start at once replaces it, and the others are told."""
    path = tmp_path / "mail.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    def start(_: int) -> str:
        async def serve() -> str:
            try:
                async with serve_unix(file, path):
                    everybody_has_tried.wait(30)
                    return "served"
            except Refusal as refusal:
                everybody_has_tried.wait(30)
                return refusal.code

        return asyncio.run(serve())

    everybody_has_tried = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        outcomes = await asyncio.to_thread(lambda: list(pool.map(start, range(8))))
    assert sorted(outcomes) == ["conflict"] * 7 + ["served"]
    assert not path.exists()


async def test_stopping_a_server_is_not_a_failure(
    file: FileMailbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that are connected when a server stops leave no trace of an error."""
    async with serve_unix(file, tmp_path / "mail.sock"):
        _, writer = await asyncio.open_unix_connection(tmp_path / "mail.sock")
        writer.write(json.dumps(CALL).encode() + b"\n")
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)
    writer.close()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.req("MBX-10")
async def test_a_call_that_is_too_large_is_told(file: FileMailbox, tmp_path: Path) -> None:
    """A client refuses to send it and goes on; who sends such a line all the same gets the code before the end."""
    many = [message(f"m{n}", payload="x" * 1_000_000) for n in range(18)]
    async with (
        serve_unix(file, tmp_path / "mail.sock"),
        await connect_mailbox(f"unix:{tmp_path}/mail.sock") as mailbox,
    ):
        with pytest.raises(Refusal) as refused:
            await mailbox.enqueue_many(many)
        assert refused.value.code is Code.TOO_LARGE
        assert await mailbox.peek("bob") == []
        reader, writer = await asyncio.open_unix_connection(tmp_path / "mail.sock")
        writer.write(b"x" * (MAX_REQUEST_BYTES + 1))
        answer = json.loads(await asyncio.wait_for(reader.readline(), 60))
        assert answer["error"]["data"]["code"] == "too_large"
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


async def test_a_server_that_goes_away_is_told(file: FileMailbox, tmp_path: Path) -> None:
    """A call on a connection whose server stopped is refused as unavailable, and does not hang."""
    async with serve_unix(file, tmp_path / "mail.sock"):
        carrier = await UnixCarrier.connect(str(tmp_path / "mail.sock"))
        waiting = asyncio.ensure_future(carrier.call("dequeue", {"session": "bob", "wait_seconds": 60}))
        await carrier.call("peek", {"session": "bob"})
    with pytest.raises(Refusal) as refused:
        await waiting
    assert refused.value.code is Code.UNAVAILABLE
    with pytest.raises(Refusal) as refused:
        # Without the time that an answer may take.
        await asyncio.wait_for(carrier.call("peek", {"session": "bob"}), 30)
    assert refused.value.code is Code.UNAVAILABLE
    await carrier.close()


@pytest.mark.req("MBX-10")
async def test_an_address_names_the_transport(file: FileMailbox, tmp_path: Path) -> None:
    """One function opens all four; what one of them enqueues, the others see."""
    async with (
        serve_unix(file, tmp_path / "mail.sock"),
        serve_http(file, host="127.0.0.1", port=0, token=TOKEN) as url,
    ):
        addresses = [str(tmp_path / "mail.db"), f"unix:{tmp_path}/mail.sock", url, url.replace("http", "ws")]
        for number, address in enumerate(addresses):
            async with await connect_mailbox(address, token=TOKEN) as mailbox:
                await mailbox.enqueue(message(f"m{number}"))
                assert len(await mailbox.peek("bob")) == number + 1
    with pytest.raises(Refusal) as refused:
        await connect_mailbox(f"unix:{tmp_path}/nobody.sock")
    assert refused.value.code is Code.UNAVAILABLE


async def test_the_package_offers_the_mailbox(tmp_path: Path) -> None:
    """`agentpost.connect_mailbox` is all that a program has to know."""
    async with await agentpost.connect_mailbox(str(tmp_path / "mail.db")) as mailbox:
        typed: agentpost.MailboxProtocol = mailbox
        await typed.enqueue(message())
        got = await typed.dequeue("bob")
    assert isinstance(got, agentpost.MailboxMessage)
