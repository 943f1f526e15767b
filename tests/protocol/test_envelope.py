"""The event envelope: what stands on the wire, and what every kind must say."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from agentpost.protocol.codec import decode_event, decode_json_event, encode_event, encode_json_event
from agentpost.protocol.envelope import (
    AckEvent,
    Event,
    MessageEvent,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
    Trace,
    check,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.payloads import AckType, Kind, Message, Priority
from tests.protocol.samples import CORR_ID, EVENT_ID, TASK_ID, clear_wire, full_wire
from tests.protocol.strategies import CLASSES, events

NEEDS_A_CORR_ID = [kind for kind in Kind if kind in {Kind.ACK, Kind.REPLY} or kind.startswith("task_")]
GETS_A_CORR_ID = [kind for kind in Kind if kind not in NEEDS_A_CORR_ID]


def refusal(wire: dict[str, Any]) -> Refusal:
    """The refusal of a wire object; both formats must refuse it alike."""
    with pytest.raises(Refusal) as packed:
        decode_event(msgspec.msgpack.encode(wire))
    with pytest.raises(Refusal) as written:
        decode_json_event(msgspec.json.encode(wire))
    assert (packed.value.code, packed.value.field) == (written.value.code, written.value.field)
    return packed.value


def put(wire: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`wire` with `value` at a path like `payload.taskId`."""
    *way, last = path.split(".")
    inner = wire
    for name in way:
        inner = inner[name]
    inner[last] = value
    return wire


def drop(wire: dict[str, Any], path: str) -> dict[str, Any]:
    """`wire` without what is at a path like `payload.taskId`."""
    *way, last = path.split(".")
    inner = wire
    for name in way:
        inner = inner[name]
    del inner[last]
    return wire


def names_in(value: Any) -> set[str]:
    """The names of all fields in a wire object, but for those that users choose."""
    if not isinstance(value, dict):
        return set()
    own = {name for name in value if name not in {"keys", "details", "context", "output"}}
    return own.union(*(names_in(value[name]) for name in own))


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize("kind", Kind)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_event_is_read_as_it_was_written(kind: Kind, data: st.DataObject):
    """An event of any kind, written as msgpack or as JSON, is read back as the same event."""
    event = data.draw(events(kinds=[kind]))
    check(event)
    assert event.kind is kind
    assert decode_event(encode_event(event)) == event
    assert decode_json_event(encode_json_event(event)) == event


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize("kind", Kind)
def test_the_wire_has_the_fields_of_the_rule(kind: Kind):
    """An event with everything in it has the fields that the rule lists, and no others."""
    event = decode_event(msgspec.msgpack.encode(full_wire(kind)))
    for wire in (msgspec.msgpack.decode(encode_event(event)), msgspec.json.decode(encode_json_event(event))):
        rule = (
            "eventId seq kind sourceNodeId sourceAgentId toAgentId corrId createdAt expiresAt payload payloadRef trace"
        )
        assert set(wire) == set(rule.split())
        assert set(wire["trace"]) == {
            "attempt",
            "routeDecision",
            "routingPolicyVersion",
            "capabilityPolicyVersion",
        }


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize("kind", Kind)
def test_a_full_event_is_written_as_it_came(kind: Kind):
    """An event in which every field says something keeps all of them, under the same names."""
    wire = full_wire(kind)
    event = decode_event(msgspec.msgpack.encode(wire))
    assert msgspec.msgpack.decode(encode_event(event)) == wire
    assert msgspec.json.decode(encode_json_event(event)) == msgspec.json.decode(msgspec.json.encode(wire))
    assert decode_json_event(msgspec.json.encode(wire)) == event


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize("kind", Kind)
def test_names_on_the_wire_are_camel_case(kind: Kind):
    """Every name on the wire is written like `sourceNodeId`."""
    event = decode_event(msgspec.msgpack.encode(full_wire(kind)))
    for name in names_in(msgspec.json.decode(encode_json_event(event))):
        assert re.fullmatch("[a-z]+[0-9]*([A-Z][a-z]+)*", name)


