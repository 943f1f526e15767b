"""What every store checks before it writes. Pure: SQLite and memory refuse the same things in the same words."""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentpost.protocol.codec import MAX_EVENT_BYTES, encode_event
from agentpost.protocol.delivery import SLA_MISSED, Change, Delivery, advance, is_undelivered
from agentpost.protocol.envelope import Event, MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.payloads import Priority
from agentpost.protocol.timestamps import parse_ms
from agentpost.store.values import (
    CHAIN_START,
    PIPELINE_WATERMARK,
    Acceptance,
    AuditEntry,
    Blob,
    Cursor,
    FailureReport,
    Inbound,
    Invite,
    KnownNode,
    LedgerEntry,
    LedgerState,
    LocalAgent,
    MirrorBatch,
    MirrorEvent,
    MirrorPosition,
    MirrorSlice,
    Note,
    ResentLetter,
    StreamEvent,
    Subscriber,
)

__all__ = [
    "MOST_QUARANTINED_BYTES",
    "MOST_QUARANTINED_EVENTS",
    "check_acceptance",
    "check_in_time",
    "check_address",
    "check_blob",
    "check_chunk",
    "check_mirror_batch",
    "check_new_invite",
    "check_note",
    "consumed",
    "encode_for_outbox",
    "foreign_source",
    "expect_blob",
    "expect_entry",
    "expect_open_entry",
    "inbox_watermark",
    "is_first_word",
    "is_resendable",
    "is_urgent",
    "key_taken",
    "mirror_slice",
    "missed_sla_closed",
    "move_deliveries",
    "never_accepted",
    "options_as_json",
    "not_resendable",
    "orphan_refused",
    "outbox_watermark",
    "outcomes_heard_late",
    "pinned",
    "replay_hash",
    "unmirrored",
    "unplaced",
    "unseen",
]

EVENT_ID_LENGTH: Final = 30
_NO_OUTCOME: Final = (None, DeliverySignal.ACCEPTED)
MAX_BLOB_BYTES: Final = 256 * 1024 * 1024
MAX_NOTE_BYTES: Final = 1024 * 1024
# ENV-6: what is kept of one source that could not be read. The oldest makes room.
MOST_QUARANTINED_EVENTS: Final = 1_000
MOST_QUARANTINED_BYTES: Final = 16 * 1024 * 1024


class _Lifetime(Struct, rename="camel", gc=False):
    """Of an event that was accepted, and so is known to be good, only until when it counts."""

    expires_at: str | None = None
    corr_id: str = ""


_lifetime = msgspec.msgpack.Decoder(_Lifetime)


def foreign_source(event: Event, node_id: str) -> Refusal:
    """The answer to an event of another node (PIPE-1)."""
    return Refusal(
        Code.FOREIGN_SOURCE,
        f"the outbox of {node_id} does not take events of {event.source_node_id}",
        field="sourceNodeId",
        corr_id=event.corr_id,
    )


def encode_for_outbox(event: Event) -> bytes:
    """The bytes that stand in the outbox, or a refusal: what cannot be read back must not get in."""
    if len(event.event_id) != EVENT_ID_LENGTH or not event.event_id.isascii():
        raise Refusal(Code.INVALID_FIELD, "eventId must be evt_ and a ULID", field="eventId")
    try:
        body = encode_event(event)
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Refusal(Code.INVALID_FIELD, f"the event cannot be encoded: {error}", field="event") from None
    if len(body) > MAX_EVENT_BYTES:
        raise Refusal(Code.TOO_LARGE, f"the event has {len(body)} bytes; {MAX_EVENT_BYTES} is the most", field="event")
    return body


def unplaced(event_id: EventId) -> Refusal:
    """The answer to a delivery, or a resend, whose event is not appended with it: it would have no place."""
    return Refusal(Code.NOT_FOUND, f"{event_id} is not among the events appended with its delivery", field="eventId")


def is_urgent(event: Event) -> bool:
    """OPS-5: a message whose sender would have it seen before others."""
    return type(event) is MessageEvent and event.payload.priority is Priority.HIGH


def check_in_time(raw: bytes, event_id: EventId, *, now_ms: int) -> None:
    """ENV-7: an event past its expiry is not given to an agent."""
    lifetime = _lifetime.decode(raw)
    if lifetime.expires_at is not None and parse_ms(lifetime.expires_at, field="expiresAt") <= now_ms:
        raise Refusal(
            Code.EXPIRED,
            f"{event_id} expired at {lifetime.expires_at}",
            corr_id=lifetime.corr_id,
            hint="Settle it with the outcome expired.",
        )


