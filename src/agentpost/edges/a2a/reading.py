"""A task and what was said about it, as A2A has it. Nothing is kept for this: it is made anew from the events."""

from collections.abc import Collection, Iterator

from a2a.server.events import Event as StreamEvent
from a2a.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.ports import Content
from agentpost.delivery.sealing import Sealer
from agentpost.edges.a2a.noting import KnownTask, Notebook
from agentpost.edges.a2a.states import INTERRUPTIONS, A2aState, a2a_state
from agentpost.edges.a2a.wording import agent_message, data_part, text_part, user_message
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import (
    Event,
    ReplyEvent,
    SignalEvent,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
)
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.work.offering import why_offer_ended

__all__ = ["Reader", "Step", "Told"]


class Step(Struct, frozen=True, kw_only=True):
    """One thing that was said about a task, and the state that it was in afterwards. A `word` moves nothing itself."""

    at_ms: int
    event_id: EventId
    state: A2aState
    message: Message | None = None
    artifact: Artifact | None = None
    is_peers: bool = False
    is_word: bool = False


class Told(Struct, frozen=True, kw_only=True):
    """A whole task. `steps` begins with what the peer asked for."""

    record: TaskRecord
    known: KnownTask
    steps: tuple[Step, ...]

    @property
    def state(self) -> A2aState:
        return self.steps[-1].state

    def task(self) -> Task:
        """The task as it stands. The last word of the agent is that of the status; what was said before is history."""
        last = self.steps[-1]
        message = None if last.is_peers else last.message
        history = [step.message for step in self.steps if step.message is not None and step.message is not message]
        return Task(
            id=self.record.task_id,
            context_id=self.known.context_id,
            status=_status(last.state, message, self.record.updated_at_ms),
            artifacts=[step.artifact for step in self.steps if step.artifact is not None],
            history=history,
            metadata=_metadata(self.record) or None,
        )

    def events(self, seen: Collection[EventId]) -> Iterator[StreamEvent]:
        """What happened besides the steps that were `seen`, as a stream tells it."""
        for step in self.steps:
            if step.event_id in seen:
                continue
            if step.artifact is not None:
                yield TaskArtifactUpdateEvent(
                    task_id=self.record.task_id,
                    context_id=self.known.context_id,
                    artifact=step.artifact,
                    last_chunk=True,
                )
            yield TaskStatusUpdateEvent(
                task_id=self.record.task_id,
                context_id=self.known.context_id,
                status=_status(step.state, None if step.is_peers else step.message, step.at_ms),
                metadata=_metadata(self.record) or None,
            )


