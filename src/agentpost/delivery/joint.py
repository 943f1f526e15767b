"""An outbox that is read for two purposes at once: its mail for this gateway, and its mirror for others.

A backbone gateway that has a link to the owner of an outbox would read everything for it twice: as its stream, and as a
part of the whole. Here the whole is read once, and one transaction keeps it and takes what is for this gateway. The
whole outbox is signed like a stream is, so nothing can be left out of it either. Whatever does not fit (another epoch,
a hole, an event that cannot be made out) is left to the two readers, each by itself.
"""

from typing import Final

from agentpost.delivery.frames import Events
from agentpost.delivery.intake import Batch, Intake
from agentpost.delivery.mirror import MirrorKeeper
from agentpost.delivery.ports import RoomView
from agentpost.delivery.reader import StreamReader, Verdict, signed_head
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.interface import Store
from agentpost.store.values import CHAIN_START, Cursor, SignedEnd

__all__ = ["JointReader"]


# What a source did wrong, by the code of the refusal.
_INCIDENTS: Final = {
    Code.CONFLICT: IncidentKind.STREAM_BROKEN,
    Code.NODE_PROOF_INVALID: IncidentKind.STREAM_BROKEN,
    Code.MALFORMED: IncidentKind.STREAM_BROKEN,
    Code.FOREIGN_SOURCE: IncidentKind.FOREIGN_SOURCE,
}


class JointReader:
    """The stream reader and the mirror of one source, as one reader of the whole outbox."""

    def __init__(
        self, stream: StreamReader, mirror: MirrorKeeper, *, store: Store, room: RoomView, intake: Intake
    ) -> None:
        self.source_node_id = stream.source_node_id
        self._stream = stream
        self._mirror = mirror
        self._store = store
        self._room = room
        self._intake = intake

    def position(self) -> Cursor | None:
        return self._mirror.position()

    def can_begin(self) -> bool:
        """Whether both have read equally far, so that one can go on for them."""
        cursor, kept = self._stream.position(), self._mirror.position()
        if cursor is None or kept is None:
            return cursor is None and kept is None
        return (cursor.epoch, cursor.last_seq) == (kept.epoch, kept.last_seq) and not self._stream.has_gap

    async def take(self, frame: Events, *, is_direct: bool) -> Verdict:
        """Keep a batch of the whole outbox, and accept what is for this gateway. Refused as the two would refuse it."""
        # Either reader may still be busy with a batch of its own.
        async with self._mirror.lock, self._stream.lock:
            if not is_direct:
                return Verdict.APART
            if self._room.signing_key(self.source_node_id) is None:
                return Verdict.UNKNOWN
            try:
                return await self._take(frame)
            except Refusal as refusal:
                if refusal.code in _INCIDENTS:
                    await self._intake.report(_INCIDENTS[refusal.code], self.source_node_id, reason=refusal.message)
                raise

    async def _take(self, frame: Events) -> Verdict:
        head = signed_head(frame, self._room)
        cursor, kept = self._stream.position(), self._mirror.position()
        last_seq = kept.last_seq if kept else 0
        read_through = cursor.last_seq if cursor else 0
        is_start = frame.first_chain is not None or frame.before_chain is not None
        if read_through != last_seq or is_start or not _is_epoch(frame.epoch, cursor, kept):
            return Verdict.APART
        if frame.after_seq == frame.through_seq < last_seq:
            # The outbox ends before what was read of it (CUR-6): the reader of the stream says so.
            return Verdict.APART
        if frame.through_seq <= last_seq:
            return Verdict.KNOWN
        if frame.after_seq != last_seq:
            return Verdict.GAP
        own = self._store.node_id
        chain = cursor.last_chain if cursor else CHAIN_START
        checked = self._mirror.check(frame, head, kept, own_chain=chain)
        if checked.has_unreadable:
            return Verdict.APART
        await self._mirror.name_payloads(checked)
        await self._stream.accept(
            Batch(
                source_node_id=self.source_node_id,
                epoch=frame.epoch,
                after_seq=last_seq,
                through_seq=frame.through_seq,
                # Computed from what the cursor remembers, and the one in the head.
                chain=checked.chains.get(own, chain),
                raws=checked.mail,
                mirror=checked.batch,
                signed_end=SignedEnd(head=frame.head, signature=frame.signature),
            )
        )
        self._mirror.kept(checked)
        return Verdict.TAKEN


def _is_epoch(epoch: str, cursor: Cursor | None, kept: Cursor | None) -> bool:
    return (cursor is None or cursor.epoch == epoch) and (kept is None or kept.epoch == epoch)