def move_deliveries(
    found: Mapping[tuple[EventId, str], Delivery], changes: Sequence[Change], places: Mapping[EventId, int]
) -> tuple[dict[tuple[EventId, str], Delivery], list[Change]]:
    """The deliveries that the changes move, as they are afterwards, and the changes that speak of none (orphans).

    `places` are the seqs of events appended along with the changes: whatever is sent again stands at a new one.
    """
    moved: dict[tuple[EventId, str], Delivery] = {}
    orphans: list[Change] = []
    for change in changes:
        key = (change.event_id, change.to_agent_id)
        delivery = moved.get(key) or found.get(key)
        if delivery is None:
            orphans.append(change)
            continue
        after = advance(delivery, change)
        if change.signal is DeliverySignal.RESENT:
            if change.event_id not in places:
                raise unplaced(change.event_id)
            after = replace(after, seq=places[change.event_id])
        if after is not delivery:
            moved[key] = after
    return moved, orphans


def is_first_word(held: Iterable[Delivery], report: FailureReport) -> bool:
    """Whether the delivery that this reports as failed has not ended yet."""
    return any(each.to_agent_id == report.to_agent_id and each.state not in DELIVERY.terminal for each in held)


def outcomes_heard_late(found: Mapping[tuple[EventId, str], Delivery], moved: Iterable[Delivery]) -> list[Delivery]:
    """The deliveries that have their outcome after their SLA was missed: nobody has to look for it any more."""
    return [
        each
        for each in moved
        if each.state is DeliveryState.INCIDENT
        and found[each.event_id, each.to_agent_id].late in _NO_OUTCOME
        and each.late not in _NO_OUTCOME
    ]


def missed_sla_closed(late: Delivery) -> AuditEntry:
    """What the audit log keeps of an incident that a late outcome closed."""
    return AuditEntry(
        at_ms=late.late_at_ms or 0,
        actor=late.to_node_id or "",
        action="incident.close",
        subject=f"{late.event_id}/{late.to_agent_id}",
        corr_id=late.corr_id or None,
        detail={"kind": SLA_MISSED.value},
    )


def orphan_refused(change: Change) -> Refusal:
    """The answer to an append that changes a delivery which does not exist."""
    return Refusal(Code.NOT_FOUND, f"there is no delivery of {change.event_id} to {change.to_agent_id}")


def is_resendable(delivery: Delivery | None) -> bool:
    """RTY-7: it did not arrive, or its agent failed, and it was not sent again."""
    return delivery is not None and is_undelivered(delivery) and delivery.resent_as is None


def not_resendable(letter: ResentLetter) -> Refusal:
    """The answer to an append that sends something again which was sent again already."""
    return Refusal(
        Code.CONFLICT,
        f"{letter.event_id} to {letter.to_agent_id} is no dead letter, or was sent again already",
    )


def key_taken() -> Refusal:
    """The answer to a call whose idempotency key another call has used."""
    return Refusal(Code.IDEMPOTENCY_KEY_REUSED, "another call has used this idempotency key", field="idempotencyKey")


def check_acceptance(batch: Acceptance, cursor: Cursor | None) -> None:
    """Refuse a batch that is not of its source, not in order, or not where the cursor stands (CUR-1, ENV-8)."""
    last_seq = cursor.last_seq if cursor else 0
    if cursor is not None and cursor.epoch != batch.source_epoch:
        raise Refusal(
            Code.EPOCH_MISMATCH,
            f"{batch.source_node_id} was read in epoch {cursor.epoch}, and now says {batch.source_epoch}",
            field="epoch",
        )
    if batch.after_seq > last_seq:
        raise Refusal(
            Code.SEQUENCE_GAP,
            f"the batch starts after {batch.after_seq}, but {batch.source_node_id} was read up to {last_seq} only",
            field="afterSeq",
        )
    if not 0 <= batch.after_seq <= batch.through_seq:
        raise Refusal(
            Code.SEQUENCE_GAP, f"a batch cannot go from {batch.after_seq} to {batch.through_seq}", field="throughSeq"
        )
    previous = batch.after_seq
    for inbound in batch.events:
        event = inbound.event
        if event.source_node_id != batch.source_node_id:
            raise Refusal(
                Code.FOREIGN_SOURCE,
                f"an event of {event.source_node_id} was read from the outbox of {batch.source_node_id}",
                field="sourceNodeId",
                corr_id=event.corr_id,
            )
        if not previous < event.seq <= batch.through_seq:
            raise Refusal(
                Code.SEQUENCE_GAP, f"seq {event.seq} does not belong between {previous} and the end", field="seq"
            )
        previous = event.seq


def unseen(batch: Acceptance, cursor: Cursor | None) -> tuple[Inbound, ...]:
    """The events of the batch that the cursor has not passed: a repeated batch brings none."""
    last_seq = cursor.last_seq if cursor else 0
    if batch.after_seq == last_seq:
        return batch.events
    return tuple(inbound for inbound in batch.events if inbound.event.seq > last_seq)


