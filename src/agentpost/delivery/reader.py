"""The consumer's side of a subscription: what came is held against the signed head and the cursor, then taken (CUR-1).

A reader trusts nobody but the source's signature: a mirror that altered, reordered or left something out is caught,
because the chain of what it handed over does not end where the source says it does (PIPE-9).
"""

import asyncio
import logging
from contextlib import suppress
from enum import StrEnum
from typing import Final

from agentpost.delivery.frames import Events
from agentpost.delivery.heads import verify_head
from agentpost.delivery.intake import Batch, Intake
from agentpost.delivery.policy import DeliveryPolicy, GapPolicy
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.protocol.codec import read_events
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead, chain_over
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.interface import Store
from agentpost.store.values import CHAIN_START, AuditEntry, Cursor, SignedEnd
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["OwnReader", "StreamReader", "Verdict", "is_later_epoch", "signed_head"]

_log = logging.getLogger(__name__)

# How far the own cursor may lag behind an outbox that has nothing for local agents.
_OWN_STEP: Final = 1024
# How long local mail that the disk did not take waits for the next try.
_READ_AGAIN_SECONDS: Final = 1.0


class Verdict(StrEnum):
    TAKEN = "taken"
    KNOWN = "known"  # it was here already: the cursor has passed it
    GAP = "gap"  # something before it is missing: ask again from the cursor
    STALE = "stale"  # of an earlier life of the source, from somebody who has not heard of the present one
    REGRESSED = "regressed"  # the source's outbox ends before what was read from it
    APART = "apart"  # what was read for two purposes at once has to be read for each by itself
    CONTRADICTED = "contradicted"  # the source signed what does not fit together; who passed it on is not at fault
    UNKNOWN = "unknown"  # nobody in this mesh has the key that would sign for the source, or not any more


