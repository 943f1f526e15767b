"""The store without a disk, for tests and simulation: dicts and lists, one caller at a time, no thread and no clock.

It decides nothing by itself. What is refused, and what follows from what, comes from `rules` and the protocol, as it
does for SQLite. Every write first works out all that it will change and then changes it, so a refusal leaves no trace.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.store import rules
from agentpost.store.desk import Ruling, rule
from agentpost.store.memory_deliveries import Pair
from agentpost.store.memory_streams import MemoryStreams
from agentpost.store.memory_tasks import MemoryTasks
from agentpost.store.taskbook import TaskBook
from agentpost.store.values import (
    CHAIN_START,
    PIPELINE_WATERMARK,
    Acceptance,
    Accepted,
    Appended,
    BacklogItem,
    Compacted,
    Cursor,
    Head,
    Inbound,
    InboxPosition,
    Incident,
    LedgerEntry,
    LedgerState,
    Note,
    OutboxSlice,
    QuarantineEntry,
    ResentLetter,
    Settlement,
    StoredEvent,
    StreamEvent,
    StreamSlice,
    Subscriber,
    TasksRebuilt,
)

__all__ = ["MemoryStore"]


class _SortedOut(Struct, kw_only=True):
    """A batch on its way in: pairs that are new, each with what the desk says of it; those that are known; the events
    that the inbox has to take; what is said to all that."""

    new: dict[Pair, Ruling | None] = {}
    repeated: list[Pair] = []
    taken: dict[EventId, Inbound] = {}
    answers: list[Event] = []
    tasks: dict[TaskId, None] = {}


class MemoryStore(MemoryTasks):
    """Implements `Store`. What it holds is gone when it is."""

    def __init__(self, *, node_id: str, epoch: str) -> None:
        super().__init__()
        self._node_id = node_id
        self._epoch = epoch
        # The event with seq n stands at n - 1 - floor, in both streams.
        self._outbox: list[StoredEvent] = []
        self._outbox_floor = Head(seq=0, chain=CHAIN_START)
        # RTY-7: what dead letters said, after it has left the outbox.
        self._dead_letter_events: dict[EventId, StoredEvent] = {}
        self._streams = MemoryStreams()
        self._places: dict[EventId, int] = {}
        self._inbox: list[tuple[str, Inbound]] = []
        self._inbox_floor_seq = 0
        self._inbox_places: dict[EventId, int] = {}
        self._ledger: dict[Pair, LedgerEntry] = {}
        self._open: dict[Pair, int] = {}
        self._cursors: dict[str, Cursor] = {}
        self._subscribers: dict[str, Subscriber] = {}
        self._quarantine: list[QuarantineEntry] = []

    @property
    def node_id(self) -> str:
        return self._node_id

    @property
    def epoch(self) -> str:
        return self._epoch

    # The outbox and its deliveries

    async def append(
        self,
        events: Sequence[Event],
        *,
        deliveries: Sequence[Delivery] = (),
        changes: Sequence[Change] = (),
        notes: Sequence[Note] = (),
        incidents: Sequence[Incident] = (),
        resends: Sequence[ResentLetter] = (),
    ) -> Appended:
        self._check_open()
        self._check_notes(notes)
        stored, places = self._stored(events)
        added = self._added(deliveries, places)
        moved, orphans = rules.move_deliveries({**self._found(changes), **added}, changes, places)
        if orphans:
            raise rules.orphan_refused(orphans[0])
        book = self._folded(events, stored)
        resent = self._resent(resends)
        first_seq = self.head().seq + 1
        self._write(events, stored, places, {**added, **moved, **resent})
        self._keep_book(book)
        self._keep_notes(notes)
        for incident in incidents:
            self._raise(incident)
        return Appended(first_seq=first_seq, last_seq=self.head().seq)

    def _stored(self, events: Sequence[Event]) -> tuple[list[StoredEvent], dict[EventId, int]]:
        """The events as they will stand in the outbox, and where."""
        seq, chain = self.head().seq, self.head().chain
        stored: list[StoredEvent] = []
        for event in events:
            if event.source_node_id != self._node_id:
                raise rules.foreign_source(event, self._node_id)
            seq += 1
            raw = rules.encode_for_outbox(replace(event, seq=seq))
            chain = rules.chain_after(chain, raw)
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
        return any(each.state is DeliveryState.DEAD_LETTER for each in self.deliveries_of(event_id))

    # The inbox and its ledger

    async def accept(self, batch: Acceptance) -> Accepted:
        self._check_open()
        at = self.cursor(batch.source_node_id)
        rules.check_acceptance(batch, at)
        if batch.mirror is not None:
            rules.check_mirror_batch(batch.mirror, self.mirror_position(batch.mirror.source_node_id))
        if at is not None and batch.through_seq <= at.last_seq:
            repeated = [(each.event.event_id, agent_id) for each in batch.events for agent_id in each.acks]
            await self._keep_mirror_of(batch)
            return Accepted(new=(), repeated=tuple(repeated), orphans=(), cursor_seq=at.last_seq)
        book = self._open_book(self._node_id)
        sorted_out = self._sorted_out(rules.unseen(batch, at), book, batch.at_ms)
        moved, orphans = rules.move_deliveries(self._found(batch.changes), batch.changes, {})
        stored, places = self._stored(sorted_out.answers)

        await self._keep_mirror_of(batch)
        self._write(sorted_out.answers, stored, places, moved)
        self._keep_book(self._folded(sorted_out.answers, stored, book))
        self._take(batch, sorted_out)
        new = [pair for pair, ruling in sorted_out.new.items() if ruling is None or ruling.outcome is None]
        self._quarantine += [
            QuarantineEntry(
                source_node_id=batch.source_node_id,
                source_seq=bad.seq,
                event_id=bad.event_id,
                code=bad.refusal.code.value,
                message=bad.refusal.message,
                at_ms=batch.at_ms,
                raw=bad.raw,
            )
            for bad in batch.unreadable
        ]
        self._cursors[batch.source_node_id] = Cursor(
            source_node_id=batch.source_node_id,
            epoch=batch.source_epoch,
            last_seq=batch.through_seq,
            last_chain=batch.through_chain,
            updated_at_ms=batch.at_ms,
        )
        return Accepted(
            new=tuple(new),
            inbox_seqs=tuple(self._inbox_places[event_id] for event_id, _ in new),
            closed=tuple(pair for pair in sorted_out.new if pair not in new),
            repeated=tuple(sorted_out.repeated),
            orphans=tuple(orphans),
            cursor_seq=batch.through_seq,
            tasks=tuple(sorted_out.tasks),
        )

    async def _keep_mirror_of(self, batch: Acceptance) -> None:
        if batch.mirror is not None:
            await self.keep_mirror(batch.mirror)

    def _sorted_out(self, events: Sequence[Inbound], book: TaskBook, at_ms: int) -> "_SortedOut":
        out = _SortedOut()
        for inbound in events:
            event_id = inbound.event.event_id
            pairs = [(event_id, agent_id) for agent_id in inbound.acks]
            new = [pair for pair in pairs if pair not in self._ledger and pair not in out.new]
            out.repeated += [pair for pair in pairs if pair not in new]
            if inbound.acks and not new:
                continue
            ruling = None if inbound.desk is None else rule(book, inbound, inbound.desk, at_ms=at_ms)
            out.new |= dict.fromkeys(new, ruling)
            out.answers += [inbound.acks[pair[1]] if ruling is None else ruling.acks[pair[1]] for pair in new]
            if ruling is not None:
                out.answers += ruling.tells
                out.tasks |= dict.fromkeys(ruling.tasks)
            if new and event_id not in self._inbox_places:
                out.taken.setdefault(event_id, inbound)
        return out

    def _take(self, batch: Acceptance, out: "_SortedOut") -> None:
        for event_id, inbound in out.taken.items():
            self._inbox.append((batch.source_node_id, inbound))
            self._inbox_places[event_id] = self._inbox_floor_seq + len(self._inbox)
        for pair, ruling in out.new.items():
            entry = LedgerEntry(
                event_id=pair[0],
                to_agent_id=pair[1],
                inbox_seq=self._inbox_places[pair[0]],
                state=LedgerState.QUEUED,
                accepted_at_ms=batch.at_ms,
            )
            self._keep(entry)
            if ruling is not None and ruling.outcome is not None:
                self._keep(
                    replace(
                        entry,
                        state=LedgerState.SETTLED,
                        settled_at_ms=batch.at_ms,
                        outcome=ruling.outcome,
                        error=ruling.error,
                    )
                )

    def _keep(self, entry: LedgerEntry) -> None:
        pair = (entry.event_id, entry.to_agent_id)
        self._ledger[pair] = entry
        if entry.state is LedgerState.SETTLED:
            del self._open[pair]
        else:
            self._open[pair] = entry.inbox_seq

    async def engage(self, event_id: EventId, to_agent_id: str, *, at_ms: int) -> int:
        entry = rules.expect_open_entry(self.ledger_entry(event_id, to_agent_id), event_id, to_agent_id)
        rules.check_in_time(self._inbound(entry).raw, event_id, now_ms=at_ms)
        attempts = entry.attempts + 1
        self._keep(replace(entry, state=LedgerState.ENGAGED, attempts=attempts, engaged_at_ms=at_ms))
        return attempts

    async def extend_lease(self, event_id: EventId, to_agent_id: str, *, until_ms: int) -> bool:
        entry = self.ledger_entry(event_id, to_agent_id)
        if entry is None or entry.state is not LedgerState.ENGAGED:
            return False
        self._keep(replace(entry, due_at_ms=max(entry.due_at_ms, until_ms)))
        return True

    async def postpone(self, event_id: EventId, to_agent_id: str, *, due_at_ms: int, error: str) -> None:
        entry = rules.expect_open_entry(self.ledger_entry(event_id, to_agent_id), event_id, to_agent_id)
        self._keep(replace(entry, state=LedgerState.QUEUED, due_at_ms=due_at_ms, error=error))

    async def settle(self, settlement: Settlement) -> bool:
        event_id, to_agent_id = settlement.event_id, settlement.to_agent_id
        entry = rules.expect_entry(self.ledger_entry(event_id, to_agent_id), event_id, to_agent_id)
        if entry.state is LedgerState.SETTLED:
            return False
        stored, places = self._stored(settlement.events)
        added = self._added(settlement.deliveries, places)
        book = self._folded(settlement.events, stored)
        self._write(settlement.events, stored, places, added)
        self._keep_book(book)
        self._keep(
            replace(
                entry,
                state=LedgerState.SETTLED,
                attempts=entry.attempts + (settlement.engaged_at_ms is not None),
                engaged_at_ms=settlement.engaged_at_ms or entry.engaged_at_ms,
                settled_at_ms=settlement.at_ms,
                outcome=settlement.outcome,
                error=settlement.error,
            )
        )
        return True

    def backlog(self, to_agent_id: str, *, after_inbox_seq: int = 0, limit: int = 256) -> list[BacklogItem]:
        self._check_open()
        found = sorted((seq, pair) for pair, seq in self._open.items() if pair[1] == to_agent_id)
        return [self._backlog_item(self._ledger[pair]) for seq, pair in found if seq > after_inbox_seq][:limit]

    def inbox_items(
        self,
        to_agent_id: str,
        *,
        after_inbox_seq: int = 0,
        limit: int = 256,
        include_settled: bool = True,
        newest_first: bool = False,
    ) -> list[BacklogItem]:
        self._check_open()
        found = [
            entry
            for entry in self._ledger.values()
            if entry.to_agent_id == to_agent_id
            and self._is_in_inbox(entry)
            and (include_settled or entry.state is not LedgerState.SETTLED)
        ]
        found.sort(key=lambda entry: entry.inbox_seq, reverse=newest_first)
        if newest_first:
            page = [entry for entry in found if not after_inbox_seq or entry.inbox_seq < after_inbox_seq]
        else:
            page = [entry for entry in found if entry.inbox_seq > after_inbox_seq]
        return [self._backlog_item(entry) for entry in page[:limit]]

    def inbox_item(self, event_id: EventId, to_agent_id: str) -> BacklogItem | None:
        entry = self.ledger_entry(event_id, to_agent_id)
        return self._backlog_item(entry) if entry is not None and self._is_in_inbox(entry) else None

    def inbox_by_corr(self, corr_id: str) -> list[BacklogItem]:
        self._check_open()
        found = [self._backlog_item(entry) for entry in self._ledger.values() if self._is_in_inbox(entry)]
        found = [item for item in found if self._inbound(item.entry).event.corr_id == corr_id]
        return sorted(found, key=lambda item: (item.entry.inbox_seq, item.entry.to_agent_id))

    async def mark_read(self, event_id: EventId, to_agent_id: str, *, at_ms: int) -> bool:
        entry = rules.expect_entry(self.ledger_entry(event_id, to_agent_id), event_id, to_agent_id)
        if entry.read_at_ms is not None:
            return False
        self._ledger[event_id, to_agent_id] = replace(entry, read_at_ms=at_ms)
        return True

    def backlog_size(self, to_agent_id: str, *, unread_only: bool = False) -> int:
        self._check_open()
        found = (self._ledger[pair] for pair in self._open if pair[1] == to_agent_id)
        return sum(1 for entry in found if not unread_only or entry.read_at_ms is None)

    def next_backlog_due_at_ms(self, to_agent_id: str) -> int | None:
        self._check_open()
        waiting = (self._ledger[pair] for pair in self._open if pair[1] == to_agent_id)
        return min((entry.due_at_ms for entry in waiting if entry.state is LedgerState.QUEUED), default=None)

    def engaged_entries(self) -> list[LedgerEntry]:
        self._check_open()
        entries = [self._ledger[pair] for pair in self._open]
        engaged = [entry for entry in entries if entry.state is LedgerState.ENGAGED]
        return sorted(engaged, key=lambda entry: (entry.inbox_seq, entry.to_agent_id))

    def _is_in_inbox(self, entry: LedgerEntry) -> bool:
        return entry.inbox_seq > self._inbox_floor_seq

    def _inbound(self, entry: LedgerEntry) -> Inbound:
        return self._inbox[entry.inbox_seq - 1 - self._inbox_floor_seq][1]

    def _backlog_item(self, entry: LedgerEntry) -> BacklogItem:
        source_node_id, inbound = self._inbox[entry.inbox_seq - 1 - self._inbox_floor_seq]
        return BacklogItem(entry=entry, source_node_id=source_node_id, source_seq=inbound.event.seq, raw=inbound.raw)

    def ledger_entry(self, event_id: EventId, to_agent_id: str) -> LedgerEntry | None:
        self._check_open()
        return self._ledger.get((event_id, to_agent_id))

    def inbox_position(self) -> InboxPosition:
        self._check_open()
        latest_seq = self._inbox_floor_seq + len(self._inbox)
        return InboxPosition(latest_seq=latest_seq, acked_seq=min(self._open.values(), default=latest_seq + 1) - 1)

    def quarantined(self, *, limit: int = 256) -> list[QuarantineEntry]:
        self._check_open()
        return self._quarantine[:limit]

    # Tasks

    async def rebuild_tasks(self, *, check_only: bool = False) -> TasksRebuilt:
        return self._rebuilt(self._node_id, check_only=check_only)

    # Cursors and compaction

    def cursor(self, source_node_id: str) -> Cursor | None:
        self._check_open()
        return self._cursors.get(source_node_id)

    def cursors(self) -> list[Cursor]:
        self._check_open()
        return [self._cursors[node_id] for node_id in sorted(self._cursors)]

    async def restart_cursor(self, source_node_id: str, *, epoch: str, at_ms: int) -> None:
        self._check_open()
        self._cursors[source_node_id] = Cursor(
            source_node_id=source_node_id, epoch=epoch, last_seq=0, last_chain=CHAIN_START, updated_at_ms=at_ms
        )

    async def note_subscriber(self, subscriber: Subscriber) -> None:
        self._check_open()
        self._subscribers[subscriber.consumer_node_id] = subscriber

    def subscribers(self) -> list[Subscriber]:
        self._check_open()
        return [self._subscribers[key] for key in sorted(self._subscribers) if key != PIPELINE_WATERMARK]

    async def compact(self, *, now_ms: int, retention_events: int, limit: int = 10_000) -> Compacted:
        watermark = rules.outbox_watermark(
            self._subscribers.values(),
            epoch=self._epoch,
            now_ms=now_ms,
            retention_events=retention_events,
            oldest_unaccepted=self._oldest_unaccepted_seq(),
            oldest_unread=self._oldest_unread(),
        )
        outbox_floor_seq = self._outbox_floor.seq
        outbox_events = max(min(watermark, outbox_floor_seq + limit, self.head().seq) - outbox_floor_seq, 0)
        self._prune_outbox(outbox_events)

        acked_seq = self.inbox_position().acked_seq
        watermark = rules.inbox_watermark(acked_seq, retention_events=retention_events)
        inbox_events = max(min(watermark, self._inbox_floor_seq + limit) - self._inbox_floor_seq, 0)
        self._prune_inbox(inbox_events)

        return Compacted(
            outbox_events=outbox_events,
            inbox_events=inbox_events,
            outbox_floor_seq=self._outbox_floor.seq,
            inbox_floor_seq=self._inbox_floor_seq,
        )

    def _oldest_unread(self) -> int | None:
        own = self.cursor(self._node_id)
        unread = self._streams.after(self._node_id, own.last_seq if own else 0)
        return unread[0].seq if unread else None

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

    def _prune_inbox(self, count: int) -> None:
        for _, inbound in self._inbox[:count]:
            del self._inbox_places[inbound.event.event_id]
        del self._inbox[:count]
        self._inbox_floor_seq += count