def expect_entry(entry: LedgerEntry | None, event_id: EventId, to_agent_id: str) -> LedgerEntry:
    """The ledger row, or a refusal if there is none."""
    if entry is None:
        raise never_accepted(event_id, to_agent_id)
    return entry


def never_accepted(event_id: EventId, to_agent_id: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"{event_id} was never accepted for {to_agent_id}")


def expect_open_entry(entry: LedgerEntry | None, event_id: EventId, to_agent_id: str) -> LedgerEntry:
    """The ledger row, or a refusal if there is none or if it has its outcome already."""
    entry = expect_entry(entry, event_id, to_agent_id)
    if entry.state is LedgerState.SETTLED:
        raise Refusal(Code.INVALID_TRANSITION, f"{event_id} is settled for {to_agent_id} already")
    return entry


def outbox_watermark(
    subscribers: Iterable[Subscriber],
    *,
    epoch: str,
    now_ms: int,
    retention_events: int,
    oldest_unaccepted: int | None,
    oldest_unread: int | None,
    alone_through: int | None = None,
) -> int:
    """The last outbox seq that may be pruned (PIPE-7), 0 for none.

    With no active subscriber nothing is pruned: no peer has shown that it has read the events. Only a gateway by itself
    needs no such proof for what names no other gateway (`alone_through`). An event that may have to be sent again stays
    (PIPE-8), and so does local mail that this gateway itself has not read. The watermark of the pipeline can only make
    it less.
    """
    if retention_events < 0:
        raise Refusal(Code.INVALID_FIELD, "the retention must not be negative", field="retentionEvents")
    active = {
        s.consumer_node_id: s.last_seq for s in subscribers if s.lease_expires_at_ms > now_ms and s.epoch == epoch
    }
    bound = active.pop(PIPELINE_WATERMARK, None)
    if active:
        read_through = min(active.values())
    elif alone_through is not None:
        # Its own reader is the one that counts.
        read_through = alone_through if oldest_unread is None else min(alone_through, oldest_unread - 1)
    else:
        return 0
    watermark = read_through - retention_events
    if bound is not None:
        watermark = min(watermark, bound)
    for oldest in (oldest_unaccepted, oldest_unread):
        if oldest is not None:
            watermark = min(watermark, oldest - 1)
    return max(watermark, 0)


def inbox_watermark(acked_seq: int, *, retention_events: int) -> int:
    """The last inbox seq that may be pruned (PIPE-7)."""
    return max(acked_seq - retention_events, 0)


def check_mirror_batch(batch: MirrorBatch, position: MirrorPosition | None) -> None:
    """Refuse a batch of another epoch, with a hole in it, or with one before it. An empty mirror may begin anywhere."""
    if position is not None and position.epoch != batch.epoch:
        raise Refusal(
            Code.EPOCH_MISMATCH,
            f"{batch.source_node_id} is mirrored in epoch {position.epoch}, and now says {batch.epoch}",
            field="epoch",
        )
    if position is not None and 0 < position.last_seq < batch.after_seq:
        raise Refusal(
            Code.SEQUENCE_GAP,
            f"the batch starts after {batch.after_seq}, but {batch.source_node_id} is mirrored up to "
            f"{position.last_seq} only",
            field="afterSeq",
        )
    if any(len(event.chain) != len(CHAIN_START) for event in batch.events):
        raise Refusal(Code.INVALID_FIELD, f"a chain has {len(CHAIN_START)} bytes", field="chain")
    # A mirror keeps every event, so there is one for every seq.
    if batch.after_seq < 0 or [event.seq for event in batch.events] != list(
        range(batch.after_seq + 1, batch.through_seq + 1)
    ):
        raise Refusal(
            Code.SEQUENCE_GAP,
            f"the batch does not have the events after {batch.after_seq} through {batch.through_seq}",
            field="events",
        )


def mirror_slice(
    position: MirrorPosition, after_seq: int, head: tuple[int, bytes, bytes], events: Sequence[StreamEvent]
) -> MirrorSlice:
    """Events of a mirror up to a head: its seq, what its owner signed, and the signature."""
    return MirrorSlice(
        source_node_id=position.source_node_id,
        epoch=position.epoch,
        after_seq=after_seq,
        through_seq=head[0],
        head=head[1],
        signature=head[2],
        events=tuple(events),
    )


def unmirrored(batch: MirrorBatch, position: MirrorPosition | None) -> tuple[MirrorEvent, ...]:
    """The events of the batch that the mirror does not have: a repeated batch brings none."""
    last_seq = position.last_seq if position else 0
    return tuple(event for event in batch.events if event.seq > last_seq)


