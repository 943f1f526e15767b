"""The change logs of a fleet: who is there, who owns what, how far everybody has read. Written by the first node."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct

from agentpost.auth.signing import to_text
from agentpost.lake.manifest import facts_path
from agentpost.lake.schema import FACTS
from agentpost.simulate.arrow import numbers, pa, pq, texts
from agentpost.simulate.plan import CAPABILITIES, World
from agentpost.simulate.rows import Rows, code
from agentpost.simulate.text import mixed, ulids

__all__ = ["Heads", "Sessions", "sessions_of", "write_facts"]

_LEASE_US: Final = 300_000_000
_ONE_IN: Final = np.uint64(256)
_BEGINS: Final = (code("message"), code("task_create"))

Fact = tuple[int, str, str, dict[str, Any] | None]
Sessions = list[tuple[int, str, str, str]]  # when, corr id, session id, agent


class Heads(Struct, frozen=True):
    """The end of an outbox when a part of the time was over."""

    epoch: str
    seq: int


def sessions_of(world: World, rows: Rows) -> Sessions:
    """Some conversations were begun in a session of an external program."""
    some = rows.only(np.isin(rows["kind"], _BEGINS) & (rows["word"] % _ONE_IN == 0) & (rows["attempt"] == 1))
    hour_ms = some["corr_ms"] // 3_600_000 * 3_600_000
    corr = ulids(some["corr_ms"], some["corr_word"])
    session = ulids(hour_ms, mixed(hour_ms.astype(np.uint64), some["agent"]))
    return [
        (at_us, f"corr_{bytes(c).decode()}", f"ses_{bytes(s).decode()}", world.agent_names[agent])
        for at_us, c, s, agent in zip(some["t_us"].tolist(), corr, session, some["agent"].tolist(), strict=True)
    ]


def write_facts(
    world: World,
    root: Path,
    part: int,
    *,
    from_us: int,
    until_us: int,
    heads: Mapping[int, Heads],
    sessions: Sequence[tuple[int, str, str, str]],
) -> None:
    """The log of one part of the time: what changed in it, and the cursors at its end."""
    found = [fact for fact in _standing(world) if part == 0 or from_us <= fact[0]]
    found = [fact for fact in found if fact[0] < until_us]
    found += [
        (at, "session", corr, {"sessionId": session, "actor": agent, "action": "invoke"})
        for at, corr, session, agent in sessions
    ]
    found += _cursors(world, heads, until_us)
    found.sort(key=lambda fact: (fact[0], fact[1], fact[2]))
    columns = [
        numbers(np.array([at for at, _, _, _ in found], dtype=np.int64)),
        texts([world.node_names[0]] * len(found)),
        texts([topic for _, topic, _, _ in found]),
        texts([key for _, _, key, _ in found]),
        texts([None if value is None else json.dumps(value) for _, _, _, value in found]),
    ]
    path = root / facts_path(world.node_names[0], part + 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(columns, schema=FACTS), path, compression="zstd", store_schema=False)


def _standing(world: World) -> Iterator[Fact]:
    at = world.start_us
    for node, name in enumerate(world.node_names):
        public = world.signing_key(node).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        tier = "backbone" if node == 0 else "edge"
        yield at, "node", name, {"tier": tier, "signingPublic": to_text(public), "status": "active"}
        yield at, "presence", name, {"status": "online"}
        settings = {
            "acceptedAckTimeoutSeconds": 20,
            "maxAttempts": 10,
            "processedSlaSeconds": 86_400,
            "processedSlaGraceSeconds": 120,
        }
        yield at, "settings", name, settings
        if world.away_until_us[node]:
            yield int(world.away_from_us[node]), "presence", name, {"status": "offline"}
            yield int(world.away_until_us[node]), "presence", name, {"status": "online"}
    for agent, name in enumerate(world.agent_names):
        owner = world.node_names[agent % world.plan.nodes]
        yield at, "agent", name, {"ownerNodeId": owner, "status": "active", "fallbackNodeIds": []}
    for number, name in enumerate(CAPABILITIES, 1):
        for version, since in ((1, at), (2, int(world.version_changes_us[number - 1]))):
            value = {
                "version": f"{version}.9.0",
                "ownerAgentId": world.agent_names[number],
                "ownerNodeId": world.node_names[number % world.plan.nodes],
                "status": "active",
                "executorSkillVersion": f"{version}.0.0",
                "policyVersion": "cp-1",
            }
            yield since, "capability", name, value
    yield at, "policy", "capability", {"version": "cp-1"}
    yield at, "policy", "routing", {"version": "rp-1"}
    yield (world.start_us + world.end_us) // 2, "policy", "routing", {"version": "rp-2"}


def _cursors(world: World, heads: Mapping[int, Heads], at_us: int) -> Iterator[Fact]:
    """Everybody has read everybody else's outbox to its end; who is away has not renewed its lease."""
    for consumer, reader in enumerate(world.node_names):
        away = bool(world.is_away(np.array([consumer]), np.array([at_us]))[0])
        for source, head in heads.items():
            if source == consumer:
                continue
            value = {
                "consumer": reader,
                "source": world.node_names[source],
                "epoch": head.epoch,
                "lastSeq": head.seq,
                "leaseExpiresUs": (int(world.away_from_us[consumer]) if away else at_us) + _LEASE_US,
                "status": "expired" if away else "active",
            }
            yield at_us - 1, "cursor", f"{reader}/{world.node_names[source]}", value
