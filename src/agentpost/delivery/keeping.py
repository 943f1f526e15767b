"""The keeper: prunes what nobody needs any more, and tells the room how far this gateway is. Two quiet tasks.

Pruning goes in small steps, so that mail never waits behind it. What may go is decided by the store (PIPE-7, PIPE-8),
except for mirrors: there it is whatever every reader has, and beyond the retention the rest as well.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.protocol.errors import Refusal
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.snapshot import MOST_WAITING
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.store.values import Blob, Cursor, MirrorPosition, Watermarks
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["MOST_AGENTS_TOLD", "CursorCopy", "DeliveryCopy", "Keeper", "Kept", "RoomCopies", "first_awaited"]

_log = logging.getLogger(__name__)

# What one transaction prunes: a few milliseconds of the writer.
_STEP: Final = 1_000
_PAYLOADS_A_STEP: Final = 256
# Some tenths of a second of hashing, chunk by chunk.
_BYTES_CHECKED_A_ROUND: Final = 64 * 1024 * 1024
_FIRST_COPIES_A_ROUND: Final = 1
# So many names of any length have room in one record.
MOST_AGENTS_TOLD: Final = 24


class DeliveryCopy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`delivery.<node>` of the room: how far this gateway and its agents are.

    `waiting_by_agent` has the agents whose mail has waited longest; `agents_waiting` is how many there are.
    """

    inbox_cursor_acked: int
    inbox_cursor_seen: int
    latest_seq: int
    epoch: str
    dead_letter_count: int
    incident_count: int
    last_ack_at: str | None = None
    waiting_by_agent: dict[str, int] | None = None
    agents_waiting: int | None = None


class CursorCopy(Struct, frozen=True, kw_only=True, rename="camel"):
    """`delivery.cursors.<consumer>.<source>` of the room (CUR-5).

    The lease is that of the last move. A reader that has everything needs none: there is nothing to keep for it.
    """

    consumer_node_id: str
    source_node_id: str
    last_seq: int
    updated_at: str
    status: str
    lease_expires_at: str
    epoch: str


class RoomCopies(Protocol):
    async def publish(self, own: DeliveryCopy | None, cursors: Sequence[CursorCopy]) -> None:
        """Write this node's own records. Only what has changed is given."""
        ...


class Kept(Struct, frozen=True, kw_only=True):
    """What one round of pruning removed."""

    outbox_events: int = 0
    inbox_events: int = 0
    settled: int = 0
    mirrored: int = 0
    payloads: int = 0
    records: int = 0


