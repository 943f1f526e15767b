"""What the engine may ask of a store. Two things implement it: SQLite on a disk, and memory for tests and simulation.

Every write is one transaction: it returns once all of it is durable, or raises a `Refusal` and none of it happened.
Reads are immediate, bounded by a limit, and see every write that has returned.
"""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.ids import EventId, InviteId
from agentpost.store.values import (
    Acceptance,
    Accepted,
    Appended,
    AuditEntry,
    BacklogItem,
    Blob,
    Compacted,
    Cursor,
    Head,
    InboxPosition,
    Invite,
    KnownNode,
    LedgerEntry,
    OutboxSlice,
    QuarantineEntry,
    Settlement,
    StoredEvent,
    Subscriber,
)

__all__ = ["Store"]


class Store(Protocol):
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
        self, events: Sequence[Event], *, deliveries: Sequence[Delivery] = (), changes: Sequence[Change] = ()
    ) -> Awaitable[Appended]:
        """Give the events the next places in the outbox, with the deliveries they start and the changes they make."""
        ...

    def head(self) -> Head: ...

    def read_outbox(self, after_seq: int, *, limit: int = 256, max_bytes: int = 1_048_576) -> OutboxSlice:
        """The next events after `after_seq`; at least one if there is one."""
        ...

    def find_event(self, event_id: EventId) -> StoredEvent | None:
        """The latest send of an event of this outbox."""
        ...

    def deliveries_of(self, event_id: EventId) -> list[Delivery]: ...

    def due_deliveries(self, now_ms: int, *, limit: int = 256) -> list[Delivery]:
        """The deliveries whose timer has run out, the longest overdue first."""
        ...

    def next_due_at_ms(self) -> int | None:
        """When the next timer of a delivery runs out."""
        ...

    # The inbox and its ledger

    def accept(self, batch: Acceptance) -> Awaitable[Accepted]:
        """Take a batch from a source: inbox, ledger, ACKs and cursor move together, or not at all (CUR-2)."""
        ...

    def engage(self, event_id: EventId, to_agent_id: str, *, at_ms: int) -> Awaitable[int]:
        """Record that the agent is about to run, before it does. Gives the number of this attempt.

        Refused with `expired` for an event whose time has passed (ENV-7): it is settled, never injected.
        """
        ...

    def postpone(self, event_id: EventId, to_agent_id: str, *, due_at_ms: int, error: str) -> Awaitable[None]:
        """Record that an attempt failed and when the next one is due (RTY-4)."""
        ...

    def settle(self, settlement: Settlement) -> Awaitable[bool]:
        """Close a ledger row and append what tells of it. False, and no event, if it was closed already."""
        ...

    def backlog(self, to_agent_id: str, *, after_inbox_seq: int = 0, limit: int = 256) -> list[BacklogItem]:
        """What the agent has not settled, oldest first (RTY-5)."""
        ...

    def ledger_entry(self, event_id: EventId, to_agent_id: str) -> LedgerEntry | None: ...

    def inbox_position(self) -> InboxPosition: ...

    def quarantined(self, *, limit: int = 256) -> list[QuarantineEntry]: ...

    # Cursors and compaction

    def cursor(self, source_node_id: str) -> Cursor | None: ...

    def cursors(self) -> list[Cursor]: ...

    def note_subscriber(self, subscriber: Subscriber) -> Awaitable[None]: ...

    def subscribers(self) -> list[Subscriber]: ...

    def compact(self, *, now_ms: int, retention_events: int, limit: int = 10_000) -> Awaitable[Compacted]:
        """Prune what nobody needs (PIPE-7, PIPE-8), at most `limit` events of each stream."""
        ...

    # Keeping

    def remember_once(self, scope: str, value: str, *, now_ms: int, expires_at_ms: int) -> Awaitable[bool]:
        """Whether this value is new in its scope; it is not for the second one who asks, until it expires."""
        ...

    def record_audit(self, entries: Sequence[AuditEntry]) -> Awaitable[None]: ...

    def audit_log(self, *, after_id: int = 0, limit: int = 256) -> list[AuditEntry]: ...

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

    def blob(self, sha256: str) -> Blob | None: ...

    def chunk(self, sha256: str, part: int) -> bytes | None: ...

    def missing_chunks(self, sha256: str) -> list[int]: ...

    def close(self) -> Awaitable[None]: ...