class StreamReader:
    """The reader of one source, through whichever link brings it. The cursor decides; nothing is taken twice."""

    def __init__(
        self,
        source_node_id: str,
        *,
        store: Store,
        room: RoomView,
        clock: Clock,
        intake: Intake,
        policy: DeliveryPolicy | None = None,
    ) -> None:
        self.source_node_id = source_node_id
        self._policy = policy or DeliveryPolicy()
        self._store = store
        self._room = room
        self._clock = clock
        self._intake = intake
        self.lock = asyncio.Lock()
        self._gap_since_ms: int | None = None
        self._may_skip = False
        # Where the cursor stands. Nobody else moves it, and what is refused changes nothing.
        self._cursor: Cursor | None = None

    def position(self) -> Cursor | None:
        """How far the source was read."""
        if self._cursor is None:
            self._cursor = self._store.cursor(self.source_node_id)
        return self._cursor

    async def accept(self, batch: Batch) -> None:
        """Take a batch that was checked: the cursor moves with it (CUR-2)."""
        taken = await self._intake.take(batch)
        self._cursor = None
        if taken.cursor_seq == batch.through_seq:
            self._cursor = Cursor(
                source_node_id=self.source_node_id,
                epoch=batch.epoch,
                last_seq=batch.through_seq,
                last_chain=batch.chain,
                updated_at_ms=self._clock.now_ms(),
            )

    async def take(self, frame: Events, *, is_direct: bool) -> Verdict:
        """Take a batch. Refused, with an incident and nothing accepted: what the source did not say like that."""
        async with self.lock:
            return await self._take(frame, is_direct=is_direct)

    @property
    def has_gap(self) -> bool:
        return self._gap_since_ms is not None

    def note_gap(self) -> None:
        """What comes next is missing. The cursor stops, and the time runs (CUR-3)."""
        if self._gap_since_ms is None:
            self._gap_since_ms = self._clock.monotonic_ms()

    async def check_gap(self) -> bool:
        """Whether there is a gap that nobody has closed in time; somebody is told of it then (CUR-4)."""
        if self._gap_since_ms is None or self._waited_ms(self._gap_since_ms) < self._policy.gap_timeout_seconds * 1000:
            return False
        at = self.position()
        await self._intake.report(IncidentKind.GAP, self.source_node_id, afterSeq=at.last_seq if at else 0)
        return True

    def _waited_ms(self, since_ms: int) -> int:
        return self._clock.monotonic_ms() - since_ms

    def allow_skip(self) -> None:
        """Let whoever brings the stream begin after what nobody has any more.

        The source says itself with what; of anybody else no event is taken that does not follow from the cursor.
        """
        self._may_skip = True

    async def _take(self, frame: Events, *, is_direct: bool) -> Verdict:
        source = self.source_node_id
        if self._room.signing_key(source) is None:
            return Verdict.UNKNOWN
        try:
            head = signed_head(frame, self._room)
        except Refusal as refusal:
            await self._intake.report(IncidentKind.STREAM_BROKEN, source, reason=refusal.message)
            raise
        cursor = self.position()
        if cursor is not None and cursor.epoch != frame.epoch:
            if not is_direct and not is_later_epoch(frame.epoch, than=cursor.epoch):
                return Verdict.STALE
            # CUR-6: what was taken before is still known by its event ids.
            await self._intake.report(IncidentKind.EPOCH_CHANGED, source, before=cursor.epoch, now=frame.epoch)
            await self._store.restart_cursor(source, epoch=frame.epoch, at_ms=self._clock.now_ms())
            await self._store.close_incident(IncidentKind.SOURCE_REGRESSED, source, at_ms=self._clock.now_ms())
            cursor = self._cursor = None
        last_seq = cursor.last_seq if cursor else 0
        if frame.after_seq == frame.through_seq and frame.through_seq < last_seq:
            if is_direct:
                await self._intake.report(IncidentKind.SOURCE_REGRESSED, source, readThrough=last_seq, endsAt=head.seq)
            return Verdict.REGRESSED if is_direct else Verdict.STALE
        if frame.through_seq <= last_seq:
            return Verdict.KNOWN
        if frame.after_seq != last_seq:
            self.note_gap()
            return Verdict.GAP
        may_skip, self._may_skip = self._may_skip, False
        if may_skip and not is_direct and frame.events:
            self.note_gap()
            return Verdict.GAP
        try:
            chain = self._checked_chain(frame, head, cursor.last_chain if cursor else CHAIN_START, may_skip=may_skip)
        except Refusal as refusal:
            await self._intake.report(IncidentKind.STREAM_BROKEN, source, reason=refusal.message)
            raise
        batch = Batch(
            source_node_id=source,
            epoch=frame.epoch,
            after_seq=frame.after_seq,
            through_seq=frame.through_seq,
            chain=chain,
            raws=frame.events,
            signed_end=SignedEnd(head=frame.head, signature=frame.signature),
        )
        await self.accept(batch)
        if may_skip and self._policy.gap_policy is GapPolicy.TOMBSTONE:
            if frame.events:
                (first,) = read_events(frame.events[:1])
                await self._leave_tombstone(after_seq=last_seq, before_seq=first.seq)
            elif not is_direct:
                await self._leave_tombstone(after_seq=last_seq, before_seq=frame.through_seq + 1)
        if self._gap_since_ms is not None:
            self._gap_since_ms = None
            if not may_skip:
                # What was missing has come after all. What was skipped has not, and a person has to know.
                await self._store.close_incident(IncidentKind.GAP, source, at_ms=self._clock.now_ms())
        return Verdict.TAKEN

    async def _leave_tombstone(self, *, after_seq: int, before_seq: int | None) -> None:
        """Keep for ever which part of the stream nobody had any more."""
        await self._store.record_audit(
            [
                AuditEntry(
                    at_ms=self._clock.now_ms(),
                    actor=self._store.node_id,
                    action="cursor.tombstone",
                    subject=self.source_node_id,
                    detail={"afterSeq": after_seq, "beforeSeq": before_seq},
                )
            ]
        )

    def _checked_chain(self, frame: Events, head: OutboxHead, chain: bytes, *, may_skip: bool) -> bytes:
        """The stream's chain after the batch, if it is the one that the source signed."""
        mark = head.streams.get(self._store.node_id)
        if may_skip and frame.first_chain is not None:
            chain = chain_over(frame.first_chain, frame.events[1:])
        else:
            chain = chain_over(chain, frame.events)
        if mark is None or mark.chain != chain or mark.seq > frame.through_seq:
            raise Refusal(
                Code.CONFLICT,
                f"what came from the outbox of {self.source_node_id} is not what its owner signed",
                field="events",
                hint="Something on the way altered, reordered or left out events; read from somebody else.",
            )
        return chain


