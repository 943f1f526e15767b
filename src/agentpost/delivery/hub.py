"""The links of one gateway: which are open, and which of them each outbox is read through. No I/O.

A source is read over a direct link if there is one, else through a seed that mirrors it; when a link comes or goes, or
somebody could not give an outbox as its owner signed it, the choice is made anew. What a session says is in `link`.
"""

from collections.abc import Callable, Iterable
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentpost.delivery.feed import SubscriberNotes
from agentpost.delivery.fetch import BlobFetcher
from agentpost.delivery.frames import Subscribe
from agentpost.delivery.heads import verify_head
from agentpost.delivery.intake import Intake, ReportFailure
from agentpost.delivery.joint import JointReader
from agentpost.delivery.keeping import CursorCopy, first_awaited
from agentpost.delivery.link import Key, LinkSession
from agentpost.delivery.making import EventMaker
from agentpost.delivery.mirror import MirrorKeeper, choose
from agentpost.delivery.policy import DeliveryPolicy, GapPolicy
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.delivery.reader import OwnReader, StreamReader
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead, decode_head
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["LinkHub", "OnRegressed"]

OnRegressed = Callable[[OutboxHead, str], None]

# Somebody who comes again has lost the links before, or wants to use up memory.
_MOST_LINKS_A_PEER: Final = 4
# How long somebody is not asked again for an outbox that it could not give as its owner signed it.
_DISTRUST_MS: Final = 300_000


