"""What is said to the operations of mail, and what they give. Their docstrings are what models are told."""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from agentpost.delivery.mailroom import InboxLine
from agentpost.delivery.placing import RecipientReceipt
from agentpost.delivery.ports import Content, Engagement, ResultKind
from agentpost.delivery.pull import LONGEST_WAIT_SECONDS
from agentpost.delivery.sent import SentTo
from agentpost.edges.operations.calling import NOTICE, IdempotencyKey
from agentpost.protocol.headers import HeaderKind
from agentpost.protocol.ids import EventId
from agentpost.protocol.payloads import Priority
from agentpost.protocol.routing import Rejected

__all__ = ["MarkArgs", "Marked", "Messages", "Opened", "Outgoing", "ReadArgs", "SendArgs", "Sent"]

_MOST_LINES: Final = 100
_MOST_BODIES: Final = 10

EventIds = Annotated[tuple[str, ...], Meta(max_length=_MOST_BODIES)]
WaitSeconds = Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SECONDS)]


class ReadArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """See what came for you: lines without bodies, the newest first; then the bodies that you ask for by `eventIds`.

    Reading never consumes: a message stays open until you answer it, or settle it with ansible_mark_read. With `claim`
    you get whole messages to work on, oldest first, which nobody else gets until you settle them or the lease is over.
    """

    event_ids: Annotated[
        EventIds, Meta(description="Messages whose bodies are wanted, which are marked as read; none gives lines.")
    ] = ()
    only_open: Annotated[bool, Meta(description="Only messages that have no outcome yet.")] = True
    limit: Annotated[int, Meta(ge=1, le=_MOST_LINES, description="How many lines, or claimed messages.")] = 20
    after: Annotated[int | None, Meta(description="Only what came after this inboxSeq, the oldest first.")] = None
    before: Annotated[int | None, Meta(description="Only what came before this inboxSeq: the next older lines.")] = None
    max_characters: Annotated[int, Meta(ge=100, le=1_000_000, description="Of each body.")] = 4_000
    claim: Annotated[bool, Meta(description="Take messages to work on.")] = False
    wait_seconds: Annotated[WaitSeconds, Meta(description="Wait so long if there is nothing.")] = 0


class Opened(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One message, with as much of its body as was asked for."""

    line: InboxLine
    content: Content
    characters_left_out: int = 0


class Messages(Struct, frozen=True, kw_only=True, rename="camel"):
    """`open` and `unread` count all that has no outcome yet, shown or not."""

    agent_id: str
    at: str
    open: int
    unread: int
    messages: list[InboxLine] = []
    bodies: list[Opened] = []
    claimed: list[Engagement] = []
    notice: str = NOTICE
    next: str = ""


class MarkArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Note that you have read messages; with `settle`, also what became of them, which their senders hear.

    What `failed`, or shall come again later (`retry`), was claimed before.
    """

    event_ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100, description="Messages of your inbox.")]
    settle: Annotated[ResultKind | None, Meta(description="`processed`: done, no reply needed.")] = None
    error: Annotated[str | None, Meta(description="Why it failed, or has to come again.")] = None


class Marked(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is read now, and what of it was settled by this call."""

    event_ids: tuple[str, ...]
    settled: tuple[str, ...] = ()


class Outgoing(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A message to send. Say who it is for with `toAgents`, or with `requiredCapabilities`."""

    to_agents: Annotated[tuple[str, ...], Meta(description='Agent ids; ["all"] for everyone.')] = ()
    required_capabilities: Annotated[tuple[str, ...], Meta(description="Instead of agents: what they can do.")] = ()
    subject: Annotated[str | None, Meta(description="In a few words.")] = None
    body: Annotated[str | None, Meta(description="What you want to say.")] = None
    context: Annotated[Any, Meta(description="Data that goes with it.")] = None
    priority: Priority = Priority.NORMAL
    kind: Annotated[HeaderKind | None, Meta(description="What you want with it; a header of the body.")] = None
    thread: Annotated[str | None, Meta(description="What it is about, e.g. release 1.3; a header of the body.")] = None
    expects_reply: bool = False
    ttl_seconds: Annotated[int | None, Meta(description="Not to be delivered after so long.")] = None
    corr_id: Annotated[str | None, Meta(description="The conversation; a new one without it.")] = None


class SendArgs(Outgoing, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Send a message to other agents, or answer one with `replyTo`. When this returns, it is durable.

    The answer says who is away, and how much each has waiting. With `waitSeconds` it also says what became of it, and
    what was replied.
    """

    reply_to: Annotated[str | None, Meta(description="The eventId of the message that this answers.")] = None
    wait_seconds: Annotated[WaitSeconds, Meta(description="Wait so long for the reply.")] = 0
    idempotency_key: IdempotencyKey = None


class Sent(Struct, frozen=True, kw_only=True, rename="camel"):
    """`settled`: the message that this answers is done. `deliveries` are there if they were waited for."""

    event_id: EventId
    corr_id: str
    recipients: tuple[RecipientReceipt, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    settled: bool = False
    deliveries: list[SentTo] = []