class OwnReader:
    """The reader of the own outbox: mail between two agents of this gateway takes the same way as all other mail."""

    def __init__(self, *, store: Store, intake: Intake, wakeups: Wakeups, tasks: TaskOwner) -> None:
        self._store = store
        self._intake = intake
        self._tasks = tasks
        self._cursor: Cursor | None = None
        # Nobody else moves the cursor, so it is looked up only after it has moved.
        self._is_cursor_known = False
        self._grew = asyncio.Event()
        self._has_read = asyncio.Event()
        wakeups.listen(outbox=self._outbox_grew)

    def start(self) -> None:
        self._grew.set()
        self._tasks.spawn(self._run(), name="own mail")

    def _outbox_grew(self, _in_hurry: bool) -> None:
        self._grew.set()

    async def caught_up(self) -> None:
        """Wait until what agents of this gateway have said so far is in the inboxes of the others here."""
        own = self._store.node_id
        while True:
            cursor = self._store.cursor(own)
            if not self._store.read_stream(own, cursor.last_seq if cursor else 0, limit=1).events:
                return
            self._has_read.clear()
            await self._has_read.wait()

    async def read(self) -> None:
        """Take everything that is there for the agents of this gateway."""
        own = self._store.node_id
        while True:
            if not self._is_cursor_known:
                self._cursor, self._is_cursor_known = self._store.cursor(own), True
            cursor = self._cursor
            if cursor is not None and cursor.epoch != self._store.epoch:
                self._is_cursor_known = False
                await self._store.restart_cursor(own, epoch=self._store.epoch, at_ms=cursor.updated_at_ms)
                continue
            after_seq = cursor.last_seq if cursor else 0
            stream = self._store.read_stream(own, after_seq, may_lag=True)
            if not stream.events and stream.through_seq - after_seq < _OWN_STEP:
                return
            batch = Batch(
                source_node_id=own,
                epoch=self._store.epoch,
                after_seq=after_seq,
                through_seq=stream.through_seq,
                chain=stream.chain,
                raws=[event.raw for event in stream.events],
            )
            self._is_cursor_known = False
            await self._intake.take(batch)

    async def _run(self) -> None:
        is_refused = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_READ_AGAIN_SECONDS if is_refused else None):
                    await self._grew.wait()
            self._grew.clear()
            try:
                await self.read()
                is_refused = False
            except Refusal as refusal:
                # The disk is full, say. Nothing tells when there is space, and nothing may be appended before.
                if not is_refused:
                    _log.error("local mail could not be read, and is read again: %s", refusal.message)
                is_refused = True
            self._has_read.set()


def signed_head(frame: Events, room: RoomView) -> OutboxHead:
    """The head of the frame, if the source signed it for exactly this end of its outbox."""
    key = room.signing_key(frame.source)
    if key is None:
        raise Refusal(Code.NODE_REVOKED, f"{frame.source} is not a node of this mesh, or is no more", field="source")
    head = verify_head(frame.head, frame.signature, key)
    if (head.node_id, head.epoch, head.seq) != (frame.source, frame.epoch, frame.through_seq):
        raise Refusal(Code.CONFLICT, f"the head that {frame.source} signed is not that of this batch", field="head")
    if frame.after_seq > frame.through_seq:
        raise Refusal(Code.SEQUENCE_GAP, "a batch cannot end before it begins", field="throughSeq")
    return head


def is_later_epoch(epoch: str, *, than: str) -> bool:
    """Whether an outbox began this life after that one. Epochs are made so that they sort by time."""
    return epoch > than
