"""What every store checks before it writes. Pure: SQLite and memory refuse the same things in the same words."""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from agentpost.protocol.codec import MAX_EVENT_BYTES, encode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.values import Acceptance, Cursor, Inbound, Subscriber

__all__ = [
    "chain_after",
    "check_acceptance",
    "check_own",
    "encode_for_outbox",
    "inbox_watermark",
    "outbox_watermark",
    "replay_hash",
    "unseen",
]


def chain_after(chain: bytes, body: bytes) -> bytes:
    """The hash that covers `body` and, through `chain`, everything before it."""
    return sha256(chain + body).digest()


def check_own(events: Sequence[Event], node_id: str) -> None:
    """PIPE-1: an outbox takes only events of its own node that have no place yet."""
    for event in events:
        if event.source_node_id != node_id:
            raise Refusal(
                Code.FOREIGN_SOURCE,
                f"the outbox of {node_id} does not take events of {event.source_node_id}",
                field="sourceNodeId",
                corr_id=event.corr_id,
            )


def encode_for_outbox(event: Event) -> bytes:
    """The bytes that stand in the outbox, or a refusal: what cannot be read back must not get in."""
    try:
        body = encode_event(event)
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Refusal(Code.INVALID_FIELD, f"the event cannot be encoded: {error}", field="event") from None
    if len(body) > MAX_EVENT_BYTES:
        raise Refusal(Code.TOO_LARGE, f"the event has {len(body)} bytes; {MAX_EVENT_BYTES} is the most", field="event")
    return body


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


def outbox_watermark(
    subscribers: Iterable[Subscriber], *, epoch: str, now_ms: int, retention_events: int, oldest_unaccepted: int | None
) -> int:
    """The last outbox seq that may be pruned (PIPE-7), 0 for none.

    With no active subscriber nothing is pruned: nobody has shown that the events were read. An event that may have to
    be sent again stays (PIPE-8).
    """
    active = [s.last_seq for s in subscribers if s.lease_expires_at_ms > now_ms and s.epoch == epoch]
    if not active:
        return 0
    watermark = min(active) - retention_events
    if oldest_unaccepted is not None:
        watermark = min(watermark, oldest_unaccepted - 1)
    return max(watermark, 0)


def inbox_watermark(acked_seq: int, *, retention_events: int) -> int:
    """The last inbox seq that may be pruned (PIPE-7)."""
    return max(acked_seq - retention_events, 0)


def replay_hash(scope: str, value: str) -> bytes:
    """What the replay guard keeps instead of the value, which may be a secret."""
    return sha256(f"{scope}\0{value}".encode("utf-8", "surrogatepass")).digest()
