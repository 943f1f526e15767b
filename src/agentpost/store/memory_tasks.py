"""The tasks of the store in memory."""

from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store.memory_deliveries import MemoryDeliveries
from agentpost.store.taskbook import TaskBook, refold
from agentpost.store.values import TaskEntry, TasksRebuilt

__all__ = ["MemoryTasks"]


class MemoryTasks(MemoryDeliveries):
    """A part of `MemoryStore`. A book is opened for each write, and kept when all of the write is sure."""

    def __init__(self) -> None:
        super().__init__()
        self._task_records: dict[TaskId, TaskRecord] = {}
        self._task_entries: list[TaskEntry] = []
        self._tasks_of_events: dict[tuple[EventId, bool], TaskId] = {}

    def _open_book(self, node_id: str) -> TaskBook:
        return TaskBook(
            node_id,
            find=self._task_records.get,
            task_of=lambda event_id, is_own: self._tasks_of_events.get((event_id, is_own)),
        )

    def _keep_book(self, book: TaskBook) -> None:
        self._task_records |= book.records
        self._task_entries += book.entries
        self._tasks_of_events |= {(each.event_id, each.is_own): each.task_id for each in book.entries}

    def task(self, task_id: TaskId) -> TaskRecord | None:
        self._check_open()
        return self._task_records.get(task_id)

    def tasks(
        self, *, after: str = "", limit: int = 256, open_only: bool = False, newest_first: bool = False
    ) -> list[TaskRecord]:
        self._check_open()
        found = [record for record in self._task_records.values() if record.is_open or not open_only]
        found.sort(key=lambda record: record.task_id, reverse=newest_first)
        if newest_first:
            return [record for record in found if not after or record.task_id < after][:limit]
        return [record for record in found if record.task_id > after][:limit]

    def tasks_of(
        self, requester_agent_id: str, *, before: tuple[int, str] | None = None, limit: int = 256
    ) -> list[TaskRecord]:
        self._check_open()
        found = [each for each in self._task_records.values() if each.requester_agent_id == requester_agent_id]
        places = sorted(((each.updated_at_ms, each.task_id) for each in found), reverse=True)
        return [
            self._task_records[task_id] for at_ms, task_id in places if before is None or (at_ms, task_id) < before
        ][:limit]

    def task_events(self, task_id: TaskId) -> list[TaskEntry]:
        self._check_open()
        return [entry for entry in self._task_entries if entry.task_id == task_id]

    def _rebuilt(self, node_id: str, *, check_only: bool) -> TasksRebuilt:
        self._check_open()
        made = refold(self._task_entries, node_id)
        kept = self._task_records
        differing = sorted(task_id for task_id in kept.keys() | made.keys() if kept.get(task_id) != made.get(task_id))
        if not check_only:
            self._task_records = made
        return TasksRebuilt(tasks=len(made), events=len(self._task_entries), differing=tuple(differing))

    def _prune_tasks(self, before_ms: int, limit: int) -> int:
        over = sorted(
            (record.updated_at_ms, task_id)
            for task_id, record in self._task_records.items()
            if not record.is_open and record.updated_at_ms < before_ms
        )[:limit]
        gone = {task_id for _, task_id in over}
        for task_id in gone:
            del self._task_records[task_id]
        kept = [entry for entry in self._task_entries if entry.task_id not in gone]
        pruned = len(gone) + len(self._task_entries) - len(kept)
        self._task_entries = kept
        self._tasks_of_events = {(each.event_id, each.is_own): each.task_id for each in kept}
        return pruned