class LinkHub:
    """The open sessions of a gateway, and what is read through which of them. `start` it once, `close` it once."""

    def __init__(
        self,
        store: Store,
        room: RoomView,
        *,
        signing: Ed25519PrivateKey,
        maker: EventMaker,
        clock: Clock,
        wakeups: Wakeups,
        tier: NodeTier,
        policy: DeliveryPolicy | None = None,
        readers: Callable[[str], Iterable[CursorCopy]] | None = None,
        on_regressed: OnRegressed | None = None,
        report_failure: ReportFailure | None = None,
    ) -> None:
        """`readers` gives the cursors that the room has of one source. `on_regressed` hears of an end of the own outbox
        that this node signed and does not have, and who showed it. `report_failure` is for the intake."""
        policy = policy or DeliveryPolicy()
        self.store = store
        self.room = room
        self.clock = clock
        self.signing = signing
        self.notes = SubscriberNotes(store, clock=clock, lease_seconds=policy.cursor_lease_seconds)
        self.fetcher = BlobFetcher(
            store, clock=clock, wakeups=wakeups, links_for=self._links_for, on_complete=self._blob_came
        )
        self.intake = Intake(
            store,
            room,
            maker=maker,
            clock=clock,
            wakeups=wakeups,
            policy=policy,
            on_blobs=self.fetcher.want,
            report_failure=report_failure,
        )
        self._policy = policy
        self._cursors_of = readers
        self._on_regressed = on_regressed
        self._is_mirror = tier is NodeTier.BACKBONE
        self.tasks = TaskOwner("links")
        self.own = OwnReader(store=store, intake=self.intake, wakeups=wakeups, tasks=self.tasks)
        self._sessions: list[LinkSession] = []
        self._readers: dict[str, StreamReader] = {}
        self._mirrors: dict[str, MirrorKeeper] = {}
        self._joints: dict[str, JointReader] = {}
        self._chosen: dict[Key, LinkSession] = {}
        self._distrusted: dict[tuple[str, str], int] = {}
        self._denied: set[str] = set()
        self._members: frozenset[tuple[str, NodeTier]] = frozenset()
        wakeups.listen(outbox=self._outbox_grew)

    @property
    def sessions(self) -> tuple[LinkSession, ...]:
        return tuple(self._sessions)

    def start(self) -> None:
        """Begin with what is here already: local mail, and payloads that were not all fetched."""
        self.own.start()
        self.fetcher.want_backlog()

    async def close(self) -> None:
        for session in self.sessions:
            session.close()
        await self.tasks.close()

    def open(
        self, peer_node_id: str, *, on_wake: Callable[[], None], on_wake_soon: Callable[[], None] | None = None
    ) -> LinkSession:
        """A session with a peer that proved who it is. `on_wake` is called when it has something to send.

        `on_wake_soon` is called instead for what may wait a moment, so that it goes with what follows.
        """
        before = [session for session in self._sessions if session.peer == peer_node_id]
        if len(before) >= _MOST_LINKS_A_PEER:
            before[0].refuse(Refusal(Code.UNAVAILABLE, f"{peer_node_id} has come again, {len(before)} times"))
        session = LinkSession(self, peer_node_id, on_wake, on_wake_soon or on_wake)
        self._sessions.append(session)
        return session

    def room_changed(self) -> None:
        """Somebody joined or was revoked, perhaps: end the links of those who are out (ROOM-6), and choose anew."""
        members = frozenset((node_id, node.tier) for node_id, node in self.room.snapshot().nodes.items())
        if members == self._members:
            return
        self._members = members
        for session in self.sessions:
            if self.room.signing_key(session.peer) is None:
                session.refuse(Refusal(Code.NODE_REVOKED, f"the node {session.peer} was revoked"))
        self.choose()

    def read_through(self) -> dict[str, int]:
        """How far each gateway has read this outbox for certain, this one included, with all of its answers here.

        Who is not linked to this one is not in it: what is not known is not claimed.
        """
        passed = {self.store.node_id: 0}
        for session in self._sessions:
            if session.is_open:
                passed[session.peer] = max(session.read_through(), passed.get(session.peer, 0))
        own = self.store.cursor(self.store.node_id)
        if own is not None and own.epoch == self.store.epoch:
            is_all_read = not self.store.read_stream(self.store.node_id, own.last_seq, limit=1).events
            passed[self.store.node_id] = own.last_seq if is_all_read else 0
        return passed

    # What is read, and from whom

    def reader(self, source: str, *, is_whole: bool) -> StreamReader | MirrorKeeper:
        return self._mirror_keeper(source) if is_whole else self._stream_reader(source)

    def _stream_reader(self, source: str) -> StreamReader:
        if source not in self._readers:
            self._readers[source] = StreamReader(
                source,
                store=self.store,
                room=self.room,
                clock=self.clock,
                intake=self.intake,
                policy=self._policy,
            )
        return self._readers[source]

    def _mirror_keeper(self, source: str) -> MirrorKeeper:
        if source not in self._mirrors:
            self._mirrors[source] = MirrorKeeper(
                source,
                store=self.store,
                room=self.room,
                clock=self.clock,
                intake=self.intake,
                on_kept=self._mirror_grew,
                on_blobs=self.fetcher.want,
            )
        return self._mirrors[source]

    def joint_reader(self, source: str) -> JointReader:
        if source not in self._joints:
            self._joints[source] = JointReader(
                self._stream_reader(source),
                self._mirror_keeper(source),
                store=self.store,
                room=self.room,
                intake=self.intake,
            )
        return self._joints[source]

    def choose(self) -> None:
        """Decide anew from whom each outbox is read. Called when a link or a node comes or goes."""
        links = [session for session in self._sessions if session.is_open]
        sources = {*self.room.snapshot().nodes, *(link.peer for link in links)} - {self.store.node_id}
        now_ms = self.clock.monotonic_ms()
        self._distrusted = {pair: until for pair, until in self._distrusted.items() if until > now_ms}
        for source in sorted(sources):
            trusted = [link for link in links if (link.peer, source) not in self._distrusted]
            changed: list[Key] = []
            for key in ((source, False), (source, True)) if self._is_mirror else ((source, False),):
                current = self._chosen.get(key)
                best = choose(source, trusted, self.room, current=current)
                if best is current:
                    continue
                if current is not None:
                    current.unsubscribe(key)
                    del self._chosen[key]
                if best is not None:
                    self._chosen[key] = best
                    changed.append(key)
            if changed and not self._join(source):
                for key in changed:
                    self._chosen[key].subscribe(key)

    def _join(self, source: str) -> bool:
        """Read an outbox once for both of its readers, if its owner is linked and they are equally far."""
        session = self._chosen.get((source, True))
        if session is None or session.peer != source or self._chosen.get((source, False)) is not session:
            return False
        if not self.joint_reader(source).can_begin():
            return False
        session.subscribe_jointly(source)
        return True

    def distrust(self, session: LinkSession, source: str) -> None:
        """Ask somebody else for this outbox for a while; there may be nobody else."""
        self._distrusted[session.peer, source] = self.clock.monotonic_ms() + _DISTRUST_MS
        self.choose()

    async def begin_mirror_anew(self, session: LinkSession, source: str) -> None:
        """Go on with what another seed still has, where nobody else has what comes next.

        Only once nobody waits for what is kept here: it may be all that is left of it, and the other seed may lie.
        Until then those who have all of it had better read from somebody else.
        """
        kept = self.store.mirror_position(source)
        if (source, True) in self._chosen or kept is None or not kept.last_seq:
            return
        readers = () if self._cursors_of is None else self._cursors_of(source)
        if first_awaited(kept, self.store, self.room, readers) is None:
            await self._mirror_keeper(source).start_over()
            self._distrusted.pop((session.peer, source), None)
            self.choose()
            return
        for each in self.sessions:
            each.turn_away(source)

    async def tick(self) -> None:
        """What time brings: gaps that nobody closed (CUR-4), and another try with somebody who failed."""
        self.fetcher.tick()
        if any(until <= self.clock.monotonic_ms() for until in self._distrusted.values()):
            self.choose()
        for (source, is_whole), session in tuple(self._chosen.items()):
            if is_whole and not session.reads_jointly(source):
                self._join(source)
        for source, reader in tuple(self._readers.items()):
            has_gap = await reader.check_gap()
            if has_gap and self._policy.gap_policy is not GapPolicy.WAIT and (source, False) not in self._chosen:
                self._skip_gap(source, reader)

    def _skip_gap(self, source: str, reader: StreamReader) -> None:
        """Nobody has what is missing: go on with what the source has, or else a mirror of it."""
        links = self._links_for(source)
        if links:
            reader.allow_skip()
            self._distrusted.pop((links[0].peer, source), None)
            self._chosen[source, False] = links[0]
            links[0].subscribe((source, False), skip=True)

    def check_own_past(self, wish: Subscribe, *, shown_by: str) -> None:
        """Refuse a peer that shows an end of the own outbox, signed by this node, that is not in it (CUR-6).

        Then the database is an older one, or another one, than that with which the node signed it.
        What counts is the own signature alone. A peer can say nothing with it that is not so: where nothing was lost,
        no such signature exists.
        """
        if wish.head is None or wish.signature is None:
            return
        shown = decode_head(wish.head)
        if shown.node_id != self.store.node_id or shown.epoch != self.store.epoch or self._has(shown):
            return
        verify_head(wish.head, wish.signature, self.signing.public_key().public_bytes_raw())
        if self._on_regressed is not None:
            self._on_regressed(shown, shown_by)
        raise Refusal(
            Code.EPOCH_MISMATCH,
            f"{self.store.node_id} has an older database: it ends at seq {self.store.head().seq}, not {shown.seq}",
        )

    def _has(self, shown: OutboxHead) -> bool:
        """Whether the own outbox came by this end of it, as far as it still knows."""
        own = self.store.head()
        if shown.seq >= own.seq:
            return (shown.seq, shown.chain) == (own.seq, own.chain)
        part = self.store.read_outbox(max(shown.seq - 1, 0), limit=1)
        at = part.events[0] if part.events else None
        # What was pruned cannot be compared any more, and has been read by all.
        return shown.seq <= part.floor_seq or at is None or at.seq != shown.seq or at.chain == shown.chain

    def opened(self) -> None:
        self.choose()
        self.fetcher.link_came()

    def drop(self, session: LinkSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._chosen = {key: chosen for key, chosen in self._chosen.items() if chosen is not session}
            self.choose()
            self.fetcher.link_went(session)

    async def deny_payload(self, peer: str, sha256: str) -> None:
        """Write down that somebody asked for a payload that is not for it; once for each that asks."""
        if peer in self._denied:
            return
        self._denied.add(peer)
        entry = AuditEntry(
            at_ms=self.clock.now_ms(),
            actor=peer,
            action="payload.denied",
            subject=sha256,
            detail={"code": Code.SCOPE_DENIED.value},
        )
        await self.store.record_audit([entry])

    def _links_for(self, source: str) -> list[LinkSession]:
        links = [session for session in self._sessions if session.is_open]
        direct = [link for link in links if link.peer == source]
        return direct + [link for link in links if link.peer != source and self.room.is_backbone(link.peer)]

    def _blob_came(self, sha256: str) -> None:
        for session in self._sessions:
            session.blob_came(sha256)

    def _outbox_grew(self, in_hurry: bool) -> None:
        for session in self._sessions:
            session.wake(self.store.node_id, in_hurry=in_hurry)

    def _mirror_grew(self, source: str, readers: frozenset[str]) -> None:
        for session in self._sessions:
            session.wake(source, is_for_reader=session.peer in readers)
