"""What a gateway does to its store, with ids and times that are the same in every run: the operations of scenarios."""

from collections.abc import Sequence

from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.payloads import Kind
from agentpost.store.blobs import SealedBlob
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import (
    Acceptance,
    Accepted,
    Appended,
    Compacted,
    LedgerState,
    MirrorBatch,
    MirrorEvent,
    Outcome,
    PrunedPayloads,
    Settlement,
    Subscriber,
    Watermarks,
)
from tests.faults import words
from tests.faults.playing import Operation
from tests.faults.words import EPOCH, LATER_MS, NODE, NOW_MS, OTHER_PEER, PEER

__all__ = [
    "accept",
    "accept_with_gap",
    "append",
    "append_foreign",
    "append_twice_to_one",
    "compact",
    "engage",
    "keep_mirror",
    "note_subscriber",
    "postpone",
    "prune_inbox",
    "prune_mirror",
    "prune_payloads",
    "resend",
    "settle",
    "time_out",
    "upload",
]


def append(first_seq: int, *events: Event, agents: Sequence[str] = ("worker",)) -> Operation:
    return Operation(
        name=f"append {len(events)} at {first_seq}",
        submit=lambda store: store.append(events, deliveries=words.deliveries(*events, agents=agents)),
        answer=Appended(first_seq=first_seq, last_seq=first_seq + len(events) - 1),
        leaves=lambda store: _check_sent(store, first_seq, events, agents),
    )


def _check_sent(store: SqliteStore, first_seq: int, events: Sequence[Event], agents: Sequence[str]) -> None:
    _check_outbox(store, first_seq, *events)
    for seq, event in enumerate(events, start=first_seq):
        found = {delivery.to_agent_id: delivery for delivery in store.deliveries_of(event.event_id)}
        assert found == {d.to_agent_id: replace(d, seq=seq) for d in words.deliveries(event, agents=agents)}


def _check_outbox(store: SqliteStore, first_seq: int, *events: Event) -> None:
    """The outbox ends with these events, in their places and to the byte."""
    stored = store.read_outbox(first_seq - 1).events
    assert [one.seq for one in stored] == list(range(first_seq, first_seq + len(events)))
    assert [one.raw for one in stored] == [encode_event(replace(e, seq=first_seq + i)) for i, e in enumerate(events)]
    assert store.head().seq == first_seq + len(events) - 1
    for node in (PEER, OTHER_PEER):
        part = store.read_stream(node, first_seq - 1)
        assert part.through_seq == store.head().seq
        assert [one.seq for one in part.events] == [
            seq for seq, event in enumerate(events, start=first_seq) if node in event.to_nodes
        ]


def time_out(event: Event, *, head_seq: int) -> Operation:
    change = words.change(event, "worker", DeliverySignal.ACK_TIMEOUT)
    return Operation(
        name="ack timeout",
        submit=lambda store: store.append((), changes=[change]),
        answer=Appended(first_seq=head_seq + 1, last_seq=head_seq),
        leaves=lambda store: _check_state(store, event, DeliveryState.RETRY_PENDING, attempts=1),
    )


def resend(seq: int, event: Event) -> Operation:
    again = replace(event, trace=replace(event.trace, attempt=2))
    change = words.change(event, "worker", DeliverySignal.RESENT)

    def check(store: SqliteStore) -> None:
        _check_outbox(store, seq, again)
        _check_state(store, event, DeliveryState.EMITTED, attempts=2)

    return Operation(
        name=f"resend at {seq}",
        submit=lambda store: store.append([again], changes=[change]),
        answer=Appended(first_seq=seq, last_seq=seq),
        leaves=check,
    )


def _check_state(store: SqliteStore, event: Event, state: DeliveryState, *, attempts: int = 1) -> None:
    (found,) = [d for d in store.deliveries_of(event.event_id) if d.to_agent_id == "worker"]
    assert (found.state, found.attempts) == (state, attempts)


