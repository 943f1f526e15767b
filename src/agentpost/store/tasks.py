"""The tables of tasks: the events that concern them, and what these make of each task."""

from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.sums import task_event_sum
from agentpost.store.taskbook import TaskBook, decode_task, encode_task
from agentpost.store.values import TaskEntry

__all__ = ["entry_of", "entry_row", "open_book", "task", "task_events", "task_row", "tasks", "tasks_of", "write_book"]

# Sorts after every task id.
_BEYOND_ALL = "~"
_AFTER_ALL = ((1 << 63) - 1, _BEYOND_ALL)


def open_book(database: Database, node_id: str) -> TaskBook:
    """The book of the writer, which sees what the transaction has written so far."""

    def task_of(event_id: EventId, is_own: bool) -> TaskId | None:
        return database.value(SQL.task_of_event, (event_id, int(is_own)))

    return TaskBook(node_id, find=lambda task_id: task(database, task_id), task_of=task_of)


def write_book(database: Database, book: TaskBook) -> None:
    """Write what was gathered, in the transaction of the events that it comes from."""
    if not book.records:
        return
    database.run_many(
        SQL.keep_task_event,
        [entry_row(entry) for entry in book.entries],
    )
    database.run_many(SQL.put_task, [task_row(record) for record in book.records.values()])
    book.clear()


def task_row(record: TaskRecord) -> Row:
    return (
        record.task_id,
        int(record.is_open),
        record.state.value,
        record.requester_agent_id,
        record.accepted_by_agent_id,
        record.updated_at_ms,
        encode_task(record),
    )


def task(database: Database, task_id: TaskId) -> TaskRecord | None:
    raw: bytes | None = database.value(SQL.task, (task_id,))
    return None if raw is None else decode_task(raw)


def tasks(database: Database, *, after: str, limit: int, open_only: bool, newest_first: bool) -> list[TaskRecord]:
    if newest_first:
        statement = SQL.open_tasks_newest_first if open_only else SQL.tasks_newest_first
        after = after or _BEYOND_ALL
    else:
        statement = SQL.open_tasks if open_only else SQL.tasks
    return [decode_task(row[0]) for row in database.rows(statement, (after, limit))]


def tasks_of(
    database: Database, requester_agent_id: str, *, before: tuple[int, str] | None, limit: int
) -> list[TaskRecord]:
    at_ms, task_id = _AFTER_ALL if before is None else before
    rows = database.rows(SQL.tasks_of, (requester_agent_id, at_ms, task_id, limit))
    return [decode_task(row[0]) for row in rows]


def task_events(database: Database, task_id: TaskId) -> list[TaskEntry]:
    return [entry_of(row) for row in database.rows(SQL.task_events, (task_id,))]


def entry_row(entry: TaskEntry) -> Row:
    total = task_event_sum(entry.task_id, entry.event_id, is_own=entry.is_own, at_ms=entry.at_ms, body=entry.raw)
    return (entry.task_id, entry.event_id, int(entry.is_own), entry.at_ms, entry.raw, total)


def entry_of(row: Row) -> TaskEntry:
    return TaskEntry(place=row[0], task_id=row[1], event_id=row[2], is_own=bool(row[3]), at_ms=row[4], raw=row[5])
