"""Events as CloudEvents 1.0: for buses, functions and dashboards that speak it. Sealed content stays sealed."""

from typing import Any, Final

import msgspec

from agentpost.protocol.envelope import AckEvent, Event, ReplyEvent
from agentpost.protocol.recipients import recipients_of

__all__ = ["cloud_event"]

# Sorts as text: CloudEvents compares sequences that way.
_DIGITS: Final = 20


def cloud_event(event: Event, *, stream: str, epoch: str, seq: int) -> dict[str, Any]:
    """The event at its place in a stream. (`source`, `id`) is the key by which consumers drop repeats.

    A resend is the same event once more, so it has the same key.
    """
    wire: dict[str, Any] = msgspec.to_builtins(event)
    recipients = recipients_of(event) or ((event.to_agent_id,) if event.to_agent_id else ())
    caused_by = event.payload.ref_event_id if isinstance(event, AckEvent | ReplyEvent) else None
    described: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.event_id,
        "source": f"/agentpost/{event.source_node_id}/{event.source_agent_id}",
        "type": f"agentpost.{event.kind.value}",
        "time": event.created_at,
        "datacontenttype": "application/json",
        "subject": ",".join(recipients) or None,
        "sequence": f"{seq:0{_DIGITS}d}",
        "stream": stream,
        "epoch": epoch,
        "correlationid": event.corr_id or None,
        "causationid": caused_by,
        "expirytime": event.expires_at,
        "dataref": None if event.payload_ref is None else f"urn:agentpost:payload:{event.payload_ref.sha256}",
        "attempt": event.trace.attempt,
        "data": wire["payload"],
    }
    return {name: value for name, value in described.items() if value is not None}
