"""The tasks as one transaction changes them, over those that are kept. Both stores use it; it knows neither of them.

What an event makes of a task is decided in `protocol/taskbook`. Here it is gathered, to be written together with the
events, or not at all.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import AckEvent, Event, SignalEvent, TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, TaskId
from agentpost.protocol.taskbook import TaskRecord, cancels, heard, said, task_id_of
from agentpost.protocol.timestamps import parse_ms
from agentpost.store.values import TaskEntry

__all__ = ["TaskBook", "decode_task", "encode_task", "refold"]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TaskRecord)


def encode_task(record: TaskRecord) -> bytes:
    return _encoder.encode(record)


def decode_task(raw: bytes) -> TaskRecord:
    return _decoder.decode(raw)


class Mark(Struct, frozen=True):
    """How far a book was written at some moment."""

    records: dict[TaskId, TaskRecord]
    entries: int


class TaskBook:
    """`find` gives a task that is kept; `task_of` the task of an event that is kept, said here (True) or heard."""

    def __init__(
        self,
        node_id: str,
        *,
        find: Callable[[TaskId], TaskRecord | None],
        task_of: Callable[[EventId, bool], TaskId | None],
    ) -> None:
        self._node_id = node_id
        self._find = find
        self._task_of = task_of
        self.records: dict[TaskId, TaskRecord] = {}
        self.entries: list[TaskEntry] = []
        self._places: dict[tuple[EventId, bool], TaskId] = {}

    def say(self, event: Event, raw: bytes) -> None:
        """Fold in what this gateway appends. Refused if the move is not open; a resend changes nothing.

        Of a task that is not known here there is nothing to fold.
        """
        task_id = task_id_of(event)
        if task_id is None or self._known(event.event_id, is_own=True) is not None:
            return
        if isinstance(event, SignalEvent) and not cancels(event):
            # It is for others: here the task goes on, with somebody else.
            return
        record = self.get(task_id)
        if record is not None or isinstance(event, TaskCreateEvent):
            at_ms = parse_ms(event.created_at, field="createdAt")
            self._keep(said(record, event, at_ms=at_ms), event, raw, at_ms, is_own=True)

    def hear(self, event: Event, raw: bytes, *, at_ms: int) -> TaskRecord | Refusal:
        """Fold in what this gateway reads; the refusal of what its sender could not say, which changes nothing."""
        try:
            task_id = self._named(event)
            record = heard(self.get(task_id), event, at_ms=at_ms, node_id=self._node_id)
        except Refusal as refusal:
            return refusal
        self._keep(record, event, raw, at_ms, is_own=False)
        return record

    def has_heard(self, event_id: EventId) -> bool:
        """Whether this event of another gateway was folded in."""
        return self._known(event_id, is_own=False) is not None

    def get(self, task_id: TaskId) -> TaskRecord | None:
        return self.records.get(task_id) or self._find(task_id)

    def mark(self) -> Mark:
        return Mark(dict(self.records), len(self.entries))

    def go_back(self, mark: Mark) -> None:
        """Forget what was folded in since then."""
        self.records = mark.records
        for entry in self.entries[mark.entries :]:
            del self._places[entry.event_id, entry.is_own]
        del self.entries[mark.entries :]

    def clear(self) -> None:
        """Begin the next transaction."""
        self.records, self.entries, self._places = {}, [], {}

    def _named(self, event: Event) -> TaskId:
        if isinstance(event, AckEvent):
            task_id = self._known(event.payload.ref_event_id, is_own=True)
        else:
            task_id = task_id_of(event)
        if task_id is None:
            raise Refusal(Code.NOT_FOUND, f"the task of {event.event_id} is not known here", field="taskId")
        return task_id

    def _known(self, event_id: EventId, *, is_own: bool) -> TaskId | None:
        return self._places.get((event_id, is_own)) or self._task_of(event_id, is_own)

    def _keep(self, record: TaskRecord, event: Event, raw: bytes, at_ms: int, *, is_own: bool) -> None:
        self.records[record.task_id] = record
        if self._known(event.event_id, is_own=is_own) is not None:
            return
        self._places[event.event_id, is_own] = record.task_id
        self.entries.append(
            TaskEntry(task_id=record.task_id, event_id=event.event_id, is_own=is_own, at_ms=at_ms, raw=raw)
        )


def refold(entries: Sequence[TaskEntry], node_id: str) -> dict[TaskId, TaskRecord]:
    """The tasks that these events make, from nothing."""
    records: dict[TaskId, TaskRecord] = {}
    for entry in entries:
        event, before = decode_event(entry.raw), records.get(entry.task_id)
        if entry.is_own:
            records[entry.task_id] = said(before, event, at_ms=entry.at_ms)
        else:
            records[entry.task_id] = heard(before, event, at_ms=entry.at_ms, node_id=node_id)
    return records
