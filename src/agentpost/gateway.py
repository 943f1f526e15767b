"""The gateway: the parts of one node, put together. Starts them, drains them, stops them.

Knows nothing of HTTP or of the command line; the edges serve what is here.
"""

import asyncio
import logging
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from agentpost import __version__
from agentpost.auth.joining import Joining
from agentpost.auth.wire import Entry
from agentpost.config import Settings, save_settings
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import SessionId
from agentpost.room.host import RoomHost
from agentpost.store.home import Home
from agentpost.store.identity import Identity, load_identity
from agentpost.store.sqlite import SqliteStore
from agentpost.tasks import TaskOwner
from agentpost.world import Chance, Clock, IdMaker

__all__ = ["Connection", "Gateway", "GatewayStatus", "Phase"]

_log = logging.getLogger(__name__)


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class GatewayStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `agentpost status` tells."""

    node_id: str
    tier: str
    phase: Phase
    version: str
    epoch: str
    signing_public_key: str
    url: str
    up_seconds: float
    outbox_seq: int
    inbox_seq: int
    inbox_acked_seq: int
    failure: str | None = None


class Connection(Protocol):
    """A peer that is connected, as far as the gateway needs to know."""

    node_id: str

    def cut(self, refusal: Refusal) -> None: ...


class Gateway:
    """One node. `start` it, serve it, and `stop` it; `stopping` is set when somebody or something wants it to end."""

    def __init__(self, settings: Settings, *, clock: Clock, chance: Chance) -> None:
        self.settings = settings
        self.clock = clock
        self.chance = chance
        self.ids = IdMaker(clock, chance)
        self.phase = Phase.STARTING
        self.stopping = asyncio.Event()
        self.tasks = TaskOwner("gateway")
        # Where the public door is, once it is open.
        self.url = ""
        # Who is connected to the room here; each can be cut off.
        self.connections: set[Connection] = set()
        self._store: SqliteStore | None = None
        self._identity: Identity | None = None
        self._joining: Joining | None = None
        self._host: RoomHost | None = None
        self._started_ms = 0

    @property
    def store(self) -> SqliteStore:
        if self._store is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._store

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._identity

    @property
    def joining(self) -> Joining:
        if self._joining is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._joining

    @property
    def host(self) -> RoomHost:
        if self._host is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._host

    async def start(self) -> None:
        """Claim the home and open what is in it."""
        loop = asyncio.get_running_loop()

        def on_failure(refusal: Refusal) -> None:
            loop.call_soon_threadsafe(self._fail, refusal)

        self._store = SqliteStore.open(
            self.settings.home,
            node_id=self.settings.node_id,
            epoch=self.ids.make(SessionId).replace("ses_", "epoch_"),
            now_ms=self.clock.now_ms(),
            on_failure=on_failure,
        )
        self._identity = load_identity(Home(self.settings.home))
        self._host = RoomHost(
            self._store, self._identity, tier=self.settings.tier, clock=self.clock, chance=self.chance
        )
        self._joining = Joining(self._store, self._identity, self.clock, self.chance, vouch=self._host.vouch)
        await self._host.start()
        save_settings(self.settings)
        self._started_ms = self.clock.monotonic_ms()
        self.phase = Phase.READY
        _log.info("gateway %s is ready", self.settings.node_id)

    def request_stop(self) -> None:
        """Ask the gateway to drain and stop; whoever runs it waits for `stopping`."""
        if self.phase is Phase.READY:
            self.phase = Phase.DRAINING
        self.stopping.set()

    async def stop(self) -> None:
        """End the background work, then close the store: what was accepted is durable, what was not was never said."""
        await self.tasks.close()
        if self._host is not None and self.phase is not Phase.FAILED:
            await self._host.stop()
        if self._store is not None:
            await self._store.close()
        if self.phase is not Phase.FAILED:
            self.phase = Phase.STOPPED
        _log.info("gateway %s is %s", self.settings.node_id, self.phase)

    def admit(self, entry: Entry) -> None:
        """Trust the key of a node whose ticket was just used here."""
        node = self.store.known_node(entry.node_id)
        if node is not None:
            self.host.pin(node)

    async def revoke(self, node_id: str) -> None:
        """Take room, tickets and connections from a node, at once (ROOM-6)."""
        await self.joining.revoke(node_id)
        refusal = Refusal(Code.NODE_REVOKED, f"the node {node_id} was revoked")
        for connection in tuple(self.connections):
            if connection.node_id == node_id:
                connection.cut(refusal)
        self.host.revoke(node_id)

    def _fail(self, refusal: Refusal) -> None:
        # PIPE-3: after a failed sync nobody knows what is on the disk; the next start finds out.
        _log.critical("the disk failed, the gateway stops: %s", refusal.message)
        self.phase = Phase.FAILED
        self.stopping.set()

    def status(self) -> GatewayStatus:
        position = self.store.inbox_position()
        failure = self.store.failure
        return GatewayStatus(
            node_id=self.settings.node_id,
            tier=self.settings.tier.value,
            phase=self.phase,
            version=__version__,
            epoch=self.store.epoch,
            signing_public_key=self.identity.signing_public,
            url=self.url,
            up_seconds=(self.clock.monotonic_ms() - self._started_ms) / 1000,
            outbox_seq=self.store.head().seq,
            inbox_seq=position.latest_seq,
            inbox_acked_seq=position.acked_seq,
            failure=None if failure is None else failure.message,
        )
