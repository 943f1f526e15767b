"""The end of the outbox in memory: what was committed last, for the feeds that send it on. Knows no SQL.

Nearly everything that is read of an outbox was appended a moment ago. It is kept here as it was written, so that nobody
has to ask the file for it. What is further back has to be read there. A tail is grown and read on the loop of the
store's callers, and by no other thread.
"""

from bisect import bisect_right
from typing import Final, TypeVar

from msgspec import Struct

from agentpost.store.values import Head, OutboxSlice, StoredEvent, StreamEvent, StreamSlice

__all__ = ["Grown", "Tail"]

_MOST_EVENTS: Final = 8192
_MOST_BYTES: Final = 8 * 1024 * 1024

AnyEvent = TypeVar("AnyEvent", StoredEvent, StreamEvent)


class Grown(Struct, frozen=True, kw_only=True, gc=False):
    """What one transaction appended: the events in order, and each as a row (reader, seq, chain) of its streams."""

    events: list[StoredEvent]
    streams: list[tuple[str, int, bytes]]


class Tail:
    """The last events of one outbox, without a hole."""

    def __init__(self) -> None:
        self._events: list[StoredEvent] = []
        self._bytes = 0
        # Their places in the streams, in the order of the outbox.
        self._rows: list[tuple[str, int, bytes]] = []
        # For each reader, its events among these: their seqs, and their chains beside them.
        self._streams: dict[str, tuple[list[int], list[bytes]]] = {}
        # For readers who have no event among these, where their streams end.
        self._ends: dict[str, Head] = {}

    def forget(self) -> None:
        """Start anew with the next event."""
        self._events, self._bytes, self._rows, self._streams, self._ends = [], 0, [], {}, {}

    def grow(self, grown: Grown) -> None:
        if not grown.events:
            return
        if self._events and grown.events[0].seq != self._events[-1].seq + 1:
            self.forget()
        self._events += grown.events
        self._bytes += sum([len(event.raw) for event in grown.events])
        self._rows += grown.streams
        for node_id, seq, chain in grown.streams:
            seqs, chains = self._streams.setdefault(node_id, ([], []))
            seqs.append(seq)
            chains.append(chain)
        if len(self._events) > _MOST_EVENTS or self._bytes > _MOST_BYTES:
            self._shorten()

    def _shorten(self) -> None:
        """Keep the newer half."""
        kept = self._events[len(self._events) // 2 + 1 :]
        self._bytes = sum([len(event.raw) for event in kept])
        before_seq = self._events[len(self._events) // 2].seq
        self._events = kept
        self._rows = self._rows[bisect_right(self._rows, before_seq, key=_seq_of) :]
        for node_id, (seqs, chains) in list(self._streams.items()):
            gone = bisect_right(seqs, before_seq)
            if gone == len(seqs):
                del self._streams[node_id]
                self._ends[node_id] = Head(seq=seqs[-1], chain=chains[-1])
            else:
                self._streams[node_id] = (seqs[gone:], chains[gone:])

    def covers(self, after_seq: int) -> bool:
        """Whether what follows `after_seq` is here, or is nothing."""
        # A reader that is ahead has read the file already, where the next event stands before it stands here.
        return bool(self._events) and self._events[0].seq - 1 <= after_seq <= self._events[-1].seq

    def knows_stream(self, consumer_node_id: str) -> bool:
        return consumer_node_id in self._streams or consumer_node_id in self._ends

    def learn_end(self, consumer_node_id: str, end: Head) -> None:
        """Where a stream ends that has no event here, as the file says."""
        if self._events and consumer_node_id not in self._streams and end.seq < self._events[0].seq:
            self._ends[consumer_node_id] = end

    def read_outbox(self, after_seq: int, *, floor: Head, limit: int, max_bytes: int) -> OutboxSlice:
        start = after_seq + 1 - self._events[0].seq
        events = _within(self._events[start : start + limit], max_bytes)
        ends: dict[str, Head] = {}
        if events:
            first = bisect_right(self._rows, after_seq, key=_seq_of)
            end = bisect_right(self._rows, events[-1].seq, lo=first, key=_seq_of)
            latest = {node_id: (seq, chain) for node_id, seq, chain in self._rows[first:end]}
            ends = {node_id: Head(seq=seq, chain=chain) for node_id, (seq, chain) in latest.items()}
        return OutboxSlice(
            after_seq=after_seq, floor_seq=floor.seq, floor_chain=floor.chain, events=tuple(events), ends=ends
        )

    def read_stream(
        self, consumer_node_id: str, after_seq: int, *, floor_seq: int, limit: int, max_bytes: int
    ) -> StreamSlice:
        if consumer_node_id not in self._streams:
            return self._nothing_of(self._ends[consumer_node_id], after_seq, floor_seq=floor_seq)
        seqs, chains = self._streams[consumer_node_id]
        start, limit = bisect_right(seqs, after_seq), max(limit, 1)
        first_seq = self._events[0].seq
        events = _within(
            [
                StreamEvent(seq=seq, chain=chain, raw=self._events[seq - first_seq].raw)
                for seq, chain in zip(seqs[start : start + limit], chains[start : start + limit], strict=True)
            ],
            max_bytes,
        )
        ends_at = start + len(events)
        # If more remain, the slice ends with its last event.
        last = self._events[seqs[ends_at - 1] - first_seq if ends_at < len(seqs) else -1]
        at = ends_at - 1
        return StreamSlice(
            after_seq=after_seq,
            through_seq=last.seq,
            floor_seq=floor_seq,
            outbox_chain=last.chain,
            chain=chains[at],
            last_event_seq=seqs[at],
            events=tuple(events),
        )

    def _nothing_of(self, end: Head, after_seq: int, *, floor_seq: int) -> StreamSlice:
        last = self._events[-1]
        return StreamSlice(
            after_seq=after_seq,
            through_seq=last.seq,
            floor_seq=floor_seq,
            outbox_chain=last.chain,
            chain=end.chain,
            last_event_seq=end.seq,
            events=(),
        )


def _seq_of(row: tuple[str, int, bytes]) -> int:
    return row[1]


def _within(events: list[AnyEvent], max_bytes: int) -> list[AnyEvent]:
    """As many of the events as fit, but one at least."""
    size = 0
    for place, event in enumerate(events):
        size += len(event.raw)
        if size > max_bytes and place:
            return events[:place]
    return events
