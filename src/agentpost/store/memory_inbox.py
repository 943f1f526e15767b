"""The inbox of the store in memory, its ledger and the cursors: what was taken, for whom, and how far was read."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentpost.protocol.envelope import Event
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.timestamps import parse_ms
from agentpost.store import rules
from agentpost.store.desk import Ruling, rule
from agentpost.store.memory_deliveries import Pair
from agentpost.store.memory_outbox import MemoryOutbox
from agentpost.store.taskbook import TaskBook
from agentpost.store.values import (
    CHAIN_START,
    Acceptance,
    Accepted,
    BacklogItem,
    Cursor,
    Inbound,
    InboxPosition,
    LedgerEntry,
    LedgerState,
    QuarantinedEvent,
    QuarantineSource,
    Settlement,
    SignedEnd,
)

__all__ = ["MemoryInbox"]


class _SortedOut(Struct, kw_only=True):
    """A batch on its way in: pairs that are new, each with what the desk says of it; those that are known; the events
    that the inbox has to take; what is said to all that."""

    new: dict[Pair, Ruling | None] = {}
    repeated: list[Pair] = []
    taken: dict[EventId, Inbound] = {}
    answers: list[Event] = []
    tasks: dict[TaskId, None] = {}


class MemoryInbox(MemoryOutbox):
    """A part of `MemoryStore`."""

    def __init__(self, *, node_id: str, epoch: str) -> None:
        super().__init__(node_id=node_id, epoch=epoch)
        # The event with seq n stands at n - 1 - floor.
        self._inbox: list[tuple[str, Inbound]] = []
        self._inbox_floor_seq = 0
        self._inbox_places: dict[EventId, int] = {}
        self._ledger: dict[Pair, LedgerEntry] = {}
        self._open: dict[Pair, int] = {}
        self._cursors: dict[str, Cursor] = {}
        self._signed_ends: dict[str, SignedEnd] = {}
        self._quarantine: dict[int, tuple[QuarantinedEvent, bytes]] = {}
        self._dropped: Counter[str] = Counter()

    def promises(self, events: int) -> bool:
        return False

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
        accepted = self._take_all(batch, rules.unseen(batch, at), cursor_seq=batch.through_seq)
        await self._keep_mirror_of(batch)
        self._quarantine_batch(batch)
        for incident in batch.incidents:
            self._raise(incident)
        self._cursors[batch.source_node_id] = Cursor(
            source_node_id=batch.source_node_id,
            epoch=batch.source_epoch,
            last_seq=batch.through_seq,
            last_chain=batch.through_chain,
            updated_at_ms=batch.at_ms,
        )
        if batch.signed_end is not None:
            self._signed_ends[batch.source_node_id] = batch.signed_end
        return accepted

    async def accept_again(self, batch: Acceptance, *, quarantine_ids: tuple[int, ...]) -> Accepted:
        self._check_open()
        at = self.cursor(batch.source_node_id)
        accepted = self._take_all(batch, batch.events, cursor_seq=0 if at is None else at.last_seq)
        for quarantine_id in quarantine_ids:
            self._quarantine.pop(quarantine_id, None)
        return accepted

    def _take_all(self, batch: Acceptance, events: Sequence[Inbound], *, cursor_seq: int) -> Accepted:
        """Take these events of a batch, with all that it changes; a refusal before anything is written."""
        book = self._open_book(self._node_id)
        taken_ids = [each.event.event_id for each in events if each.acks and self._is_taken(each, batch)]
        if taken_ids:
            events = tuple(each for each in events if each.event.event_id not in taken_ids)
        sorted_out = self._sorted_out(events, book, batch.at_ms)
        found = self._found(batch.changes)
        moved, orphans = rules.move_deliveries(found, batch.changes, {})
        reports = self._to_report(batch.reports)
        answers = [*(each.event for each in reports), *sorted_out.answers]
        stored, places = self._stored(answers)
        reported = self._added([each.delivery for each in reports], places)

        self._write(answers, stored, places, {**moved, **reported})
        self._close_missed_slas(rules.outcomes_heard_late(found, moved.values()))
        self._note_failed_attempts(batch.failed_attempts)
        self._keep_book(self._folded(answers, stored, book))
        self._take(batch, sorted_out)
        self._name_events(inbound.event for inbound in events if inbound.acks or inbound.desk is not None)
        new = [pair for pair, ruling in sorted_out.new.items() if ruling is None or ruling.outcome is None]
        return Accepted(
            new=tuple(new),
            inbox_seqs=tuple(self._inbox_places[event_id] for event_id, _ in new),
            closed=tuple(pair for pair in sorted_out.new if pair not in new),
            repeated=tuple(sorted_out.repeated),
            orphans=tuple(orphans),
            cursor_seq=cursor_seq,
            tasks=tuple(sorted_out.tasks),
            taken_ids=tuple(dict.fromkeys(taken_ids)),
            reported=tuple(each.delivery for each in reports),
        )

    def _quarantine_batch(self, batch: Acceptance) -> None:
        source = batch.source_node_id
        resent = {bad.event_id for bad in batch.unreadable} - {None}
        known = [(each.source_node_id, each.event_id, each.id) for each, _ in self._quarantine.values()]
        for of, event_id, quarantine_id in known:
            if of == source and event_id in resent:
                del self._quarantine[quarantine_id]
        for bad in batch.unreadable:
            entry = QuarantinedEvent(
                id=max(self._quarantine, default=0) + 1,
                source_node_id=source,
                source_epoch=batch.source_epoch,
                source_seq=bad.seq,
                event_id=bad.event_id,
                code=bad.refusal.code.value,
                message=bad.refusal.message,
                at_ms=batch.at_ms,
                size_bytes=len(bad.raw),
            )
            self._quarantine[entry.id] = (entry, bad.raw)
        size_bytes = 0
        for place, entry in enumerate(reversed(self.quarantined(source_node_id=source, limit=1 << 30)), start=1):
            size_bytes += entry.size_bytes
            if batch.unreadable and (
                place > rules.MOST_QUARANTINED_EVENTS or size_bytes > rules.MOST_QUARANTINED_BYTES
            ):
                del self._quarantine[entry.id]
                self._dropped[source] += 1

    def _is_taken(self, inbound: Inbound, batch: Acceptance) -> bool:
        """Whether something of another node stands in the inbox under the same id."""
        place = self._inbox_places.get(inbound.event.event_id, 0) - self._inbox_floor_seq
        return place > 0 and self._inbox[place - 1][0] != batch.source_node_id

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

    async def engage(self, event_id: EventId, to_agent_id: str, *, at_ms: int, until_ms: int = 0) -> int:
        entry = rules.expect_open_entry(self.ledger_entry(event_id, to_agent_id), event_id, to_agent_id)
        rules.check_in_time(self._inbound(entry).raw, event_id, now_ms=at_ms)
        attempts = entry.attempts + 1
        engaged = LedgerState.ENGAGED
        self._keep(replace(entry, state=engaged, attempts=attempts, engaged_at_ms=at_ms, due_at_ms=until_ms))
        return attempts

    async def extend_lease(self, event_id: EventId, to_agent_id: str, *, until_ms: int) -> bool:
        entry = self.ledger_entry(event_id, to_agent_id)
        if entry is None or entry.state is not LedgerState.ENGAGED:
            return False
        self._keep(replace(entry, due_at_ms=max(entry.due_at_ms, until_ms)))
        return True

    async def give_back(self, event_id: EventId, to_agent_id: str, *, attempt: int, engaged_at_ms: int | None) -> bool:
        entry = self.ledger_entry(event_id, to_agent_id)
        if entry is None or entry.state is not LedgerState.ENGAGED or entry.attempts != attempt:
            return False
        queued = LedgerState.QUEUED
        self._keep(replace(entry, state=queued, attempts=attempt - 1, engaged_at_ms=engaged_at_ms, due_at_ms=0))
        return True

    async def postpone(self, event_id: EventId, to_agent_id: str, *, due_at_ms: int, error: str) -> None:
        entry = rules.expect_open_entry(self.ledger_entry(event_id, to_agent_id), event_id, to_agent_id)
        self._keep(replace(entry, state=LedgerState.QUEUED, due_at_ms=due_at_ms, error=error))

    async def settle(self, settlement: Settlement) -> bool:
        event_id, to_agent_id = settlement.event_id, settlement.to_agent_id
        entry = rules.expect_entry(self.ledger_entry(event_id, to_agent_id), event_id, to_agent_id)
        if entry.state is LedgerState.SETTLED:
            return False
        self._expect_unused(settlement.keyed)
        first_seq = self.head().seq + 1
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
        self._keep_answer(settlement.keyed, first_seq)
        return True

    async def settle_all(self, settlements: Sequence[Settlement]) -> list[bool]:
        is_open = [(each.event_id, each.to_agent_id) in self._open for each in settlements]
        closing = [each for each, still in zip(settlements, is_open, strict=True) if still]
        # All of it can be written, or nothing is.
        self._stored([event for each in closing for event in each.events])
        return [still and await self.settle(each) for each, still in zip(settlements, is_open, strict=True)]

    def backlog(
        self, to_agent_id: str, *, after_inbox_seq: int = 0, limit: int = 256, unread_only: bool = False
    ) -> list[BacklogItem]:
        self._check_open()
        found = sorted(
            (seq, pair) for pair, seq in self._open.items() if pair[1] == to_agent_id and seq > after_inbox_seq
        )
        entries = [self._ledger[pair] for _, pair in found]
        wanted = [entry for entry in entries if not unread_only or entry.read_at_ms is None]
        return [self._backlog_item(entry) for entry in wanted[:limit]]

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

    def backlog_size(self, to_agent_id: str, *, unread_only: bool = False, most: int | None = None) -> int:
        self._check_open()
        found = (self._ledger[pair] for pair in self._open if pair[1] == to_agent_id)
        size = sum(1 for entry in found if not unread_only or entry.read_at_ms is None)
        return size if most is None else min(size, most)

    def waiting_agents(self) -> list[str]:
        self._check_open()
        oldest_first = sorted((seq, agent_id) for (_, agent_id), seq in self._open.items())
        return list(dict.fromkeys(agent_id for _, agent_id in oldest_first))

    def expired_mail(self, *, now_ms: int, limit: int = 256, skip: int = 0) -> list[BacklogItem]:
        self._check_open()
        queued = [self._ledger[pair] for pair in self._open if self._ledger[pair].state is LedgerState.QUEUED]
        found = [
            (parse_ms(until, field="expiresAt"), entry.inbox_seq, entry.to_agent_id, entry)
            for entry in queued
            if (until := self._inbound(entry).event.expires_at) is not None
        ]
        found.sort(key=lambda each: each[:3])
        expired = [self._backlog_item(entry) for until_ms, _, _, entry in found if until_ms <= now_ms]
        return expired[skip : skip + limit]

    def urgent_unread(self, to_agent_id: str, *, limit: int = 256) -> list[BacklogItem]:
        unread = self.backlog(to_agent_id, limit=len(self._open), unread_only=True)
        return [item for item in unread if rules.is_urgent(self._inbound(item.entry).event)][:limit]

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

    def quarantined(
        self, *, source_node_id: str | None = None, after_id: int = 0, limit: int = 256
    ) -> list[QuarantinedEvent]:
        self._check_open()
        found = [each for each, _ in self._quarantine.values() if source_node_id in (None, each.source_node_id)]
        return [each for each in found if each.id > after_id][:limit]

    def quarantined_body(self, quarantine_id: int) -> bytes | None:
        self._check_open()
        found = self._quarantine.get(quarantine_id)
        return None if found is None else found[1]

    def quarantine_sources(self) -> list[QuarantineSource]:
        self._check_open()
        kept = [each for each, _ in self._quarantine.values()]
        return [
            QuarantineSource(
                source_node_id=source,
                events=sum(each.source_node_id == source for each in kept),
                size_bytes=sum(each.size_bytes for each in kept if each.source_node_id == source),
                dropped=self._dropped[source],
            )
            for source in sorted({each.source_node_id for each in kept} | set(self._dropped))
        ]

    def _prune_quarantine(self, before_ms: int, limit: int) -> int:
        old = [(each.at_ms, each.id) for each, _ in self._quarantine.values() if each.at_ms < before_ms]
        for _, quarantine_id in sorted(old)[:limit]:
            del self._quarantine[quarantine_id]
        return len(old[:limit])

    def cursor(self, source_node_id: str) -> Cursor | None:
        self._check_open()
        return self._cursors.get(source_node_id)

    def signed_end(self, source_node_id: str) -> SignedEnd | None:
        self._check_open()
        return self._signed_ends.get(source_node_id)

    def cursors(self) -> list[Cursor]:
        self._check_open()
        return [self._cursors[node_id] for node_id in sorted(self._cursors)]

    async def restart_cursor(self, source_node_id: str, *, epoch: str, at_ms: int) -> None:
        self._check_open()
        self._cursors[source_node_id] = Cursor(
            source_node_id=source_node_id, epoch=epoch, last_seq=0, last_chain=CHAIN_START, updated_at_ms=at_ms
        )

    def _prune_inbox(self, count: int) -> None:
        for _, inbound in self._inbox[:count]:
            del self._inbox_places[inbound.event.event_id]
        del self._inbox[:count]
        self._inbox_floor_seq += count
