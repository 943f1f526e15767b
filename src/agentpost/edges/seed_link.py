"""The link to a seed: exchange, ticket, WebSocket, sync; again and again, for as long as the gateway runs.

A seed is a backbone gateway that this node joined. The first time it takes an invite, from then on the node's key.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from agentpost.auth.challenge import make_proof
from agentpost.auth.wire import CONTROL_ROOM, Challenge, ExchangeRequest, Grant
from agentpost.gateway import Gateway
from agentpost.protocol.backoff import RetryPolicy, next_delay_seconds
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeStatus, NodeTier
from agentpost.room.sync import MAX_FRAME_BYTES, RoomSession
from agentpost.store.home import write_private
from agentpost.store.values import KnownNode
from agentpost.tasks import TaskOwner

__all__ = ["Seed", "SeedLinks"]

_log = logging.getLogger(__name__)

_SEEDS_FILE: Final = "seeds.json"
_SYNC_STEP_2: Final = b"\0\1"
_TIMEOUT_SECONDS: Final = 10.0
_RECONNECT: Final = RetryPolicy(
    base_seconds=0.5, factor=2.0, max_delay_seconds=30.0, max_attempts=1_000_000, jitter_share=0.5
)


class Seed(Struct, frozen=True, kw_only=True, rename="camel"):
    url: str
    node_id: str


class SeedLinks:
    """The seeds of a gateway and the links to them. Kept in the home, so that a restart finds them again."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks = TaskOwner("seed")
        self._links: dict[str, _Link] = {}

    def start(self) -> None:
        for seed in self._load():
            self._open(seed, None)

    async def join(self, url: str, token: str) -> Seed:
        """Join through a backbone gateway, with an invite. Returns when the room is here."""
        url = url.rstrip("/")
        grant = await _exchange(self._gateway, url, token)
        await self._trust(grant)
        seed = Seed(url=url, node_id=grant.node_id)
        link = self._open(seed, grant)
        await link.first_sync()
        self._save()
        return seed

    def states(self) -> list[dict[str, Any]]:
        return [
            {"url": link.seed.url, "nodeId": link.seed.node_id, "connected": link.is_connected, "problem": link.problem}
            for link in self._links.values()
        ]

    async def close(self) -> None:
        await self._tasks.close()

    def _open(self, seed: Seed, grant: Grant | None) -> "_Link":
        before = self._links.get(seed.url)
        if before is not None and before.task is not None:
            before.task.cancel()
        link = self._links[seed.url] = _Link(self._gateway, seed)
        link.task = self._tasks.spawn(link.run(grant), name=seed.node_id)
        return link

    async def _trust(self, grant: Grant) -> None:
        """Pin the seed's key at the first join: whoever answers for it later must have the same.

        The seed's word for others is taken from then on, so its anchors are pinned too; a key that is known here stays.
        """
        keys = {**grant.anchors, grant.node_id: grant.signing_public}
        for node_id, signing_public in keys.items():
            if node_id == self._gateway.settings.node_id:
                continue
            node = self._gateway.store.known_node(node_id) or await self._gateway.store.pin_node(
                KnownNode(
                    node_id=node_id,
                    signing_public=signing_public,
                    sealing_public=grant.sealing_public if node_id == grant.node_id else None,
                    tier=NodeTier.BACKBONE,
                    admitted_by=node_id,
                    pinned_at_ms=self._gateway.clock.now_ms(),
                )
            )
            self._gateway.host.pin(node)

    def _file(self) -> Path:
        return self._gateway.settings.home / _SEEDS_FILE

    def _load(self) -> list[Seed]:
        try:
            return msgspec.json.decode(self._file().read_bytes(), type=list[Seed])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise Refusal(Code.MALFORMED, f"{self._file()} cannot be read: {error}", hint="Join again.") from None

    def _save(self) -> None:
        write_private(self._file(), msgspec.json.encode([link.seed for link in self._links.values()]))


