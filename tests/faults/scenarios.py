"""What a gateway does to its store, with ids and times that are the same in every run.

A scenario is a row of operations. Each is one call of the store's interface, with the answer that a good disk gives
and what can be read afterwards. `play` does them on a real `SqliteStore` and notes what the caller was told, whatever
happens on the way. Operations of one group are handed in so that they share a commit, whatever the threads do: so every
run has the same write points.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import Unreadable, encode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import AckEvent, Event, MessageEvent, ReplyEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import ENTROPY_BYTES, EventId, UlidSource, corr_id_of
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.payloads import Ack, AckType, Kind, Message, Reply
from agentpost.protocol.timestamps import format_ms
from agentpost.store import database, integrity, writer
from agentpost.store.home import Home
from agentpost.store.queries import migrations
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import (
    Acceptance,
    Accepted,
    Appended,
    Compacted,
    Inbound,
    LedgerState,
    MirrorBatch,
    MirrorEvent,
    Outcome,
    Settlement,
    Subscriber,
)
from tests.faults.disk import Disk

__all__ = [
    "NOW_MS",
    "SCENARIOS",
    "Operation",
    "Run",
    "Scenario",
    "message",
    "open_store",
    "play",
]

NODE: Final = "node-a"
PEER: Final = "node-b"
OTHER_PEER: Final = "node-c"
EPOCH: Final = "epoch-1"
NOW_MS: Final = 1_772_036_530_000
LATER_MS: Final = NOW_MS + 60_000

_SCHEMA: Final = migrations()
_PATIENCE_SECONDS: Final = 20
_NEVER: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One call of the store's interface: all of it or nothing of it."""

    name: str
    submit: Callable[[SqliteStore], "asyncio.Future[Any]"]
    answer: Any
    """What the store says on a good disk; a `Code` if it refuses even there."""
    leaves: Callable[[SqliteStore], None] = lambda store: None
    """Asserts what can be read once the operation has been answered."""

    @property
    def is_refused(self) -> bool:
        return isinstance(self.answer, Code)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Operations on a home that `before` has prepared; those of one group wait for the same commit."""

    name: str
    groups: tuple[tuple[Operation, ...], ...]
    before: tuple[Operation, ...] | None = ()
    """None for a home that is not there yet."""
    checkpoint_at_pages: int = _NEVER
    cache_pages: int | None = None
    """A cache so small that a transaction is written to the log before its commit."""
    new_migration: str | None = None
    """A step of the schema that the prepared home does not have yet."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation for group in self.groups for operation in group)

    @property
    def migrations(self) -> list[str]:
        return [*_SCHEMA, *([self.new_migration] if self.new_migration else [])]

    @contextmanager
    def settings(self) -> Iterator[None]:
        """The store as this scenario wants it: when it checkpoints, and which schema is its newest."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "_CHECKPOINT_AT_PAGES", self.checkpoint_at_pages)
            patch.setattr(writer, "_COMMITS_A_LOOK_AT_THE_LOG", 1)
            for module in (database, integrity):
                patch.setattr(module, "migrations", lambda: self.migrations)
            yield


@dataclass
class Run:
    """What the caller of a store was told."""

    opening: Refusal | None = None
    opened_at: int | None = None
    """The number of the disk's next write point when the store was open; None if it did not open."""
    acknowledged: list[tuple[Operation, Any]] = field(default_factory=list)
    """In the order in which they became durable, each with its answer."""
    refused: list[tuple[Operation, Refusal]] = field(default_factory=list)
    attempted: int = 0
    """How many operations, from the first on, were handed in before the store was known to have failed."""
    failures: list[Refusal] = field(default_factory=list)
    """What `on_failure` was told."""
    failure: Refusal | None = None
    """What the store itself says after its last operation."""
    after_failure: Refusal | None = None
    """The answer to one more operation on a failed store; it came without waiting."""
    closing_at: int | None = None
    """The number of the disk's next write point when the store was about to be closed."""
    closing: Refusal | None = None
    times_full: int = 0


