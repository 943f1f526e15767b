"""What raises a review at this gateway (CAP-6): tasks of its agents that fail, and requests that find nobody.

The two other triggers come from where they are noticed: a broken contract from `capabilities/contracts`, a missed ETA
from the sweep. At a start the tasks that failed since the last report are gone through, so that no failure is passed
over because the gateway stopped in between.
"""

from collections.abc import Sequence
from typing import Final

from agentpost.delivery.task_moves import TaskMoves
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import TaskId
from agentpost.protocol.reviews import Trigger
from agentpost.protocol.routing import RouteRequest
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.room.document import Room
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.work.reviews.reporter import Case, ReviewReporter
from agentpost.world import Clock

__all__ = ["ReviewTriggers"]

_COLLECTION: Final = "reviews"
_REPORTED: Final = "failures_through_ms"
_PAGE: Final = 256


class ReviewTriggers:
    def __init__(self, *, store: Store, room: Room, moves: TaskMoves, reporter: ReviewReporter, clock: Clock) -> None:
        self._store = store
        self._room = room
        self._moves = moves
        self._reporter = reporter
        self._clock = clock

    async def tasks_moved(self, task_ids: Sequence[TaskId]) -> None:
        for task_id in task_ids:
            record = self._store.task(task_id)
            if record is not None:
                await self._look_at(record)

    async def catch_up(self) -> None:
        """Look at the tasks that failed after the last one that was reported. Goes through all tasks: at a start."""
        note = self._store.note(_COLLECTION, _REPORTED)
        since_ms, after = int(note.value or b"0") if note is not None else 0, ""
        while page := self._store.tasks(after=after, limit=_PAGE):
            after = page[-1].task_id
            for record in page:
                # When it was heard here: the clock of whoever did it may say anything.
                if record.updated_at_ms > since_ms:
                    await self._look_at(record)

    async def route_missed(self, wanted: RouteRequest, corr_id: str) -> None:
        """A request for capabilities that nobody could be found for. What is not published is nobody's fault."""
        catalog = self._room.snapshot().catalog
        for capability_id in wanted.required_capabilities:
            if capability_id in catalog:
                case = Case(
                    trigger=Trigger.ROUTING_MISS, capability_id=capability_id, corr_id=corr_id, failure_class="no_route"
                )
                await self._reporter.report(case)

    async def raise_late(self, record: TaskRecord) -> None:
        """A task of a capability is late (TASK-8). Implements `work.sweep.ReviewSink`.

        Being late is one cause, whatever the task came to: as the pipeline has it, so that there is one item.
        """
        if record.capability_id is not None:
            await self._reporter.report(
                Case(
                    trigger=Trigger.ETA_MISSED,
                    capability_id=record.capability_id,
                    corr_id=record.corr_id,
                    delegation_skill_version=self._version(record),
                )
            )

    async def _look_at(self, record: TaskRecord) -> None:
        is_ours = record.requester_node_id == self._store.node_id
        if not is_ours or record.state is not TaskState.FAILED or record.capability_id is None:
            return
        failure_class = record.failure_class or "failed"
        await self._reporter.report(
            Case(
                trigger=Trigger.CONTRACT_MISMATCH if "contract" in failure_class else Trigger.TASK_FAILED,
                capability_id=record.capability_id,
                corr_id=record.corr_id,
                failure_class=failure_class,
                delegation_skill_version=self._version(record),
            )
        )
        await self._note(record.updated_at_ms)

    async def _note(self, heard_at_ms: int) -> None:
        note = self._store.note(_COLLECTION, _REPORTED)
        through_ms = max(heard_at_ms, int(note.value or b"0") if note is not None else 0)
        value = str(through_ms).encode()
        await self._store.put_notes(
            [Note(collection=_COLLECTION, key=_REPORTED, value=value, at_ms=self._clock.now_ms())]
        )

    def _version(self, record: TaskRecord) -> str | None:
        try:
            ref = self._moves.offer_of(record).payload.delegation_skill_ref
        except Refusal:
            return None
        return None if ref is None else ref.version