def options_as_json(agent: LocalAgent) -> str:
    """The options of an agent as they are kept, or a refusal: what cannot be read back must not get in."""
    try:
        return json.dumps(agent.options, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refusal(
            Code.INVALID_FIELD, f"the options of {agent.agent_id} cannot be kept: {error}", field="options"
        ) from None


def check_note(note: Note) -> None:
    """Refuse a note that is no note: it is small, and has a name."""
    size = len(note.value or b"")
    if size > MAX_NOTE_BYTES:
        where = f"{note.collection}/{note.key:.80}"
        raise Refusal(Code.TOO_LARGE, f"the note {where} has {size} bytes; {MAX_NOTE_BYTES} is the most", field=where)
    if not note.collection or not note.key:
        raise Refusal(Code.INVALID_FIELD, "a note has a collection and a key", field="note")


def replay_hash(scope: str, value: str) -> bytes:
    """What the replay guard keeps instead of the value, which may be a secret."""
    return sha256(f"{scope}\0{value}".encode("utf-8", "surrogatepass")).digest()


def check_new_invite(found: Invite | None) -> None:
    """Refuse an invite whose id or token is there already; the token is 256 random bits, so that is a defect."""
    if found is not None:
        raise Refusal(Code.CONFLICT, f"there is an invite {found.invite_id} already")


def consumed(invite: Invite | None, node: KnownNode) -> Invite:
    """The invite as it is once `node` has joined with it, or a refusal if the node may not (AUTH-5)."""
    if invite is None:
        raise Refusal(Code.INVALID_TOKEN, "there is no such invite")
    if invite.consumed_at_ms is not None:
        raise Refusal(Code.TOKEN_ALREADY_USED, "this invite was used already")
    if invite.expected_node_id != node.node_id:
        raise Refusal(Code.NODE_MISMATCH, "this invite is for another node", field="nodeId")
    if invite.public_key is not None and invite.public_key != node.signing_public:
        raise Refusal(Code.NODE_PROOF_INVALID, "this invite is for a node with another key")
    if invite.revoked_at_ms is not None:
        raise Refusal(Code.NODE_REVOKED, f"the invite of {node.node_id} was withdrawn")
    return replace(invite, consumed_at_ms=node.pinned_at_ms, consumed_by=node.node_id)


def pinned(found: KnownNode | None, node: KnownNode, *, invited: bool) -> KnownNode:
    """What to keep of a node that is to be pinned. A key is never replaced, except by an invite after a revocation."""
    if found is None:
        return node
    if found.revoked_at_ms is not None:
        if not invited:
            raise Refusal(Code.NODE_REVOKED, f"the node {node.node_id} was revoked")
        return node
    if found.signing_public is not None and found.signing_public != node.signing_public:
        raise Refusal(Code.NODE_PROOF_INVALID, f"the node id {node.node_id} is pinned to another key")
    return replace(node, sealing_public=node.sealing_public or found.sealing_public)


def check_blob(blob: Blob) -> None:
    """Refuse a description that no blob can have."""
    if blob.size_bytes > MAX_BLOB_BYTES:
        raise Refusal(
            Code.TOO_LARGE, f"the blob has {blob.size_bytes} bytes; {MAX_BLOB_BYTES} is the most", field="sizeBytes"
        )
    if blob.chunk_bytes < 1:
        raise Refusal(Code.INVALID_FIELD, "a chunk has at least one byte", field="chunkBytes")
    if blob.chunks < 1 or blob.chunks != -(-blob.size_bytes // blob.chunk_bytes):
        raise Refusal(Code.INVALID_FIELD, "the number of chunks does not fit the size", field="chunks")


def expect_blob(blob: Blob | None, sha256: str) -> Blob:
    """The blob, or a refusal if there is none."""
    if blob is None:
        raise Refusal(Code.NOT_FOUND, f"there is no blob {sha256}")
    return blob


def check_chunk(blob: Blob, part: int, data: bytes) -> None:
    """Refuse a chunk that has no place in the blob, or not the length of its place."""
    last = blob.size_bytes - blob.chunk_bytes * (blob.chunks - 1)
    if not 0 <= part < blob.chunks or len(data) != (last if part == blob.chunks - 1 else blob.chunk_bytes):
        raise Refusal(Code.INVALID_FIELD, f"chunk {part} does not fit the blob {blob.sha256}", field="part")


def check_address(blob: Blob, held: Sequence[int], chunks: Iterable[bytes]) -> None:
    """Refuse to count a blob as there before all its chunks are, or if their bytes are not those of its address.

    What came from elsewhere and is wrong says nothing about this disk, so the code is not `storage_corrupt`.
    """
    if len(held) < blob.chunks:
        raise Refusal(Code.CONFLICT, f"the blob {blob.sha256} still misses {blob.chunks - len(held)} chunks")
    digest = sha256()
    for data in chunks:
        digest.update(data)
    if digest.hexdigest() != blob.sha256:
        raise Refusal(
            Code.INVALID_FIELD, f"the bytes fetched for {blob.sha256} are not those of that address", field="sha256"
        )
