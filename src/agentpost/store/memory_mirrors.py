"""The mirrors of the store in memory. A batch is kept whole and handed on whole, as it is on a disk."""

from msgspec.structs import replace

from agentpost.protocol.heads import next_chain
from agentpost.store import rules
from agentpost.store.memory_agents import MemoryAgents
from agentpost.store.values import (
    CHAIN_START,
    Head,
    MirrorBatch,
    MirrorEvent,
    MirrorPosition,
    MirrorSlice,
    NamedPayload,
    StreamEvent,
)

__all__ = ["MemoryMirrors"]


class _Mirror:
    """One outbox of another node."""

    def __init__(self, position: MirrorPosition) -> None:
        self.position = position
        self.events: dict[int, MirrorEvent] = {}
        # Each with the seq up to which it covers the events.
        self.heads: list[tuple[int, bytes, bytes]] = []
        self.streams: dict[str, list[Head]] = {}

    def keep(self, batch: MirrorBatch) -> None:
        events = rules.unmirrored(batch, self.position)
        if not events:
            return
        for event in events:
            self.events[event.seq] = event
            for node_id in dict.fromkeys(event.to_nodes):
                stream = self.streams.setdefault(node_id, [])
                chain = next_chain(stream[-1].chain if stream else CHAIN_START, event.raw)
                stream.append(Head(seq=event.seq, chain=chain))
        self.heads.append((batch.through_seq, batch.head, batch.signature))
        self.position = replace(
            self.position,
            last_seq=batch.through_seq,
            last_chain=events[-1].chain,
            floor_seq=self.position.floor_seq if self.position.last_seq else batch.after_seq,
            floor_chain=self.position.floor_chain if self.position.last_seq else batch.before_chain,
        )

    def prune(self, through_seq: int) -> int:
        through_seq = min(through_seq, self.position.last_seq)
        count = through_seq - self.position.floor_seq
        if count <= 0:
            return 0
        floor_chain = self.events[through_seq].chain
        self.events = {seq: event for seq, event in self.events.items() if seq > through_seq}
        # The last head stays: it tells readers how far they may pass what was not for them.
        self.heads = [head for head in self.heads[:-1] if head[0] > through_seq] + self.heads[-1:]
        # A source can name readers that do not exist. Of a stream that is pruned to nothing nothing is kept.
        self.streams = {
            node_id: [head for head in heads if head.seq > through_seq]
            for node_id, heads in self.streams.items()
            if heads[-1].seq > through_seq
        }
        self.position = replace(self.position, floor_seq=through_seq, floor_chain=floor_chain)
        return count


class MemoryMirrors(MemoryAgents):
    """A part of `MemoryStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._mirrors: dict[str, _Mirror] = {}

    def mirrors(self) -> list[MirrorPosition]:
        self._check_open()
        return [self._mirrors[node_id].position for node_id in sorted(self._mirrors)]

    def missing_payloads(self, *, limit: int = 256) -> list[NamedPayload]:
        self._check_open()
        missing: dict[str, NamedPayload] = {}
        for (sha256, _, _), payload in self._payloads.items():
            blob = self.blob(sha256)
            if self._is_in_mirror(payload) and (blob is None or not blob.complete):
                missing.setdefault(sha256, replace(payload, readers=()))
        return sorted(missing.values(), key=lambda each: (each.source_node_id, each.seq))[:limit]

    def _is_in_mirror(self, payload: NamedPayload) -> bool:
        mirror = self._mirrors.get(payload.source_node_id)
        return mirror is not None and payload.seq > mirror.position.floor_seq

    def mirror_position(self, source_node_id: str) -> MirrorPosition | None:
        self._check_open()
        return self._mirrors[source_node_id].position if source_node_id in self._mirrors else None

    async def keep_mirror(self, batch: MirrorBatch) -> None:
        rules.check_mirror_batch(batch, self.mirror_position(batch.source_node_id))
        if batch.events:
            empty = _Mirror(_empty(batch.source_node_id, batch.epoch))
            self._mirrors.setdefault(batch.source_node_id, empty).keep(batch)

    async def restart_mirror(self, source_node_id: str, *, epoch: str, at_ms: int) -> None:
        self._check_open()
        self._mirrors[source_node_id] = _Mirror(_empty(source_node_id, epoch))
        # Their places were in a mirror that is no more. Whoever may read them still may.
        self._payloads = {
            key: replace(payload, seq=0) if payload.source_node_id == source_node_id else payload
            for key, payload in self._payloads.items()
        }

    def read_mirror(self, source_node_id: str, consumer_node_id: str, after_seq: int) -> MirrorSlice | None:
        self._check_open()
        mirror = self._mirrors.get(source_node_id)
        if mirror is None or not mirror.heads:
            return None
        stream = [head for head in mirror.streams.get(consumer_node_id, []) if head.seq > after_seq]
        covering = [head for head in mirror.heads if stream and head[0] >= stream[0].seq]
        head = covering[0] if covering else mirror.heads[-1]
        if head[0] <= after_seq:
            return None
        events = [
            StreamEvent(seq=at.seq, chain=at.chain, raw=mirror.events[at.seq].raw) for at in stream if at.seq <= head[0]
        ]
        return rules.mirror_slice(mirror.position, after_seq, head, events)

    def read_whole_mirror(self, source_node_id: str, after_seq: int) -> MirrorSlice | None:
        self._check_open()
        mirror = self._mirrors.get(source_node_id)
        if mirror is None:
            return None
        after_seq = max(after_seq, mirror.position.floor_seq)
        head = next((head for head in mirror.heads if head[0] > after_seq), None)
        if head is None:
            return None
        kept = (mirror.events[seq] for seq in range(after_seq + 1, head[0] + 1))
        events = [StreamEvent(seq=event.seq, chain=event.chain, raw=event.raw) for event in kept]
        return rules.mirror_slice(mirror.position, after_seq, head, events)

    def last_head_for(self, source_node_id: str, consumer_node_id: str) -> bytes | None:
        self._check_open()
        mirror = self._mirrors.get(source_node_id)
        stream = mirror.streams.get(consumer_node_id) if mirror else None
        if mirror is None or not stream:
            return None
        return next(head[1] for head in mirror.heads if head[0] >= stream[-1].seq)

    async def prune_mirror(self, source_node_id: str, *, through_seq: int) -> int:
        self._check_open()
        mirror = self._mirrors.get(source_node_id)
        return 0 if mirror is None else mirror.prune(through_seq)


def _empty(source_node_id: str, epoch: str) -> MirrorPosition:
    return MirrorPosition(source_node_id=source_node_id, epoch=epoch, last_seq=0, last_chain=CHAIN_START, floor_seq=0)