def open_store(
    path: Path,
    *,
    vfs: str | None = None,
    synchronous: str = "FULL",
    on_failure: Callable[[Refusal], None] | None = None,
) -> SqliteStore:
    return SqliteStore.open(
        path, node_id=NODE, epoch=EPOCH, now_ms=NOW_MS, vfs=vfs, synchronous=synchronous, on_failure=on_failure
    )


async def play(
    scenario: Scenario,
    path: Path,
    *,
    disk: Disk | None = None,
    synchronous: str = "FULL",
    when_full: Callable[[], None] | None = None,
    before_close: Callable[[], Awaitable[None]] | None = None,
) -> Run:
    """Do the operations, group by group, and close the store.

    With `when_full`, whatever was refused for want of room is tried again after a call of it.
    """
    run = Run()
    store = _open(run, path, disk=disk, synchronous=synchronous, when_full=when_full)
    if store is None:
        return run
    run.opened_at = _next_point(disk)
    if scenario.cache_pages is not None:
        store._database.run(f"PRAGMA cache_size = {scenario.cache_pages}")
    for group in scenario.groups:
        if store.failure is None:
            run.attempted += len(group)
        waiting = group
        while waiting:
            waiting = await _do(store, run, waiting, when_full)
    await _finish_checkpoint(store)
    run.failure, run.closing_at = store.failure, _next_point(disk)
    if store.failure is not None:
        refused = store.append([message(999)])
        await asyncio.wait((refused,), timeout=_PATIENCE_SECONDS)
        run.after_failure = _refusal_of(refused)
    if before_close is not None:
        await before_close()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await store.close()
    except Refusal as refusal:
        run.closing = refusal
    _check_unlocked(path)
    return run


def _open(
    run: Run, path: Path, *, disk: Disk | None, synchronous: str, when_full: Callable[[], None] | None
) -> SqliteStore | None:
    while True:
        try:
            return open_store(
                path, vfs=disk.name if disk else None, synchronous=synchronous, on_failure=run.failures.append
            )
        except Refusal as refusal:
            _check_unlocked(path)
            if when_full is None or refusal.code is not Code.STORAGE_FULL:
                run.opening = refusal
                return None
            run.times_full += 1
            when_full()


def _next_point(disk: Disk | None) -> int:
    return len(disk.points) if disk else 0


async def _do(
    store: SqliteStore, run: Run, operations: Sequence[Operation], when_full: Callable[[], None] | None
) -> list[Operation]:
    """Do the operations in one commit, and note the answers; gives back those to try again."""
    answers = await asyncio.gather(*_submit_together(store, operations), return_exceptions=True)
    again: list[Operation] = []
    for operation, answer in zip(operations, answers, strict=True):
        match answer:
            case Refusal(code=Code.STORAGE_FULL) if when_full is not None:
                again.append(operation)
            case Refusal():
                run.refused.append((operation, answer))
            case BaseException():
                raise answer
            case _:
                run.acknowledged.append((operation, answer))
    if again and when_full is not None:
        run.times_full += 1
        when_full()
    return again


def _submit_together(store: SqliteStore, operations: Sequence[Operation]) -> "list[asyncio.Future[Any]]":
    """Hand the operations in while the writer is busy, so that it takes all of them at once."""
    if len(operations) == 1:
        return [operations[0].submit(store)]
    is_busy, may_go_on = threading.Event(), threading.Event()

    def keep_busy(_transaction: object) -> None:
        is_busy.set()
        may_go_on.wait(_PATIENCE_SECONDS)

    # If the store has failed by now, this is refused, and nobody has to hear of it twice.
    store._writer.submit(keep_busy).add_done_callback(lambda done: done.exception())
    while not is_busy.wait(0.005) and store.failure is None:
        # It may still be in a checkpoint, which may fail.
        assert store._writer._thread.is_alive()
    futures = [operation.submit(store) for operation in operations]
    may_go_on.set()
    return futures


async def _finish_checkpoint(store: SqliteStore) -> None:
    """Wait until the writer has come back for more; an empty transaction writes nothing."""
    await asyncio.gather(store._writer.submit(lambda transaction: None), return_exceptions=True)


def _refusal_of(future: "asyncio.Future[Any]") -> Refusal | None:
    error = future.exception()
    assert error is None or isinstance(error, Refusal)
    return error


