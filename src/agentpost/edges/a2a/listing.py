"""The tasks of a peer with one agent, the last changed first, page by page."""

from collections.abc import Iterator
from typing import Final

from a2a.types import ListTasksRequest, ListTasksResponse
from a2a.types import TaskState as WireState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
)

from agentpost.edges.a2a.noting import KnownTask, Notebook
from agentpost.edges.a2a.reading import Reader
from agentpost.edges.a2a.visiting import Visit
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store.interface import Store

__all__ = ["list_tasks"]

_PAGE: Final = 256
# How many are looked at for one answer: more of them are not counted.
_MOST_LOOKED_AT: Final = 10_000
_NANOSECONDS: Final = 1_000_000


def list_tasks(store: Store, reader: Reader, visit: Visit, request: ListTasksRequest) -> ListTasksResponse:
    size = request.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    after = _place(request.page_token)
    total, page, is_more = 0, list[tuple[TaskRecord, KnownTask]](), False
    for record, known in _matching(store, reader, visit, request):
        total += 1
        if after is not None and (record.updated_at_ms, record.task_id) >= after:
            continue
        if len(page) < size:
            page.append((record, known))
        else:
            is_more = True
    last = page[-1][0] if page and is_more else None
    response = ListTasksResponse(page_size=size, total_size=total, next_page_token="" if last is None else _token(last))
    for record, known in page:
        task = apply_history_length(reader.read(record, known).task(), request)
        if not request.include_artifacts:
            task.ClearField("artifacts")
        response.tasks.append(task)
    return response


def _matching(
    store: Store, reader: Reader, visit: Visit, request: ListTasksRequest
) -> Iterator[tuple[TaskRecord, KnownTask]]:
    since_ms = request.status_timestamp_after.ToMilliseconds() if request.HasField("status_timestamp_after") else 0
    wanted = WireState.Name(request.status) if request.status else None
    notebook, context = Notebook(store), visit.admitted.context
    for record in _tasks_of(store, visit.peer_id):
        if record.updated_at_ms < since_ms:
            # They come by this time, so there are no others.
            return
        known = notebook.task(record.task_id)
        if known is None or known.agent_id != visit.agent_id or context not in (None, record.corr_id):
            continue
        if request.context_id and known.context_id != request.context_id:
            continue
        if wanted is None or reader.state(record, known).value == wanted:
            yield record, known


def _tasks_of(store: Store, peer_id: str) -> Iterator[TaskRecord]:
    before: tuple[int, str] | None = None
    for _ in range(_MOST_LOOKED_AT // _PAGE):
        page = store.tasks_of(peer_id, before=before, limit=_PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        before = (page[-1].updated_at_ms, page[-1].task_id)


def _place(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token)
    if cursor is None or cursor.timestamp_ns is None:
        raise InvalidParamsError("pageToken is not one that this gateway gave")
    return cursor.timestamp_ns // _NANOSECONDS, cursor.task_id


def _token(last: TaskRecord) -> str:
    cursor = ListTasksCursor(timestamp_ns=last.updated_at_ms * _NANOSECONDS, task_id=last.task_id)
    return encode_list_tasks_cursor(cursor)
