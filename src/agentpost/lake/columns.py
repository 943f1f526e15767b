"""Events, as the bytes of an outbox, to the columns of a segment. Knows nothing of files.

A batch is decoded in one go. What only one kind of event says is gathered kind by kind, as whole columns, and put into
the order of the outbox at the end, by Arrow: that is several times cheaper than row after row.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from agentpost.lake.schema import SEGMENT
from agentpost.protocol.codec import Unreadable, decode_event, decode_frame, frame_of, read_frame
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
)
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import ULID_PATTERN, EventId, UlidSource, ulid_time_ms
from agentpost.protocol.recipients import engaging_nodes, recipients_of
from agentpost.protocol.taskbook import cancels, task_id_of
from agentpost.protocol.timestamps import format_ms, parse_ms

__all__ = ["UNREADABLE", "segment_batch"]

# The kind of a row whose event cannot be read: it keeps its place, its chain and its bytes.
UNREADABLE: Final = "unreadable"

_HOUR_MS: Final = 3_600_000
_LARGEST_INT32: Final = 2**31 - 1
_IDS: Final = f"^evt_{ULID_PATTERN}corr_{ULID_PATTERN}$"
_TRUE_TIME: Final = "^[0-7][0-9A-HJKMNP-TV-Z]{9}$"

Columns: TypeAlias = Mapping[str, Sequence[Any]]


def segment_batch(
    seqs: Sequence[int], chains: Sequence[bytes], bodies: Sequence[bytes], *, node_id: str = ""
) -> pa.RecordBatch:
    """The rows of these events of a node's outbox, in the order given. One that cannot be read is a row as well."""
    try:
        columns = _columns(_decoded(seqs, bodies))
    except (ValueError, pa.ArrowInvalid):
        # One of them is not what it should be: with care, one by one, the others are found as they are.
        columns = _columns([_read_one(body, node_id) for body in bodies])
    columns["seq"] = pa.array(seqs, SEGMENT.field("seq").type)
    columns["chain"] = pa.array(chains, SEGMENT.field("chain").type)
    columns["body"] = pa.array(bodies, SEGMENT.field("body").type)
    return pa.RecordBatch.from_arrays([columns[name] for name in SEGMENT.names], schema=SEGMENT)


def _decoded(seqs: Sequence[int], bodies: Sequence[bytes]) -> list[Event]:
    """The events, if all of them can be read and stand where they say. Arrow checks their times, we their ids."""
    events = decode_frame(frame_of(list(bodies)))
    # Bytes that are no event can run into their neighbours: then nothing in the frame is what it seems.
    if [event.seq for event in events] != list(seqs):
        raise ValueError("the frame does not hold the events of these places")
    ids = pa.array([event.event_id + event.corr_id for event in events], pa.string())
    if not pc.all(pc.match_substring_regex(ids, _IDS)).as_py():
        raise ValueError("an event has an id that is none")
    return events


def _columns(events: Sequence[Any]) -> dict[str, pa.Array]:
    kinds: dict[type, list[int]] = {}
    for row, event in enumerate(events):
        kinds.setdefault(type(event), []).append(row)
    return {name: _array(name, values) for name, values in _head(events).items()} | _payload(events, kinds)


def _read_one(body: bytes, node_id: str) -> "Event | _Blank":
    try:
        return decode_event(body)
    except Refusal:
        pass
    try:
        (found,) = read_frame(frame_of([body]))
    except (Refusal, ValueError):
        return _Blank("", node_id)
    return _Blank(found.event_id or "", node_id) if isinstance(found, Unreadable) else found


class _Blank:
    """The head of an event that cannot be read: what no column may be without. Its place says whose it is."""

    kind = UNREADABLE
    source_agent_id = corr_id = ""
    expires_at = payload_ref = None

    class trace:  # noqa: N801 - reads as the field it stands for
        attempt = 1
        route_decision = None
        routing_policy_version = capability_policy_version = ""

    def __init__(self, event_id: str, node_id: str) -> None:
        self.event_id = event_id
        self.source_node_id = node_id
        try:
            self.created_at = format_ms(ulid_time_ms(event_id))
        except Refusal:
            self.created_at = format_ms(0)


def _head(events: Sequence[Any]) -> Columns:
    """What every event says."""
    traces = [event.trace for event in events]
    ids = [event.event_id for event in events]
    return {
        "event_id": ids,
        "kind": [event.kind for event in events],
        "attempt": [trace.attempt for trace in traces],
        "source_node": [event.source_node_id for event in events],
        "source_agent": [event.source_agent_id for event in events],
        "corr_id": [event.corr_id for event in events],
        "created_us": [event.created_at for event in events],
        "expires_us": [event.expires_at for event in events],
        "route_decision": [trace.route_decision for trace in traces],
        "routing_policy": [trace.routing_policy_version or None for trace in traces],
        "capability_policy": [trace.capability_policy_version or None for trace in traces],
        "payload_bytes": [ref and ref.size_bytes for ref in [event.payload_ref for event in events]],
        "event_hour": ids,
    }