@pytest.mark.req("ENV-4", "ENV-5")
def test_what_was_not_said_is_left_out_and_what_others_need_is_written():
    """A short message has its defaults on the wire where other readers need them, and no empty fields."""
    event = MessageEvent(
        event_id=EventId(EVENT_ID),
        source_node_id="venus",
        source_agent_id="carl",
        created_at="2026-03-01T09:00:00.123Z",
        payload=Message(to_agents=("ann",), body="Hello"),
    )
    assert msgspec.json.decode(encode_json_event(event)) == {
        "kind": "message",
        "eventId": EVENT_ID,
        "sourceNodeId": "venus",
        "sourceAgentId": "carl",
        "createdAt": "2026-03-01T09:00:00.123Z",
        "trace": {"attempt": 1, "routingPolicyVersion": "", "capabilityPolicyVersion": ""},
        "payload": {"toAgents": ["ann"], "priority": "normal", "expectsReply": False, "body": "Hello"},
    }


def read(kind: Kind, **payload: Any) -> Any:
    """The event of a short JSON sample with this payload."""
    head = {
        "eventId": EVENT_ID,
        "seq": 7,
        "kind": kind.value,
        "sourceNodeId": "venus",
        "sourceAgentId": "carl",
        "corrId": CORR_ID,
        "createdAt": "2026-03-01T09:00:00.123Z",
        "trace": {"attempt": 1, "routingPolicyVersion": "rpv_7", "capabilityPolicyVersion": "cpv_9"},
    }
    return decode_json_event(msgspec.json.encode({**head, "payload": payload}))


@pytest.mark.req("ENV-4")
def test_a_message_is_read():
    """The protocol's message is read: to whom, what about, how urgent, whether an answer is wanted."""
    event = read(
        Kind.MESSAGE,
        toAgents=["ann", "bob"],
        subject="Build",
        body="It is green.",
        priority="normal",
        expectsReply=False,
    )
    assert isinstance(event, MessageEvent)
    assert (event.event_id, event.seq, event.corr_id, event.to_agent_id) == (EVENT_ID, 7, CORR_ID, None)
    assert event.trace == Trace(attempt=1, routing_policy_version="rpv_7", capability_policy_version="cpv_9")
    assert event.payload == Message(to_agents=("ann", "bob"), subject="Build", body="It is green.")


@pytest.mark.req("TASK-1")
def test_a_task_is_read():
    """The protocol's task_create is read with all that it asks for."""
    event = read(
        Kind.TASK_CREATE,
        taskId=TASK_ID,
        title="Check the notes",
        description="Every change has a line.",
        toAgents=[],
        requiredCapabilities=["cap.release.notes"],
        priority="high",
        requesterAgentId="carl",
        responseRequired=True,
        deadlineAt="2026-03-01T20:00:00.000Z",
    )
    assert isinstance(event, TaskCreateEvent)
    task = event.payload
    assert (task.task_id, task.title, task.description) == (TASK_ID, "Check the notes", "Every change has a line.")
    assert (task.to_agents, task.required_capabilities) == ((), ("cap.release.notes",))
    assert (task.priority, task.requester_agent_id, task.response_required) == (Priority.HIGH, "carl", True)
    assert (task.deadline_at, task.task_type) == ("2026-03-01T20:00:00.000Z", None)


@pytest.mark.req("TASK-2")
def test_an_acceptance_is_read():
    """The protocol's task_accept is read: who, until when, and how."""
    eta = "2026-03-01T18:00:00.000Z"
    event = read(Kind.TASK_ACCEPT, taskId=TASK_ID, acceptedByAgentId="ann", etaAt=eta, planSummary="Read all.")
    assert isinstance(event, TaskAcceptEvent)
    accept = event.payload
    assert (accept.accepted_by_agent_id, accept.eta_at, accept.eta_seconds) == ("ann", eta, None)
    assert accept.plan_summary == "Read all."
    assert read(Kind.TASK_ACCEPT, taskId=TASK_ID, acceptedByAgentId="ann", etaSeconds=60).payload.eta_seconds == 60


