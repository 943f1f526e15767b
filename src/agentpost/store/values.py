"""What goes into a store and comes out of it. Frozen values, no behaviour, no SQL."""

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from agentpost.protocol.codec import Unreadable
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.ids import EventId, InviteId, TaskId
from agentpost.protocol.payloads import PayloadRef
from agentpost.protocol.snapshot import NodeTier

__all__ = [
    "CHAIN_START",
    "PIPELINE_WATERMARK",
    "Acceptance",
    "Accepted",
    "Appended",
    "AuditEntry",
    "BacklogItem",
    "Blob",
    "Compacted",
    "Cursor",
    "Desk",
    "FailedAttempt",
    "FailureReport",
    "Head",
    "Inbound",
    "Incident",
    "InboxPosition",
    "Invite",
    "KeptAnswer",
    "KeyedAnswer",
    "KnownNode",
    "LedgerEntry",
    "LedgerState",
    "LocalAgent",
    "MirrorBatch",
    "MirrorEvent",
    "MirrorPosition",
    "MirrorSlice",
    "NamedPayload",
    "Note",
    "Outcome",
    "OutboxSlice",
    "QuarantineSource",
    "QuarantinedEvent",
    "Settlement",
    "SignedEnd",
    "StoredEvent",
    "StreamEvent",
    "StreamSlice",
    "Subscriber",
    "TaskEntry",
    "TasksRebuilt",
    "Watermarks",
    "Unaccepted",
]

CHAIN_START: Final = bytes(32)


class Head(Struct, frozen=True, kw_only=True):
    """The end of an outbox: its last seq, and the hash that covers everything up to it."""

    seq: int
    chain: bytes


class Appended(Struct, frozen=True, kw_only=True, gc=False):
    """Where an append ended up. The events stand at `first_seq` to `last_seq`, in the order given."""

    first_seq: int
    last_seq: int


class StoredEvent(Struct, frozen=True, kw_only=True, gc=False):
    seq: int
    chain: bytes
    raw: bytes


class OutboxSlice(Struct, frozen=True, kw_only=True):
    """Events after `after_seq`, in order. `floor_seq` tells how far the outbox was pruned, `floor_chain` is the chain
    up to there. `ends` is where, with these events, each stream ends that has one of them; None if it has to be asked
    for."""

    after_seq: int
    floor_seq: int
    floor_chain: bytes
    events: tuple[StoredEvent, ...]
    ends: dict[str, Head] | None = None


class StreamEvent(Struct, frozen=True, kw_only=True):
    """An event of one reader's stream; `chain` is the chain of that stream up to and with it."""

    seq: int
    chain: bytes
    raw: bytes


class StreamSlice(Struct, frozen=True, kw_only=True):
    """What one reader gets of the outbox after `after_seq`, in order; what is left out was not for it.

    `through_seq` is the seq of the last event here if more remain, else that of the head. `outbox_chain` and `chain`
    are those of the whole outbox and of the stream at `through_seq`; `last_event_seq` is the stream's last event up to
    there. `floor_seq` is the last event of the stream that was pruned: who stands before it cannot get all the rest.
    """

    after_seq: int
    through_seq: int
    floor_seq: int
    outbox_chain: bytes
    chain: bytes
    last_event_seq: int
    events: tuple[StreamEvent, ...]


class Desk(Struct, frozen=True, kw_only=True):
    """What the gateway itself does with an event about a task, decided by the task as it is in that transaction.

    `refused` has the ACKs for an event that its sender could not say: they stand in the place of the others. If the
    gateway `closes` the event no agent is engaged with it: its row is opened and settled at once. `tells` are events
    that follow a claim which won (TASK-6). `repeated` has the ACKs for what was heard already under another id.
    """

    refused: dict[str, Event] = {}
    repeated: dict[str, Event] = {}
    closes: bool = False
    tells: tuple[Event, ...] = ()


class Inbound(Struct, frozen=True, kw_only=True):
    """One event that was read, and an `accepted` ACK for each local agent that is to get it.

    An event without recipients here (an ACK, say) only moves the cursor and the deliveries it speaks of. One with a
    `desk` changes a task.
    """

    event: Event
    raw: bytes
    acks: dict[str, Event] = {}
    desk: Desk | None = None


