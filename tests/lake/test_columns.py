"""Events to columns: what stands readable in an event stands in its row, and no event is without a row."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.lake.columns import UNREADABLE, segment_batch
from agentpost.lake.schema import SEGMENT
from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import Event, SignalEvent
from agentpost.protocol.ids import EventId, UlidSource, ulid_time_ms
from agentpost.protocol.payloads import Signal
from agentpost.protocol.taskbook import CANCELED_BY, TASK_WITHDRAWN
from agentpost.testing import START_MS, a_message
from tests.lake.building import NODE, TASK_ID, chained, encoded, one_of_each

HOUR_MS = 3_600_000


def rows(events: list[Event]) -> list[dict[str, Any]]:
    placed = [replace(event, seq=seq) for seq, event in enumerate(events, 1)]
    return rows_of(encoded(placed))


def rows_of(bodies: list[bytes]) -> list[dict[str, Any]]:
    batch = segment_batch(range(1, len(bodies) + 1), chained(bodies), bodies, node_id=NODE)
    batch.validate(full=True)
    assert batch.schema == SEGMENT
    return batch.to_pylist()


def said(row: dict[str, Any]) -> dict[str, Any]:
    """What only some kinds say: neither null nor empty."""
    head = {"seq", "event_id", "kind", "source_node", "source_agent", "corr_id", "created_us", "event_hour"}
    return {name: value for name, value in row.items() if value not in (None, []) and name not in {*head, *_BYTES}}


_BYTES = {"chain", "body"}
_HOUR = START_MS // HOUR_MS


def test_every_kind_has_its_columns() -> None:
    """Each kind of event fills the columns that are about it, and leaves the others empty."""
    found = {row["kind"]: said(row) for row in rows(one_of_each())}
    message_id = one_of_each()[0].event_id
    ref = {"ref_event_id": message_id, "ref_hour": _HOUR}
    task = {"task_id": TASK_ID, "task_hour": _HOUR + 1}
    to_b = {"to_agents": ["bob"], "to_nodes": ["node-b"]}
    first = {"attempt": 1}
    assert found == {
        "message": {**first, "to_agents": ["bob", "eve"], "to_nodes": ["", ""], "priority": "normal"},
        "reply": {**first, **ref, "to_agents": ["ada"], "to_nodes": [""]},
        "ack": {
            **first,
            **ref,
            "ref_kind": "task_create",
            "ack_type": "accepted",
            "acked_by_node": NODE,
            "acked_by_agent": "ada",
            "acked_us": (START_MS + 30) * 1000,
            "eta_us": (START_MS + 60_030) * 1000,
            "reason": "busy",
        },
        "task_create": {
            **task,
            "attempt": 2,
            "expires_us": (START_MS + 9_000) * 1000,
            "to_agents": ["bob", "eve", "nobody"],
            "to_nodes": ["node-b", "node-c", ""],
            "route_decision": "direct",
            "routing_policy": "rpv_1",
            "capability_policy": "cpv_1",
            "required_capabilities": ["build"],
            "priority": "high",
            "requester_agent": "ada",
            "response_required": True,
            "deadline_us": (START_MS + 5_000) * 1000,
            "task_type": "build",
            "capability_id": "cap.build",
            "skill_version": "1.2.0",
        },
        "task_accept": {**first, **task, **to_b, "eta_us": (START_MS + 7_000) * 1000},
        "task_update": {**first, **task, **to_b, "task_status": "in_progress", "progress": 40},
        "task_complete": {**first, **task, **to_b, "ended_us": (START_MS + 70) * 1000},
        "task_failed": {
            **first,
            **task,
            **to_b,
            "failure_class": "tool_error",
            "ended_us": (START_MS + 80) * 1000,
        },
        "signal": {**first, "signal": "status_request"},
        "dead_letter": {
            **first,
            **ref,
            "ref_kind": "message",
            "reason": "no_route",
            "dead_for_agent": "eve",
            "dead_attempts": 2**31 - 1,
            "ended_us": (START_MS + 100) * 1000,
        },
    }


def test_rows_keep_the_order_and_the_bytes() -> None:
    """Rows stand in the order of the outbox, with the event's own bytes and chain, whatever kinds are mixed."""
    events = [replace(event, seq=seq) for seq, event in enumerate(one_of_each() * 3, 1)]
    bodies = encoded(events)
    found = rows_of(bodies)
    assert [row["seq"] for row in found] == list(range(1, len(events) + 1))
    assert [row["event_id"] for row in found] == [event.event_id for event in events]
    assert [row["body"] for row in found] == bodies
    assert [row["chain"] for row in found] == chained(bodies)