def append_twice_to_one(number: int) -> Operation:
    """An append that only the schema refuses, when everybody's rows are written: the others must not pay for it."""
    event = words.message(number)
    return Operation(
        name="append that breaks a constraint",
        submit=lambda store: store.append([event], deliveries=words.deliveries(event, agents=("worker", "worker"))),
        answer=Code.CONFLICT,
        leaves=lambda store: _check_unknown(store, event),
    )


def append_foreign(number: int) -> Operation:
    event = words.message(number, node=PEER)
    return Operation(
        name="append of another's event",
        submit=lambda store: store.append([event]),
        answer=Code.FOREIGN_SOURCE,
        leaves=lambda store: _check_unknown(store, event),
    )


def _check_unknown(store: SqliteStore, event: Event) -> None:
    assert store.find_event(event.event_id) is None
    assert store.deliveries_of(event.event_id) == []


def accept(
    batch: Acceptance,
    *,
    first_ack_seq: int,
    after_inbox_seq: int = 0,
    repeated: Sequence[tuple[EventId, str]] = (),
) -> Operation:
    """Take a batch whose new pairs are all but `repeated`."""
    pairs = {(one.event.event_id, agent): ack for one in batch.events for agent, ack in one.acks.items()}
    new = {pair: ack for pair, ack in pairs.items() if pair not in repeated}

    places = {
        event_id: place
        for place, event_id in enumerate(dict.fromkeys(event_id for event_id, _ in new), after_inbox_seq + 1)
    }

    def check(store: SqliteStore) -> None:
        # CUR-2, RTY-3: the cursor, the inbox with its ledger, the ACKs and the deliveries, and no one without the rest.
        cursor = store.cursor(batch.source_node_id)
        assert cursor is not None
        assert (cursor.epoch, cursor.last_seq) == (batch.source_epoch, batch.through_seq)
        raw = {one.event.event_id: one.raw for one in batch.events}
        for event_id, agent in new:
            entry = store.ledger_entry(event_id, agent)
            assert entry is not None
            assert entry.state is LedgerState.QUEUED
            assert raw[event_id] in [item.raw for item in store.backlog(agent)]
        if new:
            _check_outbox(store, first_ack_seq, *new.values())
        for change in batch.changes:
            (found,) = [d for d in store.deliveries_of(change.event_id) if d.to_agent_id == change.to_agent_id]
            assert found.state is DeliveryState.ACCEPTED
        assert [bad.raw for bad in batch.unreadable] == [
            store.quarantined_body(entry.id) for entry in store.quarantined(source_node_id=batch.source_node_id)
        ][: len(batch.unreadable)]

    return Operation(
        name=f"accept {batch.source_node_id} through {batch.through_seq}",
        submit=lambda store: store.accept(batch),
        answer=Accepted(
            new=tuple(new),
            inbox_seqs=tuple(places[event_id] for event_id, _ in new),
            repeated=tuple(repeated),
            orphans=(),
            cursor_seq=batch.through_seq,
        ),
        leaves=check,
    )


def engage(event: Event, attempt: int = 1) -> Operation:
    def check(store: SqliteStore) -> None:
        entry = store.ledger_entry(event.event_id, "worker")
        assert entry is not None
        assert (entry.state, entry.attempts) == (LedgerState.ENGAGED, attempt)

    return Operation(
        name=f"engage, attempt {attempt}",
        submit=lambda store: store.engage(event.event_id, "worker", at_ms=NOW_MS),
        answer=attempt,
        leaves=check,
    )


def postpone(event: Event) -> Operation:
    def check(store: SqliteStore) -> None:
        entry = store.ledger_entry(event.event_id, "worker")
        assert entry is not None
        assert (entry.state, entry.due_at_ms, entry.error) == (LedgerState.QUEUED, LATER_MS, "busy")

    return Operation(
        name="postpone",
        submit=lambda store: store.postpone(event.event_id, "worker", due_at_ms=LATER_MS, error="busy"),
        answer=None,
        leaves=check,
    )


