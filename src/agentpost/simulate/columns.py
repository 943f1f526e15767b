"""Rows of numbers → the columns of a segment, the bodies and their hash chain included.

Texts of one width are laid out as Arrow buffers directly; words come from small dictionaries. No Python code runs for
a single event, the chain aside.
"""

from hashlib import sha256
from typing import Any, Final, cast

import numpy as np
from msgspec import Struct

from agentpost.lake.schema import SEGMENT
from agentpost.simulate.arrays import Bytes, Ints
from agentpost.simulate.arrow import (
    ArrowArray,
    chain_array,
    ids,
    lists,
    names,
    numbers,
    offsets_and_data,
    pa,
    trues,
    words,
)
from agentpost.simulate.bodies import Texts, bodies
from agentpost.simulate.plan import CAPABILITIES, World, policy_number
from agentpost.simulate.rows import ACK_TYPES, ACKS, FAILURES, KINDS, PRIORITIES, REASONS, ROUTES, TASK_STEP, Rows, code
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
    ref_ids = ulids(rows["ref_ms"][refs], rows["ref_word"][refs])
    task_ids = ulids(rows["corr_ms"][on_tasks], mixed(rows["corr_word"][on_tasks], TASK_STEP))
    text = Texts(
        ids=ulids(rows["made_ms"], rows["word"]),
        corrs=ulids(rows["corr_ms"], rows["corr_word"]),
        refs=_spread(ref_ids, refs, n),
        tasks=_spread(task_ids, on_tasks, n),
        created=times(rows["created_ms"]),
    )
    raws = bodies(world, rng, rows, seqs, text)
    chains, end_chain = _chain(raws, chain, broken_at)

    agents, nodes = world.agent_names, world.node_names
    is_signal, is_ack, is_dead = kind == _SIGNAL, kind == ACKS, kind == _DEAD
    is_create = kind == _CREATE
    created_us = rows["created_ms"] * 1000
    source_agent = names([*agents, *nodes], np.where(is_signal, rows["agent"] + len(agents), rows["agent"]))
    fans = np.where(_DELIVERED[kind], rows["fan"], 0)
    peers = rows["peers"][np.arange(rows["peers"].shape[1]) < fans[:, None]]
    eta = rows["eta_ms"] * 1000
    capability = np.where(is_create, rows["capability"], 0)
    values: dict[str, Any] = {
        "seq": numbers(seqs),
        "event_id": ids(_EVENT, text.ids),
        "kind": words(KINDS, kind),
        "attempt": numbers(rows["attempt"].astype(np.int32)),
        "source_node": names(nodes, rows["source"]),
        "source_agent": source_agent,
        "corr_id": ids(_CORR, text.corrs),
        "created_us": numbers(created_us),
        "expires_us": numbers(rows["expires_ms"] * 1000, rows["expires_ms"] > 0),
        "to_agents": lists(fans, agents, peers),
        "to_nodes": lists(fans, nodes, world.node_of(peers)),
        "route_decision": words(ROUTES, rows["route"]),
        "routing_policy": words(("", "rp-1", "rp-2"), policy_number(world, rows["corr_ms"])),
        "capability_policy": words(("cp-1",), np.zeros(n, dtype=np.int64)),
        "payload_bytes": pa.nulls(n, pa.int64()),
        "ref_event_id": ids(_EVENT, ref_ids, speaks),
        "ref_kind": words(KINDS, np.where(is_ack | is_dead, rows["ref_kind"], -1)),
        "ack_type": words(ACK_TYPES, rows["ack"]),
        "acked_by_node": names(nodes, rows["source"], is_ack),
        "acked_by_agent": names(agents, rows["agent"], is_ack),
        "acked_us": numbers(created_us, is_ack),
        "reason": words(REASONS, rows["reason"]),
        "dead_for_agent": names(agents, rows["peers"][:, 1], is_dead),
        "dead_attempts": numbers(rows["dead_attempts"].astype(np.int32), is_dead),
        "task_id": ids(_TASK, task_ids, on_task),
        "task_type": pa.nulls(n, pa.string()),
        "priority": words(PRIORITIES, np.where(is_create | (kind == _MESSAGE), rows["priority"], -1)),
        "capability_id": words((None, *CAPABILITIES), capability),
        "skill_version": words(_VERSIONS, np.where(capability > 0, rows["version"], 0)),
        "requester_agent": names(agents, rows["agent"], is_create),
        "required_capabilities": lists(capability > 0, CAPABILITIES, capability[capability > 0].astype(np.int32) - 1),
        "response_required": trues(is_create),
        "deadline_us": numbers(rows["deadline_ms"] * 1000, rows["deadline_ms"] > 0),
        "eta_us": numbers(eta, rows["eta_ms"] > 0),
        "task_status": words((None, "in_progress"), (kind == _UPDATE).astype(np.int64)),
        "progress": numbers(rows["progress"].astype(np.int32), kind == _UPDATE),
        "failure_class": words(FAILURES, rows["failure"]),
        "ended_us": numbers(created_us, _ENDS[kind]),
        "signal": words((None, SIGNAL), is_signal.astype(np.int64)),
        "event_hour": numbers((rows["made_ms"] // _HOUR_MS).astype(np.int32)),
        "ref_hour": numbers((rows["ref_ms"] // _HOUR_MS).astype(np.int32), speaks),
        "task_hour": numbers((rows["corr_ms"] // _HOUR_MS).astype(np.int32), on_task),
        "chain": chains,
        "body": raws,
    }
    # The same columns; of words the dictionaries too.
    fields = [field.with_type(values[field.name].type) for field in cast("Any", SEGMENT)]
    return Chained(pa.Table.from_arrays([values[field.name] for field in fields], schema=pa.schema(fields)), end_chain)


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
        link = sha256(chain)
        link.update(data[start:end])
        chain = link.digest()
        chains.append(chain)
        start = end
    return chain_array(chains), chain
