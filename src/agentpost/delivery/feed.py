"""The source's side of one subscription: what stands in an outbox, or in a mirror of one, as frames for one reader.

A feed sends only what the reader has room for (`Credit`), and remembers nothing that the reader's cursor does not
say anew: after a cut, the next subscription starts where the reader is.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from agentpost.delivery.frames import Credit, Events, Subscribe, encode_frame
from agentpost.delivery.heads import sign_head
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead, StreamMark, chain_over, decode_head, next_chain
from agentpost.store.interface import Store
from agentpost.store.values import CHAIN_START, Head, OutboxSlice, StoredEvent, StreamSlice, Subscriber
from agentpost.world import Clock

__all__ = ["MAX_UNDER_WAY", "Feed", "MirrorFeed", "OutboxFeed", "SubscriberNotes", "WholeFeed", "addressed_to"]

_MAX_BATCH_BYTES: Final = 1_000_000
_MAX_BATCH_EVENTS: Final = 1024
# More than that at once are sent in two batches: the reader is busy with one while this side goes on with the answers.
_CROWD: Final = 64
# While so many batches are under way, what is appended meanwhile gathers into the next: small ones do not pile up.
MAX_UNDER_WAY: Final = 2
# How far a reader's cursor may lag behind an outbox that has nothing for it.
_IDLE_STEP: Final = 1024

_NOTE_EVERY_MS: Final = 1_000
_RENEW_EVERY_MS: Final = 100_000


class _Addressed(Struct, rename="camel", gc=False):
    """Of an event, only whom it is for."""

    to_nodes: tuple[str, ...] = ()


_addressed = msgspec.msgpack.Decoder(_Addressed)


def addressed_to(raw: bytes) -> tuple[str, ...]:
    """The gateways whose streams have this event; none for bytes that do not say."""
    try:
        return _addressed.decode(raw).to_nodes
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ()


class Feed(ABC):
    """What all feeds share: the window of what is under way, and where the reader is."""

    def __init__(self, subscribe: Subscribe, *, consumer: str) -> None:
        self.source = subscribe.source
        self.is_whole = subscribe.whole
        self.consumer = consumer
        self.durable_seq = subscribe.after_seq
        self._position = subscribe.after_seq
        # What the reader has, until the first batch showed that it fits.
        self._unchecked_chain: bytes | None = None if subscribe.skip else subscribe.after_chain
        self._is_skipping = subscribe.skip
        self._room_bytes = 0
        self._under_way: deque[tuple[int, int]] = deque()
        self._under_way_bytes = 0
        self._may_have_more = True

    @property
    def is_awaiting(self) -> bool:
        """Whether something is under way that the reader has not confirmed yet."""
        return bool(self._under_way)

    @property
    def is_at_end(self) -> bool:
        """Whether the reader has everything that there was."""
        return not self._may_have_more and not self._under_way

    def wake(self) -> None:
        self._may_have_more = True

    def grant(self, credit: Credit) -> bool:
        """The reader has everything through `credit.through_seq` on its disk, and room for so much more.

        True if there may be something that waited for that.
        """
        self.durable_seq = max(self.durable_seq, min(credit.through_seq, self._position))
        while self._under_way and self._under_way[0][0] <= credit.through_seq:
            self._under_way_bytes -= self._under_way.popleft()[1]
        self._room_bytes = credit.bytes
        return self._may_have_more

    def frames(self) -> list[bytes]:
        """What can be sent now. A refusal means that the reader and this outbox do not fit together any more."""
        frames: list[bytes] = []
        while self._may_have_more and self._free_bytes > 0 and len(self._under_way) < MAX_UNDER_WAY:
            batch = self._next(min(_MAX_BATCH_BYTES, self._free_bytes))
            if batch is None:
                self._may_have_more = False
                break
            frame = encode_frame(batch)
            self._position = batch.through_seq
            self._under_way.append((batch.through_seq, len(frame)))
            self._under_way_bytes += len(frame)
            frames.append(frame)
        return frames

    @property
    def _free_bytes(self) -> int:
        return self._room_bytes - self._under_way_bytes

    @abstractmethod
    def _next(self, max_bytes: int) -> Events | None:
        """The next batch after `_position`; None if there is none."""

    def _start_over(self) -> None:
        self.durable_seq = self._position = 0
        self._unchecked_chain = CHAIN_START
        self._under_way.clear()
        self._under_way_bytes = 0

    def _check_fit(self, fits: bool, floor_seq: int) -> None:
        """Refuse a batch if what the reader has, and what is here, do not follow each other."""
        if not fits:
            raise Refusal(
                Code.SEQUENCE_GAP,
                f"the outbox of {self.source} does not go on from {self._position}: it is pruned through {floor_seq}",
                field="afterSeq",
                hint="What was pruned is gone; ask somebody else, or go on without it.",
            )
        self._unchecked_chain = None


class OutboxFeed(Feed):
    """One reader's stream of the own outbox."""

    def __init__(self, subscribe: Subscribe, *, consumer: str, store: Store, signing: Ed25519PrivateKey) -> None:
        super().__init__(subscribe, consumer=consumer)
        self._store = store
        self._signing = signing
        if subscribe.epoch not in (None, store.epoch):
            self._start_over()

    def _next(self, max_bytes: int) -> Events | None:
        part = self._read(_MAX_BATCH_EVENTS, max_bytes)
        if _CROWD < len(part.events) < _MAX_BATCH_EVENTS:
            # A backlog is sent in batches as large as they may be.
            part = self._read((len(part.events) + 1) // 2, max_bytes)
        if self._position > part.through_seq:
            return self._end(part.through_seq)
        if self._position == part.through_seq:
            return None
        first = part.events[0] if part.events else None
        if (had := self._unchecked_chain) is not None:
            fits = had == part.chain if first is None else next_chain(had, first.raw) == first.chain
            self._check_fit(fits, part.floor_seq)
        elif self._position < part.floor_seq and not self._is_skipping:
            # Pruned since the last batch.
            self._check_fit(False, part.floor_seq)
        if first is None and not self._is_skipping and part.through_seq - self._position < _IDLE_STEP:
            return None
        first_chain = (part.chain if first is None else first.chain) if self._is_skipping else None
        self._is_skipping = False
        return self._batch(
            [event.raw for event in part.events],
            through_seq=part.through_seq,
            outbox_chain=part.outbox_chain,
            mark=StreamMark(seq=part.last_event_seq, chain=part.chain),
            first_chain=first_chain,
        )

    def _read(self, limit: int, max_bytes: int) -> StreamSlice:
        return self._store.read_stream(self.consumer, self._position, limit=limit, max_bytes=max_bytes, may_lag=True)

    def _end(self, head_seq: int) -> Events | None:
        """Says, once, that this outbox ends before what the reader has of it (CUR-6)."""
        part = self._store.read_stream(self.consumer, head_seq)
        self._position = head_seq
        self._may_have_more = False
        self._room_bytes = 0
        return self._batch(
            [],
            through_seq=head_seq,
            outbox_chain=part.outbox_chain,
            mark=StreamMark(seq=part.last_event_seq, chain=part.chain),
        )

    def _batch(
        self,
        raws: list[bytes],
        *,
        through_seq: int,
        outbox_chain: bytes,
        mark: StreamMark,
        first_chain: bytes | None = None,
    ) -> Events:
        head = OutboxHead(
            node_id=self.source,
            epoch=self._store.epoch,
            seq=through_seq,
            chain=outbox_chain,
            streams={self.consumer: mark},
        )
        raw, signature = sign_head(head, self._signing)
        return Events(
            source=self.source,
            epoch=self._store.epoch,
            after_seq=self._position,
            through_seq=through_seq,
            head=raw,
            signature=signature,
            events=raws,
            first_chain=first_chain,
        )


class WholeFeed(Feed):
    """The whole own outbox, for a mirror. Its heads have the mark of every reader that has an event in the batch:
    the mirror hands them on."""

    def __init__(self, subscribe: Subscribe, *, consumer: str, store: Store, signing: Ed25519PrivateKey) -> None:
        super().__init__(subscribe, consumer=consumer)
        self._store = store
        self._signing = signing
        if subscribe.epoch not in (None, store.epoch):
            self._start_over()

    def _next(self, max_bytes: int) -> Events | None:
        part = self._store.read_outbox(self._position, limit=_MAX_BATCH_EVENTS, max_bytes=max_bytes, may_lag=True)
        if not part.events:
            return self._end()
        first, last = part.events[0], part.events[-1]
        # A mirror that has nothing yet begins with what is left.
        is_start = self._position == 0 and first.seq > 1 and part.floor_seq == first.seq - 1
        if is_start:
            self._position, self._unchecked_chain = first.seq - 1, None
        elif (had := self._unchecked_chain) is not None:
            self._check_fit(next_chain(had, first.raw) == first.chain, part.floor_seq)
        elif first.seq > self._position + 1:
            self._check_fit(False, part.floor_seq)
        head = OutboxHead(
            node_id=self.source,
            epoch=self._store.epoch,
            seq=last.seq,
            chain=last.chain,
            streams=self._marks(part),
        )
        raw, signature = sign_head(head, self._signing)
        return Events(
            source=self.source,
            epoch=self._store.epoch,
            after_seq=self._position,
            through_seq=last.seq,
            head=raw,
            signature=signature,
            events=[event.raw for event in part.events],
            whole=True,
            before_chain=part.floor_chain if is_start else None,
        )

    def _end(self) -> Events | None:
        """Says, once, that this outbox ends before what the reader has of it (CUR-6)."""
        if self._unchecked_chain is None or self._position <= (head := self._store.head()).seq:
            return None
        self._position, self._may_have_more, self._room_bytes = head.seq, False, 0
        end = OutboxHead(node_id=self.source, epoch=self._store.epoch, seq=head.seq, chain=head.chain, streams={})
        raw, signature = sign_head(end, self._signing)
        return Events(
            source=self.source,
            epoch=self._store.epoch,
            after_seq=head.seq,
            through_seq=head.seq,
            head=raw,
            signature=signature,
            events=[],
            whole=True,
        )

    def _marks(self, part: OutboxSlice) -> dict[str, StreamMark]:
        ends = self._ends(part.events) if part.ends is None else part.ends
        return {
            node_id: StreamMark(seq=end.seq, chain=end.chain) for node_id, end in ends.items() if node_id != self.source
        }

    def _ends(self, events: Iterable[StoredEvent]) -> dict[str, Head]:
        latest: dict[str, int] = {}
        for event in events:
            for node_id in addressed_to(event.raw):
                latest[node_id] = event.seq
        ends: dict[str, Head] = {}
        for node_id, seq in latest.items():
            # The events may have been read from the file, where they stand before they stand in memory.
            found = (
                self._store.read_stream(node_id, seq - 1, limit=1, may_lag=True).events
                or self._store.read_stream(node_id, seq - 1, limit=1).events
            )
            for event in found:
                ends[node_id] = Head(seq=event.seq, chain=event.chain)
        return ends


class MirrorFeed(Feed):
    """The outbox of another node, from the mirror kept here, with the heads that its owner signed."""

    def __init__(self, subscribe: Subscribe, *, consumer: str, store: Store) -> None:
        super().__init__(subscribe, consumer=consumer)
        self._store = store
        self._epoch = subscribe.epoch

    def _next(self, max_bytes: int) -> Events | None:
        kept = self._store.mirror_position(self.source)
        if kept is None or not self._is_readable(kept.epoch):
            return None
        if self._epoch != kept.epoch:
            if self._epoch is not None:
                self._start_over()
            self._epoch = kept.epoch
        if self.is_whole:
            part = self._store.read_whole_mirror(self.source, self._position)
        else:
            part = self._store.read_mirror(self.source, self.consumer, self._position)
        # A head without an event for the reader has no mark for it: there is nothing that it could check.
        if part is None or not part.events:
            return None
        raws, signed_chain = [event.raw for event in part.events], self._signed_chain(part.head)
        if self._is_skipping:
            if signed_chain is None:
                return None
            # Nobody here knows how the stream went on before these events, so none of them could be checked. What the
            # owner signed is where it stands after them.
            raws = []
        is_start = self.is_whole and self._position == 0 and part.after_seq > 0
        if not is_start and (had := self._unchecked_chain) is not None:
            # What the reader will do. If it does not fit, something is missing here, since the mirror was pruned or
            # began anew, or its source contradicts itself: either way nothing was altered here.
            self._check_fit(chain_over(had, raws) == signed_chain, kept.floor_seq)
        self._unchecked_chain = signed_chain
        first_chain, self._is_skipping = signed_chain if self._is_skipping else None, False
        return Events(
            source=self.source,
            epoch=part.epoch,
            after_seq=part.after_seq,
            through_seq=part.through_seq,
            head=part.head,
            signature=part.signature,
            events=raws,
            whole=self.is_whole,
            before_chain=kept.floor_chain if is_start else None,
            first_chain=first_chain,
        )

    def _signed_chain(self, raw: bytes) -> bytes | None:
        head = decode_head(raw)
        if self.is_whole:
            return head.chain
        mark = head.streams.get(self.consumer)
        return None if mark is None else mark.chain

    def _is_readable(self, kept_epoch: str) -> bool:
        """Not while the reader knows a later life of the source than this mirror does."""
        return self._epoch is None or kept_epoch >= self._epoch


class SubscriberNotes:
    """Who reads the own outbox, and how far they are (CUR-5). Written down at most once a second for each."""

    def __init__(self, store: Store, *, clock: Clock, lease_seconds: int) -> None:
        self._store = store
        self._clock = clock
        self._lease_ms = lease_seconds * 1000
        self._noted: dict[str, tuple[int, int]] = {}

    async def note(self, consumer: str, last_seq: int) -> None:
        at_ms = self._clock.monotonic_ms()
        noted = self._noted.get(consumer)
        if noted is not None and at_ms - noted[1] < (_NOTE_EVERY_MS if noted[0] != last_seq else _RENEW_EVERY_MS):
            return
        # A reader may say that it has more than there is.
        now_ms, last_seq = self._clock.now_ms(), min(last_seq, self._store.head().seq)
        self._noted[consumer] = (last_seq, at_ms)
        await self._store.note_subscriber(
            Subscriber(
                consumer_node_id=consumer,
                epoch=self._store.epoch,
                last_seq=last_seq,
                updated_at_ms=now_ms,
                lease_expires_at_ms=now_ms + self._lease_ms,
            )
        )
