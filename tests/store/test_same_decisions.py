"""SQLite and memory, given the same operations, give the same answers and show the same state."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from agentpost.protocol.codec import Unreadable, decode_event, encode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.store.integrity import check_home
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry, Blob, Inbound, Outcome
from agentpost.testing import MemoryStore, a_message
from tests.store.building import (
    EPOCH,
    NODE,
    a_batch,
    a_change,
    a_settlement,
    a_subscriber,
    deliveries_of,
    from_peer,
    incoming,
    open_sqlite,
    visible,
)

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))

NUMBERS = st.integers(1, 4)
THEIR_NUMBERS = st.integers(1, 12)
AGENTS = st.sampled_from(["ada", "eve"])
RECIPIENTS = st.lists(st.sampled_from(["bob", "cleo"]), max_size=2)
TIMES = st.integers(0, 50)
OWN: list[Event] = [a_message(number) for number in range(1, 5)]
THEIRS = [from_peer(number) for number in range(1, 13)]
# Three bytes, two of them to a chunk, under their true address.
BLOB = Blob(
    sha256="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    size_bytes=3,
    chunk_bytes=2,
    chunks=2,
    complete=False,
)


class TwoStores(RuleBasedStateMachine):
    """Whatever happens to one store happens to the other."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._directory = tempfile.TemporaryDirectory()
        self._home = Path(self._directory.name) / "home"

    @initialize()
    def open(self) -> None:
        self._memory = MemoryStore(node_id=NODE, epoch=EPOCH)
        self._sqlite = self._opened()

    def _opened(self) -> Store:
        # Nothing here loses power, so nothing has to be synced.
        return open_sqlite(self._home, synchronous="OFF")

    def teardown(self) -> None:
        self._runner.run(self._sqlite.close())
        assert check_home(self._home).problems == ()
        self._runner.close()
        self._directory.cleanup()

    def _both(self, operation: Callable[[Store], Awaitable[Any]]) -> None:
        answers = [self._runner.run(_answer(operation, store)) for store in (self._sqlite, self._memory)]
        assert answers[0] == answers[1]

    @invariant()
    def both_show_the_same(self) -> None:
        events = [*OWN, *THEIRS]
        assert visible(self._sqlite, events=events) == visible(self._memory, events=events)

    @rule()
    def restart(self) -> None:
        self._runner.run(self._sqlite.close())
        self._sqlite = self._opened()

    @rule(numbers=st.lists(NUMBERS, max_size=3), to=RECIPIENTS, due=st.none() | TIMES, foreign=st.booleans())
    def append(self, numbers: list[int], to: list[str], due: int | None, foreign: bool) -> None:
        node_id = "node-z" if foreign and len(numbers) > 1 else NODE
        events = [a_message(number, source_node_id=NODE if at else node_id) for at, number in enumerate(numbers)]
        deliveries = [delivery for event in events for delivery in deliveries_of(event, *to, due_at_ms=due)]
        self._both(lambda store: store.append(events, deliveries=deliveries))

    @rule(
        resent=st.lists(NUMBERS, max_size=2),
        moves=st.lists(
            st.tuples(NUMBERS, st.sampled_from(DeliverySignal), st.sampled_from(["bob", "cleo"]), TIMES),
            min_size=1,
            max_size=3,
        ),
    )
    def change(self, resent: list[int], moves: list[tuple[int, DeliverySignal, str, int]]) -> None:
        events = [a_message(number, attempt=2) for number in resent]
        changes = [
            a_change(OWN[number - 1], signal, agent=agent, due_at_ms=due) for number, signal, agent, due in moves
        ]
        self._both(lambda store: store.append(events, changes=changes))

    @rule(number=NUMBERS, signal=st.sampled_from([DeliverySignal.ACCEPTED, DeliverySignal.REPLY]))
    def hear(self, number: int, signal: DeliverySignal) -> None:
        found = self._memory.deliveries_of(OWN[number - 1].event_id)
        changes = [a_change(OWN[number - 1], signal, agent=delivery.to_agent_id) for delivery in found]
        self._both(lambda store: store.append([], changes=changes))

    @rule(to=RECIPIENTS, which=st.integers(0, 7), due=TIMES)
    def time_out_and_resend(self, to: list[str], which: int, due: int) -> None:
        """One delivery of those there are, or of an event that was never sent."""
        number = which % len(OWN) + 1
        sent = self._memory.deliveries_of(OWN[number - 1].event_id)
        for agent in [delivery.to_agent_id for delivery in sent] or to:
            timed_out = a_change(OWN[number - 1], DeliverySignal.ACK_TIMEOUT, agent=agent, due_at_ms=due)
            resent = a_change(OWN[number - 1], DeliverySignal.RESENT, agent=agent, due_at_ms=due + 1)
            again = a_message(number, attempt=2)
            self._both(lambda store, again=again, both=(timed_out, resent): store.append([again], changes=both))

    @rule(
        numbers=st.lists(THEIR_NUMBERS, max_size=4),
        to=st.lists(AGENTS, max_size=2, unique=True),
        skip=st.sampled_from([0, 0, 0, 0, -2, -1, 1]),
        beyond=st.sampled_from([0, 0, 0, 2, -1]),
        same_epoch=st.integers(0, 9),
        bad=st.integers(0, 3),
        acked=st.none() | st.tuples(NUMBERS, st.sampled_from(DeliverySignal)),
    )
    def accept(
        self,
        numbers: list[int],
        to: list[str],
        skip: int,
        beyond: int,
        same_epoch: int,
        bad: int,
        acked: tuple[int, DeliverySignal] | None,
    ) -> None:
        """A batch that mostly fits: at the cursor, before it or beyond it, with repeats of known events."""
        cursor = self._memory.cursor("node-b")
        after = (cursor.last_seq if cursor else 0) + skip
        events = [from_peer(number, seq=after + place) for place, number in enumerate(numbers, 1) if after + place >= 0]
        unreadable = [
            Unreadable(raw=b"?", refusal=Refusal(Code.MALFORMED, "no"), seq=None, event_id=None) for _ in range(bad)
        ]
        batch = a_batch(
            *(incoming(event, *to) if to else Inbound(event=event, raw=encode_event(event)) for event in events),
            after=after,
            through=after + len(numbers) + beyond,
            source_epoch="epoch-of-b" if same_epoch else "another life",
            unreadable=tuple(unreadable) if bad == 3 else (),
            changes=() if acked is None else (a_change(OWN[acked[0] - 1], acked[1]),),
        )
        self._both(lambda store: store.accept(batch))

    def _theirs(self, number: int, agent: str) -> Event:
        """An event that the agent has open, if it has one; else just any."""
        backlog = self._memory.backlog(agent)
        if backlog and number % 4:
            return decode_event(backlog[number % len(backlog)].raw)
        return THEIRS[number - 1]

    @rule(number=THEIR_NUMBERS, agent=AGENTS, at=TIMES)
    def engage(self, number: int, agent: str, at: int) -> None:
        event_id = self._theirs(number, agent).event_id
        self._both(lambda store: store.engage(event_id, agent, at_ms=at))

    @rule(number=THEIR_NUMBERS, agent=AGENTS, due=TIMES)
    def postpone(self, number: int, agent: str, due: int) -> None:
        event_id = self._theirs(number, agent).event_id
        self._both(lambda store: store.postpone(event_id, agent, due_at_ms=due, error="away"))

    @rule(number=THEIR_NUMBERS, agent=AGENTS, outcome=st.sampled_from(Outcome))
    def settle(self, number: int, agent: str, outcome: Outcome) -> None:
        settlement = a_settlement(self._theirs(number, agent), agent=agent, outcome=outcome)
        self._both(lambda store: store.settle(settlement))

    @rule(node=st.sampled_from(["node-b", "node-c"]), lag=st.integers(-1, 4), lease=TIMES, same=st.integers(0, 9))
    def note_subscriber(self, node: str, lag: int, lease: int, same: int) -> None:
        subscriber = a_subscriber(
            max(self._memory.head().seq - lag, 0),
            node_id=node,
            lease_expires_at_ms=lease + 10,
            epoch=EPOCH if same else "an earlier life",
        )
        self._both(lambda store: store.note_subscriber(subscriber))

    @rule(now=st.integers(0, 20), retention=st.integers(0, 3), limit=st.integers(0, 5))
    def compact(self, now: int, retention: int, limit: int) -> None:
        self._both(lambda store: store.compact(now_ms=now, retention_events=retention, limit=limit))

    @rule(
        numbers=st.lists(THEIR_NUMBERS, min_size=1, max_size=4), settled=st.integers(0, 4), retention=st.integers(0, 2)
    )
    def live_through_a_good_day(self, numbers: list[int], settled: int, retention: int) -> None:
        """Mail comes, most of it is worked, the peer reads the answers, and what nobody needs is pruned."""
        cursor = self._memory.cursor("node-b")
        after = cursor.last_seq if cursor else 0
        events = [from_peer(number, seq=after + place) for place, number in enumerate(numbers, 1)]
        self._both(lambda store: store.accept(a_batch(*(incoming(event) for event in events), after=after)))
        for event in events[:settled]:
            self._both(lambda store, event=event: store.settle(a_settlement(event)))
        self._both(lambda store: store.note_subscriber(a_subscriber(store.head().seq)))
        self._both(lambda store: store.compact(now_ms=20, retention_events=retention))

    @rule(value=st.sampled_from("abc"), now=TIMES, lives=TIMES)
    def remember(self, value: str, now: int, lives: int) -> None:
        self._both(lambda store: store.remember_once("nonce", value, now_ms=now, expires_at_ms=now + lives))

    @rule(at=TIMES)
    def record(self, at: int) -> None:
        self._both(lambda store: store.record_audit([AuditEntry(at_ms=at, actor="ada", action="send")]))

    @rule(
        step=st.sampled_from(["begin", "complete", "drop", "missing"])
        | st.tuples(st.integers(-1, 2), st.integers(0, 2))
    )
    def blob(self, step: str | tuple[int, int]) -> None:
        match step:
            case "begin":
                self._both(lambda store: store.begin_blob(BLOB, at_ms=1))
            case "complete":
                self._both(lambda store: store.complete_blob(BLOB.sha256))
            case "drop":
                self._both(lambda store: store.drop_blob(BLOB.sha256))
            case (int(part), int(size)):
                self._both(lambda store: store.put_chunk(BLOB.sha256, part, b"abc"[2 * max(part, 0) :][:size]))
            case _:
                self._both(_missing)
        assert self._sqlite.blob(BLOB.sha256) == self._memory.blob(BLOB.sha256)
        assert self._sqlite.chunk(BLOB.sha256, 0) == self._memory.chunk(BLOB.sha256, 0)


async def _answer(operation: Callable[[Store], Awaitable[Any]], store: Store) -> object:
    try:
        return await operation(store)
    except Refusal as refusal:
        return refusal.code


async def _missing(store: Store) -> list[int]:
    return store.missing_chunks(BLOB.sha256)


@pytest.mark.req("ENV-2", "RTY-3", "CUR-2", "PIPE-7")
def test_both_stores_decide_alike() -> None:
    """Random histories, restarts included, lead both stores to the same answers, refusals and contents."""
    run_state_machine_as_test(
        TwoStores,
        settings=settings(
            max_examples=60 * ROUNDS,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
