"""`agentpost bench room`: updates checked and merged a second, how a month grows the room, and what a join costs.

Fifty nodes with ten agents each. Every update is signed by its node, arrives as bytes, and passes the whole guard.
"""

import gc
from functools import partial
from typing import Final

from agentpost.bench.fleet import Fleet, Month
from agentpost.bench.measure import Metric, Say, seconds_of
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.room.document import Room
from agentpost.room.sync import MAX_FRAME_BYTES

__all__ = ["bench_room"]

NODES: Final = 50
AGENTS_A_NODE: Final = 10
_UPDATES: Final = 4_000
_DAYS: Final = 30
_GOAL_RATE: Final = 2_000
_GOAL_BYTES: Final = 5_000_000
_GOAL_JOIN_SECONDS: Final = 1.0


def bench_room(*, rounds: int, say: Say) -> list[Metric]:
    """The figures of the room."""
    return [*_bench_updates(rounds, say), *_bench_month(rounds, say)]


def _bench_updates(rounds: int, say: Say) -> list[Metric]:
    own = relayed = 0.0
    for turn in range(rounds):
        say(f"updates, round {turn + 1} of {rounds}")
        fleet = Fleet(nodes=NODES, agents_a_node=AGENTS_A_NODE)
        reader = fleet.join(1)
        updates = fleet.cursor_updates(_UPDATES)
        relays: list[tuple[bytes, str]] = []
        end = fleet.seed.subscribe(lambda update, _origin, relays=relays: relays.append((update, "node-0")))
        gc.collect()
        own = max(own, len(updates) / seconds_of(partial(_take, fleet.seed, updates)))
        end()
        relayed = max(relayed, len(relays) / seconds_of(partial(_take, reader, relays)))
    return [
        Metric.of("updates checked and merged, 50 nodes, 500 agents", own, "updates/s", against=_GOAL_RATE),
        Metric.of("the same updates, passed on by a seed", relayed, "updates/s", against=_GOAL_RATE),
    ]


def _bench_month(rounds: int, say: Say) -> list[Metric]:
    month = Month(nodes=NODES, agents_a_node=AGENTS_A_NODE)
    first = len(month.content())
    for day in range(_DAYS):
        say(f"day {day + 1} of {_DAYS}")
        month.live_a_day(copies=86_400 // DeliveryPolicy().cursor_copy_every_seconds, moves=10, restarts=NODES // 7)
    content = month.finish()
    joins: list[float] = []
    for turn in range(rounds):
        say(f"joins, round {turn + 1} of {rounds}")
        join = partial(month.new_room(1).receive, content, peer="node-0", is_sync=True, max_bytes=MAX_FRAME_BYTES)
        gc.collect()
        joins.append(seconds_of(join))
    return [
        Metric.of("room on its first day", first, "bytes"),
        Metric.of("writes in 30 days, without heartbeats", month.writes, "writes"),
        Metric.of("room after 30 days", len(content), "bytes", against=_GOAL_BYTES),
        Metric.of("join after 30 days", min(joins), "s", against=_GOAL_JOIN_SECONDS),
    ]


def _take(room: Room, updates: list[tuple[bytes, str]]) -> None:
    for update, peer in updates:
        room.receive(update, peer=peer)
