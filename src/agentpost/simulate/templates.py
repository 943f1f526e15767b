"""The bytes of simulated events: the protocol's own encoder writes one of a kind, numpy fills in all the others.

A template is an encoded event whose variable parts have a fixed width: ids, times, names, the seq. Rows that differ
in anything else (their kind, how many recipients, which optional fields) have different templates.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import (
    AckEvent,
    DeadLetterEvent,
    Event,
    MessageEvent,
    ReplyEvent,
    SignalEvent,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
    Trace,
)
from agentpost.protocol.ids import CorrId, EventId, TaskId
from agentpost.protocol.payloads import (
    Ack,
    AckType,
    DeadLetter,
    Kind,
    Message,
    Priority,
    Reply,
    Sealed,
    Signal,
    SkillRef,
    TaskAccept,
    TaskComplete,
    TaskCreate,
    TaskFailed,
    TaskUpdate,
)
from agentpost.simulate.arrays import Bytes, Ints
from agentpost.simulate.plan import CAPABILITIES
from agentpost.simulate.rows import ACK_TYPES, FAILURES, KINDS, PRIORITIES, REASONS, ROUTES, Rows

__all__ = ["CIPHERTEXT_BYTES", "SIGNAL", "Template", "shape_of", "template_of"]

SIGNAL: Final = "presence"
SUITE: Final = "x25519-hkdf-sha256-aes256gcm"
CIPHERTEXT_BYTES: Final = 96
_WRAPPED_BYTES: Final = 60
_NONCE: Final = b"N" * 12

# What stands where a variable part goes; each is as long as what replaces it, and cannot be mistaken for another.
_ID, _CORR, _REF, _TASK = "I" * 26, "C" * 26, "R" * 26, "T" * 26
_AGENT, _NODE = "@agent-self", "@nodeself"
_PEERS: Final = tuple(f"@agent-pee{n}" for n in range(4))
_PEER_NODES: Final = tuple(f"@nodepee{n}" for n in range(4))
_CREATED, _EXPIRES, _ETA, _DEADLINE = (f"20{n:02d}-01-01T00:00:00.000Z" for n in (61, 62, 63, 64))
_CIPHER: Final = b"\xa7" * CIPHERTEXT_BYTES
_WRAPPED: Final = tuple(bytes((0xB0 + n,)) * _WRAPPED_BYTES for n in range(4))
_SEQ: Final = 0xF1F2F3F4
_SEQ_KEY: Final = msgspec.msgpack.encode("seq") + b"\xce"
_ATTEMPT: Final = 99
_POLICY: Final = "rp-?"
_VERSION: Final = "9.9.0"


class Shape(Struct, frozen=True):
    """What decides the template of an event."""

    kind: int
    fan: int
    expires: bool
    route: int
    priority: int
    expects_reply: bool
    ref_kind: int
    ack: int
    reason: int
    deadline: bool
    eta: bool
    failure: int
    capability: int


class Template(Struct, frozen=True):
    """`parts` are the names, places and widths of what varies. A name may stand in several places."""

    body: Bytes
    parts: tuple[tuple[str, int, int], ...]

    def filled(self, count: int, value_of: Callable[[str, int], Bytes]) -> Bytes:
        """`count` events; `value_of(name, width)` gives a matrix of bytes, or one column for a single byte."""
        out = np.empty((count, len(self.body)), dtype=np.uint8)
        out[:] = self.body
        values: dict[str, Bytes] = {}
        for name, start, width in self.parts:
            if name not in values:
                values[name] = value_of(name, width)
            out[:, start : start + width] = values[name]
        return out


_RADIX: Final = (
    ("kind", 16),
    ("fan", 8),
    ("route", 4),
    ("priority", 4),
    ("expects_reply", 2),
    ("ref_kind", 16),
    ("ack", 4),
    ("reason", 8),
    ("failure", 4),
    ("capability", 8),
)
_OPTIONAL: Final = ("expires", "deadline", "eta")


def shape_of(rows: Rows) -> Ints:
    """A number for the shape of each row."""
    found = np.zeros(len(rows), dtype=np.int64)
    for name, radix in _RADIX:
        found = found * radix + rows[name]
    for name in _OPTIONAL:
        found = found * 2 + (rows[f"{name}_ms"] > 0)
    return found


def _shape(number: int) -> Shape:
    fields: dict[str, int] = {}
    for name in reversed(_OPTIONAL):
        number, fields[name] = divmod(number, 2)
    for name, radix in reversed(_RADIX):
        number, fields[name] = divmod(number, radix)
    return msgspec.convert(
        {name: bool(v) if name in (*_OPTIONAL, "expects_reply") else v for name, v in fields.items()}, Shape
    )


@lru_cache(maxsize=4096)
def template_of(number: int) -> Template:
    body = encode_event(_sample(_shape(number)))
    parts: list[tuple[str, int, int]] = []
    marks: Sequence[tuple[str, bytes]] = (
        ("id", _ID.encode()),
        ("corr", _CORR.encode()),
        ("ref", _REF.encode()),
        ("task", _TASK.encode()),
        ("agent", _AGENT.encode()),
        ("source", _NODE.encode()),
        *((f"peer{n}", text.encode()) for n, text in enumerate(_PEERS)),
        *((f"peer_node{n}", text.encode()) for n, text in enumerate(_PEER_NODES)),
        ("created", _CREATED.encode()),
        ("expires", _EXPIRES.encode()),
        ("eta", _ETA.encode()),
        ("deadline", _DEADLINE.encode()),
        ("cipher", _CIPHER),
    )
    for name, mark in marks:
        at = body.find(mark)
        while at >= 0:
            parts.append((name, at, len(mark)))
            at = body.find(mark, at + len(mark))
    parts.append(("seq", body.index(_SEQ_KEY) + len(_SEQ_KEY), 4))
    for name, key, width in (
        ("attempt", "attempt", 0),
        ("attempts", "attempts", 0),
        ("progress", "progress", 0),
        ("policy", "routingPolicyVersion", 3 + 1),
        ("version", "version", 1),
    ):
        mark = msgspec.msgpack.encode(key)
        at = body.find(mark)
        if at >= 0:
            # One byte that varies: a small number, or one letter of a short text.
            parts.append((name, at + len(mark) + width, 1))
    return Template(np.frombuffer(body, dtype=np.uint8), tuple(parts))


def _sample(shape: Shape) -> Event:
    kind = KINDS[shape.kind]
    peers, nodes = _PEERS[: max(shape.fan, 1)], _PEER_NODES[: max(shape.fan, 1)]
    is_signal = kind == "signal"
    head: dict[str, Any] = {
        "event_id": EventId("evt_" + _ID),
        "seq": _SEQ,
        "source_node_id": _NODE,
        "source_agent_id": _NODE if is_signal else _AGENT,
        "corr_id": CorrId("corr_" + _CORR),
        "created_at": _CREATED,
        "expires_at": _EXPIRES if shape.expires else None,
        "trace": Trace(
            attempt=_ATTEMPT,
            route_decision=ROUTES[shape.route],
            routing_policy_version=_POLICY,
            capability_policy_version="cp-1",
            # With one gateway it is clear who has to engage whom.
            engaged_by=dict(zip(peers, nodes, strict=True)) if shape.fan > 1 else {},
        ),
    }
    if kind not in ("message", "task_create") and not is_signal:
        head["to_agent_id"] = peers[0]
    if kind not in ("dead_letter", "signal"):
        head["to_nodes"] = nodes
    sealed = Sealed(
        suite=SUITE,
        keys=dict(zip(nodes, _WRAPPED, strict=False)),
        nonce=_NONCE,
        ciphertext=_CIPHER,
    )
    task_id = TaskId("tsk_" + _TASK)
    ref = EventId("evt_" + _REF)
    match Kind(kind):
        case Kind.MESSAGE:
            payload = Message(
                to_agents=peers,
                priority=Priority(PRIORITIES[shape.priority]),
                expects_reply=shape.expects_reply,
                sealed=sealed,
            )
            return MessageEvent(payload=payload, **head)
        case Kind.REPLY:
            return ReplyEvent(payload=Reply(ref_event_id=ref, sealed=sealed), **head)
        case Kind.ACK:
            said = Ack(
                ref_event_id=ref,
                ref_kind=Kind(KINDS[shape.ref_kind]),
                ack_type=AckType(ACK_TYPES[shape.ack]),
                acked_by_node_id=_NODE,
                acked_by_agent_id=_AGENT,
                acked_at=_CREATED,
                reason=REASONS[shape.reason],
            )
            return AckEvent(payload=said, **head)
        case Kind.TASK_CREATE:
            capability = CAPABILITIES[shape.capability - 1] if shape.capability else None
            create = TaskCreate(
                task_id=task_id,
                to_agents=peers,
                required_capabilities=(capability,) if capability else (),
                priority=Priority(PRIORITIES[shape.priority]),
                requester_agent_id=_AGENT,
                deadline_at=_DEADLINE if shape.deadline else None,
                capability_id=capability,
                delegation_skill_ref=SkillRef(name=capability, version=_VERSION) if capability else None,
                sealed=sealed,
            )
            return TaskCreateEvent(payload=create, **head)
        case Kind.TASK_ACCEPT:
            accept = TaskAccept(task_id=task_id, accepted_by_agent_id=_AGENT, eta_at=_ETA, sealed=sealed)
            return TaskAcceptEvent(payload=accept, **head)
        case Kind.TASK_UPDATE:
            update = TaskUpdate(
                task_id=task_id,
                updated_by_agent_id=_AGENT,
                progress=_ATTEMPT,
                revised_eta_at=_ETA if shape.eta else None,
                sealed=sealed,
            )
            return TaskUpdateEvent(payload=update, **head)
        case Kind.TASK_COMPLETE:
            done = TaskComplete(task_id=task_id, completed_by_agent_id=_AGENT, completed_at=_CREATED, sealed=sealed)
            return TaskCompleteEvent(payload=done, **head)
        case Kind.TASK_FAILED:
            failed = TaskFailed(
                task_id=task_id,
                failed_by_agent_id=_AGENT,
                failed_at=_CREATED,
                failure_class=FAILURES[shape.failure] or "",
                sealed=sealed,
            )
            return TaskFailedEvent(payload=failed, **head)
        case Kind.SIGNAL:
            return SignalEvent(payload=Signal(signal=SIGNAL), **head)
        case Kind.DEAD_LETTER:
            dead = DeadLetter(
                ref_event_id=ref,
                ref_kind=Kind(KINDS[shape.ref_kind]),
                to_agent_id=_PEERS[1],
                reason=REASONS[shape.reason] or "",
                attempts=_ATTEMPT,
                dead_lettered_at=_CREATED,
            )
            return DeadLetterEvent(payload=dead, **head)
