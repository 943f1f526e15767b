"""The gateway: the parts of one node, put together. Starts them, drains them, stops them.

Knows nothing of HTTP or of the command line; the edges serve what is here.
"""

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from agentpost import __version__
from agentpost.auth.external.service import ExternalAgents
from agentpost.auth.joining import Joining
from agentpost.auth.limits import Limits, address_rate, token_rate
from agentpost.auth.wire import Entry, Whois
from agentpost.config import Settings, save_settings
from agentpost.delivery.engine import Engine
from agentpost.delivery.forwarding import Forwarder
from agentpost.delivery.hub import LinkHub
from agentpost.delivery.ports import Runtime, Runtimes
from agentpost.lake.settings import require_pyarrow
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.sweeping import keep_swept
from agentpost.mailing import make_engine
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.routing import is_live
from agentpost.protocol.snapshot import MOST_NOT_TAKEN, NodeTier
from agentpost.room.coordination import CoordinationBoard
from agentpost.room.host import RoomHost
from agentpost.store.home import Home
from agentpost.store.identity import Identity, load_identity
from agentpost.store.regressed import MOST_INCIDENTS, open_regression, regressed
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import Incident, LocalAgent
from agentpost.tasks import TaskOwner
from agentpost.work.commons import Commons
from agentpost.work.office import Office
from agentpost.world import Chance, Clock, IdMaker, new_epoch

if TYPE_CHECKING:
    from agentpost.lake.service import LakeService

__all__ = ["Connection", "Gateway", "GatewayStatus", "Phase"]

_log = logging.getLogger(__name__)