def _payload(events: Sequence[Any], kinds: Mapping[type, list[int]]) -> dict[str, pa.Array]:
    """What only some kinds of events say: kind by kind, then back into the order of the events."""
    parts = [
        (len(rows), _PAYLOADS[kind]([events[row] for row in rows]) if kind in _PAYLOADS else {})
        for kind, rows in kinds.items()
    ]
    order = [row for rows in kinds.values() for row in rows]
    places = [0] * len(order)
    for place, row in enumerate(order):
        places[row] = place
    taken = pa.array(places, pa.int32())
    columns: dict[str, pa.Array] = {}
    for name in _PAYLOAD_COLUMNS:
        arrays = [_array(name, said[name]) if name in said else _nothing(name, count) for count, said in parts]
        joined = pa.concat_arrays(arrays) if arrays else _nothing(name, 0)
        columns[name] = joined.take(taken) if len(parts) > 1 else joined
    return columns


def _message(events: Sequence[MessageEvent]) -> Columns:
    said = [event.payload for event in events]
    return {
        **_recipients(events),
        "required_capabilities": [payload.required_capabilities for payload in said],
        "priority": [payload.priority for payload in said],
    }


def _reply(events: Sequence[ReplyEvent]) -> Columns:
    return {**_recipients(events), **_ref([event.payload.ref_event_id for event in events])}


def _ack(events: Sequence[AckEvent]) -> Columns:
    said = [event.payload for event in events]
    return {
        **_ref([payload.ref_event_id for payload in said]),
        "ref_kind": [payload.ref_kind for payload in said],
        "ack_type": [payload.ack_type for payload in said],
        "acked_by_node": [payload.acked_by_node_id for payload in said],
        "acked_by_agent": [payload.acked_by_agent_id for payload in said],
        "acked_us": [payload.acked_at for payload in said],
        "reason": [payload.reason for payload in said],
        "eta_us": [_eta(payload.eta_at, payload.eta_seconds, payload.acked_at) for payload in said],
    }


def _task_create(events: Sequence[TaskCreateEvent]) -> Columns:
    said = [event.payload for event in events]
    return {
        **_recipients(events),
        **_task([payload.task_id for payload in said]),
        "required_capabilities": [payload.required_capabilities for payload in said],
        "priority": [payload.priority for payload in said],
        "task_type": [payload.task_type for payload in said],
        "capability_id": [payload.capability_id for payload in said],
        "skill_version": [
            None if payload.delegation_skill_ref is None else payload.delegation_skill_ref.version for payload in said
        ],
        "requester_agent": [payload.requester_agent_id for payload in said],
        "response_required": [payload.response_required for payload in said],
        "deadline_us": [payload.deadline_at or payload.required_by for payload in said],
    }


def _task_accept(events: Sequence[TaskAcceptEvent]) -> Columns:
    return {
        **_recipients(events),
        **_task([event.payload.task_id for event in events]),
        "eta_us": [_eta(event.payload.eta_at, event.payload.eta_seconds, event.created_at) for event in events],
    }


def _task_update(events: Sequence[TaskUpdateEvent]) -> Columns:
    said = [event.payload for event in events]
    return {
        **_recipients(events),
        **_task([payload.task_id for payload in said]),
        "eta_us": [payload.revised_eta_at for payload in said],
        "task_status": [payload.status for payload in said],
        "progress": [payload.progress for payload in said],
    }


def _task_complete(events: Sequence[TaskCompleteEvent]) -> Columns:
    said = [event.payload for event in events]
    return {
        **_recipients(events),
        **_task([payload.task_id for payload in said]),
        "skill_version": [payload.installed_version for payload in said],
        "ended_us": [payload.completed_at for payload in said],
    }


def _task_failed(events: Sequence[TaskFailedEvent]) -> Columns:
    said = [event.payload for event in events]
    return {
        **_recipients(events),
        **_task([payload.task_id for payload in said]),
        "failure_class": [payload.failure_class for payload in said],
        "ended_us": [payload.failed_at for payload in said],
    }


def _signal(events: Sequence[SignalEvent]) -> Columns:
    return {
        **_ref([event.payload.ref_event_id for event in events]),
        # The only signal that ends a task; others that speak of one change nothing that lasts.
        **_task([task_id_of(event) if cancels(event) else None for event in events]),
        "signal": [event.payload.signal for event in events],
        "dead_for_agent": [_agent_asked_for(event) for event in events],
    }


