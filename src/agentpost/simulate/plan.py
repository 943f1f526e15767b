"""What a fleet is, before anything happens: its size, its names, its keys, who is slow and who is away.

Everything follows from the plan, its seed included, so the same plan is the same lake, byte for byte.
"""

import math
from functools import cached_property
from hashlib import sha256
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.simulate.arrays import Bytes, Flags, Floats, Ints

__all__ = ["CAPABILITIES", "DEFAULT_END_MS", "FleetPlan", "World", "policy_number"]

DEFAULT_END_MS: Final = 1_772_496_000_000  # 2026-03-03T00:00:00Z
_HOUR_US: Final = 3_600_000_000
_MINUTES_A_DAY: Final = 24 * 60
_AWAY_SHARE: Final = 0.15
_SLOW_SHARE: Final = 0.1
CAPABILITIES: Final = ("docs.review", "code.build", "data.label", "ops.rollout")


class FleetPlan(Struct, frozen=True, kw_only=True):
    """`parts` are the shares of the events, in order of time, that are released one after the other."""

    seed: int = 1
    nodes: int = 20
    agents: int = 200
    events: int = 5_000_000
    hours: float = 72
    end_ms: int = DEFAULT_END_MS
    parts: tuple[float, ...] = (1.0,)
    faults: tuple[str, ...] = ()
    segment_events: int = 50_000

    def __post_init__(self) -> None:
        for field, value, least, most in (
            ("nodes", self.nodes, 3, 9999),
            ("agents", self.agents, max(self.nodes, 1 + len(CAPABILITIES)), 99_999),
            ("events", self.events, 100, 2_000_000_000),
            ("hours", self.hours, 1, 24 * 366),
            ("end", self.end_ms, 1_600_000_000_000, 4_000_000_000_000),
            ("parts", len(self.parts), 1, 10_000),
            ("segment-events", self.segment_events, 100, 1_000_000),
            ("seed", self.seed, 0, 2**63 - 1),
        ):
            if not least <= value <= most:
                raise Refusal(Code.INVALID_FIELD, f"{field} must lie between {least} and {most}", field=field)
        if any(not 0 < share < math.inf for share in self.parts):
            raise Refusal(Code.INVALID_FIELD, "each part must have a share above 0", field="parts")


class World:
    """The plan, worked out. Times are microseconds since 1970."""

    def __init__(self, plan: FleetPlan) -> None:
        self.plan = plan
        self.end_us = plan.end_ms * 1000
        self.start_us = self.end_us - round(plan.hours * _HOUR_US)
        self.node_names = [f"node-{n:04d}" for n in range(plan.nodes)]
        self.agent_names = [f"agent-{n:05d}" for n in range(plan.agents)]
        rng = self.chance("world")
        self.agents_a_node = plan.agents // plan.nodes
        # Agent k lives at node k modulo nodes.
        self.slowness = np.where(rng.random(plan.nodes) < _SLOW_SHARE, 8.0, 1.0)
        self.away_from_us, self.away_until_us = self._absences(rng)
        self.version_changes_us = self.start_us + ((self.end_us - self.start_us) * (0.3 + 0.4 * rng.random(4))).astype(
            np.int64
        )

    def chance(self, *purpose: str | int) -> np.random.Generator:
        """Random numbers for one purpose: the same ones whoever asks, in whatever order."""
        name = f"{self.plan.seed} " + " ".join(map(str, purpose))
        return np.random.Generator(np.random.PCG64(int.from_bytes(sha256(name.encode()).digest()[:16], "big")))

    def signing_key(self, node: int) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(
            sha256(f"agentpost simulate {self.plan.seed} {self.node_names[node]}".encode()).digest()
        )

    def epoch(self, node: int, number: int) -> str:
        return f"epoch-{number:02d}-{self.plan.seed % 10_000:04d}{node:04d}"

    def node_of(self, agents: Ints) -> Ints:
        return agents % self.plan.nodes

    def is_away(self, nodes: Ints, at_us: Ints) -> Flags:
        return (at_us >= self.away_from_us[nodes]) & (at_us < self.away_until_us[nodes])

    def when_back(self, rng: np.random.Generator, nodes: Ints, at_us: Ints) -> Ints:
        """`at_us`, or shortly after the node's return if it is away then."""
        back = self.away_until_us[nodes] + (rng.random(len(at_us)) * 60e6).astype(np.int64)
        return np.where(self.is_away(nodes, at_us), back, at_us)

    @cached_property
    def name_letters(self) -> tuple[Bytes, Bytes]:
        """The names of agents and of nodes as letters; within each they are all as long."""
        agents, nodes = (
            np.frombuffer("".join(names).encode(), dtype=np.uint8).reshape(len(names), -1)
            for names in (self.agent_names, self.node_names)
        )
        return agents, nodes

    @cached_property
    def _curve(self) -> tuple[Floats, Ints]:
        """The share of all work that is begun by each minute: quiet nights, busy days."""
        minutes = np.arange(self.start_us, self.end_us + 60_000_000, 60_000_000, dtype=np.int64)
        in_day = (minutes // 60_000_000) % _MINUTES_A_DAY
        load = 1.0 + 0.75 * np.sin((in_day - 9 * 60) / _MINUTES_A_DAY * 2 * np.pi)
        done = np.concatenate([[0.0], np.cumsum(load[:-1])])
        return done / done[-1], np.minimum(minutes, self.end_us)

    def moment(self, shares: Floats) -> Ints:
        """When that share of all work is begun."""
        done, minutes = self._curve
        return np.interp(shares, done, minutes.astype(np.float64)).astype(np.int64)

    def _absences(self, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Some nodes are away once, for up to a quarter of the time, and all are back well before the end."""
        count, span = self.plan.nodes, self.end_us - self.start_us
        begin = self.start_us + (rng.uniform(0.2, 0.55, count) * span).astype(np.int64)
        length = np.minimum(rng.uniform(0.02, 0.2, count) * span, 10 * _HOUR_US).astype(np.int64)
        away = rng.random(count) < _AWAY_SHARE
        # The first node is the seed that observes the others; faults need a few that are always there.
        away[: max(3, 1 + count // 2)] = False
        return np.where(away, begin, 0), np.where(away, begin + length, 0)


def policy_number(world: World, corr_ms: Ints) -> Ints:
    """The version of the routing policy when a conversation began: it changed once, in the middle of the time."""
    return 1 + (corr_ms * 1000 >= (world.start_us + world.end_us) // 2).astype(np.int64)