def _check_unlocked(path: Path) -> None:
    home = Home(path)
    home.lock()
    home.unlock()


# What is said in the scenarios. An id is made of its number, so that every run has the same ones.


def _event_id(number: int) -> EventId:
    return UlidSource().make(EventId, now_ms=NOW_MS + number, entropy=bytes(ENTROPY_BYTES))


def message(number: int, *, node: str = NODE, seq: int = 0, size: int = 40) -> MessageEvent:
    event_id = _event_id(number)
    return MessageEvent(
        event_id=event_id,
        seq=seq,
        source_node_id=node,
        source_agent_id=f"{node}.asker",
        to_nodes=(PEER, OTHER_PEER) if node == NODE else (NODE,),
        corr_id=corr_id_of(event_id),
        created_at=format_ms(NOW_MS),
        payload=Message(to_agents=("worker", "helper"), body=f"{number:04}".ljust(size, ".")),
    )


def _reply(number: int, to: Event, *, node: str = NODE, seq: int = 0) -> ReplyEvent:
    return ReplyEvent(
        event_id=_event_id(number),
        seq=seq,
        source_node_id=node,
        source_agent_id="worker",
        to_agent_id=to.source_agent_id,
        to_nodes=(to.source_node_id,),
        corr_id=to.corr_id,
        created_at=format_ms(NOW_MS),
        payload=Reply(ref_event_id=to.event_id, body="done"),
    )


def _ack(
    number: int, of: Event, agent: str, kind: AckType = AckType.ACCEPTED, *, node: str = NODE, seq: int = 0
) -> AckEvent:
    return AckEvent(
        event_id=_event_id(number),
        seq=seq,
        source_node_id=node,
        source_agent_id=agent,
        to_agent_id=of.source_agent_id,
        to_nodes=(of.source_node_id,),
        corr_id=of.corr_id,
        created_at=format_ms(NOW_MS),
        payload=Ack(
            ref_event_id=of.event_id,
            ref_kind=of.kind,
            ack_type=kind,
            acked_by_node_id=node,
            acked_by_agent_id=agent,
            acked_at=format_ms(NOW_MS),
        ),
    )


def _deliveries(*events: Event, agents: Sequence[str] = ("worker",)) -> list[Delivery]:
    return [
        Delivery(
            event_id=event.event_id,
            to_agent_id=agent,
            to_node_id=PEER,
            route_decision="explicit",
            due_at_ms=LATER_MS,
            emitted_at_ms=NOW_MS,
        )
        for event in events
        for agent in agents
    ]


def _change(event: Event, agent: str, signal: DeliverySignal) -> Change:
    return Change(event_id=event.event_id, to_agent_id=agent, signal=signal, at_ms=NOW_MS, due_at_ms=LATER_MS)


def _inbound(event: Event, **acks: Event) -> Inbound:
    return Inbound(event=event, raw=encode_event(event), acks=acks)


# Operations.


def _append(first_seq: int, *events: Event, agents: Sequence[str] = ("worker",)) -> Operation:
    return Operation(
        name=f"append {len(events)} at {first_seq}",
        submit=lambda store: store.append(events, deliveries=_deliveries(*events, agents=agents)),
        answer=Appended(first_seq=first_seq, last_seq=first_seq + len(events) - 1),
        leaves=lambda store: _check_sent(store, first_seq, events, agents),
    )


def _check_sent(store: SqliteStore, first_seq: int, events: Sequence[Event], agents: Sequence[str]) -> None:
    _check_outbox(store, first_seq, *events)
    for seq, event in enumerate(events, start=first_seq):
        found = {delivery.to_agent_id: delivery for delivery in store.deliveries_of(event.event_id)}
        assert found == {d.to_agent_id: replace(d, seq=seq) for d in _deliveries(event, agents=agents)}


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


def _time_out(event: Event, *, head_seq: int) -> Operation:
    change = _change(event, "worker", DeliverySignal.ACK_TIMEOUT)
    return Operation(
        name="ack timeout",
        submit=lambda store: store.append((), changes=[change]),
        answer=Appended(first_seq=head_seq + 1, last_seq=head_seq),
        leaves=lambda store: _check_state(store, event, DeliveryState.RETRY_PENDING, attempts=1),
    )


