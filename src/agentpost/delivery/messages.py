"""What a local agent asks to be sent, and what it is told of it. Values only."""

from msgspec import Struct

from agentpost.delivery.placing import RecipientReceipt
from agentpost.delivery.ports import Content
from agentpost.protocol.ids import CorrId, EventId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.routing import Rejected

__all__ = ["Receipt", "RecipientReceipt", "SendRequest"]


class SendRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A message that a local agent wants sent: to agents by name (or "all"), or to whoever has the capabilities."""

    source_agent_id: str
    to_agents: tuple[str, ...] = ()
    required_capabilities: tuple[str, ...] = ()
    content: Content = Content()
    priority: Priority = Priority.NORMAL
    expects_reply: bool = False
    expires_at: str | None = None
    corr_id: CorrId | None = None


class Receipt(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message is durable here, at `seq`. It says for each recipient where it goes; `rejected` get nothing."""

    event_id: EventId
    corr_id: CorrId
    seq: int
    recipients: tuple[RecipientReceipt, ...]
    rejected: tuple[Rejected, ...] = ()
