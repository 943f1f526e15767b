"""What a member may not write into the room, over a real socket: it is thrown out, and nobody else sees it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pycrdt import Doc, Map
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from agentpost.edges.http import guarded
from agentpost.tasks import TaskOwner
from agentpost.testing import FakeClock
from tests.edges.meshing import PATIENCE_SECONDS, Stranger, eventually, invite
from tests.edges.running import ServedGateway, served_gateway


@pytest.fixture
def seed(tmp_path: Path) -> Iterator[ServedGateway]:
    with served_gateway(tmp_path / "vps-jane", clock=FakeClock()) as gateway:
        yield gateway


def written(map_name: str, key: str, record: dict[str, Any]) -> bytes:
    """The update of a Yjs client that sets one key."""
    document: Doc = Doc()
    document[map_name] = target = Map()
    target[key] = record
    return document.get_update()


def update_frame(update: bytes) -> bytes:
    """An update as y-protocols carry it: sync, update, its length, its bytes."""
    length, head = len(update), bytearray((0, 2))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*head, length)) + update


# Sync step 1 of somebody who has nothing.
ASK_FOR_ALL = bytes((0, 0, 1, 0))
SYNC_STEP_2 = bytes((0, 1))
NODE = {"tier": "edge", "status": "online", "signedBy": "mbp-jane", "rev": 1, "sig": "A" * 86}


@pytest.mark.req("ROOM-3", "PIPE-6")
@pytest.mark.parametrize(
    "update",
    [
        pytest.param(written("nodes", "vps-jane", NODE), id="a foreign key"),
        pytest.param(written("nodes", "mbp-jane", NODE | {"body": "xylophone"}), id="a payload"),
        pytest.param(written("nodes", "mbp-jane", NODE | {"outbox": "x" * 100_000}), id="an oversized value"),
        pytest.param(written("nodes", "mbp-jane", NODE), id="a record that does not verify"),
        pytest.param(written("messages", "mbp-jane", NODE), id="a map that does not exist"),
        pytest.param(b"\xff\x01 this is no update", id="a malformed update"),
    ],
)
async def test_what_may_not_be_written_ends_the_connection(seed: ServedGateway, tmp_path: Path, update: bytes) -> None:
    """The writer is closed with 1008, the audit log has the reason, and the others get nothing of it."""
    writer = Stranger("mbp-jane", tmp_path / "writer", seed.url)
    onlooker = Stranger("lab-jane", tmp_path / "onlooker", seed.url)
    tickets = [await asyncio.to_thread(each.ticket, invite(seed, each.node_id)) for each in (writer, onlooker)]
    room = seed.gateway.host.room
    before = room.records("nodes")
    heard: list[bytes] = []
    async with writer.socket(tickets[0]) as connection, onlooker.socket(tickets[1]) as other:
        await connection.send(update_frame(update))
        async with asyncio.timeout(PATIENCE_SECONDS):
            with suppress(ConnectionClosed):
                async for _ in connection:
                    pass
        assert connection.close_code == 1008
        assert connection.close_reason
        # Whatever was relayed is here before the answer to a question that is asked now, which is the whole room.
        await other.send(ASK_FOR_ALL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len([frame for frame in heard if frame.startswith(SYNC_STEP_2)]) < 1:
                frame = await other.recv()
                assert isinstance(frame, bytes)
                heard.append(frame)
    eventually(lambda: any(entry.action == "room.refused" for entry in seed.gateway.store.audit_log(limit=1_000)))
    (refused,) = [entry for entry in seed.gateway.store.audit_log(limit=1_000) if entry.action == "room.refused"]
    assert refused.actor == "mbp-jane"
    assert refused.detail["reason"]
    assert "xylophone" not in repr(refused)
    assert room.records("nodes") == before
    assert b"xylophone" not in room.update_since()
    assert not any(update in frame or b"xylophone" in frame for frame in heard)


@pytest.mark.req("ROOM-3")
async def test_a_message_that_never_ends_is_not_waited_for(
    seed: ServedGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member sends the beginning of a message and no more: the connection ends, and its bytes are let go."""
    monkeypatch.setattr(guarded, "_MESSAGE_SECONDS", 0.2)
    member = Stranger("mbp-jane", tmp_path / "member", seed.url)
    ticket = await asyncio.to_thread(member.ticket, invite(seed, "mbp-jane"))

    async def never_ends() -> AsyncIterator[bytes]:
        yield b"\x00\x02"
        await asyncio.Event().wait()

    async with member.socket(ticket) as connection:
        tasks = TaskOwner("sender")
        tasks.spawn(connection.send(never_ends()), name="message without an end")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connection.wait_closed()
        await tasks.close()
    eventually(lambda: not seed.gateway.connections)


async def test_a_member_holds_few_connections_to_the_room(seed: ServedGateway, tmp_path: Path) -> None:
    """A fourth one takes the place of the first; those that are left work on."""
    member = Stranger("mbp-jane", tmp_path / "member", seed.url)
    token: str | None = await asyncio.to_thread(invite, seed, "mbp-jane")
    async with AsyncExitStack() as stack:
        connections: list[ClientConnection] = []
        for _ in range(4):
            ticket = await asyncio.to_thread(member.ticket, token)
            token = None
            connections.append(await stack.enter_async_context(member.socket(ticket)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connections[0].wait_closed()
            for connection in connections[1:]:
                await connection.send(ASK_FOR_ALL)
                while (await connection.recv())[:2] != SYNC_STEP_2:
                    pass
    assert connections[0].close_code == 1001
