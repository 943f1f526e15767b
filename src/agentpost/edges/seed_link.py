"""The links to the seeds: exchange, ticket, WebSocket, sync; again and again, for as long as the gateway runs.

A seed is a backbone gateway. One that this node joined is in `seeds.json`; the others are found in the room, where
backbone nodes say at which address they are (ROOM-5). An address proves nothing: whoever answers there has to sign with
the key that the room has for the node it should be, before anything else happens.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from agentpost.auth.challenge import is_granted_by, make_proof
from agentpost.auth.wire import CONTROL_ROOM, LINK_ROOM, Challenge, ExchangeRequest, Grant
from agentpost.delivery.hub import LinkHub
from agentpost.edges.certificates import needs_certificates
from agentpost.edges.link.dial import CLOSE_SECONDS, keep_link
from agentpost.gateway import Gateway
from agentpost.protocol.backoff import RetryPolicy, next_delay_seconds
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import ROOM_VERSION, NodeTier
from agentpost.room.document import Room
from agentpost.room.members import Root
from agentpost.room.records import is_removed
from agentpost.room.sync import MAX_FRAME_BYTES, RoomSession
from agentpost.store.home import write_private
from agentpost.store.values import KnownNode
from agentpost.tasks import TaskOwner

__all__ = ["Seed", "SeedLinks"]

_log = logging.getLogger(__name__)

_SEEDS_FILE: Final = "seeds.json"
_SYNC_STEP_2: Final = b"\0\1"
_TIMEOUT_SECONDS: Final = 10.0
# A mesh has a handful of backbone nodes; more links than this make nobody safer.
_MOST_LINKS: Final = 8
# What a seed may say when it closes the connection.
_REASONS: Final = frozenset(Code)
_RECONNECT: Final = RetryPolicy(
    base_seconds=0.5, factor=2.0, max_delay_seconds=30.0, max_attempts=1_000_000, jitter_share=0.5
)


# How often a link that waits looks whether its seed was heard elsewhere.
_LOOK_SECONDS: Final = 0.2


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
            self._open(seed, None).is_kept = True
        self._gateway.host.room.subscribe(self._on_update)
        self._look_around()

    async def join(self, url: str, token: str) -> Seed:
        """Join through a backbone gateway, with an invite. Returns when the room is here.

        A seed that refuses is forgotten. One that is slow is tried on, and kept once the room is here.
        """
        url = _checked_url(url)
        try:
            grant = await _exchange(self._gateway, url, token)
        except (OSError, httpx.HTTPError) as error:
            raise _refusal_of(error) from None
        await self._trust(grant)
        seed = Seed(url=url, node_id=grant.node_id)
        former = self._links.get(seed.node_id)
        link = self._open(seed, grant)
        try:
            await link.first_sync()
        except Refusal:
            if link.refusal is not None and self._links.get(seed.node_id) is link:
                self._end(seed.node_id)
                if former is not None:
                    self._open(former.seed, None, is_joined=former.is_joined).is_kept = former.is_kept
            raise
        self._keep(link)
        return seed

    def _keep(self, link: "_Link") -> None:
        """Have the next start find a seed that was joined, now that it has given its room."""
        if link.is_joined and not link.is_kept:
            link.is_kept = True
            self._save()

    def states(self) -> list[dict[str, Any]]:
        return [
            {
                "url": link.seed.url,
                "nodeId": link.seed.node_id,
                "connected": link.is_connected or link.is_here(),
                "problem": link.problem,
            }
            for link in self._links.values()
        ]

    async def close(self) -> None:
        await self._tasks.close()

    def _open(self, seed: Seed, grant: Grant | None, *, is_joined: bool = True) -> "_Link":
        self._end(seed.node_id)
        link = self._links[seed.node_id] = _Link(self._gateway, seed, is_joined=is_joined, on_sync=self._synced)
        link.task = self._tasks.spawn(link.run(grant), name=seed.node_id)
        return link

    def _synced(self, link: "_Link") -> None:
        try:
            self._keep(link)
        except OSError as error:
            # The link is as good; who joins hears of it.
            link.is_kept = False
            _log.error("%s could not be written: %s", self._file(), error)

    def _end(self, node_id: str) -> None:
        link = self._links.pop(node_id, None)
        if link is not None and link.task is not None:
            link.task.cancel()

    def _on_update(self, _update: bytes, _origin: str) -> None:
        self._look_around()

    def _look_around(self) -> None:
        """Open links to backbone nodes that the room knows of, and end those to nodes that were thrown out."""
        room = self._gateway.host.room
        for node_id in [node_id for node_id in self._links if room.keys.is_revoked(node_id)]:
            self._end(node_id)
        for node_id in room.records("nodes"):
            if len(self._links) >= _MOST_LINKS:
                return
            url = None if node_id in self._links else _address_in(room, node_id)
            if url is not None:
                self._open(Seed(url=url, node_id=node_id), None, is_joined=False)

    async def _trust(self, grant: Grant) -> None:
        """Take the root of the seed's mesh, and pin the seed's key: whoever answers for it later must have the same."""
        if not grant.root_public:
            raise Refusal(
                Code.UNAVAILABLE,
                f"{grant.node_id} speaks an older version of the room",
                hint="Install the same agentpost on both, start the seed again, and join with a new invite.",
            )
        gateway = self._gateway
        is_alone = not any(link.is_connected or link.is_here() for link in self._links.values())
        root = Root(grant.root_node_id, grant.root_public)
        if await gateway.host.join_mesh(root, is_alone=is_alone):
            for node_id in list(self._links):
                self._end(node_id)
        if gateway.store.known_node(grant.node_id) is None:
            await gateway.store.pin_node(
                KnownNode(
                    node_id=grant.node_id,
                    signing_public=grant.signing_public,
                    sealing_public=grant.sealing_public,
                    tier=NodeTier.BACKBONE,
                    admitted_by=grant.node_id,
                    pinned_at_ms=gateway.clock.now_ms(),
                )
            )

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
        joined = [link.seed for link in self._links.values() if link.is_kept]
        write_private(self._file(), msgspec.json.encode(joined))


class _Link:
    def __init__(self, gateway: Gateway, seed: Seed, *, is_joined: bool, on_sync: "Callable[[_Link], None]") -> None:
        self.seed = seed
        # Whether an operator named it, or the room.
        self.is_joined = is_joined
        # Whether it is in `seeds.json`.
        self.is_kept = False
        self.task: asyncio.Task[Any] | None = None
        self.is_connected = False
        self.problem: str | None = None
        self._gateway = gateway
        self._on_sync = on_sync
        self._synced = asyncio.Event()
        # Why the first attempt ended, if it did before the room was here.
        self.refusal: Refusal | None = None

    async def first_sync(self) -> None:
        """Wait until the room is here, or until it is clear that it will not come."""
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._synced.wait()
        except TimeoutError:
            raise Refusal(Code.UNAVAILABLE, f"{self.seed.node_id} let this node in, and sent no room") from None
        if self.refusal is not None:
            raise self.refusal

    async def run(self, grant: Grant | None) -> None:
        """`grant` is that of an invite, which was just exchanged; later ones are for the key."""
        attempt = 0
        while True:
            url = self._url(attempt)
            try:
                if grant is not None:
                    await self._converse(url, grant, is_invited=True)
                elif self.is_joined or not self.is_here():
                    grant = await _exchange(self._gateway, url, None, expected=self.seed.node_id)
                    await self._converse(url, grant)
                attempt, self.problem = 0, None if grant is None else "the seed closed the connection"
            except Exception as error:  # noqa: BLE001 - whoever is at the address says what he likes; it is tried again
                refusal = _refusal_of(error)
                self.problem = refusal.message
                self._draw_conclusions(refusal)
                _log.warning("link to %s at %s: %s", self.seed.node_id, url, refusal.message)
                if not self._synced.is_set():
                    self.refusal = refusal
                    self._synced.set()
            finally:
                self.is_connected = False
            grant = None
            attempt += 1
            jitter = self._gateway.chance.fraction()
            await self._pause(next_delay_seconds(_RECONNECT, attempt=attempt, jitter=jitter))

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, at most until another seed says that this one is back."""
        began_ms, presence = self._gateway.clock.monotonic_ms(), self._gateway.host.room.presence
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not presence.was_heard_after(self.seed.node_id, began_ms):  # noqa: ASYNC110 - heartbeats wake nobody
                    await asyncio.sleep(_LOOK_SECONDS)

    def _draw_conclusions(self, refusal: Refusal) -> None:
        """A seed that has revoked this node says so; one that refuses what stands in the room here closes the link."""
        if refusal.code is Code.NODE_REVOKED:
            self._gateway.host.refused_by.add(self.seed.node_id)
        elif refusal.code is Code.WRITE_DENIED and self._gateway.host.start_over():
            _log.warning("%s refused what this gateway wrote: the room is taken anew", self.seed.node_id)

    def _url(self, attempt: int) -> str:
        """Where to try: at the address that was named, and in turn at the one in the room, if that is another."""
        known = _address_in(self._gateway.host.room, self.seed.node_id)
        if known is None or (self.is_joined and attempt % 2 == 0):
            return self.seed.url
        return known

    def is_here(self) -> bool:
        """Whether the seed has come to us already: one connection between two nodes is enough."""
        return any(session.peer == self.seed.node_id for session in self._gateway.host.hub.sessions)

    async def _converse(self, url: str, grant: Grant, *, is_invited: bool = False) -> None:
        address = url.replace("http", "ws", 1) + f"/ansible/room/{CONTROL_ROOM}"
        headers = {"Authorization": f"Bearer {grant.ws_ticket}"}
        async with connect(
            address,
            additional_headers=headers,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            close_timeout=CLOSE_SECONDS,
        ) as socket:
            wake = asyncio.Event()
            session = self._gateway.host.hub.open(self.seed.node_id, is_seed=True, on_wake=wake.set)
            tasks = TaskOwner("seed-link")
            try:
                for frame in session.start():
                    await socket.send(frame)
                tasks.spawn(_write(socket, session, wake), name=self.seed.node_id)
                if self._gateway.links is not None:
                    tasks.spawn(self._keep_link(self._gateway.links, url), name=f"mail {self.seed.node_id}")
                self.is_connected, self.problem = True, None
                self._gateway.host.refused_by.discard(self.seed.node_id)
                await self._read(socket, session, is_invited=is_invited)
            finally:
                session.close()
                await tasks.close()

    async def _read(self, socket: ClientConnection, session: RoomSession, *, is_invited: bool) -> None:
        async for frame in socket:
            if isinstance(frame, str):
                raise Refusal(Code.MALFORMED, "the seed sent text where y-protocols has bytes")
            for answer in session.receive(frame):
                await socket.send(answer)
            await asyncio.sleep(session.pause_seconds)
            if frame[:2] == _SYNC_STEP_2:
                if is_invited:
                    # It may have come with a new key, and then what it signed before is not its own until now.
                    self._gateway.host.room.sign_anew()
                await self._gateway.synced()
                self._synced.set()
                self._on_sync(self)

    async def _keep_link(self, links: LinkHub, url: str) -> None:
        """Mail goes where the room is synced, over a connection of its own."""

        async def get_ticket() -> Grant:
            return await _exchange(self._gateway, url, None, expected=self.seed.node_id, rooms=(LINK_ROOM,))

        await keep_link(self._gateway, links, url=url, node_id=self.seed.node_id, get_ticket=get_ticket)


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Refusal(
            Code.INVALID_FIELD,
            f"{url!r:.80} is not the URL of a gateway",
            field="url",
            hint="Use what the invite says, as http://vps-jane:7800.",
        )
    return url.rstrip("/")


