"""The outbox of the store in memory, and the deliveries of what stands in it."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from agentpost.protocol.delivery import Change, Delivery, is_undelivered
from agentpost.protocol.envelope import Event
from agentpost.protocol.heads import next_chain
from agentpost.protocol.ids import EventId
from agentpost.store import rules
from agentpost.store.memory_deliveries import Pair
from agentpost.store.memory_streams import MemoryStreams
from agentpost.store.memory_tasks import MemoryTasks
from agentpost.store.taskbook import TaskBook
from agentpost.store.values import (
    CHAIN_START,
    Appended,
    Head,
    Incident,
    KeptAnswer,
    KeyedAnswer,
    Note,
    OutboxSlice,
    ResentLetter,
    StoredEvent,
    StreamEvent,
    StreamSlice,
)

__all__ = ["MemoryOutbox"]


class MemoryOutbox(MemoryTasks):
    """A part of `MemoryStore`."""

    def __init__(self, *, node_id: str, epoch: str) -> None:
        super().__init__()
        self._node_id = node_id
        self._epoch = epoch
        # The event with seq n stands at n - 1 - floor.
        self._outbox: list[StoredEvent] = []
        self._outbox_floor = Head(seq=0, chain=CHAIN_START)
        # RTY-7: what dead letters said, after it has left the outbox.
        self._dead_letter_events: dict[EventId, StoredEvent] = {}
        self._streams = MemoryStreams()
        self._places: dict[EventId, int] = {}
        # By agent and hash of the idempotency key.
        self._answers: dict[tuple[str, bytes], KeptAnswer] = {}

    @property
    def node_id(self) -> str:
        return self._node_id

    @property
    def epoch(self) -> str:
        return self._epoch

    async def append(
        self,
        events: Sequence[Event],
        *,
        deliveries: Sequence[Delivery] = (),
        changes: Sequence[Change] = (),
        notes: Sequence[Note] = (),
        incidents: Sequence[Incident] = (),
        resends: Sequence[ResentLetter] = (),
        keyed: KeyedAnswer | None = None,
    ) -> Appended:
        self._check_open()
        self._expect_unused(keyed)
        self._check_notes(notes)
        stored, places = self._stored(events)
        added = self._added(deliveries, places)
        found = {**self._found(changes), **added}
        moved, orphans = rules.move_deliveries(found, changes, places)
        if orphans:
            raise rules.orphan_refused(orphans[0])
        book = self._folded(events, stored)
        resent = self._resent(resends)
        first_seq = self.head().seq + 1
        self._write(events, stored, places, {**added, **moved, **resent})
        self._keep_book(book)
        self._keep_notes(notes)
        self._close_missed_slas(rules.outcomes_heard_late(found, moved.values()))
        for incident in incidents:
            self._raise(incident)
        self._keep_answer(keyed, first_seq)
        return Appended(first_seq=first_seq, last_seq=self.head().seq)

    def kept_answer(self, agent_id: str, key: bytes) -> KeptAnswer | None:
        self._check_open()
        return self._answers.get((agent_id, key))

    def _prune_answers(self, now_ms: int, limit: int) -> int:
        ages = sorted((kept.expires_at_ms, key) for key, kept in self._answers.items())
        expired = [key for expires_at_ms, key in ages if expires_at_ms <= now_ms][:limit]
        for key in expired:
            del self._answers[key]
        return len(expired)

    def _expect_unused(self, keyed: KeyedAnswer | None) -> None:
        kept = None if keyed is None else self._answers.get((keyed.agent_id, keyed.key))
        if keyed is not None and kept is not None and kept.expires_at_ms > keyed.at_ms:
            raise rules.key_taken()

    def _keep_answer(self, keyed: KeyedAnswer | None, seq: int) -> None:
        if keyed is not None:
            self._answers[keyed.agent_id, keyed.key] = KeptAnswer(
                request=keyed.request, answer=keyed.answer, seq=seq, expires_at_ms=keyed.expires_at_ms
            )

    def _stored(self, events: Sequence[Event]) -> tuple[list[StoredEvent], dict[EventId, int]]:
        """The events as they will stand in the outbox, and where."""
        seq, chain = self.head().seq, self.head().chain
        stored: list[StoredEvent] = []
        for event in events:
            if event.source_node_id != self._node_id:
                raise rules.foreign_source(event, self._node_id)
            seq += 1
            raw = rules.encode_for_outbox(replace(event, seq=seq))
            chain = next_chain(chain, raw)
            stored.append(StoredEvent(seq=seq, chain=chain, raw=raw))
        return stored, {event.event_id: at.seq for event, at in zip(events, stored, strict=True)}

    def _folded(self, events: Sequence[Event], stored: list[StoredEvent], book: TaskBook | None = None) -> TaskBook:
        """The tasks after these events; a refusal if one of them makes a move that is not open."""
        book = book or self._open_book(self._node_id)
        for event, at in zip(events, stored, strict=True):
            book.say(event, at.raw)
        return book

    def _write(
        self,
        events: Sequence[Event],
        stored: list[StoredEvent],
        places: Mapping[EventId, int],
        deliveries: Mapping[Pair, Delivery],
    ) -> None:
        self._streams.write(self._streams.extended(events, stored))
        self._outbox += stored
        self._name_events(events)
        self._places.update(places)
        self._keep_deliveries(deliveries)

    def head(self) -> Head:
        self._check_open()
        if not self._outbox:
            return self._outbox_floor
        return Head(seq=self._outbox[-1].seq, chain=self._outbox[-1].chain)

    def read_outbox(
        self, after_seq: int, *, limit: int = 256, max_bytes: int = 1_048_576, may_lag: bool = False
    ) -> OutboxSlice:
        self._check_open()
        floor_seq = self._outbox_floor.seq
        start = max(after_seq - floor_seq, 0)
        events: list[StoredEvent] = []
        size = 0
        for stored in self._outbox[start : start + limit]:
            size += len(stored.raw)
            if events and size > max_bytes:
                break
            events.append(stored)
        floor_chain = self._outbox_floor.chain
        return OutboxSlice(after_seq=after_seq, floor_seq=floor_seq, floor_chain=floor_chain, events=tuple(events))

    def read_stream(
        self,
        consumer_node_id: str,
        after_seq: int,
        *,
        limit: int = 256,
        max_bytes: int = 1_048_576,
        may_lag: bool = False,
    ) -> StreamSlice:
        through, end = self.head(), self._streams.end(consumer_node_id)
        events: list[StreamEvent] = []
        size = 0
        for at in self._streams.after(consumer_node_id, after_seq):
            stored = self._outbox[at.seq - 1 - self._outbox_floor.seq]
            size += len(stored.raw)
            if events and (len(events) >= limit or size > max_bytes):
                last = self._outbox[events[-1].seq - 1 - self._outbox_floor.seq]
                through, end = Head(seq=last.seq, chain=last.chain), Head(seq=last.seq, chain=events[-1].chain)
                break
            events.append(StreamEvent(seq=at.seq, chain=at.chain, raw=stored.raw))
        return StreamSlice(
            after_seq=after_seq,
            through_seq=through.seq,
            floor_seq=self._streams.floor(consumer_node_id).seq,
            outbox_chain=through.chain,
            chain=end.chain,
            last_event_seq=end.seq,
            events=tuple(events),
        )

    def find_event(self, event_id: EventId) -> StoredEvent | None:
        self._check_open()
        seq = self._places.get(event_id)
        if seq is None:
            return self._dead_letter_events.get(event_id) if self._is_dead_letter(event_id) else None
        return self._outbox[seq - 1 - self._outbox_floor.seq]

    def _is_dead_letter(self, event_id: EventId) -> bool:
        return any(map(is_undelivered, self.deliveries_of(event_id)))

    def _prune_outbox(self, count: int) -> None:
        if count:
            last = self._outbox[count - 1]
            for event_id, seq in self._places.items():
                if seq <= last.seq and self._is_dead_letter(event_id):
                    self._dead_letter_events[event_id] = self._outbox[seq - 1 - self._outbox_floor.seq]
            self._outbox_floor = Head(seq=last.seq, chain=last.chain)
            del self._outbox[:count]
            self._streams.prune(last.seq)
            # An event that was sent again stands further up too, and is still found there.
            self._places = {event_id: seq for event_id, seq in self._places.items() if seq > last.seq}