@pytest.mark.req("TASK-3")
def test_an_update_is_read():
    """The protocol's task_update is read: status, progress, note, new ETA."""
    eta = "2026-03-01T18:30:00.000Z"
    event = read(
        Kind.TASK_UPDATE, taskId=TASK_ID, status="in_progress", progress=60, note="Half of it.", revisedEtaAt=eta
    )
    assert isinstance(event, TaskUpdateEvent)
    update = event.payload
    assert (update.status, update.progress, update.note) == ("in_progress", 60, "Half of it.")
    assert (update.revised_eta_at, update.notify) == (eta, False)


@pytest.mark.req("TASK-4")
def test_an_outcome_is_read():
    """The protocol's task_complete and task_failed are read: what came of it, by whom, when."""
    at = "2026-03-01T17:54:10.000Z"
    done = read(
        Kind.TASK_COMPLETE,
        taskId=TASK_ID,
        completedByAgentId="ann",
        resultSummary="All there.",
        resultRef="artifact://notes.md",
        completedAt=at,
    )
    assert isinstance(done, TaskCompleteEvent)
    assert (done.payload.completed_by_agent_id, done.payload.completed_at) == ("ann", at)
    assert (done.payload.result_summary, done.payload.result_ref) == ("All there.", "artifact://notes.md")

    failed = read(
        Kind.TASK_FAILED,
        taskId=TASK_ID,
        failedByAgentId="ann",
        failureClass="dependency_missing",
        errorSummary="No notes.",
        failedAt=at,
    )
    assert isinstance(failed, TaskFailedEvent)
    assert (failed.payload.failed_by_agent_id, failed.payload.failed_at) == ("ann", at)
    assert (failed.payload.failure_class, failed.payload.error_summary) == ("dependency_missing", "No notes.")


@pytest.mark.req("ACK-1")
@pytest.mark.parametrize("ack_type", ["accepted", "processed", "failed_terminal"])
def test_an_acknowledgement_is_read(ack_type: str):
    """The protocol's ack is read: of what, by whom, when, in which of three ways, with the ETA of a task."""
    event = read(
        Kind.ACK,
        refEventId=EVENT_ID,
        refKind="task_create",
        ackType=ack_type,
        ackedByNodeId="mars",
        ackedByAgentId="ann",
        ackedAt="2026-03-01T09:00:01.000Z",
        etaAt="2026-03-01T18:00:00.000Z",
    )
    assert isinstance(event, AckEvent)
    ack = event.payload
    assert (ack.ref_event_id, ack.ref_kind, ack.ack_type) == (EVENT_ID, Kind.TASK_CREATE, AckType(ack_type))
    assert (ack.acked_by_node_id, ack.acked_by_agent_id) == ("mars", "ann")
    assert (ack.acked_at, ack.eta_at) == ("2026-03-01T09:00:01.000Z", "2026-03-01T18:00:00.000Z")


@pytest.mark.req("ACK-1")
@pytest.mark.parametrize("ack_type", ["received", "ACCEPTED", ""])
def test_another_way_to_acknowledge_is_refused(ack_type: str):
    """An ack of a sort that the protocol does not list is refused by its field."""
    refused = refusal(put(full_wire(Kind.ACK), "payload.ackType", ack_type))
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, "payload.ackType")