def settle(event: Event, *events: Event, outcome: Outcome, first_seq: int, closed_already: bool = False) -> Operation:
    replies = [each for each in events if each.kind is Kind.REPLY]
    settlement = Settlement(
        event_id=event.event_id,
        to_agent_id="worker",
        outcome=outcome,
        at_ms=NOW_MS,
        events=events,
        deliveries=tuple(words.deliveries(*replies, agents=("asker",))),
    )

    def check(store: SqliteStore) -> None:
        entry = store.ledger_entry(event.event_id, "worker")
        assert entry is not None
        assert entry.state is LedgerState.SETTLED
        if closed_already:
            assert store.head().seq == first_seq - 1
            return
        assert entry.outcome is outcome
        _check_outbox(store, first_seq, *events)
        for reply in replies:
            assert [delivery.to_agent_id for delivery in store.deliveries_of(reply.event_id)] == ["asker"]

    return Operation(
        name=f"settle as {outcome}",
        submit=lambda store: store.settle(settlement),
        answer=not closed_already,
        leaves=check,
    )


def settle_all(*ended: tuple[Event, Event, bool], first_seq: int) -> Operation:
    """Events that are settled together, each with its ACK and whether it is this that closes it."""
    settlements = [
        Settlement(
            event_id=event.event_id, to_agent_id="worker", outcome=Outcome.PROCESSED, at_ms=NOW_MS, events=(ack,)
        )
        for event, ack, _ in ended
    ]

    def check(store: SqliteStore) -> None:
        entries = [store.ledger_entry(event.event_id, "worker") for event, _, _ in ended]
        assert {entry.state for entry in entries if entry is not None} == {LedgerState.SETTLED}
        _check_outbox(store, first_seq, *(ack for _, ack, is_open in ended if is_open))

    return Operation(
        name=f"settle {len(ended)} together",
        submit=lambda store: store.settle_all(settlements),
        answer=[is_open for _, _, is_open in ended],
        leaves=check,
    )


def note_subscriber(last_seq: int) -> Operation:
    subscriber = Subscriber(
        consumer_node_id=PEER,
        epoch=EPOCH,
        last_seq=last_seq,
        updated_at_ms=NOW_MS,
        lease_expires_at_ms=LATER_MS,
    )

    def check(store: SqliteStore) -> None:
        assert store.subscribers() == [subscriber]

    return Operation(
        name=f"subscriber at {last_seq}",
        submit=lambda store: store.note_subscriber(subscriber),
        answer=None,
        leaves=check,
    )


def compact(answer: Compacted, *, limit: int) -> Operation:
    def check(store: SqliteStore) -> None:
        # The floor has moved if and only if the rows below it are gone, and none above.
        kept = store.read_outbox(0)
        assert kept.floor_seq == answer.outbox_floor_seq
        assert [one.seq for one in kept.events] == list(range(answer.outbox_floor_seq + 1, store.head().seq + 1))
        assert store._reader().value("SELECT min(seq) FROM inbox") == answer.inbox_floor_seq + 1
        assert store._reader().value("SELECT min(seq) FROM streams") > answer.outbox_floor_seq
        assert store.read_stream(PEER, 0).floor_seq == answer.outbox_floor_seq

    # Asked for by the keeper before what shares the commit was done.
    watermarks = Watermarks(outbox_seq=answer.outbox_floor_seq, inbox_seq=answer.inbox_floor_seq)
    return Operation(
        name=f"compact to {answer.outbox_floor_seq}",
        submit=lambda store: store.compact(watermarks, limit=limit),
        answer=answer,
        leaves=check,
    )


def accept_with_gap() -> Operation:
    batch = Acceptance(source_node_id="node-d", source_epoch=EPOCH, after_seq=5, through_seq=6, at_ms=NOW_MS)

    def check(store: SqliteStore) -> None:
        assert store.cursor("node-d") is None

    return Operation(
        name="accept with a gap", submit=lambda store: store.accept(batch), answer=Code.SEQUENCE_GAP, leaves=check
    )


