"""`agentpost bench sweep`: how long a sweep over many open tasks takes, and what mail notices of it.

One gateway with a real store, whose agents have asked for many things that nobody has begun. Mail between two of its
agents goes on meanwhile: the time from sending a message to its answer, with nothing else to do and during a sweep.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from agentpost.bench.measure import Metric, Say
from agentpost.delivery.engine import Engine
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind
from agentpost.delivery.publish import SendRequest
from agentpost.protocol.coordination import CoordinationState, Preference
from agentpost.protocol.ids import EventId
from agentpost.protocol.snapshot import AgentStatus, Failover, NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import LocalAgent
from agentpost.testing import FixedRoom
from agentpost.work.offering import NewTask
from agentpost.work.office import Office
from agentpost.work.settings import WorkSettings
from agentpost.world import SystemChance, SystemClock

__all__ = ["bench_sweep"]

_NODE: Final = "bench-node"
_ELSEWHERE: Final = "bench-elsewhere"
_AT_ONCE: Final = 256
_IN_FLIGHT: Final = 4
_SECONDS: Final = 3.0
_LATE: Final = 500
_WORKERS: Final = 50
_QUARTER_HOUR_MS: Final = 900_000
# Nobody begins anything here, and only what has a deadline is to be late.
_SETTINGS: Final = WorkSettings(claim_sla_seconds=86_400)


def bench_sweep(*, tasks: int, say: Say) -> list[Metric]:
    """The time of a sweep, with nothing late and with five hundred late tasks, and the p95 of mail beside it."""
    return uvloop.run(_bench(tasks, say))


async def _bench(tasks: int, say: Say) -> list[Metric]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentpost-bench-")))
        clock = _Clock()
        engine, office = await _gateway(folder / _NODE, clock)
        stack.push_async_callback(engine.store.close)
        stack.push_async_callback(engine.close)
        await _fill(engine, office, tasks, say)
        state = CoordinationState()
        say("sweeping")
        well = min([await _seconds_of(office, turn, state) for turn in range(3)])
        say("mail without a sweep")
        quiet = await _mail(engine)
        say("mail during sweeps")
        stop = asyncio.Event()

        async def sweep_on() -> None:
            while not stop.is_set():
                await office.sweeper.sweep(0, state)

        async with asyncio.TaskGroup() as group:
            group.create_task(sweep_on())
            busy = await _mail(engine)
            stop.set()
        clock.ahead_ms = _QUARTER_HOUR_MS
        say(f"a sweep with {_LATE} late tasks")
        started = time.perf_counter()
        report = await office.sweeper.sweep(1, state)
        late = time.perf_counter() - started
    return [
        Metric.of(f"sweep of {tasks:,} open tasks", well, "s", against=1.0),
        Metric.of(f"the same with {_LATE} late at once", late, "s", against=1.0),
        Metric.of("messages that it sends then", report.messages, "messages", against=_SETTINGS.message_budget),
        Metric.of("a message and its answer, p95", _p95_ms(quiet), "ms"),
        Metric.of("the same during sweeps, p95", _p95_ms(busy), "ms", against=_p95_ms(quiet)),
    ]


class _Clock(SystemClock):
    """The time of this machine, or a while later."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class _Answering:
    """An agent that answers at once."""

    is_idempotent = True
    max_concurrent = 16

    async def engage(self, engagement: Engagement) -> Result:
        return Result(kind=ResultKind.PROCESSED, reply=Content(body="yes"))

    async def ask(self, event_id: EventId) -> Result | None:
        return None

    async def close(self) -> None:
        pass


class _Directory:
    """The agents, straight into the room of the bench."""

    def __init__(self, room: FixedRoom) -> None:
        self._room = room

    def owner_of(self, agent_id: str) -> str | None:
        agent = self._room.snapshot().agents.get(agent_id)
        return None if agent is None else agent.owner_node_id

    def publish(self, agent_id: str, status: AgentStatus) -> None:
        self._room.add_agent(agent_id, _NODE, active=status is AgentStatus.ACTIVE)

    def withdraw(self, agent_id: str) -> None:
        self._room.remove_agent(agent_id)

    def stands_in(self, agent_id: str) -> bool:
        return False

    def name_stand_ins(self, agent_id: str, node_ids: Sequence[str], failover: Failover) -> None:
        self._room.add_fallback(agent_id, *node_ids, failover=failover)


class _NoBoard:
    """A room that says nothing of coordination."""

    def state(self) -> CoordinationState:
        return CoordinationState()

    def appoint(self, coordinator: str, *, confirm_last_resort: bool) -> None:
        pass

    def check_appointment(self, coordinator: str, *, confirm_last_resort: bool) -> None:
        pass

    def set_cadence(self, sweep_every_seconds: int) -> None:
        pass

    def prefer(self, preference: Preference) -> None:
        pass

    def begin_term(self, term: int) -> None:
        pass


async def _gateway(home: Path, clock: _Clock) -> tuple[Engine, Office]:
    chance = SystemChance()
    room = FixedRoom(clock)
    identity = room.add_node(_NODE)
    room.add_node(_ELSEWHERE, online=False)
    for number in range(_WORKERS):
        room.add_agent(f"worker-{number}", _ELSEWHERE)
    store = SqliteStore.open(home, node_id=_NODE, epoch="bench", now_ms=clock.now_ms())

    def runtime(_: LocalAgent) -> _Answering:
        return _Answering()

    engine = Engine(
        store=store,
        room=room,
        directory=_Directory(room),
        copies=None,
        signing=identity.signing,
        sealing=identity.sealing,
        tier=NodeTier.BACKBONE,
        clock=clock,
        chance=chance,
        runtimes=runtime,
    )
    office = Office(engine, board=_NoBoard(), chance=chance, settings=_SETTINGS)
    await engine.start()
    for agent_id in ("asker", "answerer"):
        await engine.agents.add(agent_id, "handler")
    return engine, office


async def _fill(engine: Engine, office: Office, tasks: int, say: Say) -> None:
    deadline = format_ms(engine.clock.now_ms() + _QUARTER_HOUR_MS // 2)
    for first in range(0, tasks, _AT_ONCE):
        say(f"asking for things: {first:,} of {tasks:,}")
        await asyncio.gather(
            *(
                office.tasks.create(
                    NewTask(
                        requester_agent_id="asker",
                        title="Build it",
                        to_agents=(f"worker-{number % _WORKERS}",),
                        deadline_at=deadline if number < _LATE else None,
                    )
                )
                for number in range(first, min(first + _AT_ONCE, tasks))
            )
        )


async def _seconds_of(office: Office, turn: int, state: CoordinationState) -> float:
    started = time.perf_counter()
    await office.sweeper.sweep(turn, state)
    return time.perf_counter() - started


async def _mail(engine: Engine) -> list[float]:
    """How long each of many messages took from being sent to being answered, a few of them at a time."""
    took: list[float] = []
    until = time.perf_counter() + _SECONDS

    async def one_after_another() -> None:
        while (started := time.perf_counter()) < until:
            await engine.outcomes.send(
                SendRequest(source_agent_id="asker", to_agents=("answerer",), content=Content(body="Are you there?"))
            )
            took.append(time.perf_counter() - started)

    await asyncio.gather(*(one_after_another() for _ in range(_IN_FLIGHT)))
    return took


def _p95_ms(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.95)] * 1000
