"""Rows of numbers → the columns of a segment, the bodies and their hash chain included.

Texts of one width are laid out as Arrow buffers directly; words come from small dictionaries. No Python code runs for
a single event, the chain aside.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from agentpost.lake.schema import SEGMENT
from agentpost.simulate.arrays import Bytes, Flags, Ints, Rows
from agentpost.simulate.plan import CAPABILITIES, World
from agentpost.simulate.rows import ACK_TYPES, ACKS, FAILURES, KINDS, PRIORITIES, REASONS, ROUTES, TASK_STEP, code
from agentpost.simulate.templates import CIPHERTEXT_BYTES, SIGNAL, shape_of, template_of
from agentpost.simulate.text import mixed, seq_bytes, times, ulids

__all__ = ["Chained", "policy_number", "segment_columns"]

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

    table: pa.Table
    end_chain: bytes


def policy_number(world: World, corr_ms: Ints) -> Ints:
    """The routing policy changed once, in the middle of the time."""
    return 1 + (corr_ms * 1000 >= (world.start_us + world.end_us) // 2)


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
    text = _Texts(
        ids=ulids(rows["made_ms"], rows["word"]),
        corrs=ulids(rows["corr_ms"], rows["corr_word"]),
        refs=_spread(ulids(rows["ref_ms"][refs], rows["ref_word"][refs]), refs, n),
        tasks=_spread(ulids(rows["corr_ms"][on_tasks], mixed(rows["corr_word"][on_tasks], TASK_STEP)), on_tasks, n),
        created=times(rows["created_ms"]),
    )
    bodies = _bodies(world, rng, rows, seqs, text)
    chains, end_chain = _chain(bodies, chain, broken_at)

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
        "event_id": _ids(_EVENT, text.ids, None),
        "kind": _words(KINDS, kind),
        "attempt": pa.array(rows["attempt"].astype(np.int32)),
        "source_node": node_names.take(pa.array(rows["source"])),
        "source_agent": source_agent,
        "corr_id": _ids(_CORR, text.corrs, None),
        "created_us": pa.array(created_us),
        "expires_us": _numbers(rows["expires_ms"] * 1000, rows["expires_ms"] > 0),
        "to_agents": _lists(offsets, agent_names.take(pa.array(peers))),
        "to_nodes": _lists(offsets, node_names.take(pa.array(world.node_of(peers)))),
        "route_decision": _words(ROUTES, rows["route"]),
        "routing_policy": _words(("", "rp-1", "rp-2"), policy_number(world, rows["corr_ms"])),
        "capability_policy": _words(("cp-1",), np.zeros(n, dtype=np.int64)),
        "payload_bytes": pa.nulls(n, pa.int64()),
        "ref_event_id": _ids(_EVENT, text.refs, speaks),
        "ref_kind": _words(KINDS, np.where(is_ack | is_dead, rows["ref_kind"], -1)),
        "ack_type": _words(ACK_TYPES, rows["ack"]),
        "acked_by_node": _some(node_names, rows["source"], is_ack),
        "acked_by_agent": _some(agent_names, rows["agent"], is_ack),
        "acked_us": _numbers(created_us, is_ack),
        "reason": _words(REASONS, rows["reason"]),
        "dead_for_agent": _some(agent_names, rows["peers"][:, 1], is_dead),
        "dead_attempts": _numbers(rows["dead_attempts"].astype(np.int32), is_dead),
        "task_id": _ids(_TASK, text.tasks, on_task),
        "task_type": pa.nulls(n, pa.string()),
        "priority": _words(PRIORITIES, np.where(is_create | (kind == _MESSAGE), rows["priority"], -1)),
        "capability_id": _words((None, *CAPABILITIES), capability),
        "skill_version": _words(_VERSIONS, np.where(capability > 0, rows["version"], 0)),
        "requester_agent": _some(agent_names, rows["agent"], is_create),
        "required_capabilities": _lists(
            pa.array(np.concatenate([[0], np.cumsum(capability > 0)]).astype(np.int32)),
            _words((None, *CAPABILITIES), capability[capability > 0]),
        ),
        "response_required": pa.array(np.ones(n, dtype=bool), mask=~is_create),
        "deadline_us": _numbers(rows["deadline_ms"] * 1000, rows["deadline_ms"] > 0),
        "eta_us": _numbers(eta, rows["eta_ms"] > 0),
        "task_status": _words((None, "in_progress"), (kind == _UPDATE).astype(np.int64)),
        "progress": _numbers(rows["progress"].astype(np.int32), kind == _UPDATE),
        "failure_class": _words(FAILURES, rows["failure"]),
        "ended_us": _numbers(created_us, _ENDS[kind]),
        "signal": _words((None, SIGNAL), is_signal.astype(np.int64)),
        "event_hour": pa.array((rows["made_ms"] // _HOUR_MS).astype(np.int32)),
        "ref_hour": _numbers((rows["ref_ms"] // _HOUR_MS).astype(np.int32), speaks),
        "task_hour": _numbers((rows["corr_ms"] // _HOUR_MS).astype(np.int32), on_task),
        "chain": chains,
        "body": bodies,
    }
    return Chained(pa.Table.from_arrays([values[name] for name in SEGMENT.names], schema=SEGMENT), end_chain)


class _Texts(Struct, frozen=True):
    ids: Bytes
    corrs: Bytes
    refs: Bytes
    tasks: Bytes
    created: Bytes


def _spread(found: Bytes, places: Ints, count: int) -> Bytes:
    out = np.zeros((count, 26), dtype=np.uint8)
    out[places] = found
    return out


def _bodies(world: World, rng: np.random.Generator, rows: Rows, seqs: Ints, text: _Texts) -> pa.Array:
    shapes = shape_of(rows)
    order = np.argsort(shapes, kind="stable")
    numbers, starts = np.unique(shapes[order], return_index=True)
    parts: list[pa.Array] = []
    for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        template = template_of(number)
        body = template.filled(len(places), _Values(world, rng, rows[places], seqs[places], text, places).of)
        parts.append(_fixed(body, pa.binary()))
    back = np.empty(len(rows), dtype=np.int64)
    back[order] = np.arange(len(rows))
    return pa.concat_arrays(parts).take(pa.array(back))


class _Values:
    """What goes into the places of one template."""

    def __init__(
        self, world: World, rng: np.random.Generator, rows: Rows, seqs: Ints, text: _Texts, places: Ints
    ) -> None:
        self._world = world
        self._rng = rng
        self._rows = rows
        self._seqs = seqs
        self._text = text
        self._places = places
        self._names = _letters_of(world)

    def of(self, name: str, width: int) -> Bytes:
        rows, text, places = self._rows, self._text, self._places
        agents, nodes = self._names
        match name:
            case "id":
                return text.ids[places]
            case "corr":
                return text.corrs[places]
            case "ref":
                return text.refs[places]
            case "task":
                return text.tasks[places]
            case "created":
                return text.created[places]
            case "expires" | "eta" | "deadline":
                return times(rows[f"{name}_ms"])
            case "seq":
                return seq_bytes(self._seqs)
            case "agent":
                return agents[rows["agent"]]
            case "source":
                return nodes[rows["source"]]
            case "cipher":
                random = self._rng.bytes(len(rows) * CIPHERTEXT_BYTES)
                return np.frombuffer(random, dtype=np.uint8).reshape(len(rows), CIPHERTEXT_BYTES)
            case "attempt":
                return _byte(rows["attempt"])
            case "attempts":
                return _byte(rows["dead_attempts"])
            case "progress":
                return _byte(rows["progress"])
            case "policy":
                return _byte(ord("0") + policy_number(self._world, rows["corr_ms"]))
            case "version":
                return _byte(ord("0") + rows["version"])
            case _ if name.startswith("peer_node"):
                return nodes[self._world.node_of(rows["peers"][:, int(name[-1])])]
            case _:
                return agents[rows["peers"][:, int(name[-1])]]


def _letters_of(world: World) -> tuple[Bytes, Bytes]:
    def letters(names: Sequence[str]) -> Bytes:
        return np.frombuffer("".join(names).encode(), dtype=np.uint8).reshape(len(names), -1)

    return letters(world.agent_names), letters(world.node_names)


def _byte(values: Any) -> Bytes:
    return values.astype(np.uint8)[:, None]


def _chain(bodies: pa.Array, chain: bytes, broken_at: int | None) -> tuple[pa.Array, bytes]:
    _, offsets_buffer, data = bodies.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    raw = memoryview(data)
    chains: list[bytes] = []
    start = offsets[0]
    for place, end in enumerate(offsets[1:]):
        link = sha256(chain)
        link.update(raw[start:end])
        chain = link.digest()
        if place == broken_at:
            chain = sha256(b"broken" + chain).digest()
        chains.append(chain)
        start = end
    out = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(bodies), [None, pa.py_buffer(b"".join(chains))])
    return out, chain


def _fixed(letters: Bytes, kind: pa.DataType) -> pa.Array:
    count, width = letters.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))]
    )


def _ids(prefix: bytes, letters: Bytes, which: Flags | None) -> pa.Array:
    """Ids with their prefix; null where `which` is false."""
    width = len(prefix) + letters.shape[1]
    if which is not None:
        letters = letters[which]
    out = np.empty((len(letters), width), dtype=np.uint8)
    out[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    out[:, len(prefix) :] = letters
    if which is None:
        return _fixed(out, pa.string())
    offsets = np.concatenate([[0], np.cumsum(which)]).astype(np.int32) * width
    valid = np.packbits(which, bitorder="little")
    return pa.Array.from_buffers(
        pa.string(), len(which), [pa.py_buffer(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    )


def _words(words: Sequence[str | None], codes: Any) -> pa.Array:
    """The words of these codes; a negative code is null."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.array(words, type=pa.string()).take(indices)


def _some(names: pa.Array, indices: Any, which: Flags) -> pa.Array:
    return names.take(pa.array(np.where(which, indices, 0).astype(np.int32), mask=~which))


def _numbers(values: Any, which: Flags) -> pa.Array:
    return pa.array(values, mask=~which)


def _lists(offsets: pa.Array, values: pa.Array) -> pa.Array:
    element = pa.field("element", pa.string(), nullable=False)
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(element))
