"""An event as an agent is handed it: what a runtime gets to see. Knows nothing of turns and their outcomes."""

from typing import Final

from agentpost.delivery.ports import Content, Engagement, TaskBrief
from agentpost.protocol.envelope import (
    Event,
    MessageEvent,
    ReplyEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
)
from agentpost.protocol.headers import parse_headers
from agentpost.protocol.payloads import Priority
from agentpost.protocol.tasks import TASK_EVENTS

__all__ = ["ASKING", "engagement_of"]

# Kinds with which an agent wants something of another.
ASKING: Final = (MessageEvent, TaskCreateEvent)


def engagement_of(event: Event, agent_id: str, *, attempt: int, content: Content) -> Engagement:
    headed = parse_headers(content.body or "")
    return Engagement(
        event_id=event.event_id,
        corr_id=event.corr_id,
        kind=event.kind,
        to_agent_id=agent_id,
        from_agent_id=event.source_agent_id,
        from_node_id=event.source_node_id,
        created_at=event.created_at,
        attempt=attempt,
        priority=headed.priority or (event.payload.priority if isinstance(event, ASKING) else Priority.NORMAL),
        header_kind=headed.kind,
        thread=headed.thread,
        expects_reply=_expects_reply(event),
        ref_event_id=event.payload.ref_event_id if isinstance(event, ReplyEvent) else None,
        task=_brief(event) if type(event) in TASK_EVENTS else None,
        content=content,
    )


def _brief(event: Event) -> TaskBrief | None:
    match event:
        case TaskCreateEvent(payload=said):
            deadline_at = said.required_by or said.deadline_at
            return TaskBrief(
                task_id=said.task_id,
                task_type=said.task_type,
                capability_id=said.capability_id,
                deadline_at=deadline_at,
            )
        case TaskUpdateEvent(payload=said):
            return TaskBrief(
                task_id=said.task_id, status=said.status, progress=said.progress, eta_at=said.revised_eta_at
            )
        case TaskCompleteEvent(payload=said):
            return TaskBrief(task_id=said.task_id, result_ref=said.result_ref)
        case TaskFailedEvent(payload=said):
            return TaskBrief(task_id=said.task_id, failure_class=said.failure_class)
        case _:
            return None


def _expects_reply(event: Event) -> bool:
    match event:
        case MessageEvent(payload=message):
            return message.expects_reply
        case TaskCreateEvent(payload=create):
            return create.response_required
        case _:
            return False
