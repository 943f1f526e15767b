"""The tasks, made anew from the events that they come from, and held against what was kept. For an operator.

A home that was restored has its outbox and its inbox, and the table of the events of tasks is empty: they are taken
from those two first, in the order of time.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct

from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.tasks import SAID_OF_TASKS
from agentpost.protocol.timestamps import parse_ms
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.taskbook import TaskBook, refold
from agentpost.store.tasks import entry_of, entry_row, task_row
from agentpost.store.transaction import Transaction
from agentpost.store.values import TaskEntry, TasksRebuilt

__all__ = ["differing_tasks", "rebuild_tasks"]

_ROWS_A_STEP: Final = 5_000


def rebuild_tasks(tx: Transaction, *, check_only: bool) -> TasksRebuilt:
    """Fold all events again; what differs from the kept tasks is told, and replaced unless it is only to be checked."""
    tx.flush()
    entries = _all_entries(tx.database)
    recovered = [] if entries else _recovered(tx.database, tx.node_id)
    made, differing = _compared(tx.database, entries or recovered, tx.node_id)
    if not check_only:
        tx.database.run_many(SQL.keep_task_event, [entry_row(entry) for entry in recovered])
        tx.database.run(SQL.clear_tasks)
        tx.database.run_many(SQL.put_task, list(made.values()))
    return TasksRebuilt(
        tasks=len(made), events=len(entries), differing=tuple(differing), recovered_events=len(recovered)
    )


def differing_tasks(database: Database, node_id: str) -> list[TaskId]:
    """The tasks that are kept otherwise than their events make them."""
    return _compared(database, _all_entries(database), node_id)[1]


def _compared(database: Database, entries: Sequence[TaskEntry], node_id: str) -> tuple[dict[TaskId, Row], list[TaskId]]:
    """The tasks as these events make them, as rows, and those that are kept otherwise."""
    kept = {TaskId(row[0]): row for row in _pages(database, SQL.task_rows, "")}
    made = {task_id: task_row(record) for task_id, record in refold(entries, node_id).items()}
    return made, sorted(each for each in kept.keys() | made.keys() if kept.get(each) != made.get(each))


def _all_entries(database: Database) -> list[TaskEntry]:
    return [entry_of(row) for row in _pages(database, SQL.all_task_events, 0)]


def _recovered(database: Database, node_id: str) -> list[TaskEntry]:
    """What outbox and inbox have of tasks, in the order of time."""
    found: list[_Found] = []
    for _, _, body in _pages(database, SQL.outbox_slice, 0):
        _add(found, body, is_own=True)
    for _, body, received_at_ms in _pages(database, SQL.inbox_slice, 0):
        _add(found, body, is_own=False, at_ms=received_at_ms)
    found.sort(key=lambda each: each.at_ms)
    book = TaskBook(node_id, find=_nothing, task_of=_nowhere)
    for _, moment in groupby(found, key=lambda each: each.at_ms):
        # Within a millisecond the order is what makes sense: each follows from what is there already.
        waiting = list(moment)
        while waiting and len(left := [each for each in waiting if not _fold(book, each)]) < len(waiting):
            waiting = left
    return book.entries


def _fold(book: TaskBook, found: "_Found") -> bool:
    """Fold an event in; False if it follows from something that is not there, or not yet."""
    before = len(book.entries)
    if found.is_own:
        try:
            book.say(found.event, found.raw)
        except Refusal:
            return False
    else:
        book.hear(found.event, found.raw, at_ms=found.at_ms)
    return len(book.entries) > before


class _Found(Struct, frozen=True, kw_only=True):
    at_ms: int
    is_own: bool
    event: Event
    raw: bytes


def _add(found: list[_Found], body: bytes, *, is_own: bool, at_ms: int | None = None) -> None:
    try:
        event = decode_event(body)
    except Refusal:
        return
    if type(event) in SAID_OF_TASKS:
        at_ms = parse_ms(event.created_at) if at_ms is None else at_ms
        found.append(_Found(at_ms=at_ms, is_own=is_own, event=event, raw=body))


def _pages(database: Database, statement: str, after: object) -> list[Row]:
    rows: list[Row] = []
    while page := database.rows(statement, (after, _ROWS_A_STEP)):
        rows += page
        after = page[-1][0]
    return rows


def _nothing(_: TaskId) -> None:
    return None


def _nowhere(_: EventId, __: bool) -> None:
    return None
