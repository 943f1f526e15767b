"""What the engine may ask of a store. Two things implement it: SQLite on a disk, and memory for tests and simulation.

Every write is one transaction: it returns once all of it is durable, or raises a `Refusal` and none of it happened.
Reads are immediate, bounded by a limit, and see every write that has returned.
"""

from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import Protocol

from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.ids import EventId, InviteId, TaskId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store.external_interface import ExternalStore
from agentpost.store.values import (
    Acceptance,
    Accepted,
    Appended,
    AuditEntry,
    BacklogItem,
    Blob,
    Compacted,
    Cursor,
    FailedAttempt,
    Head,
    InboxPosition,
    Incident,
    Invite,
    KeptAnswer,
    KeyedAnswer,
    KnownNode,
    LedgerEntry,
    LocalAgent,
    MirrorBatch,
    MirrorPosition,
    MirrorSlice,
    NamedPayload,
    Note,
    OutboxSlice,
    PayloadUsage,
    PrunedPayloads,
    QuarantinedEvent,
    QuarantineSource,
    ResentLetter,
    Settlement,
    SignedEnd,
    StoredEvent,
    StreamSlice,
    Subscriber,
    TaskEntry,
    TasksRebuilt,
    Unaccepted,
    Watermarks,
)

__all__ = ["Store"]