class SignedEnd(Struct, frozen=True, kw_only=True):
    """Where an outbox ended, as its owner signed it."""

    head: bytes
    signature: bytes


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """The last try of an agent that failed with an event from here, as its gateway `by_node_id` told it.

    `raw` is the event that told it: the error is sealed in there. `next_at_ms` is None if there is no other try.
    `first_at_ms` is when the first one was told; given when it is kept. With `holds_back`, later mail of the same
    sender waits behind it.
    """

    event_id: EventId
    to_agent_id: str
    attempt: int
    most_attempts: int
    at_ms: int
    first_at_ms: int = 0
    next_at_ms: int | None = None
    holds_back: bool = False
    raw: bytes
    by_node_id: str = ""


class FailureReport(Struct, frozen=True, kw_only=True):
    """What its sender is told if a delivery ends as failed: an event with its own delivery."""

    event_id: EventId
    to_agent_id: str
    event: Event
    delivery: Delivery


class Acceptance(Struct, frozen=True, kw_only=True):
    """A batch that was read from one source: everything after `after_seq` through `through_seq`.

    What the source left out of that range was not for this gateway. `through_chain` is that of the stream it was read
    from.
    """

    source_node_id: str
    source_epoch: str
    after_seq: int
    through_seq: int
    through_chain: bytes = CHAIN_START
    events: tuple[Inbound, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    changes: tuple[Change, ...] = ()
    # What is said of tries that failed, and to senders whose deliveries the changes end as failed.
    failed_attempts: tuple[FailedAttempt, ...] = ()
    reports: tuple[FailureReport, ...] = ()
    at_ms: int
    # What of the whole outbox is kept for others in the same transaction.
    mirror: "MirrorBatch | None" = None
    signed_end: SignedEnd | None = None
    incidents: "tuple[Incident, ...]" = ()


class Accepted(Struct, frozen=True, kw_only=True):
    """What a batch changed: the (event, agent) pairs that are new here, and those that were known.

    `inbox_seqs` has the place of each new pair in the inbox. `closed` are new too, and settled already: the gateway
    dealt with them. `tasks` are those that the batch changed. `reported` are the deliveries of reports that were
    appended. `taken_ids` are those of events that were not taken: an
    event of another node stands in the inbox under the same id, and one of the two lies.
    """

    new: tuple[tuple[EventId, str], ...]
    inbox_seqs: tuple[int, ...] = ()
    closed: tuple[tuple[EventId, str], ...] = ()
    tasks: tuple[TaskId, ...] = ()
    repeated: tuple[tuple[EventId, str], ...]
    orphans: tuple[Change, ...]
    cursor_seq: int
    taken_ids: tuple[EventId, ...] = ()
    reported: tuple[Delivery, ...] = ()


class LedgerState(StrEnum):
    QUEUED = "queued"
    ENGAGED = "engaged"
    SETTLED = "settled"


class Outcome(StrEnum):
    PROCESSED = "processed"
    FAILED_TERMINAL = "failed_terminal"
    EXPIRED = "expired"


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """The receiver's record of one (event, agent): injected once, settled once."""

    event_id: EventId
    to_agent_id: str
    inbox_seq: int
    state: LedgerState
    attempts: int = 0
    due_at_ms: int = 0
    accepted_at_ms: int
    engaged_at_ms: int | None = None
    settled_at_ms: int | None = None
    outcome: Outcome | None = None
    error: str | None = None
    read_at_ms: int | None = None


class BacklogItem(Struct, frozen=True, kw_only=True):
    """An event of an agent's inbox, and what became of it there."""

    entry: LedgerEntry
    source_node_id: str
    source_seq: int
    raw: bytes


class Unaccepted(Struct, frozen=True, kw_only=True):
    """How much a gateway has not accepted of what was sent to it, and when the oldest of that was sent."""

    node_id: str
    count: int
    since_ms: int


class ResentLetter(Struct, frozen=True, kw_only=True):
    """A dead letter that is sent again as another event."""

    event_id: EventId
    to_agent_id: str
    resent_as: EventId


class KeyedAnswer(Struct, frozen=True, kw_only=True):
    """What a call with an idempotency key is answered, kept in the transaction of what it writes.

    `key` and `request` are sha256: of the key, and of all that the call says. An agent has one answer for each key
    until `expires_at_ms`.
    """

    agent_id: str
    key: bytes
    request: bytes
    answer: bytes
    at_ms: int
    expires_at_ms: int


class KeptAnswer(Struct, frozen=True, kw_only=True):
    """A kept answer. `seq` is the place of the first event that the call appended."""

    request: bytes
    answer: bytes
    seq: int
    expires_at_ms: int


class Settlement(Struct, frozen=True, kw_only=True):
    """The end of one (event, agent): the outcome, the events that tell of it, and their own deliveries.

    `engaged_at_ms` is set for an attempt that was not recorded when it began: it counts with its outcome.
    """

    event_id: EventId
    to_agent_id: str
    outcome: Outcome
    at_ms: int
    engaged_at_ms: int | None = None
    events: tuple[Event, ...]
    deliveries: tuple[Delivery, ...] = ()
    error: str | None = None
    keyed: KeyedAnswer | None = None


class Cursor(Struct, frozen=True, kw_only=True):
    """How far this gateway has read a source: the last contiguous seq that is durable here (CUR-1).

    `last_chain` is that of the stream it reads.
    """

    source_node_id: str
    epoch: str
    last_seq: int
    last_chain: bytes
    updated_at_ms: int


# No node can be called that. What stands under this name is no reader of the outbox but a watermark of the fleet's
# pipeline: as long as its lease lasts nothing above it is pruned, and nothing more is pruned because of it.
PIPELINE_WATERMARK: Final = "~pipeline"


class Subscriber(Struct, frozen=True, kw_only=True):
    """How far another gateway says it has read this outbox, and until when its word counts (CUR-5)."""

    consumer_node_id: str
    epoch: str
    last_seq: int
    updated_at_ms: int
    lease_expires_at_ms: int


class NamedPayload(Struct, frozen=True, kw_only=True):
    """A payload that an event speaks of, and who may read it (PIPE-5). `seq` is 0 for an event of this gateway."""

    sha256: str
    source_node_id: str
    size_bytes: int
    seq: int = 0
    readers: tuple[str, ...] = ()

    @classmethod
    def of(cls, ref: PayloadRef, source_node_id: str, *, seq: int = 0) -> "NamedPayload":
        """The gateways that have a key to it may fetch it."""
        return cls(
            sha256=ref.sha256,
            source_node_id=source_node_id,
            size_bytes=ref.size_bytes,
            seq=seq,
            readers=tuple(ref.keys),
        )


class PrunedPayloads(Struct, frozen=True, kw_only=True):
    """What one step dropped. The next one goes on after `through_sha256`; None if all payloads were looked at."""

    payloads: int
    size_bytes: int
    through_sha256: str | None


class PayloadUsage(Struct, frozen=True, kw_only=True):
    """The payloads that are here, also those that are not here as a whole yet, and the size of all of them."""

    payloads: int = 0
    size_bytes: int = 0


class MirrorEvent(Struct, frozen=True, kw_only=True):
    """An event of another node's outbox; `chain` is that of the whole outbox up to and with it.

    `stream_chains` are those of the streams of `to_nodes`, in their order; none where they are not known.
    """

    seq: int
    chain: bytes
    raw: bytes
    to_nodes: tuple[str, ...]
    stream_chains: tuple[bytes, ...] = ()


class MirrorBatch(Struct, frozen=True, kw_only=True):
    """All events of an outbox after `after_seq` through `through_seq`, and the head that its owner signed for them.

    `before_chain` is what the first of them builds on.
    """

    source_node_id: str
    epoch: str
    after_seq: int
    through_seq: int
    events: tuple[MirrorEvent, ...]
    head: bytes
    signature: bytes
    at_ms: int
    before_chain: bytes = CHAIN_START


class MirrorPosition(Struct, frozen=True, kw_only=True):
    """How far an outbox is mirrored here, and how far its mirror was pruned. `floor_chain` is what its first event
    builds on."""

    source_node_id: str
    epoch: str
    last_seq: int
    last_chain: bytes
    floor_seq: int
    floor_chain: bytes = CHAIN_START


class MirrorSlice(Struct, frozen=True, kw_only=True):
    """What a mirror hands on: events after `after_seq`, through the seq of one head with its owner's signature.

    The chains are as this mirror knows them, from where it began. A reader believes only the head.
    """

    source_node_id: str
    epoch: str
    after_seq: int
    through_seq: int
    head: bytes
    signature: bytes
    events: tuple[StreamEvent, ...]


class LocalAgent(Struct, frozen=True, kw_only=True):
    """An agent of this gateway, and how it is engaged: the name of its runtime, and what that wants to know."""

    agent_id: str
    runtime: str
    options: dict[str, Any] = {}
    created_at_ms: int
    is_paused: bool = False


class InboxPosition(Struct, frozen=True, kw_only=True):
    """`acked_seq` is the last inbox seq up to which everything has an outcome."""

    latest_seq: int
    acked_seq: int


class Watermarks(Struct, frozen=True, kw_only=True):
    """How far both streams may be pruned; 0 for not at all."""

    outbox_seq: int
    inbox_seq: int


class Compacted(Struct, frozen=True, kw_only=True):
    """What a compaction removed, and how far both streams are pruned now."""

    outbox_events: int
    inbox_events: int
    outbox_floor_seq: int
    inbox_floor_seq: int


class QuarantinedEvent(Struct, frozen=True, kw_only=True):
    """An event of another gateway that could not be read (ENV-6), and why. Its bytes are asked for by its `id`."""

    id: int
    source_node_id: str
    source_epoch: str
    source_seq: int | None
    event_id: str | None
    code: str
    message: str
    at_ms: int
    size_bytes: int


class QuarantineSource(Struct, frozen=True, kw_only=True):
    """How much of one source is in the quarantine; `dropped` were more than are kept."""

    source_node_id: str
    events: int
    size_bytes: int
    dropped: int


class AuditEntry(Struct, frozen=True, kw_only=True):
    """Who did what to what, and within which conversation and session. Never a secret, never content.

    `id` is its place in the log, given when it is recorded.
    """

    id: int = 0
    at_ms: int
    actor: str
    action: str
    subject: str | None = None
    corr_id: str | None = None
    session_id: str | None = None
    detail: dict[str, str | int | bool | None] = {}


class Note(Struct, frozen=True, kw_only=True):
    """What a layer above keeps under a key of its own. Without a value, as a change, it takes the note away."""

    collection: str
    key: str
    value: bytes | None
    at_ms: int


class Incident(Struct, frozen=True, kw_only=True):
    """Something that a person should look at. There is one open incident at most for each kind and subject.

    `id` is its place in the list, given when it is raised.
    """

    id: int = 0
    kind: str
    subject: str
    at_ms: int
    corr_id: str | None = None
    detail: dict[str, str | int | bool | None] = {}
    closed_at_ms: int | None = None


class Invite(Struct, frozen=True, kw_only=True):
    """Leave for one node to join once (AUTH-2). The token itself is nowhere: `token_hash` is its sha256.

    `public_key`, where it was registered beforehand, is the only one that may use the invite. `tailnet_name` says which
    node of the tailnet has to be at the other end.
    """

    invite_id: InviteId
    token_hash: bytes
    tier: NodeTier
    expected_node_id: str
    public_key: str | None = None
    created_by: str
    created_at_ms: int
    expires_at_ms: int
    consumed_at_ms: int | None = None
    consumed_by: str | None = None
    revoked_at_ms: int | None = None
    tailnet_name: str | None = None


class KnownNode(Struct, frozen=True, kw_only=True):
    """A node that has joined, and the public keys that its id is pinned to (AUTH-7).

    A node that joined a lab without proofs has no key, and takes a new invite each time.
    """

    node_id: str
    signing_public: str | None
    sealing_public: str | None = None
    tier: NodeTier
    admitted_by: str
    invite_id: InviteId | None = None
    pinned_at_ms: int
    revoked_at_ms: int | None = None


class Blob(Struct, frozen=True, kw_only=True):
    """Encrypted content as it is kept: `sha256` is of all its chunks, one after the other."""

    sha256: str
    size_bytes: int
    chunk_bytes: int
    chunks: int
    complete: bool


class TaskEntry(Struct, frozen=True, kw_only=True):
    """One event that concerns a task: said by this gateway, or heard. `place` is its place among all of them."""

    place: int = 0
    task_id: TaskId
    event_id: EventId
    is_own: bool
    at_ms: int
    raw: bytes


class TasksRebuilt(Struct, frozen=True, kw_only=True, rename="camel"):
    """What folding all events again came to. `differing` are the tasks that were kept otherwise."""

    tasks: int
    events: int
    differing: tuple[TaskId, ...]
    recovered_events: int = 0
