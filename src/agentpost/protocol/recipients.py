"""Who an event is delivered to: the agents it is for, and the gateway that engages each of them.

Pure. The sender has one delivery for each of these pairs, and the receiver one ledger row.
"""

from typing import Final

from agentpost.protocol.envelope import (
    AckEvent,
    DeadLetterEvent,
    Event,
    MessageEvent,
    SignalEvent,
    TaskCreateEvent,
)

__all__ = ["engaging_nodes", "recipients_of"]

# These speak of other events, or to gateways: no agent gets them.
_NOT_FOR_AGENTS: Final = (AckEvent, SignalEvent, DeadLetterEvent)
# These name several.
_FOR_MANY: Final = (MessageEvent, TaskCreateEvent)


def recipients_of(event: Event) -> tuple[str, ...]:
    """The agents that the event is for; none for what gateways say to each other."""
    if isinstance(event, _NOT_FOR_AGENTS):
        return ()
    named = event.payload.to_agents if isinstance(event, _FOR_MANY) else ()
    if event.to_agent_id is None or event.to_agent_id in named:
        return named
    return (*named, event.to_agent_id)


def engaging_nodes(event: Event, agent_ids: tuple[str, ...]) -> tuple[str, ...]:
    """The gateway that engages each of these recipients, "" where the event leaves that open (ROUTE-1).

    Nobody engages an agent that no gateway has, nor, in a resend to others, one that has the event already.
    """
    engaged_by = event.trace.engaged_by
    if engaged_by:
        return tuple([engaged_by.get(agent_id, "") for agent_id in agent_ids])
    return (event.to_nodes[0] if len(event.to_nodes) == 1 else "",) * len(agent_ids)
