"""Keeping the outboxes of other nodes for those who cannot reach them, and deciding who is asked for which (PIPE-9).

A mirror is read-only and byte for byte: the same seqs, the heads as their owner signed them. Whatever it keeps was
checked first, so that a reader's complaint means that the mirror is at fault, and not the source.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from agentpost.delivery.frames import Events
from agentpost.delivery.intake import Intake, NewBlob
from agentpost.delivery.ports import RoomView
from agentpost.delivery.reader import Verdict, is_later_epoch, signed_head
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead, decode_head, next_chain
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.payloads import PayloadRef
from agentpost.store.interface import Store
from agentpost.store.values import CHAIN_START, Cursor, MirrorBatch, MirrorEvent, NamedPayload
from agentpost.world import Clock

__all__ = ["Checked", "MirrorKeeper", "choose"]


class _Outline(Struct, rename="camel", gc=False):
    """What a mirror has to know of an event; the rest is none of its business."""

    source_node_id: str = ""
    seq: int = 0
    to_nodes: tuple[str, ...] = ()
    payload_ref: PayloadRef | None = None


_outline = msgspec.msgpack.Decoder(_Outline)

# A source can name readers that do not exist, as many as it likes. What is forgotten is read from the store again.
_MOST_MARKS: Final = 4096

# The last event of a stream and the chain up to it; None where the start of the stream was not seen.
_End = tuple[int, bytes | None]


class Checked(Struct, frozen=True, kw_only=True):
    """A batch for a mirror, the chain of each stream that it extends, and the payloads that it speaks of."""

    batch: MirrorBatch
    chains: dict[str, bytes]
    # What of it is taken by this gateway with the batch.
    mail: list[bytes]
    payloads: list[NamedPayload]
    has_unreadable: bool


class _Contradiction(Refusal):
    """The owner of an outbox signed its events, and with them a head that says something else of them."""


class MirrorKeeper:
    """The mirror of one source. Whoever brings it, it grows only by what the source signed."""

    def __init__(
        self,
        source_node_id: str,
        *,
        store: Store,
        room: RoomView,
        clock: Clock,
        intake: Intake,
        on_kept: Callable[[str, frozenset[str]], None],
        on_blobs: Callable[[Sequence[NewBlob]], None],
    ) -> None:
        self.source_node_id = source_node_id
        self._store = store
        self._room = room
        self._clock = clock
        self._intake = intake
        self._on_kept = on_kept
        self._on_blobs = on_blobs
        self.lock = asyncio.Lock()
        # Where the chains of readers' streams end, as far as that was needed since the start.
        self._marks: dict[str, bytes] = {}
        # Where the mirror ends. Nobody else keeps anything in it, and what is refused changes nothing.
        self._position: Cursor | None = None

    def position(self) -> Cursor | None:
        """How far the outbox is mirrored here."""
        if self._position is None and (kept := self._store.mirror_position(self.source_node_id)) is not None:
            self._position = Cursor(
                source_node_id=self.source_node_id,
                epoch=kept.epoch,
                last_seq=kept.last_seq,
                last_chain=kept.last_chain,
                updated_at_ms=0,
            )
        return self._position

    async def take(self, frame: Events, *, is_direct: bool) -> Verdict:
        """Keep a batch of the whole outbox. Refused, with an incident and nothing kept: what its owner did not sign."""
        async with self.lock:
            if self._room.signing_key(self.source_node_id) is None:
                return Verdict.UNKNOWN
            try:
                return await self._take(frame, is_direct=is_direct)
            except Refusal as refusal:
                if refusal.code in (Code.CONFLICT, Code.FOREIGN_SOURCE, Code.NODE_PROOF_INVALID, Code.MALFORMED):
                    await self._intake.report(IncidentKind.MIRROR_BROKEN, self.source_node_id, reason=refusal.message)
                if isinstance(refusal, _Contradiction) and not is_direct:
                    # A mirror that began later than this one cannot know.
                    return Verdict.CONTRADICTED
                raise

    async def start_over(self) -> None:
        """Begin anew with what the source still has: it pruned events that this mirror never got."""
        async with self.lock:
            at = self.position()
            if at is not None:
                await self._store.restart_mirror(self.source_node_id, epoch=at.epoch, at_ms=self._clock.now_ms())
                self._marks, self._position = {}, None

    async def _take(self, frame: Events, *, is_direct: bool) -> Verdict:
        head = signed_head(frame, self._room)
        at = self.position()
        if at is not None and at.epoch != frame.epoch:
            if not is_direct and not is_later_epoch(frame.epoch, than=at.epoch):
                return Verdict.STALE
            await self._intake.report(IncidentKind.EPOCH_CHANGED, self.source_node_id, before=at.epoch, now=frame.epoch)
            await self._store.restart_mirror(self.source_node_id, epoch=frame.epoch, at_ms=self._clock.now_ms())
            self._marks, self._position, at = {}, None, None
        last_seq = at.last_seq if at else 0
        if frame.through_seq <= last_seq:
            return Verdict.KNOWN
        # An empty mirror begins where its source, or the mirror that it asks, still has something.
        is_start = last_seq == 0 and frame.after_seq > 0 and frame.before_chain is not None
        if frame.after_seq != last_seq and not is_start:
            return Verdict.GAP
        checked = self.check(frame, head, at, is_start=is_start)
        await self.name_payloads(checked)
        await self._store.keep_mirror(checked.batch)
        self.kept(checked)
        return Verdict.TAKEN

    def check(
        self,
        frame: Events,
        head: OutboxHead,
        at: Cursor | None,
        *,
        is_start: bool = False,
        own_chain: bytes | None = None,
    ) -> "Checked":
        """A batch that follows what is kept, as it is to be kept; refused if its owner did not sign it so.

        With `own_chain`, that of this gateway's stream before the batch, its mail is taken from the batch as well.
        """
        own = None if own_chain is None else self._store.node_id
        if own is not None and own_chain is not None:
            self._marks[own] = own_chain
        outlines = [_read_outline(raw) for raw in frame.events]
        before_chain = (frame.before_chain if is_start else None) or (at.last_chain if at else CHAIN_START)
        events, ends, mail = self._chained(frame, outlines, before_chain, own)
        if not events or events[-1].chain != head.chain or events[-1].seq != frame.through_seq:
            raise self._broken("the events are not those that its owner signed")
        batch = MirrorBatch(
            source_node_id=self.source_node_id,
            epoch=frame.epoch,
            after_seq=frame.after_seq,
            through_seq=frame.through_seq,
            events=tuple(events),
            head=frame.head,
            signature=frame.signature,
            before_chain=before_chain,
            at_ms=self._clock.now_ms(),
        )
        return Checked(
            batch=batch,
            chains=self._checked_marks(head, ends),
            mail=mail,
            payloads=self._payloads(outlines, frame.after_seq),
            has_unreadable=None in outlines,
        )

    async def name_payloads(self, checked: "Checked") -> None:
        """Before a batch is kept: no event of a mirror has a payload that nobody may read, or nobody looks for."""
        if checked.payloads:
            await self._store.name_payloads(checked.payloads)

    def kept(self, checked: "Checked") -> None:
        """A batch that was checked here is on the disk."""
        batch = checked.batch
        self._position = Cursor(
            source_node_id=self.source_node_id,
            epoch=batch.epoch,
            last_seq=batch.through_seq,
            last_chain=batch.events[-1].chain,
            updated_at_ms=batch.at_ms,
        )
        self._marks |= checked.chains
        if len(self._marks) > _MOST_MARKS:
            self._marks = {}
        self._on_kept(self.source_node_id, frozenset(checked.chains))
        if checked.payloads:
            self._on_blobs(
                [
                    NewBlob(source_node_id=each.source_node_id, sha256=each.sha256, size_bytes=each.size_bytes)
                    for each in checked.payloads
                ]
            )

    def _payloads(self, outlines: Sequence[_Outline | None], after_seq: int) -> list[NamedPayload]:
        return [
            NamedPayload.of(outline.payload_ref, self.source_node_id, seq=seq)
            for seq, outline in enumerate(outlines, start=after_seq + 1)
            if outline is not None and outline.payload_ref is not None
        ]

    def _chained(
        self, frame: Events, outlines: Sequence[_Outline | None], chain: bytes, own: str | None
    ) -> tuple[list[MirrorEvent], dict[str, _End], list[bytes]]:
        """The events as they are to be kept, where each stream ends that one of them is in, and the mail of `own`."""
        events: list[MirrorEvent] = []
        ends: dict[str, _End] = {}
        mail: list[bytes] = []
        for seq, (raw, outline) in enumerate(zip(frame.events, outlines, strict=True), start=frame.after_seq + 1):
            chain = next_chain(chain, raw)
            if outline is None:
                # An event that cannot be read is kept all the same: it has its place in the chain.
                events.append(MirrorEvent(seq=seq, chain=chain, raw=raw, to_nodes=()))
                continue
            if outline.source_node_id != self.source_node_id:
                raise Refusal(  # ENV-8
                    Code.FOREIGN_SOURCE,
                    f"an event of {outline.source_node_id:.128} stands in the outbox of {self.source_node_id}",
                    field="sourceNodeId",
                )
            if outline.seq != seq:
                raise self._broken(f"the event at place {seq} says that it is at {outline.seq}")
            readers: dict[str, bytes | None] = {}
            for node_id in outline.to_nodes:
                if node_id not in readers:
                    before = ends[node_id][1] if node_id in ends else self._mark_before(node_id, frame.after_seq)
                    readers[node_id] = after = None if before is None else next_chain(before, raw)
                    ends[node_id] = (seq, after)
            if own in readers:
                # Nobody will ask for it here.
                del readers[own]
                mail.append(raw)
            known = tuple([each for each in readers.values() if each is not None])
            events.append(
                MirrorEvent(
                    seq=seq,
                    chain=chain,
                    raw=raw,
                    to_nodes=tuple(readers),
                    stream_chains=known if len(known) == len(readers) else (),
                )
            )
        return events, ends, mail

    def _mark_before(self, node_id: str, after_seq: int) -> bytes | None:
        """Where the chain of a reader's stream ends before a batch; None if this mirror has seen too little of it.

        After a restart the heads that are kept still say it: only what their owner signed is held against it.
        """
        if node_id in self._marks:
            return self._marks[node_id]
        if node_id == self.source_node_id:
            return CHAIN_START  # What a node writes to itself nobody else reads.
        if node_id == self._store.node_id:
            return None  # The mirror lacks what this gateway took with a batch; its stream reader checks the rest.
        raw = self._store.last_head_for(self.source_node_id, node_id)
        mark = None if raw is None else decode_head(raw).streams.get(node_id)
        if mark is not None:
            return mark.chain
        kept = self._store.mirror_position(self.source_node_id)
        begins_after = kept.floor_seq if kept and kept.last_seq else after_seq
        return CHAIN_START if begins_after == 0 else None

    def _checked_marks(self, head: OutboxHead, ends: Mapping[str, _End]) -> dict[str, bytes]:
        """The chain of every reader that has an event here, if the head says the same: they will check it."""
        checked: dict[str, bytes] = {}
        for node_id, (seq, chain) in ends.items():
            if node_id == self.source_node_id:
                # What a node writes to itself nobody else reads.
                continue
            mark = head.streams.get(node_id)
            if mark is None or mark.seq != seq or chain not in (None, mark.chain):
                problem = f"its head does not say where the stream of {node_id:.128} ends"
                raise _Contradiction(Code.CONFLICT, f"the outbox of {self.source_node_id}: {problem}", field="head")
            checked[node_id] = mark.chain
        return checked

    def _broken(self, problem: str) -> Refusal:
        return Refusal(Code.CONFLICT, f"the outbox of {self.source_node_id}: {problem}", field="events")


def _read_outline(raw: bytes) -> _Outline | None:
    try:
        return _outline.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


class Linked(Protocol):
    """Another gateway to which there is a link."""

    @property
    def peer(self) -> str: ...


AnyLinked = TypeVar("AnyLinked", bound=Linked)


def choose(
    source_node_id: str, links: Sequence[AnyLinked], room: RoomView, *, current: AnyLinked | None
) -> AnyLinked | None:
    """From whom an outbox is read: from its owner where there is a link to it, else from a backbone gateway.

    What works stays: `current` is left only for something better, or for a newer link to the same gateway, since a
    gateway that comes again has lost the other. `links` has the newest last.
    """
    direct = [link for link in links if link.peer == source_node_id]
    able = direct or [link for link in links if room.is_backbone(link.peer)]
    if current is not None and current in able:
        able = [link for link in able if link.peer == current.peer]
    return able[-1] if able else None
