"""The store without a disk, for tests and simulation: dicts and lists, one caller at a time, no thread and no clock.

It decides nothing by itself. What is refused, and what follows from what, comes from `rules` and the protocol, as it
does for SQLite. Every write first works out all that it will change and then changes it, so a refusal leaves no trace.
"""

from typing import Final

from agentpost.protocol.delivery import is_undelivered
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.store import rules
from agentpost.store.memory_inbox import MemoryInbox
from agentpost.store.payload_rules import KnownPayload, judge_payloads
from agentpost.store.values import PIPELINE_WATERMARK, Compacted, PrunedPayloads, Subscriber, TasksRebuilt, Watermarks

__all__ = ["MemoryStore"]

_ENDED_WELL: Final = frozenset({DeliveryState.PROCESSED, DeliveryState.REPLIED})


class MemoryStore(MemoryInbox):
    """Implements `Store`. What it holds is gone when it is."""

    def __init__(self, *, node_id: str, epoch: str) -> None:
        super().__init__(node_id=node_id, epoch=epoch)
        self._subscribers: dict[str, Subscriber] = {}

    async def rebuild_tasks(self, *, check_only: bool = False) -> TasksRebuilt:
        return self._rebuilt(self._node_id, check_only=check_only)

    # Compaction

    async def note_subscriber(self, subscriber: Subscriber) -> None:
        self._check_open()
        self._subscribers[subscriber.consumer_node_id] = subscriber

    def subscribers(self) -> list[Subscriber]:
        self._check_open()
        return [self._subscribers[key] for key in sorted(self._subscribers) if key != PIPELINE_WATERMARK]

    def watermarks(self, *, now_ms: int, retention_events: int, is_alone: bool = False) -> Watermarks:
        outbox_seq = rules.outbox_watermark(
            self._subscribers.values(),
            epoch=self._epoch,
            now_ms=now_ms,
            retention_events=retention_events,
            oldest_unaccepted=self._oldest_unaccepted_seq(),
            oldest_unread=self._oldest_unread(),
            alone_through=self._alone_through() if is_alone else None,
        )
        acked_seq = self.inbox_position().acked_seq
        inbox_seq = rules.inbox_watermark(acked_seq, retention_events=retention_events)
        return Watermarks(outbox_seq=outbox_seq, inbox_seq=inbox_seq)

    async def compact(self, watermarks: Watermarks, *, limit: int = 10_000) -> Compacted:
        outbox_floor_seq = self._outbox_floor.seq
        outbox_events = max(min(watermarks.outbox_seq, outbox_floor_seq + limit, self.head().seq) - outbox_floor_seq, 0)
        self._prune_outbox(outbox_events)

        inbox_events = max(min(watermarks.inbox_seq, self._inbox_floor_seq + limit) - self._inbox_floor_seq, 0)
        self._prune_inbox(inbox_events)

        return Compacted(
            outbox_events=outbox_events,
            inbox_events=inbox_events,
            outbox_floor_seq=self._outbox_floor.seq,
            inbox_floor_seq=self._inbox_floor_seq,
        )

    def _alone_through(self) -> int:
        revoked = {node.node_id for node in self.known_nodes() if node.revoked_at_ms is not None}
        first = self._streams.first_besides({self._node_id, *revoked})
        return self.head().seq if first is None else first - 1

    def _oldest_unread(self) -> int | None:
        own = self.cursor(self._node_id)
        unread = self._streams.after(self._node_id, own.last_seq if own else 0)
        return unread[0].seq if unread else None

    def payload_sources(self, sha256: str) -> list[str]:
        self._check_open()
        named = {source for address, _, source in self._payloads if address == sha256}
        events = self._payload_events.get(sha256, set())
        named |= {source for source, inbound in self._inbox if inbound.event.event_id in events}
        return sorted(named - {self._node_id})

    async def prune_settled(self, *, before_ms: int, limit: int = 10_000) -> int:
        self._check_open()
        settled = sorted(
            (entry.settled_at_ms, pair)
            for pair, entry in self._ledger.items()
            if entry.settled_at_ms is not None and entry.settled_at_ms < before_ms
        )
        for _, pair in settled[:limit]:
            del self._ledger[pair]
        pruned = len(settled[:limit]) + self._prune_deliveries(before_ms, limit)
        return pruned + self._prune_tasks(before_ms, limit)

    async def prune_records(self, *, now_ms: int, before_ms: int, limit: int = 1_000) -> int:
        self._check_open()
        pruned = self._prune_answers(now_ms, limit) + self._prune_quarantine(before_ms, limit)
        return pruned + self._prune_incidents(before_ms, limit) + self._prune_invites(before_ms, limit)

    async def prune_payloads(
        self, *, now_ms: int, grace_ms: int, after_sha256: str = "", limit: int = 1_000
    ) -> PrunedPayloads:
        self._check_open()
        everything = {*self._blobs, *self._payload_events, *(key[0] for key in self._payloads)}
        page = sorted(sha256 for sha256 in everything if sha256 > after_sha256)[:limit]
        verdicts = judge_payloads(
            [self._known(sha256) for sha256 in page], now_ms=now_ms, grace_ms=grace_ms, limit=limit
        )
        for sha256, since_ms in verdicts.mark.items():
            if since_ms is None:
                del self._unneeded_since_ms[sha256]
            else:
                self._unneeded_since_ms[sha256] = since_ms
        for sha256 in verdicts.drop:
            await self.drop_blob(sha256)
            self._payload_events.pop(sha256, None)
            self._unneeded_since_ms.pop(sha256, None)
            self._payloads = {key: payload for key, payload in self._payloads.items() if key[0] != sha256}
        return verdicts.pruned

    def _known(self, sha256: str) -> KnownPayload:
        blob = self._blobs.get(sha256)
        return KnownPayload(
            sha256=sha256,
            size_bytes=None if blob is None else blob.size_bytes,
            unneeded_since_ms=self._unneeded_since_ms.get(sha256),
            is_needed=self._is_needed(sha256),
        )

    def _is_needed(self, sha256: str) -> bool:
        of_task = {event_id for event_id, _ in self._tasks_of_events}
        return any(
            event_id in self._places
            or event_id in self._inbox_places
            or event_id in of_task
            or any(each.state not in _ENDED_WELL or is_undelivered(each) for each in self.deliveries_of(event_id))
            for event_id in self._payload_events.get(sha256, ())
        ) or any(self._is_in_mirror(payload) for key, payload in self._payloads.items() if key[0] == sha256)