@pytest.mark.req("OBS-5")
@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xc1",
        b"not msgpack at all",
        encode_event(a_message(2, seq=2)) * 2,
        encode_event(a_message(2, seq=2))[:-7],
        encode_event(a_message(2, seq=2)).replace(b"message", b"massage"),
        encode_event(replace(a_message(2, seq=2), created_at="2026-02-30T00:00:00.000Z")),
        encode_event(replace(a_message(2, seq=2), event_id=EventId("evt_" + "?" * 26))),
    ],
    ids=["empty", "no msgpack", "text", "two", "cut off", "kind", "time", "id"],
)
def test_an_event_that_cannot_be_read_keeps_its_row(junk: bytes) -> None:
    """What cannot be read is a row of kind unreadable with its bytes, and its neighbours are as they are."""
    bodies = [encode_event(a_message(1, seq=1)), junk, encode_event(a_message(3, seq=3))]
    found = rows_of(bodies)
    assert [row["kind"] for row in found] == ["message", UNREADABLE, "message"]
    assert (found[1]["body"], found[1]["source_node"]) == (junk, NODE)
    assert said(found[1]) == {"attempt": 1}
    assert [row["event_id"] for row in found[::2]] == [a_message(1).event_id, a_message(3).event_id]


def test_unknown_fields_do_not_make_an_event_unreadable() -> None:
    """An event of a later version, with fields that this one does not know, has its columns (ENV-6)."""
    event = replace(a_message(1, seq=1), unknown={"mood": "good"})
    (found,) = rows_of([encode_event(event)])
    assert (found["kind"], found["to_agents"]) == ("message", ["bob"])


def test_hours_are_those_of_the_ulids() -> None:
    """The hour of an id is that of its ULID, at the edges of hours too, and 0 for an id that has none."""
    edges = [hour * HOUR_MS + step for hour in (0, 1, 489_000, 489_001, 489_002) for step in (0, 1, HOUR_MS - 1)]
    ids = [UlidSource().make(EventId, now_ms=at_ms, entropy=bytes(10)) for at_ms in edges]
    ids.append(EventId("evt_0000UUUUUU" + "0" * 16))
    events = [replace(a_message(1), event_id=event_id) for event_id in ids]
    expected = [ulid_time_ms(event_id) // HOUR_MS for event_id in ids]
    assert [row["event_hour"] for row in rows(list(events))] == expected
    assert expected[-1] == 0


def test_no_events_are_no_rows() -> None:
    """An empty batch has the columns and no rows."""
    assert segment_batch([], [], []).schema == SEGMENT


@pytest.mark.req("TASK-5")
def test_a_signal_names_the_task_that_it_ends() -> None:
    """A canceled task ends with a signal, so its row has the task; an offer that went to somebody else ends nothing."""
    signal = next(event for event in one_of_each() if isinstance(event, SignalEvent))
    ended, moved = (
        replace(signal, payload=Signal(signal=TASK_WITHDRAWN, details={"taskId": TASK_ID, **more}))
        for more in ({CANCELED_BY: "ada"}, {"acceptedByAgentId": "bob"})
    )
    of_ended, of_moved = rows([ended, moved])
    assert (of_ended["task_id"], of_ended["task_hour"]) == (TASK_ID, _HOUR + 1)
    assert (of_moved["task_id"], of_moved["task_hour"]) == (None, None)
