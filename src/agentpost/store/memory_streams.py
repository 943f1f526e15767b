"""The streams of the outbox in memory: for each gateway that reads it, the seqs of its events and their chain."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence

from agentpost.protocol.envelope import Event
from agentpost.protocol.heads import next_chain
from agentpost.store.values import CHAIN_START, Head, StoredEvent

__all__ = ["MemoryStreams"]

_START = Head(seq=0, chain=CHAIN_START)


class MemoryStreams:
    """A part of `MemoryStore`. A stream is a list of heads: where each of its events ends it."""

    def __init__(self) -> None:
        self._streams: dict[str, list[Head]] = {}
        self._floors: dict[str, Head] = {}

    def extended(self, events: Sequence[Event], stored: Sequence[StoredEvent]) -> dict[str, list[Head]]:
        """What the events will add to the streams; nothing is changed by asking."""
        added: dict[str, list[Head]] = {}
        for event, at in zip(events, stored, strict=True):
            for node_id in dict.fromkeys(event.to_nodes):
                heads = added.setdefault(node_id, [])
                end = heads[-1] if heads else self.end(node_id)
                heads.append(Head(seq=at.seq, chain=next_chain(end.chain, at.raw)))
        return added

    def write(self, added: Mapping[str, Sequence[Head]]) -> None:
        for node_id, heads in added.items():
            self._streams.setdefault(node_id, []).extend(heads)

    def after(self, node_id: str, after_seq: int) -> list[Head]:
        heads = self._streams.get(node_id, [])
        return heads[bisect_right(heads, after_seq, key=lambda head: head.seq) :]

    def first_besides(self, node_ids: Collection[str]) -> int | None:
        """The first event that is kept and is in the stream of another gateway than these."""
        heads = [head for node_id in self._streams.keys() - node_ids for head in self.after(node_id, 0)[:1]]
        return min((head.seq for head in heads), default=None)

    def end(self, node_id: str) -> Head:
        heads = self._streams.get(node_id)
        return heads[-1] if heads else self.floor(node_id)

    def floor(self, node_id: str) -> Head:
        """The last event of a stream that was pruned."""
        return self._floors.get(node_id, _START)

    def prune(self, through_seq: int) -> None:
        for node_id, heads in self._streams.items():
            count = bisect_right(heads, through_seq, key=lambda head: head.seq)
            if count:
                self._floors[node_id] = heads[count - 1]
                del heads[:count]
