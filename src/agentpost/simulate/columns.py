"""Rows of numbers → the columns of a segment, the bodies and their hash chain included.

Texts of one width are laid out as Arrow buffers directly; words come from small dictionaries. No Python code runs for
a single event, the chain aside.
"""

from hashlib import sha256
from typing import Any, Final

import numpy as np
from msgspec import Struct

from agentpost.lake.schema import SEGMENT
from agentpost.simulate.arrays import Bytes, Ints, Rows
from agentpost.simulate.arrow import (
    ArrowArray,
    chain_array,
    ids,
    lists,
    numbers,
    offsets_and_data,
    pa,
    some,
    words,
)
from agentpost.simulate.bodies import Texts, bodies
from agentpost.simulate.plan import CAPABILITIES, World, policy_number
from agentpost.simulate.rows import ACK_TYPES, ACKS, FAILURES, KINDS, PRIORITIES, REASONS, ROUTES, TASK_STEP, code
from agentpost.simulate.templates import SIGNAL
from agentpost.simulate.text import mixed, times, ulids

__all__ = ["Chained", "segment_columns"]

_HOUR_MS: Final = 3_600_000
_TASK_KINDS: Final = np.array([kind.startswith("task_") for kind in KINDS])
_DELIVERED: Final = np.array([kind not in ("ack", "signal", "dead_letter") for kind in KINDS])
_SPEAKS_OF: Final = np.array([kind in ("ack", "reply", "dead_letter") for kind in KINDS])
_ENDS: Final = np.array([kind in ("task_complete", "task_failed", "dead_letter") for kind in KINDS])
_CREATE, _UPDATE, _SIGNAL, _DEAD = (code(kind) for kind in ("task_create", "task_update", "signal", "dead_letter"))
_MESSAGE: Final = code("message")
_EVENT, _CORR, _TASK = b"evt_", b"corr_", b"tsk_"
_VERSIONS: Final = (None, *(f"{n}.9.0" for n in range(1, 10)))


class Chained(Struct, frozen=True):
    """A segment's columns, and the chain after its last event."""

    table: Any  # a pyarrow.Table
    end_chain: bytes