def keep_mirror(after: int, through: int, *, is_known: bool = False) -> Operation:
    """PIPE-9: a batch of another outbox, with its head. What is known already changes nothing."""
    events = [words.message(400 + seq, node=PEER, seq=seq, size=600) for seq in range(after + 1, through + 1)]
    batch = MirrorBatch(
        source_node_id=PEER,
        epoch=EPOCH,
        after_seq=after,
        through_seq=through,
        events=tuple(
            MirrorEvent(seq=event.seq, chain=bytes([event.seq]) * 32, raw=encode_event(event), to_nodes=event.to_nodes)
            for event in events
        ),
        head=b"head %d" % through,
        signature=bytes(64),
        at_ms=NOW_MS,
    )

    def check(store: SqliteStore) -> None:
        position = store.mirror_position(PEER)
        assert position is not None
        assert position.last_seq >= through
        if is_known:
            return
        assert (position.last_seq, position.last_chain) == (through, bytes([through]) * 32)
        for part in (store.read_mirror(PEER, NODE, after), store.read_whole_mirror(PEER, after)):
            assert part is not None
            assert (part.through_seq, part.head) == (through, batch.head)
            assert [one.raw for one in part.events] == [one.raw for one in batch.events]

    return Operation(
        name=f"mirror through {through}", submit=lambda store: store.keep_mirror(batch), answer=None, leaves=check
    )


def prune_mirror(through: int, *, events: int) -> Operation:
    def check(store: SqliteStore) -> None:
        position = store.mirror_position(PEER)
        assert position is not None
        assert position.floor_seq == through
        for table in ("mirror_events", "mirror_streams"):
            assert store._reader().value(f"SELECT min(seq) FROM {table}") == through + 1  # noqa: S608

    return Operation(
        name=f"prune the mirror through {through}",
        submit=lambda store: store.prune_mirror(PEER, through_seq=through),
        answer=events,
        leaves=check,
    )


def prune_inbox(*, through: int) -> Operation:
    """A compaction that the outbox has no part in: nobody has read that yet."""

    def check(store: SqliteStore) -> None:
        assert store._reader().value("SELECT inbox_floor_seq FROM gateway") == through
        assert store._reader().value("SELECT min(seq) FROM inbox") in (None, through + 1)

    return Operation(
        name=f"prune the inbox through {through}",
        submit=lambda store: store.compact(store.watermarks(now_ms=NOW_MS, retention_events=0)),
        answer=Compacted(outbox_events=0, inbox_events=through, outbox_floor_seq=0, inbox_floor_seq=through),
        leaves=check,
    )


def upload(sealed: SealedBlob) -> tuple[Operation, ...]:
    """A payload, in the steps in which a gateway stores it."""
    sha256 = sealed.blob.sha256

    def check(store: SqliteStore) -> None:
        assert store.blob(sha256) == sealed.blob
        assert [store.chunk(sha256, part) for part in range(len(sealed.chunks))] == list(sealed.chunks)

    def put(part: int, data: bytes) -> Operation:
        return Operation(name=f"chunk {part}", submit=lambda store: store.put_chunk(sha256, part, data), answer=None)

    return (
        Operation(name="begin", submit=lambda store: store.begin_blob(sealed.blob, at_ms=NOW_MS), answer=None),
        *(put(part, data) for part, data in enumerate(sealed.chunks)),
        Operation(name="complete", submit=lambda store: store.complete_blob(sha256), answer=None, leaves=check),
    )


def prune_payloads(
    *, at_ms: int, grace_ms: int, drops: Sequence[SealedBlob] = (), keeps: Sequence[SealedBlob] = ()
) -> Operation:
    """PIPE-7: a look at all payloads, after which these are gone and those are whole."""

    def check(store: SqliteStore) -> None:
        for sealed in drops:
            assert store.blob(sealed.blob.sha256) is None
        for sealed in keeps:
            assert store.blob(sealed.blob.sha256) == sealed.blob
        # No chunk without its blob, and no blob without its chunks.
        assert store._reader().value("SELECT count(DISTINCT sha256) FROM blob_chunks") == len(keeps)
        assert store.payload_usage().payloads == len(keeps)

    return Operation(
        name=f"prune payloads at {at_ms - NOW_MS}",
        submit=lambda store: store.prune_payloads(now_ms=at_ms, grace_ms=grace_ms),
        answer=PrunedPayloads(
            payloads=len(drops), size_bytes=sum(sealed.blob.size_bytes for sealed in drops), through_sha256=None
        ),
        leaves=check,
    )