HEAD_FIELDS = ["eventId", "sourceNodeId", "sourceAgentId", "createdAt", "payload"]
MUST_SAY = {
    "ACK-1": (Kind.ACK, ["refEventId", "refKind", "ackType", "ackedByNodeId", "ackedByAgentId", "ackedAt"]),
    "TASK-1": (Kind.TASK_CREATE, ["taskId", "requesterAgentId", "title", "description"]),
    "TASK-2": (Kind.TASK_ACCEPT, ["taskId", "acceptedByAgentId"]),
    "TASK-3": (Kind.TASK_UPDATE, ["taskId"]),
    "TASK-4 complete": (Kind.TASK_COMPLETE, ["taskId", "completedByAgentId", "completedAt", "resultSummary"]),
    "TASK-4 failed": (
        Kind.TASK_FAILED,
        ["taskId", "failedByAgentId", "failedAt", "failureClass", "errorSummary"],
    ),
}


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("field", HEAD_FIELDS)
def test_a_missing_field_of_the_head_is_named(kind: Kind, field: str):
    """An event without one of the fields that all events have is refused, and the refusal names it."""
    refused = refusal(drop(full_wire(kind), field))
    assert (refused.code, refused.field, refused.message) == (Code.INVALID_FIELD, field, f"{field}: is required")


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        pytest.param(kind, field, marks=pytest.mark.req(rule.split()[0]), id=f"{rule} {field}")
        for rule, (kind, fields) in MUST_SAY.items()
        for field in fields
    ],
)
def test_a_missing_field_of_a_contract_is_named(kind: Kind, field: str):
    """An event without something that its contract has it say is refused, and the refusal names it."""
    refused = refusal(drop(clear_wire(kind), f"payload.{field}"))
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, f"payload.{field}")
    assert "required" in refused.message


@pytest.mark.req("TASK-1", "TASK-4")
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (Kind.TASK_CREATE, ["title", "description"]),
        (Kind.TASK_COMPLETE, ["resultSummary"]),
        (Kind.TASK_FAILED, ["errorSummary"]),
    ],
)
@pytest.mark.parametrize("elsewhere", ["payload.sealed", "payloadRef"])
def test_content_may_be_sealed_or_stored_elsewhere(kind: Kind, content: list[str], elsewhere: str):
    """What a task says need not stand in the clear: sealed, or behind a reference, it is said as well."""
    wire = full_wire(kind)
    for name in content:
        drop(wire, f"payload.{name}")
    drop(wire, "payloadRef" if elsewhere == "payload.sealed" else "payload.sealed")
    assert decode_event(msgspec.msgpack.encode(wire)).kind is kind
    drop(wire, elsewhere)
    assert refusal(wire).field == f"payload.{content[0]}"


@pytest.mark.req("TASK-2")
def test_an_acceptance_needs_an_eta():
    """A task_accept says by when, as a time or in seconds; with neither it is refused."""
    wire = drop(drop(clear_wire(Kind.TASK_ACCEPT), "payload.etaAt"), "payload.etaSeconds")
    refused = refusal(wire)
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, "payload.etaAt")
    assert "etaSeconds" in refused.message


@pytest.mark.req("TASK-3")
def test_progress_is_a_percentage():
    """Progress goes from 0 to 100; what is below, above or between two numbers is refused."""
    for progress in (0, 100):
        wire = put(full_wire(Kind.TASK_UPDATE), "payload.progress", progress)
        event = decode_json_event(msgspec.json.encode(wire))
        assert isinstance(event, TaskUpdateEvent)
        assert event.payload.progress == progress
    for progress in (-1, 101, 50.5):
        refused = refusal(put(full_wire(Kind.TASK_UPDATE), "payload.progress", progress))
        assert (refused.code, refused.field) == (Code.INVALID_FIELD, "payload.progress")


@pytest.mark.req("ENV-5")
def test_attempts_count_from_one():
    """A new event is attempt 1, says so on the wire, and an attempt 0 is refused."""
    assert Trace().attempt == 1
    event = decode_event(msgspec.msgpack.encode(drop(full_wire(Kind.MESSAGE), "trace")))
    assert msgspec.msgpack.decode(encode_event(event))["trace"]["attempt"] == 1
    resent = structs.replace(event, trace=structs.replace(event.trace, attempt=2))
    assert msgspec.msgpack.decode(encode_event(resent)) | {"trace": None} == (
        msgspec.msgpack.decode(encode_event(event)) | {"trace": None}
    )
    assert msgspec.json.decode(encode_json_event(resent))["trace"]["attempt"] == 2
    assert refusal(put(full_wire(Kind.MESSAGE), "trace.attempt", 0)).field == "trace.attempt"