def segment_columns(
    world: World, rng: np.random.Generator, rows: Rows, first_seq: int, chain: bytes, *, broken_at: int | None = None
) -> Chained:
    """The columns of `rows`, which get the seqs from `first_seq` on, chained to `chain`.

    `broken_at` is the place of a row whose link in the chain is a wrong one: everything after it follows from there.
    """
    n = len(rows)
    seqs = np.arange(first_seq, first_seq + n, dtype=np.int64)
    kind = rows["kind"]
    speaks, on_task = _SPEAKS_OF[kind], _TASK_KINDS[kind]
    refs, on_tasks = np.flatnonzero(speaks), np.flatnonzero(on_task)
    text = Texts(
        ids=ulids(rows["made_ms"], rows["word"]),
        corrs=ulids(rows["corr_ms"], rows["corr_word"]),
        refs=_spread(ulids(rows["ref_ms"][refs], rows["ref_word"][refs]), refs, n),
        tasks=_spread(ulids(rows["corr_ms"][on_tasks], mixed(rows["corr_word"][on_tasks], TASK_STEP)), on_tasks, n),
        created=times(rows["created_ms"]),
    )
    raws = bodies(world, rng, rows, seqs, text)
    chains, end_chain = _chain(raws, chain, broken_at)

    agent_names, node_names = pa.array(world.agent_names), pa.array(world.node_names)
    is_signal, is_ack, is_dead = kind == _SIGNAL, kind == ACKS, kind == _DEAD
    is_create = kind == _CREATE
    created_us = rows["created_ms"] * 1000
    agent_or_node = pa.concat_arrays([agent_names, node_names])
    source_agent = agent_or_node.take(pa.array(np.where(is_signal, rows["agent"] + len(agent_names), rows["agent"])))
    fans = np.where(_DELIVERED[kind], rows["fan"], 0)
    peers = rows["peers"][np.arange(rows["peers"].shape[1]) < fans[:, None]]
    offsets = pa.array(np.concatenate([[0], np.cumsum(fans)]).astype(np.int32))
    eta = rows["eta_ms"] * 1000
    capability = np.where(is_create, rows["capability"], 0)
    values: dict[str, Any] = {
        "seq": pa.array(seqs),
        "event_id": ids(_EVENT, text.ids, None),
        "kind": words(KINDS, kind),
        "attempt": pa.array(rows["attempt"].astype(np.int32)),
        "source_node": node_names.take(pa.array(rows["source"])),
        "source_agent": source_agent,
        "corr_id": ids(_CORR, text.corrs, None),
        "created_us": pa.array(created_us),
        "expires_us": numbers(rows["expires_ms"] * 1000, rows["expires_ms"] > 0),
        "to_agents": lists(offsets, agent_names.take(pa.array(peers))),
        "to_nodes": lists(offsets, node_names.take(pa.array(world.node_of(peers)))),
        "route_decision": words(ROUTES, rows["route"]),
        "routing_policy": words(("", "rp-1", "rp-2"), policy_number(world, rows["corr_ms"])),
        "capability_policy": words(("cp-1",), np.zeros(n, dtype=np.int64)),
        "payload_bytes": pa.nulls(n, pa.int64()),
        "ref_event_id": ids(_EVENT, text.refs, speaks),
        "ref_kind": words(KINDS, np.where(is_ack | is_dead, rows["ref_kind"], -1)),
        "ack_type": words(ACK_TYPES, rows["ack"]),
        "acked_by_node": some(node_names, rows["source"], is_ack),
        "acked_by_agent": some(agent_names, rows["agent"], is_ack),
        "acked_us": numbers(created_us, is_ack),
        "reason": words(REASONS, rows["reason"]),
        "dead_for_agent": some(agent_names, rows["peers"][:, 1], is_dead),
        "dead_attempts": numbers(rows["dead_attempts"].astype(np.int32), is_dead),
        "task_id": ids(_TASK, text.tasks, on_task),
        "task_type": pa.nulls(n, pa.string()),
        "priority": words(PRIORITIES, np.where(is_create | (kind == _MESSAGE), rows["priority"], -1)),
        "capability_id": words((None, *CAPABILITIES), capability),
        "skill_version": words(_VERSIONS, np.where(capability > 0, rows["version"], 0)),
        "requester_agent": some(agent_names, rows["agent"], is_create),
        "required_capabilities": lists(
            pa.array(np.concatenate([[0], np.cumsum(capability > 0)]).astype(np.int32)),
            words((None, *CAPABILITIES), capability[capability > 0]),
        ),
        "response_required": pa.array(np.ones(n, dtype=bool), mask=~is_create),
        "deadline_us": numbers(rows["deadline_ms"] * 1000, rows["deadline_ms"] > 0),
        "eta_us": numbers(eta, rows["eta_ms"] > 0),
        "task_status": words((None, "in_progress"), (kind == _UPDATE).astype(np.int64)),
        "progress": numbers(rows["progress"].astype(np.int32), kind == _UPDATE),
        "failure_class": words(FAILURES, rows["failure"]),
        "ended_us": numbers(created_us, _ENDS[kind]),
        "signal": words((None, SIGNAL), is_signal.astype(np.int64)),
        "event_hour": pa.array((rows["made_ms"] // _HOUR_MS).astype(np.int32)),
        "ref_hour": numbers((rows["ref_ms"] // _HOUR_MS).astype(np.int32), speaks),
        "task_hour": numbers((rows["corr_ms"] // _HOUR_MS).astype(np.int32), on_task),
        "chain": chains,
        "body": raws,
    }
    return Chained(pa.Table.from_arrays([values[name] for name in SEGMENT.names], schema=SEGMENT), end_chain)


def _spread(found: Bytes, places: Ints, count: int) -> Bytes:
    out = np.zeros((count, 26), dtype=np.uint8)
    out[places] = found
    return out


def _chain(raws: ArrowArray, chain: bytes, broken_at: int | None) -> tuple[ArrowArray, bytes]:
    ends, data = offsets_and_data(raws)
    chains: list[bytes] = []
    start = ends[0]
    for end in ends[1:]:
        if len(chains) == broken_at:
            chain = sha256(b"broken" + chain).digest()
        chain = sha256(chain + data[start:end]).digest()
        chains.append(chain)
        start = end
    return chain_array(chains), chain
