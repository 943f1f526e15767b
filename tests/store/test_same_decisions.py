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
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.store.integrity import check_home
from agentpost.store.interface import Store
from agentpost.store.values import (
    AuditEntry,
    Blob,
    Inbound,
    Incident,
    KeyedAnswer,
    LocalAgent,
    MirrorBatch,
    MirrorEvent,
    Outcome,
)
from agentpost.testing import START_MS, MemoryStore, a_message
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
    to_nodes,
    visible,
)

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))

NUMBERS = st.integers(1, 4)
THEIR_NUMBERS = st.integers(1, 12)
AGENTS = st.sampled_from(["ada", "eve"])
NODES = st.sampled_from([NODE, "node-b", "node-c"])
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

    @rule(
        numbers=st.lists(NUMBERS, max_size=3),
        to=RECIPIENTS,
        nodes=st.lists(NODES, max_size=3),
        due=st.none() | TIMES,
        foreign=st.integers(0, 9),
    )
    def append(self, numbers: list[int], to: list[str], nodes: list[str], due: int | None, foreign: int) -> None:
        # The last of them, so that those before it have to be taken back.
        sources = [NODE] * (len(numbers) - 1) + ["node-z" if foreign == 0 and len(numbers) > 1 else NODE]
        events = [
            to_nodes(a_message(number, source_node_id=source), *nodes)
            for number, source in zip(numbers, sources, strict=False)
        ]
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

    @rule(number=NUMBERS, agent=st.sampled_from(["bob", "cleo"]), due=TIMES, purged=st.booleans())
    def reschedule_or_purge(self, number: int, agent: str, due: int, purged: bool) -> None:
        event_id = OWN[number - 1].event_id
        if purged:
            self._both(lambda store: store.purge_deliveries([(event_id, agent), (event_id, "dora")]))
        else:
            self._both(lambda store: store.reschedule([(event_id, agent, due), (event_id, "dora", due)]))

    @rule(states=st.lists(st.sampled_from(DeliveryState), max_size=4), number=NUMBERS, limit=st.integers(0, 5))
    def look_through_deliveries(self, states: list[DeliveryState], number: int, limit: int) -> None:
        after = (OWN[number - 1].event_id, "bob") if limit % 2 else ("", "")
        self._both(lambda store: _now(store.deliveries_in(states, after=after, limit=limit)))

    @rule(node=NODES, after=st.integers(0, 12), limit=st.integers(0, 4), max_bytes=st.sampled_from([1, 600, 10_000]))
    def read_stream(self, node: str, after: int, limit: int, max_bytes: int) -> None:
        self._both(lambda store: _now(store.read_stream(node, after, limit=limit, max_bytes=max_bytes)))

    @rule(through=st.integers(-2, 3), restarted=st.integers(0, 9))
    def read_local_mail(self, through: int, restarted: int) -> None:
        """The gateway reads its own stream, which compaction has to wait for."""
        cursor = self._memory.cursor(NODE)
        after = cursor.last_seq if cursor else 0
        batch = a_batch(source_node_id=NODE, source_epoch=EPOCH, after=after, through=after + through)
        if restarted:
            self._both(lambda store: store.accept(batch))
        else:
            self._both(lambda store: store.restart_cursor(NODE, epoch=EPOCH, at_ms=1))

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

    @rule(number=THEIR_NUMBERS, agent=AGENTS, at=TIMES, until=TIMES)
    def engage(self, number: int, agent: str, at: int, until: int) -> None:
        event_id = self._theirs(number, agent).event_id
        self._both(lambda store: store.engage(event_id, agent, at_ms=at, until_ms=until))

    @rule(number=THEIR_NUMBERS, agent=AGENTS, due=TIMES)
    def postpone(self, number: int, agent: str, due: int) -> None:
        event_id = self._theirs(number, agent).event_id
        self._both(lambda store: store.postpone(event_id, agent, due_at_ms=due, error="away"))

    @rule(number=THEIR_NUMBERS, agent=AGENTS, outcome=st.sampled_from(Outcome))
    def settle(self, number: int, agent: str, outcome: Outcome) -> None:
        settlement = a_settlement(self._theirs(number, agent), agent=agent, outcome=outcome)
        self._both(lambda store: store.settle(settlement))

    @rule(number=THEIR_NUMBERS, agent=AGENTS, at=TIMES)
    def mark_read(self, number: int, agent: str, at: int) -> None:
        event_id = self._theirs(number, agent).event_id
        self._both(lambda store: store.mark_read(event_id, agent, at_ms=at))
        assert self._sqlite.inbox_item(event_id, agent) == self._memory.inbox_item(event_id, agent)

    @rule(agent=AGENTS, after=st.integers(0, 12), limit=st.integers(0, 4), settled=st.booleans(), newest=st.booleans())
    def look_through_an_inbox(self, agent: str, after: int, limit: int, settled: bool, newest: bool) -> None:
        self._both(
            lambda store: _now(
                store.inbox_items(
                    agent, after_inbox_seq=after, limit=limit, include_settled=settled, newest_first=newest
                )
            )
        )

    @rule(number=NUMBERS)
    def look_at_conversations(self, number: int) -> None:
        self._both(lambda store: _now(store.deliveries_by_corr(OWN[number - 1].corr_id)))
        self._both(lambda store: _now([store.inbox_by_corr(event.corr_id) for event in THEIRS[number::4]]))

    @rule(before=st.sampled_from([0, START_MS + 501, 1 << 60]), limit=st.integers(0, 3))
    def forget(self, before: int, limit: int) -> None:
        self._both(lambda store: store.prune_settled(before_ms=before, limit=limit))

    @rule(before=st.sampled_from([0, 25, START_MS + 1, START_MS + 2_000]), now=TIMES)
    def forget_records(self, before: int, now: int) -> None:
        self._both(lambda store: store.prune_records(now_ms=now, before_ms=before))

    @rule(number=NUMBERS, key=st.integers(0, 2), agent=AGENTS, at=TIMES)
    def append_once(self, number: int, key: int, agent: str, at: int) -> None:
        keyed = KeyedAnswer(
            agent_id=agent, key=bytes([key]), request=b"r", answer=bytes([at]), at_ms=at, expires_at_ms=at + 10
        )
        self._both(lambda store: store.append([a_message(number)], keyed=keyed))
        self._both(lambda store: _now(store.kept_answer(agent, keyed.key)))

    @rule(
        after=st.sampled_from([0, 0, 0, -1, 1]),
        count=st.integers(0, 3),
        nodes=st.lists(NODES, max_size=3),
        life=st.sampled_from(["first", "first", "first", "second"]),
    )
    def mirror(self, after: int, count: int, nodes: list[str], life: str) -> None:
        """A batch that mostly fits, from a source whose events are whatever they are."""
        position = self._memory.mirror_position("node-d")
        after += position.last_seq if position else 0
        events = [
            MirrorEvent(seq=seq, chain=b"chain %026d" % seq, raw=b"event %d" % seq, to_nodes=tuple(nodes))
            for seq in range(after + 1, after + count + 1)
        ]
        batch = MirrorBatch(
            source_node_id="node-d",
            epoch=life if life == "second" or position is None else position.epoch,
            after_seq=after,
            through_seq=after + count,
            events=tuple(events),
            head=b"head %d" % (after + count),
            signature=b"signed",
            at_ms=1,
        )
        self._both(lambda store: store.keep_mirror(batch))

    @rule(through=st.integers(0, 12), restarted=st.integers(0, 4), life=st.sampled_from(["first", "second"]))
    def prune_or_restart_a_mirror(self, through: int, restarted: int, life: str) -> None:
        if restarted == 0:
            self._both(lambda store: store.restart_mirror("node-d", epoch=life, at_ms=1))
        else:
            self._both(lambda store: store.prune_mirror("node-d", through_seq=through))

    @rule(node=NODES, after=st.integers(0, 12))
    def read_mirror(self, node: str, after: int) -> None:
        self._both(lambda store: _now(store.read_mirror("node-d", node, after)))
        self._both(lambda store: _now(store.read_whole_mirror("node-d", after)))

    @rule(agent=AGENTS, runtime=st.sampled_from(["pull", "command"]), removed=st.integers(0, 2))
    def change_agents(self, agent: str, runtime: str, removed: int) -> None:
        if removed:
            self._both(lambda store: store.put_agent(LocalAgent(agent_id=agent, runtime=runtime, created_at_ms=1)))
        else:
            self._both(lambda store: store.remove_agent(agent))

    @rule(subject=AGENTS, closed=st.booleans(), at=TIMES, seen=st.integers(0, 4))
    def incident(self, subject: str, closed: bool, at: int, seen: int) -> None:
        if closed:
            self._both(lambda store: store.close_incident("late", subject, at_ms=at))
        else:
            self._both(lambda store: store.raise_incident(Incident(kind="late", subject=subject, at_ms=at)))
        self._both(lambda store: _now(store.incidents(after_id=seen, limit=2)))

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
        self._both(lambda store: store.compact(store.watermarks(now_ms=now, retention_events=retention), limit=limit))

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
        self._both(lambda store: store.compact(store.watermarks(now_ms=20, retention_events=retention)))

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


async def _now(value: object) -> object:
    """What was read, as the answer to an operation."""
    return value


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