@pytest.mark.req("ENV-3")
@pytest.mark.parametrize("kind", NEEDS_A_CORR_ID)
def test_an_answer_without_a_corr_id_is_refused(kind: Kind):
    """An ack, a reply or an event of a task must say to which conversation it belongs."""
    for wire in (drop(full_wire(kind), "corrId"), put(full_wire(kind), "corrId", "")):
        refused = refusal(wire)
        assert (refused.code, refused.field) == (Code.INVALID_FIELD, "corrId")


@pytest.mark.req("ENV-3")
@pytest.mark.parametrize("kind", GETS_A_CORR_ID)
def test_a_message_without_a_corr_id_gets_one(kind: Kind):
    """What starts a conversation is given a corrId, the same one each time it is read, in either format."""
    wire = drop(full_wire(kind), "corrId")
    event = decode_event(msgspec.msgpack.encode(wire))
    assert event.corr_id == "corr_" + EVENT_ID.removeprefix("evt_")
    assert decode_json_event(msgspec.json.encode(wire)) == event
    assert msgspec.msgpack.decode(encode_event(event))["corrId"] == event.corr_id


@pytest.mark.req("ENV-1", "ENV-4")
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Kind.MESSAGE, "eventId"),
        (Kind.MESSAGE, "corrId"),
        (Kind.REPLY, "corrId"),
        (Kind.ACK, "payload.refEventId"),
        (Kind.REPLY, "payload.refEventId"),
        (Kind.SIGNAL, "payload.refEventId"),
        (Kind.DEAD_LETTER, "payload.refEventId"),
        *((kind, "payload.taskId") for kind in Kind if kind.startswith("task_")),
    ],
)
@pytest.mark.parametrize(
    "ulid", ["", "01K2H7Q4ZB", "01k2h7q4zb9d6xw3t5n8rmvcga", "01K2H7Q4ZB9D6XW3T5N8RMVC-A", "0" * 27]
)
def test_a_malformed_id_is_named(kind: Kind, path: str, ulid: str):
    """An id that is not its prefix and a ULID is refused, and the refusal names the field."""
    prefix = {"eventId": "evt_", "refEventId": "evt_", "corrId": "corr_", "taskId": "tsk_"}[path.split(".")[-1]]
    refused = refusal(put(full_wire(kind), path, prefix + ulid))
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, path)
    swapped = "tsk_" if prefix == "evt_" else "evt_"
    assert refusal(put(full_wire(kind), path, swapped + "01K2H7Q4ZB9D6XW3T5N8RMVCGA")).field == path


TIME_FIELDS = [
    *((Kind.MESSAGE, path) for path in ("createdAt", "expiresAt")),
    *((Kind.ACK, path) for path in ("payload.ackedAt", "payload.etaAt")),
    *((Kind.TASK_CREATE, path) for path in ("payload.deadlineAt", "payload.requiredBy")),
    (Kind.TASK_ACCEPT, "payload.etaAt"),
    (Kind.TASK_UPDATE, "payload.revisedEtaAt"),
    *((Kind.TASK_COMPLETE, path) for path in ("payload.completedAt", "payload.installedAt")),
    (Kind.TASK_FAILED, "payload.failedAt"),
    (Kind.DEAD_LETTER, "payload.deadLetteredAt"),
]


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize(("kind", "path"), TIME_FIELDS)
@pytest.mark.parametrize("time", ["2026-02-30T09:00:00.000Z", "2026-03-01T09:00:00Z", "2026-03-01T09:00:00.000+00:00"])
def test_a_malformed_time_is_named(kind: Kind, path: str, time: str):
    """A time that is not RFC 3339 in UTC with milliseconds is refused, and the refusal names the field."""
    refused = refusal(put(full_wire(kind), path, time))
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, path)


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64])
def test_a_malformed_address_is_named(sha256: str):
    """A payloadRef whose address is not a SHA-256 in lowercase hex is refused by its field."""
    refused = refusal(put(full_wire(Kind.MESSAGE), "payloadRef.sha256", sha256))
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, "payloadRef.sha256")


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        (Kind.MESSAGE, "seq", -1),
        (Kind.MESSAGE, "seq", 2**63),
        (Kind.MESSAGE, "trace.attempt", 2**63),
        (Kind.MESSAGE, "payloadRef.sizeBytes", 0),
        (Kind.MESSAGE, "payloadRef.sizeBytes", 2**63),
        (Kind.MESSAGE, "sourceNodeId", ""),
        (Kind.MESSAGE, "sourceNodeId", "n" * 129),
        (Kind.MESSAGE, "toAgentId", ""),
        (Kind.MESSAGE, "payload.toAgents", ["ann"] * 1001),
        (Kind.ACK, "payload.etaSeconds", -1),
        (Kind.TASK_ACCEPT, "payload.etaSeconds", 31_536_001),
        (Kind.TASK_UPDATE, "payload.status", ""),
        (Kind.DEAD_LETTER, "payload.attempts", -1),
        (Kind.DEAD_LETTER, "payload.attempts", 2**63),
    ],
)
def test_a_value_out_of_its_range_is_named(kind: Kind, path: str, value: Any):
    """Numbers and names have limits; what is beyond them is refused by its field."""
    refused = refusal(put(full_wire(kind), path, value))
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, path)


