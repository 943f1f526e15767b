"""The store on a disk: one SQLite file, one writer, and a read connection for every thread that reads.

This file, with the other `sqlite_*`, only joins the parts. What a write does is in `transaction`, `inbox`,
`deliveries`, `compaction`, `agents`, `incidents`, `notes`, `tasks` and `auditing`; reading is in `outbox` and
`streams`.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store import (
    agents,
    auditing,
    compaction,
    deliveries,
    idempotency,
    inbox,
    incidents,
    notes,
    outbox,
    rebuilding,
    records,
    streams,
    tasks,
)
from agentpost.store.database import Database
from agentpost.store.home import Home
from agentpost.store.queries import SQL
from agentpost.store.rules import orphan_refused, replay_hash
from agentpost.store.sqlite_external import SqliteExternal
from agentpost.store.sqlite_members import SqliteMembers
from agentpost.store.sqlite_mirrors import SqliteMirrors
from agentpost.store.sqlite_payloads import SqlitePayloads
from agentpost.store.tail import Grown, Tail
from agentpost.store.transaction import Transaction
from agentpost.store.values import (
    CHAIN_START,
    Acceptance,
    Accepted,
    Appended,
    AuditEntry,
    BacklogItem,
    Compacted,
    Cursor,
    FailedAttempt,
    Head,
    InboxPosition,
    Incident,
    KeptAnswer,
    KeyedAnswer,
    LedgerEntry,
    LocalAgent,
    Note,
    OutboxSlice,
    QuarantinedEvent,
    QuarantineSource,
    ResentLetter,
    Settlement,
    SignedEnd,
    StoredEvent,
    StreamSlice,
    Subscriber,
    TaskEntry,
    TasksRebuilt,
    Unaccepted,
    Watermarks,
)
from agentpost.store.writer import Writer

__all__ = ["SqliteStore"]

T = TypeVar("T")
OnFailure = Callable[[Refusal], None]


class SqliteStore(SqliteExternal, SqliteMembers, SqliteMirrors, SqlitePayloads):
    """Implements `Store`. Open it with `SqliteStore.open`, and `await close()` it."""

    def __init__(self, home: Home, writer_database: Database, *, vfs: str | None, on_failure: OnFailure | None) -> None:
        self._home = home
        self._vfs = vfs
        self._database = writer_database
        transaction = Transaction(writer_database)
        self._node_id = transaction.node_id
        self._epoch = transaction.epoch
        self._readers = threading.local()
        self._open_readers: list[Database] = []
        self._closed = False
        self._agents: dict[str, LocalAgent] | None = None
        self._tail = Tail()
        self._floors: dict[str | None, Head] = {}
        self._loop_thread: int | None = None
        self._writer = Writer(writer_database, transaction=transaction, on_failure=on_failure, on_grown=self._grew)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        node_id: str,
        epoch: str,
        now_ms: int,
        vfs: str | None = None,
        synchronous: str = "FULL",
        on_failure: OnFailure | None = None,
    ) -> "SqliteStore":
        """Open the home at `path`, or make it for `node_id`. `epoch` and `now_ms` are used only for a new one.

        `on_failure` is called once, from any thread, if the disk fails; the gateway has to stop then.
        """
        home = Home(path)
        home.prepare()
        home.lock()
        try:
            home.make_database()
            database = Database.open_writer(home.database, vfs=vfs, synchronous=synchronous)
            try:
                database.migrate()
                if synchronous == "FULL":
                    database.renew_log()
                _claim(database, node_id=node_id, epoch=epoch, now_ms=now_ms)
                return cls(home, database, vfs=vfs, on_failure=on_failure)
            except BaseException:
                # It may be a failing disk or a newer schema: either way the file is left as it was found.
                database.abandon()
                raise
        except BaseException:
            home.unlock()
            raise

    @property
    def node_id(self) -> str:
        return self._node_id

    @property
    def epoch(self) -> str:
        return self._epoch

    @property
    def failure(self) -> Refusal | None:
        """Why the store gave up, if it did."""
        return self._writer.failure

    # The outbox and its deliveries

    def append(
        self,
        events: Sequence[Event],
        *,
        deliveries: Sequence[Delivery] = (),
        changes: Sequence[Change] = (),
        notes: Sequence[Note] = (),
        incidents: Sequence[Incident] = (),
        resends: Sequence[ResentLetter] = (),
        keyed: KeyedAnswer | None = None,
    ) -> "asyncio.Future[Appended]":
        if not (changes or notes or incidents or resends or keyed):
            return self._writer.append(events, deliveries)
        return self._writer.submit(
            lambda tx: _append_and_change(tx, events, deliveries, changes, notes, incidents, resends, keyed),
            size=len(events) + len(changes) + len(notes) + len(incidents) + len(resends),
        )

    def kept_answer(self, agent_id: str, key: bytes) -> KeptAnswer | None:
        return idempotency.kept_answer(self._reader(), agent_id, key)

    def head(self) -> Head:
        return outbox.head(self._reader())

    def read_outbox(
        self, after_seq: int, *, limit: int = 256, max_bytes: int = 1_048_576, may_lag: bool = False
    ) -> OutboxSlice:
        if may_lag and self._has_tail_after(after_seq):
            floor = self._floor(None, lambda: outbox.floor(self._reader()))
            return self._tail.read_outbox(after_seq, floor=floor, limit=limit, max_bytes=max_bytes)
        return outbox.read_outbox(self._reader(), after_seq, limit=limit, max_bytes=max_bytes)

    def read_stream(
        self,
        consumer_node_id: str,
        after_seq: int,
        *,
        limit: int = 256,
        max_bytes: int = 1_048_576,
        may_lag: bool = False,
    ) -> StreamSlice:
        if may_lag and self._has_tail_after(after_seq):
            if not self._tail.knows_stream(consumer_node_id):
                self._tail.learn_end(consumer_node_id, streams.stream_end(self._reader(), consumer_node_id))
            if self._tail.knows_stream(consumer_node_id):
                floor = self._floor(consumer_node_id, lambda: streams.stream_floor(self._reader(), consumer_node_id))
                return self._tail.read_stream(
                    consumer_node_id, after_seq, floor_seq=floor.seq, limit=limit, max_bytes=max_bytes
                )
        return streams.read_stream(self._reader(), consumer_node_id, after_seq, limit=limit, max_bytes=max_bytes)

    def _grew(self, grown: Grown) -> None:
        self._loop_thread = threading.get_ident()
        self._tail.grow(grown)

    def _has_tail_after(self, after_seq: int) -> bool:
        return self._tail.covers(after_seq) and threading.get_ident() == self._loop_thread

    def _floor(self, consumer_node_id: str | None, ask: Callable[[], Head]) -> Head:
        """How far the outbox, or a stream of it, was pruned; asked for once after each pruning."""
        floor = self._floors.get(consumer_node_id)
        if floor is None:
            floor = self._floors[consumer_node_id] = ask()
        return floor

    def find_event(self, event_id: EventId) -> StoredEvent | None:
        return outbox.find_event(self._reader(), event_id)

    def deliveries_of(self, event_id: EventId) -> list[Delivery]:
        return deliveries.deliveries_of(self._reader(), event_id)

    def due_deliveries(self, now_ms: int, *, limit: int = 256) -> list[Delivery]:
        return deliveries.due_deliveries(self._reader(), now_ms, limit)

    def unaccepted_by(self, node_id: str, *, after_seq: int, through_seq: int, limit: int = 256) -> list[Delivery]:
        return deliveries.unaccepted_by(self._reader(), node_id, after_seq, through_seq, limit)

    def unaccepted_counts(self, *, most: int) -> list[Unaccepted]:
        return deliveries.unaccepted_counts(self._reader(), most)

    def next_due_at_ms(self) -> int | None:
        return deliveries.next_due_at_ms(self._reader())

    def deliveries_in(
        self, states: Iterable[DeliveryState], *, after: tuple[str, str] = ("", ""), limit: int = 256
    ) -> list[Delivery]:
        return deliveries.deliveries_in(self._reader(), states, after, limit)

    def undelivered(self, *, after: tuple[str, str] = ("", ""), limit: int = 256) -> list[Delivery]:
        return deliveries.undelivered(self._reader(), after, limit)

    def failed_attempts_of(self, event_id: EventId) -> list[FailedAttempt]:
        return deliveries.failed_attempts_of(self._reader(), event_id)

    def failing_before(self, delivery: Delivery, *, after_ms: int) -> EventId | None:
        return deliveries.failing_before(self._reader(), delivery, after_ms)

    def deliveries_by_corr(self, corr_id: str) -> list[Delivery]:
        return deliveries.deliveries_by_corr(self._reader(), corr_id)

    def count_deliveries(self, *, only: DeliveryState | None = None) -> dict[DeliveryState, int]:
        return deliveries.count_deliveries(self._reader(), only)

    def reschedule(self, pairs_due: Sequence[tuple[EventId, str, int | None]]) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: deliveries.reschedule(tx, pairs_due), size=len(pairs_due))

    def purge_deliveries(self, pairs: Sequence[tuple[EventId, str]]) -> "asyncio.Future[int]":
        return self._writer.submit(lambda tx: deliveries.purge(tx, pairs))

    # The inbox and its ledger

    def accept(self, batch: Acceptance) -> "asyncio.Future[Accepted]":
        kept = () if batch.mirror is None else batch.mirror.events
        return self._writer.submit(lambda tx: inbox.accept(tx, batch), size=len(batch.events) + len(kept))

    def promises(self, events: int) -> bool:
        return self._writer.promise(events)

    def engage(self, event_id: EventId, to_agent_id: str, *, at_ms: int, until_ms: int = 0) -> "asyncio.Future[int]":
        return self._writer.ask(inbox.engage, (event_id, to_agent_id, at_ms, until_ms))

    def extend_lease(self, event_id: EventId, to_agent_id: str, *, until_ms: int) -> "asyncio.Future[bool]":
        return self._writer.submit(lambda tx: inbox.extend_lease(tx, event_id, to_agent_id, until_ms), size=1)

    def give_back(
        self, event_id: EventId, to_agent_id: str, *, attempt: int, engaged_at_ms: int | None
    ) -> "asyncio.Future[bool]":
        return self._writer.submit(
            lambda tx: inbox.give_back(tx, event_id, to_agent_id, attempt, engaged_at_ms), size=1
        )

    def postpone(self, event_id: EventId, to_agent_id: str, *, due_at_ms: int, error: str) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: inbox.postpone(tx, event_id, to_agent_id, due_at_ms, error), size=1)

    def settle(self, settlement: Settlement) -> "asyncio.Future[bool]":
        return self._writer.ask(inbox.settle, settlement)

    def settle_all(self, settlements: Sequence[Settlement]) -> "asyncio.Future[list[bool]]":
        return self._writer.submit(lambda tx: inbox.settle_all(tx, settlements), size=len(settlements))

    def backlog(
        self, to_agent_id: str, *, after_inbox_seq: int = 0, limit: int = 256, unread_only: bool = False
    ) -> list[BacklogItem]:
        return inbox.backlog(self._reader(), to_agent_id, after_inbox_seq, limit, unread_only=unread_only)

    def backlog_size(self, to_agent_id: str, *, unread_only: bool = False, most: int | None = None) -> int:
        return inbox.backlog_size(self._reader(), to_agent_id, unread_only=unread_only, most=most)

    def waiting_agents(self) -> list[str]:
        return inbox.waiting_agents(self._reader())

    def expired_mail(self, *, now_ms: int, limit: int = 256, skip: int = 0) -> list[BacklogItem]:
        return inbox.expired_mail(self._reader(), now_ms, limit, skip)

    def urgent_unread(self, to_agent_id: str, *, limit: int = 256) -> list[BacklogItem]:
        return inbox.urgent_unread(self._reader(), to_agent_id, limit)

    def engaged_entries(self) -> list[LedgerEntry]:
        return inbox.engaged_entries(self._reader())

    def inbox_items(
        self,
        to_agent_id: str,
        *,
        after_inbox_seq: int = 0,
        limit: int = 256,
        include_settled: bool = True,
        newest_first: bool = False,
    ) -> list[BacklogItem]:
        return inbox.inbox_items(
            self._reader(),
            to_agent_id,
            after_inbox_seq=after_inbox_seq,
            limit=limit,
            include_settled=include_settled,
            newest_first=newest_first,
        )

    def inbox_item(self, event_id: EventId, to_agent_id: str) -> BacklogItem | None:
        return inbox.inbox_item(self._reader(), event_id, to_agent_id)

    def inbox_by_corr(self, corr_id: str) -> list[BacklogItem]:
        return inbox.inbox_by_corr(self._reader(), corr_id)

    def mark_read(self, event_id: EventId, to_agent_id: str, *, at_ms: int) -> "asyncio.Future[bool]":
        return self._writer.submit(lambda tx: inbox.mark_read(tx, event_id, to_agent_id, at_ms), size=1)

    def ledger_entry(self, event_id: EventId, to_agent_id: str) -> LedgerEntry | None:
        return inbox.ledger_entry(self._reader(), event_id, to_agent_id)

    def inbox_position(self) -> InboxPosition:
        return inbox.inbox_position(self._reader())

    def accept_again(self, batch: Acceptance, *, quarantine_ids: tuple[int, ...]) -> "asyncio.Future[Accepted]":
        return self._writer.submit(lambda tx: inbox.accept_again(tx, batch, quarantine_ids), size=len(batch.events))

    def quarantined(
        self, *, source_node_id: str | None = None, after_id: int = 0, limit: int = 256
    ) -> list[QuarantinedEvent]:
        return records.quarantined(self._reader(), source_node_id, after_id, limit)

    def quarantined_body(self, quarantine_id: int) -> bytes | None:
        return records.quarantined_body(self._reader(), quarantine_id)

    def quarantine_sources(self) -> list[QuarantineSource]:
        return records.quarantine_sources(self._reader())

    # Tasks

    def task(self, task_id: TaskId) -> TaskRecord | None:
        return tasks.task(self._reader(), task_id)

    def tasks(
        self, *, after: str = "", limit: int = 256, open_only: bool = False, newest_first: bool = False
    ) -> list[TaskRecord]:
        return tasks.tasks(self._reader(), after=after, limit=limit, open_only=open_only, newest_first=newest_first)

    def tasks_of(
        self, requester_agent_id: str, *, before: tuple[int, str] | None = None, limit: int = 256
    ) -> list[TaskRecord]:
        return tasks.tasks_of(self._reader(), requester_agent_id, before=before, limit=limit)

    def task_events(self, task_id: TaskId) -> list[TaskEntry]:
        return tasks.task_events(self._reader(), task_id)

    def rebuild_tasks(self, *, check_only: bool = False) -> "asyncio.Future[TasksRebuilt]":
        return self._writer.submit(lambda tx: rebuilding.rebuild_tasks(tx, check_only=check_only))

    # Cursors and compaction

    def cursor(self, source_node_id: str) -> Cursor | None:
        return inbox.cursor(self._reader(), source_node_id)

    def signed_end(self, source_node_id: str) -> SignedEnd | None:
        return inbox.signed_end(self._reader(), source_node_id)

    def cursors(self) -> list[Cursor]:
        return inbox.cursors(self._reader())

    def restart_cursor(self, source_node_id: str, *, epoch: str, at_ms: int) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: inbox.restart_cursor(tx, source_node_id, epoch=epoch, at_ms=at_ms))

    def note_subscriber(self, subscriber: Subscriber) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: compaction.note_subscriber(tx, subscriber), size=1)

    def subscribers(self) -> list[Subscriber]:
        return compaction.subscribers(self._reader())

    def watermarks(self, *, now_ms: int, retention_events: int, is_alone: bool = False) -> Watermarks:
        return compaction.watermarks(
            self._reader(),
            node_id=self._node_id,
            epoch=self._epoch,
            now_ms=now_ms,
            retention_events=retention_events,
            is_alone=is_alone,
        )

    def compact(self, watermarks: Watermarks, *, limit: int = 10_000) -> "asyncio.Future[Compacted]":
        compacted = self._writer.submit(lambda tx: compaction.compact(tx, watermarks, limit))
        # The first to hear of it: whoever awaits it finds nothing any more that was pruned.
        compacted.add_done_callback(self._forget_tail)
        return compacted

    def _forget_tail(self, _: "asyncio.Future[Compacted]") -> None:
        self._tail.forget()
        self._floors.clear()

    def prune_settled(self, *, before_ms: int, limit: int = 10_000) -> "asyncio.Future[int]":
        return self._writer.submit(lambda tx: compaction.prune_settled(tx, before_ms, limit))

    def prune_records(self, *, now_ms: int, before_ms: int, limit: int = 1_000) -> "asyncio.Future[int]":
        return self._writer.submit(lambda tx: records.prune_records(tx, now_ms, before_ms, limit))

    # Keeping

    def remember_once(self, scope: str, value: str, *, now_ms: int, expires_at_ms: int) -> "asyncio.Future[bool]":
        return self._writer.submit(lambda tx: _remember_once(tx, scope, value, now_ms, expires_at_ms))

    def record_audit(self, entries: Sequence[AuditEntry]) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: auditing.record_audit(tx, entries))

    def audit_log(self, *, after_id: int = 0, limit: int = 256) -> list[AuditEntry]:
        return auditing.audit_log(self._reader(), after_id, limit)

    # Agents and incidents

    def put_agent(self, agent: LocalAgent) -> "asyncio.Future[None]":
        return self._with_agents_changed(self._writer.submit(lambda tx: agents.put_agent(tx, agent)))

    def remove_agent(self, agent_id: str) -> "asyncio.Future[bool]":
        return self._with_agents_changed(self._writer.submit(lambda tx: agents.remove_agent(tx, agent_id)))

    def local_agents(self) -> list[LocalAgent]:
        return [_own_copy(agent) for agent in self._known_agents().values()]

    def local_agent(self, agent_id: str) -> LocalAgent | None:
        agent = self._known_agents().get(agent_id)
        return None if agent is None else _own_copy(agent)

    def local_agent_ids(self) -> Collection[str]:
        return self._known_agents().keys()

    def _known_agents(self) -> dict[str, LocalAgent]:
        """Asked for with every message, changed once in a while: so they are remembered."""
        found = self._agents
        if found is None:
            found = {agent.agent_id: agent for agent in agents.local_agents(self._reader())}
            self._agents = found
        return found

    def _with_agents_changed(self, change: "asyncio.Future[T]") -> "asyncio.Future[T]":
        def forget(_: "asyncio.Future[T]") -> None:
            self._agents = None

        # The first to hear of it: whoever awaits the change finds the agents as they are then.
        change.add_done_callback(forget)
        return change

    def raise_incident(self, incident: Incident) -> "asyncio.Future[bool]":
        return self._writer.submit(lambda tx: incidents.raise_incident(tx, incident))

    def close_incident(self, kind: str, subject: str, *, at_ms: int) -> "asyncio.Future[bool]":
        return self._writer.submit(lambda tx: incidents.close_incident(tx, kind, subject, at_ms))

    def incidents(self, *, open_only: bool = True, after_id: int = 0, limit: int = 256) -> list[Incident]:
        return incidents.incidents(self._reader(), open_only=open_only, after_id=after_id, limit=limit)

    def open_incidents_of(self, kind: str) -> list[Incident]:
        return incidents.open_incidents_of(self._reader(), kind)

    def count_incidents(self) -> dict[str, int]:
        return incidents.count_incidents(self._reader())

    # Notes

    def put_notes(self, notes: Sequence[Note]) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: _put(tx, notes))

    def note(self, collection: str, key: str) -> Note | None:
        return notes.note(self._reader(), collection, key)

    def notes(self, collection: str, *, after_key: str = "", limit: int = 256) -> list[Note]:
        return notes.notes(self._reader(), collection, after_key=after_key, limit=limit)

    def count_notes(self, collection: str) -> int:
        return notes.count_notes(self._reader(), collection)

    async def close(self) -> None:
        """Finish what is waiting, then let go of the home. From now on everything is refused."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        try:
            self._writer.stop()
            for reader in self._open_readers:
                reader.close()
            self._close_database()
        finally:
            self._home.unlock()

    def _close_database(self) -> None:
        """Leave no log behind, unless the disk is failing or full: then not one write more, and the log is enough."""
        if self._writer.failure is not None:
            self._database.abandon()
            return
        try:
            self._database.checkpoint()
        except Refusal as refusal:
            self._database.abandon()
            # The disk has failed only now, so nobody has heard of it yet.
            if refusal.code in {Code.STORAGE_FAILED, Code.STORAGE_CORRUPT}:
                raise
        else:
            self._database.close()

    def _reader(self) -> Database:
        if self._closed:
            raise Refusal(Code.UNAVAILABLE, "the store is closed")
        if self._writer.has_promised:
            self._writer.keep_promise()
        reader: Database | None = getattr(self._readers, "database", None)
        if reader is None:
            reader = Database.open_reader(self._home.database, vfs=self._vfs)
            self._readers.database = reader
            self._open_readers.append(reader)
        return reader