def _resend(seq: int, event: Event) -> Operation:
    again = replace(event, trace=replace(event.trace, attempt=2))
    change = _change(event, "worker", DeliverySignal.RESENT)

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


def _append_twice_to_one(number: int) -> Operation:
    """An append that only the schema refuses, when everybody's rows are written: the others must not pay for it."""
    event = message(number)
    return Operation(
        name="append that breaks a constraint",
        submit=lambda store: store.append([event], deliveries=_deliveries(event, agents=("worker", "worker"))),
        answer=Code.CONFLICT,
        leaves=lambda store: _check_unknown(store, event),
    )


def _append_foreign(number: int) -> Operation:
    event = message(number, node=PEER)
    return Operation(
        name="append of another's event",
        submit=lambda store: store.append([event]),
        answer=Code.FOREIGN_SOURCE,
        leaves=lambda store: _check_unknown(store, event),
    )


def _check_unknown(store: SqliteStore, event: Event) -> None:
    assert store.find_event(event.event_id) is None
    assert store.deliveries_of(event.event_id) == []


def _accept(
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
            entry.raw for entry in store.quarantined() if entry.source_node_id == batch.source_node_id
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


def _engage(event: Event, attempt: int = 1) -> Operation:
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


def _postpone(event: Event) -> Operation:
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


def _settle(event: Event, *events: Event, outcome: Outcome, first_seq: int, closed_already: bool = False) -> Operation:
    replies = [each for each in events if each.kind is Kind.REPLY]
    settlement = Settlement(
        event_id=event.event_id,
        to_agent_id="worker",
        outcome=outcome,
        at_ms=NOW_MS,
        events=events,
        deliveries=tuple(_deliveries(*replies, agents=("asker",))),
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


def _note_subscriber(last_seq: int) -> Operation:
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


def _compact(answer: Compacted, *, limit: int) -> Operation:
    def check(store: SqliteStore) -> None:
        # The floor has moved if and only if the rows below it are gone, and none above.
        kept = store.read_outbox(0)
        assert kept.floor_seq == answer.outbox_floor_seq
        assert [one.seq for one in kept.events] == list(range(answer.outbox_floor_seq + 1, store.head().seq + 1))
        assert store._reader().value("SELECT min(seq) FROM inbox") == answer.inbox_floor_seq + 1
        assert store._reader().value("SELECT min(seq) FROM streams") > answer.outbox_floor_seq
        assert store.read_stream(PEER, 0).floor_seq == answer.outbox_floor_seq

    return Operation(
        name=f"compact to {answer.outbox_floor_seq}",
        submit=lambda store: store.compact(now_ms=NOW_MS, retention_events=1, limit=limit),
        answer=answer,
        leaves=check,
    )


# Scenarios: each a few transactions, since every one of their writes is cut, torn and failed.


def _appending() -> Scenario:
    first, second = message(1), message(2)
    return Scenario(
        name="append",
        groups=(
            (_append(1, first, agents=("worker", "helper")),),
            (_append(2, second), _append(3, message(3), message(4), message(5)), _append(6, message(6))),
            (_time_out(second, head_seq=6), _append_foreign(90), _resend(7, second)),
            (_append(8, message(8)), _append_twice_to_one(91), _append(9, message(9), agents=("helper",))),
            (_append(10, message(10)),),
        ),
        checkpoint_at_pages=25,
    )


def _accepting() -> Scenario:
    sent = message(1), message(2)
    asked = [message(100 + number, node=PEER, seq=number) for number in range(4)]
    first = Acceptance(
        source_node_id=PEER,
        source_epoch=EPOCH,
        after_seq=0,
        through_seq=3,
        events=(
            _inbound(asked[1], worker=_ack(201, asked[1], "worker"), helper=_ack(202, asked[1], "helper")),
            _inbound(asked[2], worker=_ack(203, asked[2], "worker")),
            _inbound(_ack(110, sent[0], "worker", node=PEER, seq=3)),
        ),
        changes=(_change(sent[0], "worker", DeliverySignal.ACCEPTED),),
        at_ms=NOW_MS,
    )
    resent = replace(asked[1], seq=4)
    second = Acceptance(
        source_node_id=PEER,
        source_epoch=EPOCH,
        after_seq=3,
        through_seq=6,
        events=(
            _inbound(resent, worker=_ack(204, resent, "worker"), helper=_ack(205, resent, "helper")),
            _inbound(
                replace(asked[3], seq=5), worker=_ack(206, asked[3], "worker"), helper=_ack(207, asked[3], "helper")
            ),
        ),
        unreadable=(Unreadable(raw=b"?", refusal=Refusal(Code.MALFORMED, "not an event"), seq=6, event_id=None),),
        changes=(_change(sent[1], "worker", DeliverySignal.ACCEPTED),),
        at_ms=NOW_MS,
    )
    other = message(301, node=OTHER_PEER, seq=1)
    third = Acceptance(
        source_node_id=OTHER_PEER,
        source_epoch=EPOCH,
        after_seq=0,
        through_seq=1,
        events=(_inbound(other, helper=_ack(208, other, "helper")),),
        at_ms=NOW_MS,
    )
    known = [(asked[1].event_id, "worker"), (asked[1].event_id, "helper")]
    known_by_then = [*known, (asked[3].event_id, "worker"), (asked[3].event_id, "helper")]
    return Scenario(
        name="accept",
        before=(_append(1, *sent),),
        groups=(
            (_accept(first, first_ack_seq=3),),
            (_accept(second, first_ack_seq=6, after_inbox_seq=2, repeated=known),),
            (
                _accept(second, first_ack_seq=8, repeated=known_by_then),
                _accept(third, first_ack_seq=8, after_inbox_seq=3),
                _accept_with_gap(),
                _append(9, message(9)),
            ),
        ),
        checkpoint_at_pages=20,
    )


def _accept_with_gap() -> Operation:
    batch = Acceptance(source_node_id="node-d", source_epoch=EPOCH, after_seq=5, through_seq=6, at_ms=NOW_MS)

    def check(store: SqliteStore) -> None:
        assert store.cursor("node-d") is None

    return Operation(
        name="accept with a gap", submit=lambda store: store.accept(batch), answer=Code.SEQUENCE_GAP, leaves=check
    )


def _received(count: int, *, size: int = 40, accepts: Sequence[Event] = ()) -> tuple[list[MessageEvent], Acceptance]:
    """Messages for the worker, and the batch that brings them."""
    asked = [message(100 + number, node=PEER, seq=number, size=size) for number in range(1, count + 1)]
    batch = Acceptance(
        source_node_id=PEER,
        source_epoch=EPOCH,
        after_seq=0,
        through_seq=count,
        events=tuple(_inbound(event, worker=_ack(200 + event.seq, event, "worker")) for event in asked),
        changes=tuple(_change(event, "worker", DeliverySignal.ACCEPTED) for event in accepts),
        at_ms=NOW_MS,
    )
    return asked, batch


def _settling() -> Scenario:
    (one, two, three), batch = _received(3)

    def processed(number: int, event: Event) -> AckEvent:
        return _ack(number, event, "worker", AckType.PROCESSED)

    return Scenario(
        name="settle",
        before=(_accept(batch, first_ack_seq=1),),
        groups=(
            (_engage(one),),
            (_settle(one, _reply(301, one), processed(302, one), outcome=Outcome.PROCESSED, first_seq=4),),
            (_engage(two), _postpone(two), _engage(two, attempt=2)),
            (
                _settle(
                    two,
                    _ack(303, two, "worker", AckType.FAILED_TERMINAL),
                    outcome=Outcome.FAILED_TERMINAL,
                    first_seq=6,
                ),
                _settle(one, processed(304, one), outcome=Outcome.PROCESSED, first_seq=7, closed_already=True),
                _settle(three, _reply(305, three), processed(306, three), outcome=Outcome.PROCESSED, first_seq=7),
            ),
        ),
        checkpoint_at_pages=8,
    )


def _compacting() -> Scenario:
    sent = [message(number, size=1000) for number in range(1, 9)]
    asked, batch = _received(6, size=1000, accepts=sent[:6])

    def settle(number: int, seq: int) -> Operation:
        event = asked[number - 1]
        ack = _ack(300 + number, event, "worker", AckType.PROCESSED)
        return _settle(event, ack, outcome=Outcome.PROCESSED, first_seq=seq)

    def compacted(outbox: int, inbox: int, *, outbox_floor: int, inbox_floor: int) -> Compacted:
        return Compacted(
            outbox_events=outbox, inbox_events=inbox, outbox_floor_seq=outbox_floor, inbox_floor_seq=inbox_floor
        )

    return Scenario(
        name="compact",
        # Nothing from 7 on was acknowledged, so the outbox is kept from there (PIPE-8).
        before=(
            _append(1, *sent),
            _accept(batch, first_ack_seq=9),
            *(settle(number, 14 + number) for number in range(1, 5)),
            _note_subscriber(18),
        ),
        groups=(
            (_compact(compacted(2, 2, outbox_floor=2, inbox_floor=2), limit=2),),
            (
                _append(19, message(19)),
                _compact(compacted(3, 1, outbox_floor=5, inbox_floor=3), limit=3),
                _append(20, message(20)),
            ),
            (settle(5, 21), _compact(compacted(1, 1, outbox_floor=6, inbox_floor=4), limit=10)),
        ),
        checkpoint_at_pages=20,
    )


def _keep_mirror(after: int, through: int, *, is_known: bool = False) -> Operation:
    """PIPE-9: a batch of another outbox, with its head. What is known already changes nothing."""
    events = [message(400 + seq, node=PEER, seq=seq, size=600) for seq in range(after + 1, through + 1)]
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


def _prune_mirror(through: int, *, events: int) -> Operation:
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


def _mirroring() -> Scenario:
    return Scenario(
        name="mirror",
        before=(_keep_mirror(0, 3),),
        groups=(
            (_keep_mirror(3, 5), _append(1, message(1)), _keep_mirror(0, 3, is_known=True)),
            (_keep_mirror(5, 7), _prune_mirror(4, events=4)),
        ),
        checkpoint_at_pages=15,
    )


def _checkpointing() -> Scenario:
    """A checkpoint after every commit, so that each one starts the log anew."""
    return Scenario(
        name="checkpoint",
        before=(_append(1, message(1)),),
        groups=tuple((_append(number, message(number)),) for number in range(2, 5)),
        checkpoint_at_pages=1,
    )


def _overflowing() -> Scenario:
    """Transactions that do not fit into the cache: the log gets part of them before the commit."""
    _, batch = _received(4, size=3000)
    return Scenario(
        name="overflow",
        before=(),
        groups=(
            (_append(1, message(1)), _accept(batch, first_ack_seq=2), _append(6, message(6))),
            (_append(7, *(message(number, size=3000) for number in range(7, 11))),),
            (_append(11, message(11)),),
        ),
        checkpoint_at_pages=20,
        cache_pages=3,
    )


def _creating() -> Scenario:
    return Scenario(name="create", before=None, groups=((_append(1, message(1)),),), checkpoint_at_pages=1)


_NEW_MIGRATION: Final = """
ALTER TABLE deliveries ADD COLUMN lane TEXT NOT NULL DEFAULT '';
UPDATE deliveries SET lane = to_node_id || '/' || to_agent_id;
CREATE TABLE lengths (event_id TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO lengths SELECT event_id, length(body) FROM outbox;
UPDATE inbox SET body = zeroblob(length(body)), received_at_ms = received_at_ms + 1;
"""


def _migrating() -> Scenario:
    _, batch = _received(3, size=1500)
    return Scenario(
        name="migrate",
        before=(
            _append(1, *(message(number) for number in range(1, 4)), agents=("worker", "helper")),
            _accept(batch, first_ack_seq=4),
        ),
        groups=((_append(7, message(7)),),),
        checkpoint_at_pages=1,
        new_migration=_NEW_MIGRATION,
    )


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        _appending(),
        _accepting(),
        _settling(),
        _compacting(),
        _mirroring(),
        _checkpointing(),
        _overflowing(),
        _creating(),
        _migrating(),
    )
}
