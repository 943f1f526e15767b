"""The inbox, its ledger and the cursors: what this gateway took, for whom, and how far it has read."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.timestamps import parse_ms
from agentpost.store.database import Database, Row
from agentpost.store.deliveries import apply_changes, note_failed_attempts, report_failures
from agentpost.store.desk import rule
from agentpost.store.idempotency import expect_unused, keep_answer
from agentpost.store.incidents import raise_incident
from agentpost.store.mirrors import keep_mirror
from agentpost.store.payload_names import name_events
from agentpost.store.queries import SQL
from agentpost.store.records import leave_quarantine, quarantine
from agentpost.store.rules import (
    check_acceptance,
    check_in_time,
    expect_entry,
    expect_open_entry,
    is_urgent,
    never_accepted,
    unseen,
)
from agentpost.store.sums import inbox_head, inbox_seed, inbox_sum
from agentpost.store.transaction import Transaction
from agentpost.store.values import (
    CHAIN_START,
    Acceptance,
    Accepted,
    BacklogItem,
    Cursor,
    Desk,
    Inbound,
    InboxPosition,
    LedgerEntry,
    LedgerState,
    Outcome,
    Settlement,
    SignedEnd,
)

__all__ = [
    "accept",
    "accept_again",
    "backlog",
    "backlog_size",
    "cursor",
    "engage",
    "engaged_entries",
    "expired_mail",
    "extend_lease",
    "give_back",
    "inbox_by_corr",
    "inbox_item",
    "inbox_items",
    "inbox_position",
    "ledger_entry",
    "mark_read",
    "postpone",
    "restart_cursor",
    "settle",
    "settle_all",
    "signed_end",
    "urgent_unread",
    "waiting_agents",
]

_BEYOND_ALL: Final = 1 << 62


def accept(tx: Transaction, batch: Acceptance) -> Accepted:
    """Take a batch: dedupe, inbox, ledger, ACKs, deliveries and cursor, all in this transaction (CUR-2, RTY-3)."""
    at = cursor(tx.database, batch.source_node_id)
    check_acceptance(batch, at)
    if batch.mirror is not None:
        keep_mirror(tx, batch.mirror)
    if at is not None and batch.through_seq <= at.last_seq:
        return Accepted(new=(), repeated=_pairs(batch.events), orphans=(), cursor_seq=at.last_seq)
    taken = _take(tx, batch, unseen(batch, at))
    if batch.unreadable:
        quarantine(tx, batch)
    for incident in batch.incidents:
        raise_incident(tx, incident)
    tx.database.run(
        SQL.move_cursor,
        (batch.source_node_id, batch.source_epoch, batch.through_seq, batch.through_chain, batch.at_ms),
    )
    if batch.signed_end is not None:
        tx.database.run(SQL.sign_cursor, (batch.signed_end.head, batch.signed_end.signature, batch.source_node_id))
    return _accepted(tx, batch, taken, cursor_seq=batch.through_seq)


def accept_again(tx: Transaction, batch: Acceptance, quarantine_ids: tuple[int, ...]) -> Accepted:
    """Take what was in the quarantine and can be read now. The cursor has passed it (ENV-6)."""
    leave_quarantine(tx, quarantine_ids)
    at = cursor(tx.database, batch.source_node_id)
    return _accepted(tx, batch, _take(tx, batch, batch.events), cursor_seq=0 if at is None else at.last_seq)


def _accepted(tx: Transaction, batch: Acceptance, taken: "_Taking", *, cursor_seq: int) -> Accepted:
    reported = report_failures(tx, batch.reports) if batch.reports else ()
    orphans = apply_changes(tx, batch.changes, {})
    if batch.failed_attempts:
        note_failed_attempts(tx, batch.failed_attempts)
    tx.append(taken.answers)
    return Accepted(
        new=tuple(taken.new),
        inbox_seqs=tuple(taken.new.values()),
        closed=tuple(taken.closed),
        repeated=tuple(taken.repeated),
        orphans=tuple(orphans),
        cursor_seq=cursor_seq,
        tasks=tuple(taken.tasks),
        taken_ids=tuple(taken.taken_ids),
        reported=reported,
    )


def _take(tx: Transaction, batch: Acceptance, events: Sequence[Inbound]) -> "_Taking":
    """Write what is new of these events into inbox and ledger; what is to be answered is appended by the caller."""
    event_ids = [inbound.event.event_id for inbound in events if inbound.acks]
    taking = _Taking(tx, batch)
    for event_id, agent_id, place, source in tx.database.rows_for(SQL.known_events, event_ids):
        if agent_id is None:
            taking.in_inbox[event_id] = place
            if source != batch.source_node_id:
                taking.taken_ids[event_id] = None
        else:
            taking.in_ledger.add((event_id, agent_id))
    kept = [inbound for inbound in events if inbound.acks or inbound.desk is not None]
    if taking.taken_ids:
        kept = [inbound for inbound in kept if inbound.event.event_id not in taking.taken_ids]
    for inbound in kept:
        taking.take(inbound)
    taking.write()
    name_events(tx, (inbound.event for inbound in kept))
    return taking


class _Taking:
    """A batch on its way into inbox and ledger: what is new, what was known, and what is said to it."""

    def __init__(self, tx: Transaction, batch: Acceptance) -> None:
        self._tx = tx
        self._batch = batch
        self._inbox_rows: list[bytes] = []
        self._seed = inbox_seed(batch.source_node_id, batch.source_epoch, batch.at_ms)
        self._open_rows: dict[str, list[str]] = {}
        self._closed_rows: dict[Row, list[str]] = {}
        self._expiring: list[Row] = []
        self._urgent: list[Row] = []
        self.in_inbox: dict[str, int] = {}
        # Ids under which something of another node stands in the inbox.
        self.taken_ids: dict[EventId, None] = {}
        self.in_ledger: set[tuple[str, str]] = set()
        self.new: dict[tuple[EventId, str], int] = {}
        self.closed: list[tuple[EventId, str]] = []
        self.repeated: list[tuple[EventId, str]] = []
        self.answers: list[Event] = []
        self.tasks: dict[TaskId, None] = {}

    def take(self, inbound: Inbound) -> None:
        if inbound.event.expires_at is not None and inbound.acks:
            expires_at_ms = parse_ms(inbound.event.expires_at, field="expiresAt")
            self._expiring.append((expires_at_ms, inbound.event.event_id))
        if is_urgent(inbound.event) and inbound.acks:
            self._urgent.append((inbound.event.event_id,))
        if inbound.desk is not None:
            self._take_at_desk(inbound, inbound.desk)
            return
        event_id = inbound.event.event_id
        for agent_id, ack in inbound.acks.items():
            pair = (event_id, agent_id)
            if pair in self.in_ledger:
                self.repeated.append(pair)
                continue
            self._open(pair, self._place(inbound))
            self.answers.append(ack)

    def _take_at_desk(self, inbound: Inbound, desk: Desk) -> None:
        """What concerns a task: the desk says what is answered, and whether the agent hears of it at all."""
        event_id = inbound.event.event_id
        new = [agent_id for agent_id in inbound.acks if (event_id, agent_id) not in self.in_ledger]
        self.repeated += [(event_id, agent_id) for agent_id in inbound.acks if agent_id not in new]
        if inbound.acks and not new:
            return
        ruling = rule(self._tx.tasks, inbound, desk, at_ms=self._batch.at_ms)
        self.tasks |= dict.fromkeys(ruling.tasks)
        for agent_id in new:
            place = self._place(inbound)
            if ruling.outcome is None:
                self._open((event_id, agent_id), place)
            else:
                self.in_ledger.add((event_id, agent_id))
                how = (agent_id, self._batch.at_ms, ruling.outcome.value, ruling.error)
                self._closed_rows.setdefault(how, []).append(f"{event_id}{place:020d}")
                self.closed.append((event_id, agent_id))
            self.answers.append(ruling.acks[agent_id])
        self.answers += ruling.tells

    def _open(self, pair: tuple[EventId, str], place: int) -> None:
        event_id, agent_id = pair
        self.in_ledger.add(pair)
        self._open_rows.setdefault(agent_id, []).append(f"{event_id}{place:020d}")
        self.new[pair] = place

    def _place(self, inbound: Inbound) -> int:
        event = inbound.event
        place = self.in_inbox.get(event.event_id)
        if place is None:
            place = self.in_inbox[event.event_id] = self._tx.inbox_seq = self._tx.inbox_seq + 1
            head = inbox_head(event.event_id, place, event.seq, event.corr_id)
            self._inbox_rows.append(b"%b%010d%b" % (head, inbox_sum(self._seed, head, inbound.raw), inbound.raw))
        return place

    def write(self) -> None:
        database, batch = self._tx.database, self._batch
        if self._inbox_rows:
            common = (batch.source_node_id, batch.source_epoch, batch.at_ms)
            database.run_packed(SQL.take_events, common, self._inbox_rows)
        for agent_id, rows in self._open_rows.items():
            database.run_packed(SQL.open_ledger_entries, (agent_id, batch.at_ms), rows)
        for how, rows in self._closed_rows.items():
            database.run_packed(SQL.close_ledger_entries, how, rows)
        if self._expiring:
            database.run_many(SQL.set_expiry, self._expiring)
        if self._urgent:
            database.run_many(SQL.mark_urgent, self._urgent)


def _pairs(events: Sequence[Inbound]) -> tuple[tuple[EventId, str], ...]:
    return tuple((inbound.event.event_id, agent_id) for inbound in events for agent_id in inbound.acks)


def engage(tx: Transaction, asked: Sequence[tuple[EventId, str, int, int]]) -> list[int | Refusal]:
    """Record attempts before they are made, so that a crash during one can be seen afterwards."""
    event_ids = [event_id for event_id, *_ in asked]
    found = _entries(tx.database, event_ids)
    bodies: dict[EventId, bytes] = dict(tx.database.rows_for(SQL.inbox_bodies, event_ids))
    answers: list[int | Refusal] = []
    rows: list[Row] = []
    for event_id, to_agent_id, at_ms, until_ms in asked:
        try:
            entry = expect_open_entry(found.get((event_id, to_agent_id)), event_id, to_agent_id)
            check_in_time(bodies[event_id], event_id, now_ms=at_ms)
        except Refusal as refusal:
            answers.append(refusal)
            continue
        found[event_id, to_agent_id] = entry = replace(entry, attempts=entry.attempts + 1)
        rows.append((at_ms, until_ms, event_id, to_agent_id))
        answers.append(entry.attempts)
    if rows:
        tx.database.run_many(SQL.engage, rows)
    return answers


def extend_lease(tx: Transaction, event_id: EventId, to_agent_id: str, until_ms: int) -> bool:
    before = tx.database.changed_rows()
    tx.database.run(SQL.extend_lease, (until_ms, event_id, to_agent_id))
    return tx.database.changed_rows() != before


def give_back(tx: Transaction, event_id: EventId, to_agent_id: str, attempt: int, engaged_at_ms: int | None) -> bool:
    before = tx.database.changed_rows()
    tx.database.run(SQL.give_back, (engaged_at_ms, event_id, to_agent_id, attempt))
    return tx.database.changed_rows() != before


def postpone(tx: Transaction, event_id: EventId, to_agent_id: str, due_at_ms: int, error: str) -> None:
    _open_entry(tx.database, event_id, to_agent_id)
    tx.database.run(SQL.postpone, (due_at_ms, error, event_id, to_agent_id))


def settle(tx: Transaction, settlements: Sequence[Settlement]) -> list[bool | Refusal]:
    """Close ledger rows, each once; its reply and ACK stand in the outbox if and only if it was this that closed it."""
    known: dict[tuple[EventId, str], bool] = {
        (row[0], row[1]): row[2] is not None
        for row in tx.database.rows_for(SQL.settled_of_entries, [each.event_id for each in settlements])
    }
    answers: list[bool | Refusal] = []
    closed: list[Settlement] = []
    for each in settlements:
        pair = (each.event_id, each.to_agent_id)
        is_settled = known.get(pair)
        if is_settled is None:
            answers.append(never_accepted(*pair))
            continue
        if is_settled:
            answers.append(False)
            continue
        try:
            expect_unused(tx, each.keyed)
            appended = tx.append(each.events, each.deliveries)
        except Refusal as refusal:
            answers.append(refusal)
            continue
        keep_answer(tx, each.keyed, appended.first_seq)
        known[pair] = True
        closed.append(each)
        answers.append(True)
    _close(tx, closed)
    return answers


def settle_all(tx: Transaction, settlements: Sequence[Settlement]) -> list[bool]:
    """The same where nobody is told of a refusal by itself: what is open is closed, then everything is said at once."""
    first: dict[tuple[EventId, str], Settlement] = {}
    for each in settlements:
        first.setdefault((each.event_id, each.to_agent_id), each)
    closed = _close(tx, first.values())
    telling = [each for pair, each in first.items() if pair in closed]
    tx.append(
        [event for each in telling for event in each.events],
        [delivery for each in telling for delivery in each.deliveries],
    )
    if len(telling) == len(settlements):
        return [True] * len(settlements)
    return [
        (each.event_id, each.to_agent_id) in closed and first[each.event_id, each.to_agent_id] is each
        for each in settlements
    ]


def _close(tx: Transaction, settlements: Iterable[Settlement]) -> set[tuple[EventId, str]]:
    """Close the rows that are open; gives which."""
    alike: dict[Row, list[str]] = {}
    for each in settlements:
        how = (each.at_ms, each.outcome.value, each.error, each.engaged_at_ms)
        alike.setdefault(how, []).append(each.event_id + each.to_agent_id)
    closed: set[tuple[EventId, str]] = set()
    for how, pairs in alike.items():
        closed.update((row[0], row[1]) for row in tx.database.run_packed(SQL.settle, how, pairs))
    return closed


def _open_entry(database: Database, event_id: EventId, to_agent_id: str) -> LedgerEntry:
    return expect_open_entry(ledger_entry(database, event_id, to_agent_id), event_id, to_agent_id)


def _entries(database: Database, event_ids: Sequence[EventId]) -> dict[tuple[EventId, str], LedgerEntry]:
    return {(row[0], row[1]): _entry(row) for row in database.rows_for(SQL.ledger_entries, event_ids)}


def ledger_entry(database: Database, event_id: EventId, to_agent_id: str) -> LedgerEntry | None:
    row = database.row(SQL.ledger_entry, (event_id, to_agent_id))
    return _entry(row) if row else None


def backlog(
    database: Database, to_agent_id: str, after_inbox_seq: int, limit: int, *, unread_only: bool
) -> list[BacklogItem]:
    statement = SQL.unread_backlog if unread_only else SQL.backlog
    return [_item(row) for row in database.rows(statement, (to_agent_id, after_inbox_seq, limit))]


def inbox_items(
    database: Database,
    to_agent_id: str,
    *,
    after_inbox_seq: int,
    limit: int,
    include_settled: bool,
    newest_first: bool,
) -> list[BacklogItem]:
    if not newest_first:
        statement = SQL.inbox_items if include_settled else SQL.backlog
        return [_item(row) for row in database.rows(statement, (to_agent_id, after_inbox_seq, limit))]
    statement = SQL.inbox_items_newest_first if include_settled else SQL.backlog_newest_first
    return [_item(row) for row in database.rows(statement, (to_agent_id, after_inbox_seq or _BEYOND_ALL, limit))]


def inbox_item(database: Database, event_id: EventId, to_agent_id: str) -> BacklogItem | None:
    row = database.row(SQL.inbox_item, (event_id, to_agent_id))
    return _item(row) if row else None


def inbox_by_corr(database: Database, corr_id: str) -> list[BacklogItem]:
    return [_item(row) for row in database.rows(SQL.inbox_by_corr, (corr_id,))]


def mark_read(tx: Transaction, event_id: EventId, to_agent_id: str, at_ms: int) -> bool:
    entry = expect_entry(ledger_entry(tx.database, event_id, to_agent_id), event_id, to_agent_id)
    tx.database.run(SQL.mark_read, (at_ms, event_id, to_agent_id))
    return entry.read_at_ms is None


def backlog_size(database: Database, to_agent_id: str, *, unread_only: bool, most: int | None) -> int:
    statement = SQL.unread_size if unread_only else SQL.backlog_size
    return database.value(statement, (to_agent_id, -1 if most is None else most))


def waiting_agents(database: Database) -> list[str]:
    return [agent_id for agent_id, _ in database.rows(SQL.waiting_agents, (-1,))]


def expired_mail(database: Database, now_ms: int, limit: int, skip: int) -> list[BacklogItem]:
    return [_item(row) for row in database.rows(SQL.expired_mail, (now_ms, limit, skip))]


def urgent_unread(database: Database, to_agent_id: str, limit: int) -> list[BacklogItem]:
    return [_item(row) for row in database.rows(SQL.urgent_unread, (to_agent_id, limit))]


def engaged_entries(database: Database) -> list[LedgerEntry]:
    return [_entry(row) for row in database.rows(SQL.engaged_entries)]


def inbox_position(database: Database) -> InboxPosition:
    floor_seq: int = database.value(SQL.inbox_floor)
    latest_seq: int = database.value(SQL.inbox_latest_seq) or floor_seq
    longest_waiting = database.row(SQL.waiting_agents, (1,))
    return InboxPosition(latest_seq=latest_seq, acked_seq=longest_waiting[1] - 1 if longest_waiting else latest_seq)


def cursor(database: Database, source_node_id: str) -> Cursor | None:
    row = database.row(SQL.cursor, (source_node_id,))
    return _cursor(row) if row else None


def signed_end(database: Database, source_node_id: str) -> SignedEnd | None:
    row = database.row(SQL.signed_end, (source_node_id,))
    return None if row is None else SignedEnd(head=row[0], signature=row[1])


def cursors(database: Database) -> list[Cursor]:
    return [_cursor(row) for row in database.rows(SQL.cursors)]


def restart_cursor(tx: Transaction, source_node_id: str, *, epoch: str, at_ms: int) -> None:
    tx.database.run(SQL.move_cursor, (source_node_id, epoch, 0, CHAIN_START, at_ms))


def _cursor(row: Row) -> Cursor:
    return Cursor(source_node_id=row[0], epoch=row[1], last_seq=row[2], last_chain=row[3], updated_at_ms=row[4])


def _item(row: Row) -> BacklogItem:
    return BacklogItem(entry=_entry(row), source_node_id=row[12], source_seq=row[13], raw=row[14])


def _entry(row: Row) -> LedgerEntry:
    return LedgerEntry(
        event_id=row[0],
        to_agent_id=row[1],
        inbox_seq=row[2],
        state=LedgerState(row[3]),
        attempts=row[4],
        due_at_ms=row[5],
        accepted_at_ms=row[6],
        engaged_at_ms=row[7],
        settled_at_ms=row[8],
        outcome=Outcome(row[9]) if row[9] is not None else None,
        error=row[10],
        read_at_ms=row[11],
    )