def _own_copy(agent: LocalAgent) -> LocalAgent:
    """Options are dicts and lists: whoever is handed them may change them, and changes nobody else's."""
    return replace(agent, options=deepcopy(agent.options))


def _claim(database: Database, *, node_id: str, epoch: str, now_ms: int) -> None:
    """Make a new home this node's; refuse one that is another's."""
    owner = database.row(SQL.gateway)
    if owner is None:
        database.begin()
        try:
            database.run(SQL.create_gateway, (node_id, epoch, now_ms, CHAIN_START))
            database.commit()
        except BaseException:
            database.rollback()
            raise
    elif owner[0] != node_id:
        raise Refusal(Code.CONFLICT, f"this home belongs to node {owner[0]}, not to {node_id}", field="nodeId")


def _append_and_change(
    tx: Transaction,
    events: Sequence[Event],
    new: Sequence[Delivery],
    changes: Sequence[Change],
    changed_notes: Sequence[Note],
    raised: Sequence[Incident],
    resends: Sequence[ResentLetter],
    keyed: KeyedAnswer | None,
) -> Appended:
    idempotency.expect_unused(tx, keyed)
    appended = tx.append(events, new)
    idempotency.keep_answer(tx, keyed, appended.first_seq)
    places = {event.event_id: seq for seq, event in enumerate(events, appended.first_seq)}
    orphans = deliveries.apply_changes(tx, changes, places)
    if orphans:
        raise orphan_refused(orphans[0])
    deliveries.note_resent(tx, resends)
    notes.put_notes(tx, changed_notes)
    for incident in raised:
        incidents.raise_incident(tx, incident)
    return appended


def _put(tx: Transaction, changed_notes: Sequence[Note]) -> None:
    notes.put_notes(tx, changed_notes)


def _remember_once(tx: Transaction, scope: str, value: str, now_ms: int, expires_at_ms: int) -> bool:
    tx.database.run(SQL.forget_expired, (now_ms,))
    before = tx.database.changed_rows()
    tx.database.run(SQL.remember_once, (scope, replay_hash(scope, value), expires_at_ms))
    return tx.database.changed_rows() != before