def _address_in(room: Room, node_id: str) -> str | None:
    """Where the room says that a backbone node is; None for others, and for those who were thrown out."""
    record = room.record("nodes", node_id)
    if record is None or is_removed(record) or node_id == room.node_id:
        return None
    if not room.keys.is_backbone(node_id) or room.keys.is_revoked(node_id):
        return None
    endpoint: str | None = record.get("endpointWs")
    return None if endpoint is None else endpoint.replace("ws", "http", 1).rstrip("/")


async def _write(socket: ClientConnection, session: RoomSession, wake: asyncio.Event) -> None:
    while True:
        await wake.wait()
        wake.clear()
        for frame in session.frames_to_send():
            await socket.send(frame)


async def _exchange(
    gateway: Gateway, url: str, token: str | None, *, expected: str | None = None, rooms: tuple[str, ...] | None = None
) -> Grant:
    """A ticket for an invite, or, without one, for this node's key. `expected` is who must be there."""
    node_id = gateway.settings.node_id
    nonce = gateway.chance.entropy(24).hex()
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_SECONDS, verify=needs_certificates(url)) as http:
        challenge = await _post(http, "/ansible/auth/challenge", {"nodeId": node_id}, Challenge)
        if expected not in (None, challenge.node_id):
            raise Refusal(Code.NODE_MISMATCH, f"{url} is {challenge.node_id}, not {expected}")
        request = ExchangeRequest(
            node_id=node_id,
            nonce=nonce,
            invite_token=token,
            node_proof=make_proof(gateway.identity, challenge, node_id=node_id, nonce=nonce, invite_token=token),
            requested_rooms=rooms,
            protocol_version=ROOM_VERSION,
        )
        grant = await _post(http, "/ansible/auth/exchange", request, Grant)
    if grant.node_id != challenge.node_id:
        raise Refusal(Code.NODE_MISMATCH, f"{url} is {challenge.node_id}, and then {grant.node_id}")
    known = gateway.host.known_key(grant.node_id)
    if known is not None and known != grant.signing_public:
        raise Refusal(Code.NODE_PROOF_INVALID, f"{url} answers for {grant.node_id} with another key than before")
    if known is None and expected is not None:
        raise Refusal(Code.NODE_PROOF_INVALID, f"nobody who is trusted here has vouched for {expected}")
    if not is_granted_by(grant, grant.signing_public, node_id=node_id, nonce=nonce):
        raise Refusal(Code.NODE_PROOF_INVALID, f"{url} did not prove that it is {grant.node_id}")
    return grant


async def _post(http: httpx.AsyncClient, path: str, body: Any, answer: type[Any]) -> Any:
    response = await http.post(path, content=msgspec.json.encode(body), headers={"content-type": "application/json"})
    if not response.is_success:
        raise _refusal_in(response.content, response.status_code)
    try:
        return msgspec.json.decode(response.content, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal(Code.UNAVAILABLE, f"{http.base_url} is not an agentpost gateway") from None


def _refusal_in(content: bytes, status: int) -> Refusal:
    """The refusal that the other side gave, in its own words."""
    try:
        error = msgspec.json.decode(content)["error"]
        return Refusal(Code(error["code"]), str(error["message"]), hint=error.get("hint"))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
        return Refusal(Code.UNAVAILABLE, f"the seed answered with status {status}")


def _refusal_of(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ConnectionClosedError) and error.rcvd is not None and error.rcvd.reason in _REASONS:
        code = Code(error.rcvd.reason)
        return Refusal(code, f"the seed closed the connection: {code.value}")
    if isinstance(error, InvalidStatus):
        return _refusal_in(bytes(error.response.body or b""), error.response.status_code)
    return Refusal(Code.UNAVAILABLE, f"the seed cannot be reached: {error or type(error).__name__}")