class _Link:
    def __init__(self, gateway: Gateway, seed: Seed) -> None:
        self.seed = seed
        self.task: asyncio.Task[Any] | None = None
        self.is_connected = False
        self.problem: str | None = None
        self._gateway = gateway
        self._synced = asyncio.Event()
        self._refusal: Refusal | None = None

    async def first_sync(self) -> None:
        """Wait until the room is here, or until it is clear that it will not come."""
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await self._synced.wait()
        if self._refusal is not None:
            raise self._refusal

    async def run(self, grant: Grant | None) -> None:
        attempt = 0
        while True:
            try:
                if grant is None:
                    grant = await _exchange(self._gateway, self.seed.url, None)
                if grant.node_id != self.seed.node_id:
                    raise Refusal(Code.NODE_MISMATCH, f"{self.seed.url} is {grant.node_id}, not {self.seed.node_id}")
                if grant.admission is not None:
                    self._gateway.host.register(status=NodeStatus.ONLINE, admission=grant.admission)
                await self._converse(grant)
                attempt = 0
                self.problem = "the seed closed the connection"
            except (Refusal, OSError, WebSocketException, httpx.HTTPError) as error:
                refusal = _refusal_of(error)
                self.problem = refusal.message
                _log.warning("link to %s: %s", self.seed.url, refusal.message)
                if not self._synced.is_set():
                    self._refusal = refusal
                    self._synced.set()
            finally:
                self.is_connected = False
            grant = None
            attempt += 1
            jitter = self._gateway.chance.fraction()
            await asyncio.sleep(next_delay_seconds(_RECONNECT, attempt=attempt, jitter=jitter))

    async def _converse(self, grant: Grant) -> None:
        address = self.seed.url.replace("http", "ws", 1) + f"/ansible/room/{CONTROL_ROOM}"
        headers = {"Authorization": f"Bearer {grant.ws_ticket}"}
        async with connect(address, additional_headers=headers, compression=None, max_size=MAX_FRAME_BYTES) as socket:
            if grant.admission is None:
                # The invite is used up and the key pinned. Others take this node's record only with the seed's word.
                await self._fetch_admission()
            wake = asyncio.Event()
            session = self._gateway.host.hub.open(self.seed.node_id, on_wake=wake.set)
            tasks = TaskOwner("seed-link")
            try:
                for frame in session.start():
                    await socket.send(frame)
                tasks.spawn(_write(socket, session, wake), name=self.seed.node_id)
                self.is_connected, self.problem = True, None
                await self._read(socket, session)
            finally:
                session.close()
                await tasks.close()

    async def _read(self, socket: ClientConnection, session: RoomSession) -> None:
        async for frame in socket:
            if isinstance(frame, str):
                raise Refusal(Code.MALFORMED, "the seed sent text where y-protocols has bytes")
            for answer in session.receive(frame):
                await socket.send(answer)
            if frame[:2] == _SYNC_STEP_2:
                self._synced.set()

    async def _fetch_admission(self) -> None:
        """Ask the seed to vouch for this node's key, now that it is pinned there."""
        again = await _exchange(self._gateway, self.seed.url, None)
        if again.admission is not None:
            self._gateway.host.register(status=NodeStatus.ONLINE, admission=again.admission)


async def _write(socket: ClientConnection, session: RoomSession, wake: asyncio.Event) -> None:
    while True:
        await wake.wait()
        wake.clear()
        for frame in session.frames_to_send():
            await socket.send(frame)


async def _exchange(gateway: Gateway, url: str, token: str | None) -> Grant:
    """A ticket for an invite, or, without one, for this node's key."""
    node_id = gateway.settings.node_id
    nonce = gateway.chance.entropy(24).hex()
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_SECONDS) as http:
        challenge = await _post(http, "/ansible/auth/challenge", {"nodeId": node_id}, Challenge)
        request = ExchangeRequest(
            node_id=node_id,
            nonce=nonce,
            invite_token=token,
            node_proof=make_proof(gateway.identity, challenge, node_id=node_id, nonce=nonce, invite_token=token),
        )
        grant = await _post(http, "/ansible/auth/exchange", request, Grant)
    known = gateway.store.known_node(grant.node_id)
    if known is not None and known.signing_public not in (None, grant.signing_public):
        raise Refusal(Code.NODE_PROOF_INVALID, f"{url} answers for {grant.node_id} with another key than before")
    return grant


async def _post(http: httpx.AsyncClient, path: str, body: Any, answer: type[Any]) -> Any:
    response = await http.post(path, content=msgspec.json.encode(body), headers={"content-type": "application/json"})
    if not response.is_success:
        raise _refusal_in(response.content, response.status_code)
    try:
        return msgspec.json.decode(response.content, type=answer)
    except msgspec.DecodeError:
        raise Refusal(Code.UNAVAILABLE, f"{http.base_url} is not an agentpost gateway") from None


def _refusal_in(content: bytes, status: int) -> Refusal:
    """The refusal that the other side gave, in its own words."""
    try:
        error = msgspec.json.decode(content)["error"]
        return Refusal(Code(error["code"]), str(error["message"]), hint=error.get("hint"))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return Refusal(Code.UNAVAILABLE, f"the seed answered with status {status}")


def _refusal_of(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InvalidStatus):
        return _refusal_in(bytes(error.response.body or b""), error.response.status_code)
    return Refusal(Code.UNAVAILABLE, f"the seed cannot be reached: {error or type(error).__name__}")