class Keeper:
    """`readers` gives the cursors that the room has of one source; without it a mirror keeps to its retention.

    `renew` fetches a payload again that is damaged.
    """

    def __init__(
        self,
        *,
        store: Store,
        room: RoomView,
        clock: Clock,
        wakeups: Wakeups,
        policy: DeliveryPolicy | None = None,
        copies: RoomCopies | None = None,
        readers: Callable[[str], Iterable[CursorCopy]] | None = None,
        renew: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._room = room
        self._clock = clock
        self._policy = policy or DeliveryPolicy()
        self._copies = copies
        self._readers = readers
        self._renew = renew
        # How far the payloads were held against their addresses.
        self._checked_through = ""
        # Called after records were pruned: what tells of them may be over.
        self.on_records_pruned: Callable[[], Awaitable[None]] | None = None
        self._held_after: Callable[[str, str], int | None] = lambda _node_id, _epoch: None
        self._tasks = TaskOwner("keeper")
        self._changed = asyncio.Event()
        self._own: DeliveryCopy | None = None
        self._cursors: dict[str, CursorCopy] = {}
        self._cursors_due_at_ms = 0
        wakeups.listen(
            outbox=lambda _: self._changed.set(),
            inbox=lambda _: self._changed.set(),
            timer=lambda _: self._changed.set(),
        )

    def start(self) -> None:
        self._tasks.spawn(self._keep_on(), name="pruning")
        if self._copies is not None:
            self._changed.set()
            self._tasks.spawn(self._copy_on(self._copies), name="room copies")

    async def close(self) -> None:
        await self._tasks.close()

    def hold(self, held_after: Callable[[str, str], int | None]) -> None:
        """Prune nothing after the seq that this gives for (node, epoch): somebody else is still to copy it.

        None holds nothing.
        """
        self._held_after = held_after

    # Pruning

    async def keep(self) -> Kept:
        """One round: both streams, what has ended, the mirrors, and payloads, until there is nothing more to prune."""
        kept = replace(await self._compact(Kept()), records=await self._prune_records())
        settled = await self._prune_settled()
        mirrored = 0
        for mirror in self._store.mirrors():
            through_seq = self._not_needed_through(mirror)
            held_after = self._held_after(mirror.source_node_id, mirror.epoch)
            through_seq = through_seq if held_after is None else min(through_seq, held_after)
            if through_seq > mirror.floor_seq:
                mirrored += await self._store.prune_mirror(mirror.source_node_id, through_seq=through_seq)
            await asyncio.sleep(0)
        # Last: what was pruned just now needs its payloads no more.
        return replace(kept, settled=settled, mirrored=mirrored, payloads=await self._prune_payloads())

    async def _compact(self, kept: Kept) -> Kept:
        watermarks = self._watermarks()
        while True:
            step = await self._store.compact(watermarks, limit=_STEP)
            if not step.outbox_events and not step.inbox_events:
                return kept
            kept = replace(
                kept,
                outbox_events=kept.outbox_events + step.outbox_events,
                inbox_events=kept.inbox_events + step.inbox_events,
            )

    def _watermarks(self) -> Watermarks:
        watermarks = self._store.watermarks(
            now_ms=self._clock.now_ms(),
            retention_events=self._policy.retention_events,
            is_alone=not self._room.snapshot().nodes.keys() - {self._store.node_id},
        )
        held_after = self._held_after(self._store.node_id, self._store.epoch)
        if held_after is None:
            return watermarks
        return replace(watermarks, outbox_seq=min(watermarks.outbox_seq, held_after))

    async def _prune_settled(self) -> int:
        # RTY-3: what the ledger has forgotten is no repeat any more, so it remembers for as long as repeats can come.
        kept_seconds = max(self._policy.settled_retention_seconds, self._policy.repeats_seconds)
        before_ms = self._clock.now_ms() - round(kept_seconds * 1000)
        settled = 0
        while count := await self._store.prune_settled(before_ms=before_ms, limit=_STEP):
            settled += count
        return settled

    async def _prune_records(self) -> int:
        """Incidents, invites, sessions and the like that have ended, and idempotency keys that have expired."""
        now_ms = self._clock.now_ms()
        before_ms = now_ms - self._policy.record_retention_seconds * 1000
        pruned = 0
        while count := await self._store.prune_records(now_ms=now_ms, before_ms=before_ms, limit=_STEP):
            pruned += count
        if self.on_records_pruned is not None:
            await self.on_records_pruned()
        return pruned

    async def _prune_payloads(self) -> int:
        payloads, after_sha256 = 0, ""
        while True:
            step = await self._store.prune_payloads(
                now_ms=self._clock.now_ms(),
                grace_ms=self._policy.payload_grace_seconds * 1000,
                after_sha256=after_sha256,
                limit=_PAYLOADS_A_STEP,
            )
            payloads += step.payloads
            if step.through_sha256 is None:
                return payloads
            after_sha256 = step.through_sha256

    def _not_needed_through(self, mirror: MirrorPosition) -> int:
        """The last seq that no reader lacks, or that is beyond the retention. A reader that sleeps counts: it is whom
        mirrors are for (PIPE-9)."""
        beyond_retention = mirror.last_seq - self._policy.mirror_retention_events
        if self._readers is None:
            return max(beyond_retention, 0)
        awaited = first_awaited(mirror, self._store, self._room, self._readers(mirror.source_node_id))
        needed_from = mirror.last_seq + 1 if awaited is None else awaited
        # PIPE-7: the window stays also where everybody has read on.
        return max(needed_from - 1 - self._policy.retention_events, beyond_retention, 0)

    async def check_payloads(self) -> None:
        """Hold some payloads against their addresses, and have the damaged ones fetched again (PIPE-5)."""
        seen_bytes = 0
        while seen_bytes < _BYTES_CHECKED_A_ROUND:
            page = self._store.payloads(after_sha256=self._checked_through, limit=1)
            if not page:
                self._checked_through = ""
                return
            (blob,) = page
            self._checked_through = blob.sha256
            seen_bytes += blob.size_bytes
            if blob.complete and self._renew is not None and await self._is_damaged(blob):
                await self._renew(blob.sha256)

    async def _is_damaged(self, blob: Blob) -> bool:
        digest = sha256()
        for part in range(blob.chunks):
            data = self._store.chunk(blob.sha256, part)
            if data is None and self._store.blob(blob.sha256) is None:
                # It was pruned meanwhile.
                return False
            digest.update(data or b"")
            # Other work comes between two chunks.
            await asyncio.sleep(0)
        return digest.hexdigest() != blob.sha256

    async def _keep_on(self) -> None:
        while True:
            await asyncio.sleep(self._policy.keep_every_seconds)
            try:
                kept = await self.keep()
                await self.check_payloads()
            except Refusal as refusal:
                _log.error("nothing could be pruned: %s", refusal.message)
                continue
            if kept != Kept():
                _log.info(
                    "pruned: outbox %d, inbox %d, settled %d, mirrors %d, payloads %d, records %d",
                    kept.outbox_events,
                    kept.inbox_events,
                    kept.settled,
                    kept.mirrored,
                    kept.payloads,
                    kept.records,
                )

    # Copies in the room

    async def copy(self, copies: RoomCopies) -> bool:
        """Write what has changed since the last time into the room. False if nothing has."""
        own = self._own_copy()
        cursors = [copy for cursor in self._store.cursors() if (copy := self._cursor_copy(cursor)) is not None]
        changed = self._due([copy for copy in cursors if not _same_place(copy, self._cursors.get(copy.source_node_id))])
        if len({*self._cursors, *(copy.source_node_id for copy in changed)}) < len(cursors):
            # The first copies of the others come with the next rounds, whatever happens.
            self._changed.set()
        if own == self._own and not changed:
            return False
        await copies.publish(None if own == self._own else own, changed)
        self._own = own
        self._cursors.update((copy.source_node_id, copy) for copy in changed)
        return True

    def _due(self, changed: list[CursorCopy]) -> list[CursorCopy]:
        """Those that may be copied now: a first copy with each round, and a few of the others now and then.

        Every gateway of the mesh has to check each copy, and there are as many cursors as pairs of gateways.
        """
        new = [copy for copy in changed if copy.source_node_id not in self._cursors][:_FIRST_COPIES_A_ROUND]
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._cursors_due_at_ms:
            return new
        self._cursors_due_at_ms = now_ms + self._policy.cursor_copy_every_seconds * 1000
        moved = [copy for copy in changed if copy.source_node_id in self._cursors]
        # The one that was copied longest ago comes first.
        moved.sort(key=lambda copy: self._cursors[copy.source_node_id].updated_at)
        return [*new, *moved[: self._policy.cursors_a_copy]]

    def _own_copy(self) -> DeliveryCopy:
        position = self._store.inbox_position()
        acked_seq = position.acked_seq
        last_ack_at = None if self._own is None else self._own.last_ack_at
        if self._own is not None and acked_seq != self._own.inbox_cursor_acked:
            last_ack_at = format_ms(self._clock.now_ms())
        waiting = self._store.waiting_agents()
        return DeliveryCopy(
            inbox_cursor_acked=acked_seq,
            inbox_cursor_seen=position.latest_seq,
            latest_seq=position.latest_seq,
            epoch=self._store.epoch,
            dead_letter_count=sum(self._store.count_deliveries(only=DeliveryState.DEAD_LETTER).values()),
            incident_count=sum(self._store.count_incidents().values()),
            last_ack_at=last_ack_at,
            waiting_by_agent={
                agent_id: self._store.backlog_size(agent_id, most=MOST_WAITING)
                for agent_id in waiting[:MOST_AGENTS_TOLD]
            },
            agents_waiting=len(waiting),
        )

    def _cursor_copy(self, cursor: Cursor) -> CursorCopy | None:
        if cursor.source_node_id == self._store.node_id:
            return None  # local mail is nobody else's business
        return CursorCopy(
            consumer_node_id=self._store.node_id,
            source_node_id=cursor.source_node_id,
            last_seq=cursor.last_seq,
            updated_at=format_ms(cursor.updated_at_ms),
            status="active",
            lease_expires_at=format_ms(self._clock.now_ms() + self._policy.cursor_lease_seconds * 1000),
            epoch=cursor.epoch,
        )

    async def _copy_on(self, copies: RoomCopies) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.copy(copies)
            except Refusal as refusal:
                _log.warning("the room did not take the delivery record: %s", refusal.message)
            # Coalesced: whatever happens meanwhile goes into the next one.
            await asyncio.sleep(self._policy.room_copy_every_seconds)


def first_awaited(mirror: MirrorPosition, store: Store, room: RoomView, readers: Iterable[CursorCopy]) -> int | None:
    """The first event of a mirror that somebody in the room lacks; None if everybody has what is for it."""
    taken = {copy.consumer_node_id: copy.last_seq for copy in readers if copy.epoch == mirror.epoch}
    own = store.cursor(mirror.source_node_id)
    if own is not None and own.epoch == mirror.epoch:
        taken[store.node_id] = own.last_seq
    awaited: list[int] = []
    for node_id in room.snapshot().nodes:
        if node_id == mirror.source_node_id:
            continue
        after_seq = max(taken.get(node_id, 0), mirror.floor_seq)
        waiting = store.read_mirror(mirror.source_node_id, node_id, after_seq)
        if waiting is not None and waiting.events:
            awaited.append(waiting.events[0].seq)
    return min(awaited, default=None)


def _same_place(copy: CursorCopy, before: CursorCopy | None) -> bool:
    return (
        before is not None
        and copy.last_seq == before.last_seq
        and copy.epoch == before.epoch
        and copy.status == before.status
    )