_MOST_INVITES: Final = 2_000
_LOOK_AT_INVITES_SECONDS: Final = 30.0

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class NotTakenBy(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many messages from here a gateway has not taken yet, and when the oldest of them was sent."""

    node_id: str
    count: int
    oldest_sent_at_ms: int
    is_online: bool


class GatewayStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `agentpost status` tells."""

    node_id: str
    tier: str
    phase: Phase
    version: str
    epoch: str
    signing_public_key: str
    url: str
    pid: int
    up_seconds: float
    outbox_seq: int
    inbox_seq: int
    inbox_acked_seq: int
    # What is too large for its event, the own and that of others: how many, and how much.
    payloads: int
    payload_bytes: int
    # How many files and connections the process may have open; -1 is without limit.
    open_files_limit: int
    # The longest wait first.
    not_taken: list[NotTakenBy] = []
    failure: str | None = None
    insecure_no_proof: bool = False
    # Where others reach it, if that is not what it listens on.
    public_url: str | None = None
    # The seeds that took this gateway out of the mesh: it sends nothing until one lets it in again.
    revoked_by: tuple[str, ...] = ()


class Connection(Protocol):
    """A peer that is connected, as far as the gateway needs to know."""

    node_id: str

    def cut(self, refusal: Refusal) -> None: ...


class Gateway:
    """One node. `start` it, serve it, and `stop` it; `stopping` is set when somebody or something wants it to end."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        chance: Chance,
        runtimes: Runtimes | None = None,
        whois: Whois | None = None,
    ) -> None:
        self.settings = settings
        self._runtimes = runtimes or _NoRuntimes()
        self._whois = whois
        self.clock = clock
        self.chance = chance
        self.ids = IdMaker(clock, chance)
        self.phase = Phase.STARTING
        self.stopping = asyncio.Event()
        # Why it ends, if it was not told to.
        self.failure: Refusal | None = None
        self.tasks = TaskOwner("gateway")
        # Where the public door is, once it is open.
        self.url = ""
        # Who is connected to the room here; each can be cut off.
        self.connections: set[Connection] = set()
        # Where mail goes between gateways; None for one that has no part in it.
        self.links: LinkHub | None = None
        self._store: SqliteStore | None = None
        self._identity: Identity | None = None
        self._joining: Joining | None = None
        self._external: ExternalAgents | None = None
        self._host: RoomHost | None = None
        self._engine: Engine | None = None
        self._office: Office | None = None
        self._mailbox: FileMailbox | None = None
        self._commons: Commons | None = None
        # Where the outboxes are exported to; None for a gateway without a lake.
        self.lake: LakeService | None = None
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
    def external(self) -> ExternalAgents:
        if self._external is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._external

    @property
    def host(self) -> RoomHost:
        if self._host is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._host

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._engine

    @property
    def office(self) -> Office:
        if self._office is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._office

    @property
    def mailbox(self) -> FileMailbox:
        """For the programs of this machine; what they put under `agent@node` travels the mesh."""
        if self._mailbox is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._mailbox

    @property
    def commons(self) -> Commons:
        if self._commons is None:
            raise Refusal(Code.UNAVAILABLE, "the gateway is not started")
        return self._commons

    async def start(self) -> None:
        """Claim the home and open what is in it."""
        on_failure = self._fails_on_loop()
        self._store = SqliteStore.open(
            self.settings.home,
            node_id=self.settings.node_id,
            epoch=new_epoch(self.ids),
            now_ms=self.clock.now_ms(),
            on_failure=on_failure,
        )
        await self._check_epoch(self._store)
        self._identity = load_identity(Home(self.settings.home))
        self._host = RoomHost(
            self._store, self._identity, tier=self.settings.tier, clock=self.clock, chance=self.chance
        )
        self._joining = Joining(
            self._store,
            self._identity,
            self.clock,
            self.chance,
            find=self._host.known_node,
            find_root=self._host.find_root,
            whois=self._whois,
            require_proof=not self.settings.insecure_no_proof,
            limits=self._attempt_limits(),
        )
        self._external = ExternalAgents(
            self._store,
            self._identity,
            self.clock,
            self.chance,
            limits=self._attempt_limits(),
            lifetimes=self.settings.external,
        )
        await self._host.start()
        self._host.room.subscribe(self._cut_revoked)
        self.tasks.spawn(self._watch_invites(), name="invites")
        self._engine = make_engine(
            store=self._store,
            host=self._host,
            identity=self._identity,
            tier=self.settings.tier,
            clock=self.clock,
            chance=self.chance,
            runtimes=self._runtimes,
            secret_options=self._runtimes.secret_options,
            policy=self.settings.delivery,
            on_regressed=self._regressed,
        )
        self._office = Office(
            self._engine,
            board=CoordinationBoard(self._host.room, self.clock),
            chance=self.chance,
            settings=self.settings.work,
        )
        self._commons = Commons(
            engine=self._engine,
            tasks=self._office.tasks,
            room=self._host.room,
            signing=self._identity.signing,
            skills=self.settings.home / "skills",
            archive=self.settings.home / "legacy.yjs",
        )
        self._office.sweeper.reviews = self._commons.triggers
        self._office.sweeper.promises = self._commons.contracts
        self._office.coordination.policy_problems = self._commons.delegation.problems
        self.use_links(self._engine.links)
        if self.settings.lake is not None:
            self.lake = self._open_lake()
            self._engine.keeper.hold(self.lake.held_after)
        await self._engine.start()
        self._open_mailbox(self._engine, on_failure)
        self._commons.start()
        self._office.start()
        if self.lake is not None:
            self.lake.start()
        self._started_ms = self.clock.monotonic_ms()
        self.phase = Phase.READY
        if self.settings.insecure_no_proof:
            _log.warning("nodes are let in without a proof of their key (--insecure-no-proof): this is for a lab")
        _log.info("gateway %s is ready", self.settings.node_id)

    def _fails_on_loop(self) -> Callable[[Refusal], None]:
        """What the store and the mailbox call, from any thread, when the disk fails."""
        loop = asyncio.get_running_loop()

        def on_failure(refusal: Refusal) -> None:
            loop.call_soon_threadsafe(self._fail, refusal)

        return on_failure

    def _open_mailbox(self, engine: Engine, on_failure: Callable[[Refusal], None]) -> None:
        self._mailbox = FileMailbox.open(Home(self.settings.home).mailbox, clock=self.clock, on_failure=on_failure)
        forwarder = Forwarder(self._mailbox, store=self.store, room=engine.room, publisher=engine.publisher)
        self.tasks.spawn(keep_swept(self._mailbox), name="mailbox sweeper")
        self.tasks.spawn(forwarder.run(), name="forwarder")

    def _attempt_limits(self) -> Limits:
        return Limits(
            self.clock,
            per_address=address_rate(self.settings.attempts_per_address),
            per_token=token_rate(self.settings.attempts_per_token),
        )

    def _open_lake(self) -> "LakeService":
        if self.settings.lake is None:
            raise Refusal(Code.NOT_FOUND, "this gateway has no lake", hint="Name one with --lake, or in its file.")
        require_pyarrow()
        # pyarrow takes longer to load than all the rest: only who has a lake pays for it.
        from agentpost.lake.service import LakeService

        return LakeService(
            self.settings.lake,
            home=self.settings.home,
            store=self.store,
            room=self.host.room,
            identity=self.identity,
            tier=self.settings.tier,
            policy=self.settings.delivery,
            clock=self.clock,
        )

    def request_stop(self) -> None:
        """Ask the gateway to drain and stop; whoever runs it waits for `stopping`."""
        if self.phase is Phase.READY:
            self.phase = Phase.DRAINING
        if self._engine is not None:
            # Who waits for mail, or for the end of some, or looks on, would hold up the doors.
            self._engine.pull.release()
            self._engine.outcomes.release()
            self._engine.watchers.release()
        if self._mailbox is not None:
            self._mailbox.release()
        self.stopping.set()

    async def stop(self) -> None:
        """End the background work, then close the store: what was accepted is durable, what was not was never said."""
        if self._commons is not None:
            await self._commons.close()
        if self._office is not None:
            await self._office.close()
        if self._engine is not None:
            await self._engine.drain()
            await self._engine.close()
        if self._commons is not None:
            await self._commons.end_checks()
        if self.lake is not None:
            await self.lake.close()
        await self.tasks.close()
        if self._mailbox is not None:
            await self._mailbox.close()
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
        if node is not None and entry.first_join:
            self.host.admit(node)
            self.show_invites()

    async def synced(self) -> None:
        """A seed has sent the room: say again what is this gateway's own, its agents too (ROOM-5)."""
        self.host.bring_back()
        if self._engine is not None:
            await self._engine.agents.announce()

    def use_links(self, links: LinkHub) -> None:
        """Let mail through from now on. Who joins or is revoked is read from, or is not any more, at once (ROOM-6)."""
        self.links = links
        self.host.room.subscribe(lambda _update, _origin: links.room_changed())

    def show_invites(self) -> None:
        """Tell the room of the invites that were made here, if there is something to tell."""
        try:
            self.host.publish_invites(self.store.invites(limit=_MOST_INVITES))
        except Refusal as refusal:
            # A full map of invites keeps nobody from joining.
            _log.warning("the invites cannot be shown in the room: %s", refusal.message)

    async def withdraw_invite(self, invite_id: str) -> None:
        """Take back an invite, and what was given for it."""
        await self.joining.withdraw(invite_id)
        self.show_invites()

    async def _watch_invites(self) -> None:
        while True:
            self.show_invites()
            await asyncio.sleep(_LOOK_AT_INVITES_SECONDS)

    def announce(self, url: str) -> None:
        """The public door is open at this URL. A backbone gateway tells the others where they find it."""
        self.url = url
        # Not before: a port that somebody else has must not be what the next start goes by.
        save_settings(self.settings)
        public_url = self.settings.public_url or ("" if self.settings.listen_host in _EVERYWHERE else url)
        if self.settings.tier is NodeTier.BACKBONE and public_url:
            self.host.announce(public_url)

    async def revoke(self, node_id: str) -> None:
        """Take room, tickets and connections from a node, at once (ROOM-6)."""
        await self.joining.revoke(node_id)
        self.cut(node_id)
        self.host.revoke(node_id)
        self.show_invites()

    def cut(self, node_id: str) -> None:
        """End the connections of a node that may not be here any more."""
        refusal = Refusal(Code.NODE_REVOKED, f"the node {node_id} was revoked")
        for connection in tuple(self.connections):
            if connection.node_id == node_id:
                connection.cut(refusal)

    def _cut_revoked(self, _update: bytes, _origin: str) -> None:
        # ROOM-6: another backbone node may have revoked somebody who is connected here.
        for node_id in {connection.node_id for connection in self.connections}:
            if self.host.room.keys.is_revoked(node_id):
                self.cut(node_id)

    def _fail(self, refusal: Refusal) -> None:
        if self.failure is None:
            # PIPE-3: after a failed sync nobody knows what is on the disk; the next start finds out.
            problem = f"the gateway stopped because its disk failed: {refusal.message}"
            self.failure = Refusal(Code.STORAGE_FAILED, problem)
        _log.critical("the gateway stops: %s", refusal.message)
        self.phase = Phase.FAILED
        self.stopping.set()

    def _regressed(self, shown: OutboxHead, shown_by: str) -> None:
        """CUR-6: the database is an older one, put back by hand. What would be said now, no reader would take."""
        if self.failure is not None:
            return
        incident = Incident(
            kind=IncidentKind.OUTBOX_REGRESSED,
            subject=self.settings.node_id,
            at_ms=self.clock.now_ms(),
            detail={
                "epoch": shown.epoch,
                "signedSeq": shown.seq,
                "endsAt": self.store.head().seq,
                "shownBy": shown_by,
            },
        )
        self.failure = regressed(incident)
        self.tasks.spawn(self._stop_for(incident, self.failure), name="older database")

    async def _stop_for(self, incident: Incident, refusal: Refusal) -> None:
        try:
            # The next start finds it, whether a peer is there to show it again or not.
            await self.store.raise_incident(incident)
        finally:
            self._fail(refusal)

    async def _check_epoch(self, store: SqliteStore) -> None:
        """Refuse to go on with a database that a peer has shown to be an older one, until it has begun a new epoch."""
        found = open_regression(store.incidents(limit=MOST_INCIDENTS))
        if found is None:
            return
        if found.detail.get("epoch") == store.epoch:
            await store.close()
            raise regressed(found)
        await store.close_incident(found.kind, found.subject, at_ms=self.clock.now_ms())

    def _not_taken(self) -> list[NotTakenBy]:
        if self._engine is None:
            return []
        nodes, now_ms = self._engine.room.snapshot().nodes, self.clock.now_ms()
        found = [
            NotTakenBy(
                node_id=each.node_id,
                count=each.count,
                oldest_sent_at_ms=each.since_ms,
                is_online=each.node_id == self.settings.node_id or is_live(nodes.get(each.node_id), now_ms),
            )
            for each in self.store.unaccepted_counts(most=MOST_NOT_TAKEN)
        ]
        return sorted(found, key=lambda each: each.oldest_sent_at_ms)

    def status(self) -> GatewayStatus:
        position = self.store.inbox_position()
        mailbox_failure = None if self._mailbox is None else self._mailbox.failure
        failure = self.store.failure or mailbox_failure or self.failure
        usage = self.store.payload_usage()
        return GatewayStatus(
            node_id=self.settings.node_id,
            tier=self.settings.tier.value,
            phase=self.phase,
            version=__version__,
            epoch=self.store.epoch,
            signing_public_key=self.identity.signing_public,
            url=self.url,
            pid=os.getpid(),
            up_seconds=(self.clock.monotonic_ms() - self._started_ms) / 1000,
            outbox_seq=self.store.head().seq,
            inbox_seq=position.latest_seq,
            inbox_acked_seq=position.acked_seq,
            payloads=usage.payloads,
            payload_bytes=usage.size_bytes,
            open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            not_taken=self._not_taken(),
            failure=None if failure is None else failure.message,
            insecure_no_proof=self.settings.insecure_no_proof,
            public_url=self.settings.public_url,
            revoked_by=() if self._engine is None else self._engine.room.revoked_by(),
        )


class _NoRuntimes:
    """For a gateway that engages no agents."""

    def __call__(self, agent: LocalAgent) -> Runtime:
        raise Refusal(Code.UNAVAILABLE, f"this gateway engages no agents, so not {agent.agent_id}")

    def secret_options(self, runtime: str) -> tuple[str, ...]:
        return ()