@pytest.mark.req("ENV-4")
@pytest.mark.parametrize("path", ["trace.attempt", "payloadRef.sizeBytes", "seq"])
def test_a_number_that_only_json_can_say_is_refused(path: str):
    """JSON can say numbers that msgpack cannot; they are refused when read, not when passed on."""
    wire = msgspec.json.encode(put(full_wire(Kind.MESSAGE), path, 4242)).replace(b"4242", b"1" + b"0" * 30)
    with pytest.raises(Refusal) as caught:
        decode_json_event(wire)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, path)


@pytest.mark.req("ENV-6")
@pytest.mark.parametrize(("old", "kind"), [("task", Kind.TASK_CREATE), ("task_result", Kind.TASK_COMPLETE)])
def test_an_older_kind_is_read_and_never_written(old: str, kind: Kind):
    """Events of older documents are read as what they are called now, and written under that name."""
    wire = put(full_wire(kind), "kind", old)
    for event in (decode_event(msgspec.msgpack.encode(wire)), decode_json_event(msgspec.json.encode(wire))):
        assert type(event) is CLASSES[kind]
        assert event == decode_event(msgspec.msgpack.encode(full_wire(kind)))
        assert msgspec.msgpack.decode(encode_event(event))["kind"] == kind
        assert msgspec.json.decode(encode_json_event(event))["kind"] == kind


@pytest.mark.req("ENV-6")
@pytest.mark.parametrize(
    "kind", ["", "Message", "message ", "task_claim", "unknown", "k" * 1000, 1, None, True, [], {}]
)
def test_an_unknown_kind_is_refused(kind: Any):
    """An event of a kind that the protocol does not know is refused with a code of its own."""
    refused = refusal(put(full_wire(Kind.MESSAGE), "kind", kind))
    assert (refused.code, refused.field, refused.status) == (Code.UNKNOWN_KIND, "kind", 400)
    assert len(refused.message) < 200


@pytest.mark.req("ENV-6")
def test_an_event_without_a_kind_is_refused():
    """An event that does not say what it is is refused."""
    assert refusal(drop(full_wire(Kind.MESSAGE), "kind")).code is Code.UNKNOWN_KIND


@pytest.mark.req("ENV-4")
@settings(max_examples=50, deadline=None)
@given(events(node_id="mars", kinds=[Kind.MESSAGE, Kind.ACK]))
def test_events_can_be_drawn_for_one_node_and_some_kinds(event: Event):
    """The events that other tests draw are of the node and the kinds they asked for, and valid."""
    check(event)
    assert event.source_node_id == "mars"
    assert event.kind in {Kind.MESSAGE, Kind.ACK}