class Store(ExternalStore, Protocol):
    @property
    def node_id(self) -> str:
        """The node whose outbox this is; nobody else's events are appended (PIPE-1)."""
        ...

    @property
    def epoch(self) -> str:
        """Names this life of the outbox. A restored disk gets a new one, so that readers notice (CUR-6)."""
        ...

    # The outbox and its deliveries

    def append(
        self,
        events: Sequence[Event],
        *,
        deliveries: Sequence[Delivery] = (),
        changes: Sequence[Change] = (),
        notes: Sequence[Note] = (),
        incidents: Sequence[Incident] = (),
        resends: Sequence[ResentLetter] = (),
        keyed: KeyedAnswer | None = None,
    ) -> Awaitable[Appended]:
        """Give the events the next places in the outbox, with the deliveries they start and the changes they make.

        Each event also becomes the next one in the stream of every gateway that its `to_nodes` name. The notes are kept
        and the incidents raised in the same transaction. `resends` are dead letters that the events replace: if one of
        them is none any more, or was sent again already, all of it is refused with `conflict`. The `keyed` answer is
        kept; if the agent has used that key before, all of it is refused with `idempotency_key_reused`.
        """
        ...

    def kept_answer(self, agent_id: str, key: bytes) -> KeptAnswer | None:
        """What a call of the agent with this idempotency key (its sha256) was answered; it may have expired."""
        ...

    def head(self) -> Head: ...

    def read_outbox(
        self, after_seq: int, *, limit: int = 256, max_bytes: int = 1_048_576, may_lag: bool = False
    ) -> OutboxSlice:
        """The next events after `after_seq`; at least one if there is one.

        `may_lag` is for those who hear of every append: what is being told them this moment may not be in it yet.
        """
        ...

    def read_stream(
        self,
        consumer_node_id: str,
        after_seq: int,
        *,
        limit: int = 256,
        max_bytes: int = 1_048_576,
        may_lag: bool = False,
    ) -> StreamSlice:
        """The next events for one reader, at least one if there is one; the own node reads its local mail so."""
        ...

    def find_event(self, event_id: EventId) -> StoredEvent | None:
        """The latest send of an event of this outbox."""
        ...

    def deliveries_of(self, event_id: EventId) -> list[Delivery]: ...

    def due_deliveries(self, now_ms: int, *, limit: int = 256) -> list[Delivery]:
        """The deliveries whose timer has run out, the longest overdue first."""
        ...

    def unaccepted_by(self, node_id: str, *, after_seq: int, through_seq: int, limit: int = 256) -> list[Delivery]:
        """What a gateway has not accepted of these places of the outbox, in their order."""
        ...

    def unaccepted_counts(self, *, most: int) -> list[Unaccepted]:
        """How much each gateway has not accepted, by its name; of the `most` oldest that nobody accepted."""
        ...

    def next_due_at_ms(self) -> int | None:
        """When the next timer of a delivery runs out."""
        ...

    def deliveries_in(
        self, states: Iterable[DeliveryState], *, after: tuple[str, str] = ("", ""), limit: int = 256
    ) -> list[Delivery]:
        """The deliveries in any of these states, ordered by event and recipient; `after` is the last pair seen."""
        ...

    def undelivered(self, *, after: tuple[str, str] = ("", ""), limit: int = 256) -> list[Delivery]:
        """The deliveries that ended and that no agent has dealt with, dead letters among them; `after` as above."""
        ...

    def failed_attempts_of(self, event_id: EventId) -> list[FailedAttempt]:
        """The last try that failed of each recipient of an event from here, as far as their gateways told."""
        ...

    def failing_before(self, delivery: Delivery, *, after_ms: int) -> EventId | None:
        """The event that holds this delivery back: its agent fails with it and it stands before, from the same sender.

        One whose next try was due before `after_ms` is forgotten by its gateway, and holds nothing back.
        """
        ...

    def deliveries_by_corr(self, corr_id: str) -> list[Delivery]:
        """The deliveries of a conversation, ordered by event and recipient."""
        ...

    def count_deliveries(self, *, only: DeliveryState | None = None) -> dict[DeliveryState, int]:
        """How many deliveries are in each state, or in `only` one; a state without any is left out.

        All of them are looked at, or those of the one state.
        """
        ...

    def reschedule(self, pairs_due: Sequence[tuple[EventId, str, int | None]]) -> Awaitable[None]:
        """Move the timers of deliveries that have not ended; no attempt is spent by that. Others stay as they are.

        None is no timer.
        """
        ...

    def purge_deliveries(self, pairs: Sequence[tuple[EventId, str]]) -> Awaitable[int]:
        """Forget deliveries that have ended (RTY-7). Gives how many there were; others stay."""
        ...

    # The inbox and its ledger

    def promises(self, events: int) -> bool:
        """Whether what is asked for next, about so many events, will be found by every read on this loop from now on.

        Then whoever is interested can be told of it at once: it is written before anything else happens. Only what
        would be heard of again after a crash may be told so early.
        """
        ...

    def accept(self, batch: Acceptance) -> Awaitable[Accepted]:
        """Take a batch from a source: inbox, ledger, ACKs and cursor move together, or not at all (CUR-2)."""
        ...

    def engage(self, event_id: EventId, to_agent_id: str, *, at_ms: int, until_ms: int = 0) -> Awaitable[int]:
        """Record that the agent is about to run, before it does. Gives the number of this attempt.

        With `until_ms`, the event stays with the agent until then whoever serves it meanwhile, as its `due_at_ms` says.
        Refused with `expired` for an event whose time has passed (ENV-7): it is settled, never injected.
        """
        ...

    def extend_lease(self, event_id: EventId, to_agent_id: str, *, until_ms: int) -> Awaitable[bool]:
        """Let an event stay with its agent until then, as its `due_at_ms` says; never for less than before.

        False if it is not with the agent any more.
        """
        ...

    def give_back(
        self, event_id: EventId, to_agent_id: str, *, attempt: int, engaged_at_ms: int | None
    ) -> Awaitable[bool]:
        """Undo attempt number `attempt`, which never reached its agent: it does not count, and the event is due.

        `engaged_at_ms` is when the attempt before it began. False if the event is not with the agent by this attempt.
        """
        ...

    def postpone(self, event_id: EventId, to_agent_id: str, *, due_at_ms: int, error: str) -> Awaitable[None]:
        """Record that an attempt failed and when the next one is due (RTY-4)."""
        ...

    def settle(self, settlement: Settlement) -> Awaitable[bool]:
        """Close a ledger row and append what tells of it. False, and no event, if it was closed already."""
        ...

    def settle_all(self, settlements: Sequence[Settlement]) -> Awaitable[list[bool]]:
        """The same for many, all of them or none. One that was never accepted is passed over: False."""
        ...

    def backlog(
        self, to_agent_id: str, *, after_inbox_seq: int = 0, limit: int = 256, unread_only: bool = False
    ) -> list[BacklogItem]:
        """What the agent has not settled, oldest first (RTY-5); or, of that, what it has not looked at."""
        ...

    def backlog_size(self, to_agent_id: str, *, unread_only: bool = False, most: int | None = None) -> int:
        """How many events the agent has not settled; or, of these, how many it has not looked at.

        With `most` it is not counted further than that.
        """
        ...

    def waiting_agents(self) -> list[str]:
        """The agents that have something that is not settled; who has the oldest of it comes first."""
        ...

    def expired_mail(self, *, now_ms: int, limit: int = 256, skip: int = 0) -> list[BacklogItem]:
        """What waits for an agent and may not be given to it any more (ENV-7), what expired first at first.

        The first `skip` of it are left out.
        """
        ...

    def urgent_unread(self, to_agent_id: str, *, limit: int = 256) -> list[BacklogItem]:
        """Messages of high priority that the agent has neither settled nor looked at, oldest first."""
        ...

    def engaged_entries(self) -> list[LedgerEntry]:
        """What is with an agent and has no outcome, oldest first. After a start nobody knows what became of it."""
        ...

    def inbox_items(
        self,
        to_agent_id: str,
        *,
        after_inbox_seq: int = 0,
        limit: int = 256,
        include_settled: bool = True,
        newest_first: bool = False,
    ) -> list[BacklogItem]:
        """The agent's inbox, as far as it is not pruned. Looking at it changes nothing.

        `after_inbox_seq` is where the page before ended, in the order asked for; 0 for the first page.
        """
        ...

    def inbox_item(self, event_id: EventId, to_agent_id: str) -> BacklogItem | None: ...

    def inbox_by_corr(self, corr_id: str) -> list[BacklogItem]:
        """What came in within a conversation, for whichever agent, as far as it is not pruned; oldest first."""
        ...

    def mark_read(self, event_id: EventId, to_agent_id: str, *, at_ms: int) -> Awaitable[bool]:
        """Note that the agent has looked at an event. False if it had before."""
        ...

    def ledger_entry(self, event_id: EventId, to_agent_id: str) -> LedgerEntry | None: ...

    def inbox_position(self) -> InboxPosition: ...

    def accept_again(self, batch: Acceptance, *, quarantine_ids: tuple[int, ...]) -> Awaitable[Accepted]:
        """Take events out of the quarantine that can be read now (ENV-6). The cursor has passed them and stays."""
        ...

    def quarantined(
        self, *, source_node_id: str | None = None, after_id: int = 0, limit: int = 256
    ) -> list[QuarantinedEvent]:
        """Events that could not be read, in the order in which they came; those of one source, or all."""
        ...

    def quarantined_body(self, quarantine_id: int) -> bytes | None: ...

    def quarantine_sources(self) -> list[QuarantineSource]:
        """The sources of which something is in the quarantine, or was dropped."""
        ...

    # Tasks. They change with the events that are appended and accepted, in the same transaction.

    def task(self, task_id: TaskId) -> TaskRecord | None: ...

    def tasks(
        self, *, after: str = "", limit: int = 256, open_only: bool = False, newest_first: bool = False
    ) -> list[TaskRecord]:
        """Ordered by id, which is the order in which they were created. `after` is where the page before ended."""
        ...

    def tasks_of(
        self, requester_agent_id: str, *, before: tuple[int, str] | None = None, limit: int = 256
    ) -> list[TaskRecord]:
        """What an agent asked for, the last changed first.

        `before` is where the page before ended: the `updated_at_ms` and the id of its last task.
        """
        ...

    def task_events(self, task_id: TaskId) -> list[TaskEntry]:
        """What was said and heard about a task, in that order."""
        ...

    def rebuild_tasks(self, *, check_only: bool = False) -> Awaitable[TasksRebuilt]:
        """Fold the events again and put the result in the place of what was kept; with `check_only` only compare."""
        ...

    # Cursors and compaction

    def cursor(self, source_node_id: str) -> Cursor | None: ...

    def signed_end(self, source_node_id: str) -> SignedEnd | None:
        """Where a source ended when something of it was last accepted, as it signed that itself."""
        ...

    def cursors(self) -> list[Cursor]: ...

    def restart_cursor(self, source_node_id: str, *, epoch: str, at_ms: int) -> Awaitable[None]:
        """Read a source from its start, in a new epoch (CUR-6). The ledger still knows what was taken before."""
        ...

    def note_subscriber(self, subscriber: Subscriber) -> Awaitable[None]: ...

    def subscribers(self) -> list[Subscriber]: ...

    def watermarks(self, *, now_ms: int, retention_events: int, is_alone: bool = False) -> Watermarks:
        """How far both streams may be pruned (PIPE-7, PIPE-8). They only move up, so they are asked for once a round.

        `is_alone` says that the room has no other node. Then this gateway itself is the only reader of its outbox.
        """
        ...

    def compact(self, watermarks: Watermarks, *, limit: int = 10_000) -> Awaitable[Compacted]:
        """Prune both streams up to their watermarks, at most `limit` events of each."""
        ...

    def prune_settled(self, *, before_ms: int, limit: int = 10_000) -> Awaitable[int]:
        """Forget what ended before `before_ms`: ledger rows, deliveries, tasks, `limit` of each; dead letters stay.

        What the ledger has forgotten is no repeat any more (RTY-3): `before_ms` lies further back than any resend.
        Gives how many were forgotten, 0 once there is no more.
        """
        ...

    def prune_records(self, *, now_ms: int, before_ms: int, limit: int = 1_000) -> Awaitable[int]:
        """Forget idempotency keys that have expired at `now_ms`; and what ended before `before_ms`: closed incidents,
        used, withdrawn and expired invites, sessions of agents outside with their tokens, and quarantined events.

        At most `limit` of each. Gives how many there were. The last incident stays, so that no id is given twice.
        """
        ...

    # Mirrors of other outboxes (PIPE-9)

    def mirrors(self) -> list[MirrorPosition]: ...

    def mirror_position(self, source_node_id: str) -> MirrorPosition | None: ...

    def keep_mirror(self, batch: MirrorBatch) -> Awaitable[None]:
        """Keep a batch after those that are kept. An empty mirror may begin anywhere; a repeat changes nothing."""
        ...

    def restart_mirror(self, source_node_id: str, *, epoch: str, at_ms: int) -> Awaitable[None]:
        """Begin the mirror of a source anew and empty; what it had of an earlier epoch is dropped (CUR-6)."""
        ...

    def read_mirror(self, source_node_id: str, consumer_node_id: str, after_seq: int) -> MirrorSlice | None:
        """A reader's events up to one head: the first that covers its next event, else the last. None if that is old.

        A batch is handed on as it was kept, whole, because only its end is signed.
        """
        ...

    def read_whole_mirror(self, source_node_id: str, after_seq: int) -> MirrorSlice | None:
        """All events up to the next head, for another mirror, with the chain of the whole outbox.

        Begins after what was pruned, if `after_seq` lies before that.
        """
        ...

    def last_head_for(self, source_node_id: str, consumer_node_id: str) -> bytes | None:
        """The head that covers the last event for a reader; None if no event for it is kept."""
        ...

    def prune_mirror(self, source_node_id: str, *, through_seq: int) -> Awaitable[int]:
        """Drop the events of a mirror through `through_seq`. Gives how many there were."""
        ...

    # Keeping

    def remember_once(self, scope: str, value: str, *, now_ms: int, expires_at_ms: int) -> Awaitable[bool]:
        """Whether this value is new in its scope; it is not for the second one who asks, until it expires."""
        ...

    def record_audit(self, entries: Sequence[AuditEntry]) -> Awaitable[None]: ...

    def audit_log(self, *, after_id: int = 0, limit: int = 256) -> list[AuditEntry]: ...

    def put_notes(self, notes: Sequence[Note]) -> Awaitable[None]:
        """Keep all of them, each in the place of the one before; a note without a value goes away."""
        ...

    def note(self, collection: str, key: str) -> Note | None: ...

    def notes(self, collection: str, *, after_key: str = "", limit: int = 256) -> list[Note]:
        """The notes of a collection, by key."""
        ...

    def count_notes(self, collection: str) -> int: ...

    # Agents and incidents

    def put_agent(self, agent: LocalAgent) -> Awaitable[None]:
        """Add an agent, or put it in the place of the one with its id."""
        ...

    def remove_agent(self, agent_id: str) -> Awaitable[bool]:
        """False if there was none. What waits for it stays."""
        ...

    def local_agents(self) -> list[LocalAgent]: ...

    def local_agent(self, agent_id: str) -> LocalAgent | None: ...

    def local_agent_ids(self) -> Collection[str]:
        """Who is an agent of this gateway: asked with every message, so it is cheap."""
        ...

    def raise_incident(self, incident: Incident) -> Awaitable[bool]:
        """False, and nothing new, if one of this kind and subject is open already."""
        ...

    def close_incident(self, kind: str, subject: str, *, at_ms: int) -> Awaitable[bool]:
        """False if none is open."""
        ...

    def incidents(self, *, open_only: bool = True, after_id: int = 0, limit: int = 256) -> list[Incident]:
        """In the order in which they were raised."""
        ...

    def open_incidents_of(self, kind: str) -> list[Incident]:
        """All open incidents of one kind, by subject."""
        ...

    def count_incidents(self) -> dict[str, int]:
        """How many incidents are open, by kind. Kinds without any are left out."""
        ...

    # Joining

    def create_invite(self, invite: Invite) -> Awaitable[None]: ...

    def invite_by_hash(self, token_hash: bytes) -> Invite | None: ...

    def invite(self, invite_id: InviteId) -> Invite | None: ...

    def invites(self, *, limit: int = 256) -> list[Invite]:
        """The latest invites, the newest first."""
        ...

    def consume_invite_and_pin(self, invite_id: InviteId, node: KnownNode) -> Awaitable[KnownNode]:
        """Use up the invite and pin the node's key, together (AUTH-5). Refused for all but the first who ask.

        An invite that is still open was made after any revocation of its node, so it lets that node in again.
        """
        ...

    def withdraw_invite(self, invite_id: InviteId, *, at_ms: int) -> Awaitable[bool]:
        """Take back an invite that is open. False if it is not, or not there."""
        ...

    def known_node(self, node_id: str) -> KnownNode | None: ...

    def known_nodes(self) -> list[KnownNode]: ...

    def pin_node(self, node: KnownNode) -> Awaitable[KnownNode]:
        """Pin a node that somebody else admitted. Refused if its id has another key here, or is revoked."""
        ...

    def revoke_node(self, node_id: str, *, at_ms: int) -> Awaitable[bool]:
        """Revoke a node and withdraw its open invites (ROOM-6). False if there was nothing to take away."""
        ...

    # The room

    def append_room_update(self, update: bytes) -> Awaitable[None]:
        """Keep an update of the room after those that are kept already."""
        ...

    def room_updates(self) -> list[bytes]:
        """The updates in the order in which they were kept; together they are the room."""
        ...

    def compact_room(self, snapshot: bytes) -> Awaitable[None]:
        """Put one update, which is the whole room, in the place of all."""
        ...

    # Blobs

    def begin_blob(self, blob: Blob, *, at_ms: int) -> Awaitable[None]: ...

    def put_chunk(self, sha256: str, part: int, data: bytes) -> Awaitable[None]: ...

    def complete_blob(self, sha256: str) -> Awaitable[None]:
        """Check all chunks against the address; only then does the blob count as there."""
        ...

    def drop_blob(self, sha256: str) -> Awaitable[None]: ...

    def name_payloads(self, payloads: Sequence[NamedPayload]) -> Awaitable[None]:
        """Note who may read these payloads (PIPE-5), and where their events stand in a mirror. What was noted stays."""
        ...

    def may_read_payload(self, sha256: str, node_id: str) -> bool: ...

    def missing_payloads(self, *, limit: int = 256) -> list[NamedPayload]:
        """Payloads of mirrored events that are not here, or not all of them; without their readers."""
        ...

    def prune_payloads(
        self, *, now_ms: int, grace_ms: int, after_sha256: str = "", limit: int = 1_000
    ) -> Awaitable[PrunedPayloads]:
        """Look at the next `limit` payloads, and drop those that nobody has needed for `grace_ms` (PIPE-7).

        A payload is needed by every event that names it and is kept: in outbox, inbox or a mirror, among those of a
        task, as a dead letter, or with a delivery that has no good end yet.
        """
        ...

    def payload_usage(self) -> PayloadUsage: ...

    def payloads(self, *, after_sha256: str = "", limit: int = 256) -> list[Blob]:
        """The payloads that are here, be they complete or not, in the order of their addresses."""
        ...

    def payload_sources(self, sha256: str) -> list[str]:
        """The other gateways that named this payload: it can be fetched from them, or from whoever mirrors them."""
        ...

    def blob(self, sha256: str) -> Blob | None: ...

    def chunk(self, sha256: str, part: int) -> bytes | None: ...

    def missing_chunks(self, sha256: str) -> list[int]: ...

    def close(self) -> Awaitable[None]: ...