def _agent_asked_for(event: SignalEvent) -> str | None:
    """Whom a status request, or the answer to one, is about (ACK-4): it tells that the sender's SLA ran out."""
    agent_id = event.payload.details.get("toAgentId")
    return agent_id if isinstance(agent_id, str) else None


def _dead_letter(events: Sequence[DeadLetterEvent]) -> Columns:
    said = [event.payload for event in events]
    return {
        **_ref([payload.ref_event_id for payload in said]),
        "ref_kind": [payload.ref_kind for payload in said],
        "reason": [payload.reason for payload in said],
        "dead_for_agent": [payload.to_agent_id for payload in said],
        "dead_attempts": [payload.attempts for payload in said],
        "ended_us": [payload.dead_lettered_at for payload in said],
    }


_PAYLOADS: Final[Mapping[type, Callable[[Any], Columns]]] = {
    MessageEvent: _message,
    ReplyEvent: _reply,
    AckEvent: _ack,
    TaskCreateEvent: _task_create,
    TaskAcceptEvent: _task_accept,
    TaskUpdateEvent: _task_update,
    TaskCompleteEvent: _task_complete,
    TaskFailedEvent: _task_failed,
    SignalEvent: _signal,
    DeadLetterEvent: _dead_letter,
}


def _recipients(events: Sequence[Event]) -> Columns:
    agents = [recipients_of(event) for event in events]
    return {
        "to_agents": agents,
        "to_nodes": [engaging_nodes(event, agent_ids) for event, agent_ids in zip(events, agents, strict=True)],
    }


def _ref(ids: Sequence[str | None]) -> Columns:
    return {"ref_event_id": ids, "ref_hour": ids}


def _task(ids: Sequence[str | None]) -> Columns:
    return {"task_id": ids, "task_hour": ids}


def _eta(at: str | None, seconds: int | None, said_at: str) -> str | None:
    """The promise as a time: what was promised in seconds counts from when it was said."""
    if at is not None or seconds is None:
        return at
    return format_ms(parse_ms(said_at) + seconds * 1000)


_PAYLOAD_COLUMNS: Final = tuple(name for name in SEGMENT.names if name not in {*_head([]), "seq", "chain", "body"})
_TIMES: Final = frozenset(name for name in SEGMENT.names if name.endswith("_us"))
_HOURS: Final = frozenset(name for name in SEGMENT.names if name.endswith("_hour"))
_COUNTS: Final = frozenset({"attempt", "dead_attempts"})
_TIME: Final = pa.timestamp("us", "UTC")


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    kind = SEGMENT.field(name).type
    if name in _TIMES:
        return pa.array(values, pa.string()).cast(_TIME).cast(kind) if any(values) else pa.nulls(len(values), kind)
    if name in _HOURS:
        return _hours(pa.array(values, pa.string()))
    if name in _COUNTS:
        # A count is as large as its writer likes; what a column cannot hold is as much as it can.
        counts = pa.array(values, pa.int64())
        held: Any = pc.min_element_wise(counts, pa.scalar(_LARGEST_INT32, pa.int64()), skip_nulls=False)
        return held.cast(kind)
    return pa.array(values, kind)


def _hours(ids: pa.StringArray) -> pa.Array:
    """The hour that each id was made in, as its ULID says, 0 if it does not.

    The first six letters of a ULID stand for a third of an hour, so few of them are looked at: where a new hour begins
    within, the letters after them decide, since they sort like the times.
    """
    times = pc.utf8_slice_codeunits(ids, -26, -16)
    blocks = pc.utf8_slice_codeunits(times, 0, 6).dictionary_encode()
    starts = [ulid_time_ms(f"{block}{'0' * 20}") for block in blocks.dictionary.to_pylist()]
    hours = pa.array([start // _HOUR_MS for start in starts], pa.int32()).take(blocks.indices)
    nexts = pa.array([_time_letters((start // _HOUR_MS + 1) * _HOUR_MS) for start in starts]).take(blocks.indices)
    hours = pc.add(hours, pc.greater_equal(times, nexts).cast(pa.int32()))
    return pc.if_else(pc.match_substring_regex(times, _TRUE_TIME), hours, pa.scalar(0, pa.int32()))


def _time_letters(at_ms: int) -> str:
    return UlidSource().make(EventId, now_ms=at_ms, entropy=bytes(10))[4:14]


def _nothing(name: str, count: int) -> pa.Array:
    kind = SEGMENT.field(name).type
    if pa.types.is_list(kind):
        return pa.array([()] * count, kind)
    return pa.nulls(count, kind)