class Reader:
    def __init__(self, store: Store, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer
        self._notebook = Notebook(store)

    def read(self, record: TaskRecord, known: KnownTask) -> Told:
        found = [*self._of_task(record, known), *self._of_conversation(record, known)]
        found.sort(key=lambda step: step.at_ms)
        steps: list[Step] = []
        for step in found:
            before = steps[-1].state if steps else A2aState.SUBMITTED
            steps.append(_in_its_place(step, before))
        if (lost := self._undelivered(record, known)) is not None:
            steps.append(lost)
        return Told(record=record, known=known, steps=tuple(steps))

    def state(self, record: TaskRecord, known: KnownTask) -> A2aState:
        """The state alone, which most often needs no look at the events."""
        quick = a2a_state(
            record.state,
            status=record.status,
            failure_class=record.failure_class,
            is_canceled=record.is_canceled,
        )
        # Whether the peer has answered since is not in the record.
        return self.read(record, known).state if quick in INTERRUPTIONS else quick

    def _of_task(self, record: TaskRecord, known: KnownTask) -> Iterator[Step]:
        seen: set[EventId] = set()
        for entry in self._store.task_events(record.task_id):
            if entry.event_id not in seen:
                seen.add(entry.event_id)
                event = decode_event(entry.raw)
                if (step := self._step(event, entry.at_ms, record, known, is_first=len(seen) == 1)) is not None:
                    yield step

    def _step(self, event: Event, at_ms: int, record: TaskRecord, known: KnownTask, *, is_first: bool) -> Step | None:
        content = self._content(event)
        names = {"task_id": record.task_id, "context_id": known.context_id}

        def step(state: A2aState, text: str | None, **metadata: str) -> Step:
            message = agent_message(text, message_id=event.event_id, **names, **metadata) if text else None
            return Step(at_ms=at_ms, event_id=event.event_id, state=state, message=message)

        match event:
            case TaskCreateEvent() if is_first:
                words = user_message(content, message_id=known.message_id, **names)
                state = a2a_state(TaskState.CREATED)
                return Step(at_ms=at_ms, event_id=event.event_id, state=state, message=words, is_peers=True)
            case TaskCreateEvent():
                return step(a2a_state(TaskState.CREATED), None)
            case TaskAcceptEvent():
                return step(a2a_state(TaskState.ACCEPTED), content.plan_summary)
            case TaskUpdateEvent(payload=update):
                return step(a2a_state(TaskState.IN_PROGRESS, status=update.status), content.note)
            case TaskCompleteEvent(payload=complete):
                artifact = Artifact(
                    artifact_id=event.event_id,
                    name="result",
                    parts=_result_parts(content),
                    metadata=None if complete.result_ref is None else {"resultRef": complete.result_ref},
                )
                state = a2a_state(TaskState.COMPLETED)
                return Step(at_ms=at_ms, event_id=event.event_id, state=state, artifact=artifact)
            case TaskFailedEvent(payload=failed):
                state = a2a_state(TaskState.FAILED, failure_class=failed.failure_class)
                return step(state, content.error_summary, failureClass=failed.failure_class)
            case SignalEvent():
                return step(a2a_state(record.state, is_canceled=True), None)
            case _:
                return None

    def _of_conversation(self, record: TaskRecord, known: KnownTask) -> Iterator[Step]:
        """What the peer said about the task later, and what it was answered."""
        names = {"task_id": record.task_id, "context_id": known.context_id}
        before, asked = A2aState.SUBMITTED, {record.create_event_id}
        for event_id, message_id, at_ms in self._notebook.follow_ups(record.task_id):
            asked.add(event_id)
            stored = self._store.find_event(event_id)
            content = Content() if stored is None else self._content(decode_event(stored.raw))
            words = user_message(content, message_id=message_id, **names)
            yield Step(at_ms=at_ms, event_id=event_id, state=before, message=words, is_peers=True, is_word=True)
        for item in self._store.inbox_by_corr(record.corr_id):
            event = decode_event(item.raw)
            is_answer = isinstance(event, ReplyEvent) and event.payload.ref_event_id in asked
            if is_answer and item.entry.to_agent_id == known.peer_id:
                text = self._content(event).body or ""
                words = agent_message(text, message_id=event.event_id, **names)
                at_ms = item.entry.accepted_at_ms
                yield Step(at_ms=at_ms, event_id=event.event_id, state=before, message=words, is_word=True)

    def _undelivered(self, record: TaskRecord, known: KnownTask) -> Step | None:
        """The task waits for somebody who does not get it: it is not over, for an operator can send it again."""
        reason = why_offer_ended(record, self._store.deliveries_of(record.create_event_id))
        if reason is None:
            return None
        text = f"It could not be delivered ({reason}), and waits for an operator."
        name = EventId(f"{record.create_event_id}/undelivered")
        message = agent_message(text, message_id=name, task_id=record.task_id, context_id=known.context_id)
        return Step(at_ms=record.updated_at_ms, event_id=name, state=A2aState.SUBMITTED, message=message)

    def _content(self, event: Event) -> Content:
        try:
            return self._sealer.open(event)
        except Refusal:
            # A part of a task that cannot be opened here, or not yet, must not hide the rest.
            return Content()


def _in_its_place(step: Step, before: A2aState) -> Step:
    """A word in the conversation changes no state, except that the peer's answer ends the waiting for it."""
    if not step.is_word:
        return step
    return replace(step, state=A2aState.WORKING if step.is_peers and before in INTERRUPTIONS else before)


def _status(state: A2aState, message: Message | None, at_ms: int) -> TaskStatus:
    at = Timestamp()
    at.FromMilliseconds(at_ms)
    return TaskStatus(state=state.value, message=message, timestamp=at)


def _result_parts(content: Content) -> list[Part]:
    parts = [text_part(content.result_summary or "")]
    return parts if content.output is None else [*parts, data_part(content.output)]


def _metadata(record: TaskRecord) -> dict[str, int | str]:
    """What we know of a task and A2A has no field for."""
    found: dict[str, int | str] = {}
    if record.progress is not None:
        found["progress"] = record.progress
    if record.eta_at_ms is not None:
        found["etaAt"] = format_ms(record.eta_at_ms)
    return found
