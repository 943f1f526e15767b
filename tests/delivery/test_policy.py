"""The numbers of the engine, and when an outcome is due."""

import pytest
from msgspec.structs import replace

from agentpost.delivery.policy import DeliveryPolicy, ack_due_at_ms, sla_due_at_ms
from agentpost.protocol.envelope import TaskAcceptEvent, TaskCreateEvent, TaskUpdateEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import TaskId, corr_id_of
from agentpost.protocol.payloads import TaskAccept, TaskCreate, TaskUpdate
from agentpost.protocol.timestamps import format_ms
from agentpost.testing import START_MS, a_message, an_ack, an_event_id

HOUR_MS = 3_600_000
GRACE_MS = 120_000
TASK_ID = TaskId("tsk_01ARZ3NDEKTSV4RRFFQ69G5FAV")
POLICY = DeliveryPolicy()


def _task(**fields: object) -> TaskCreateEvent:
    event_id = an_event_id("task")
    payload = TaskCreate(task_id=TASK_ID, to_agents=("bob",), requester_agent_id="ada", title="t", description="d")
    return TaskCreateEvent(
        event_id=event_id,
        source_node_id="node-a",
        source_agent_id="ada",
        corr_id=corr_id_of(event_id),
        created_at=format_ms(START_MS),
        payload=replace(payload, **fields),
    )


@pytest.mark.req("RTY-1", "ACK-4", "CUR-5")
def test_defaults_are_those_of_the_spec() -> None:
    """Whoever configures nothing gets the numbers of the rules."""
    assert POLICY.accepted_ack_timeout_seconds == 20
    assert POLICY.processed_sla_grace_seconds == 120
    assert POLICY.cursor_lease_seconds == 300


@pytest.mark.parametrize("field", ["processed_sla_seconds", "accepted_ack_timeout_seconds", "keep_every_seconds"])
def test_a_senseless_policy_is_refused_by_field(field: str) -> None:
    """A configuration that cannot work is refused with the name of what is wrong."""
    with pytest.raises(Refusal) as refused:
        DeliveryPolicy(**{field: -1})
    assert refused.value.field is not None
    assert refused.value.field.lower() == field.replace("_", "")


@pytest.mark.req("ENV-7")
def test_an_expiry_before_the_ack_timeout_is_when_to_look() -> None:
    """A message that expires in five seconds is looked at in five seconds, not in twenty."""
    short = a_message(1, expires_at_ms=START_MS + 5_000)
    assert ack_due_at_ms(short, now_ms=START_MS, policy=POLICY) == START_MS + 5_000
    assert ack_due_at_ms(a_message(1), now_ms=START_MS, policy=POLICY) == START_MS + 20_000


@pytest.mark.req("ACK-4")
def test_a_message_has_the_sla_and_the_grace() -> None:
    """An accepted message has a day for its outcome, and two minutes on top."""
    due_at_ms = sla_due_at_ms(a_message(1), accepted_at_ms=START_MS, policy=POLICY)
    assert due_at_ms == START_MS + 24 * HOUR_MS + GRACE_MS


@pytest.mark.req("ACK-4")
def test_a_task_has_until_its_eta() -> None:
    """Whoever gave an ETA is held to it: in the ACK, in task_accept, and in an update that revises it."""
    eta = format_ms(START_MS + HOUR_MS)
    task = _task()
    head = {
        "event_id": an_event_id("answer"),
        "source_node_id": "node-b",
        "source_agent_id": "bob",
        "corr_id": task.corr_id,
        "created_at": format_ms(START_MS),
    }
    ack = an_ack(task)
    said = (
        replace(ack, payload=replace(ack.payload, eta_at=eta)),
        replace(ack, payload=replace(ack.payload, eta_seconds=3600)),
        TaskAcceptEvent(**head, payload=TaskAccept(task_id=TASK_ID, accepted_by_agent_id="bob", eta_at=eta)),
        TaskUpdateEvent(**head, payload=TaskUpdate(task_id=TASK_ID, revised_eta_at=eta)),
        _task(deadline_at=eta),
        _task(required_by=eta, deadline_at=format_ms(START_MS + 9 * HOUR_MS)),
    )
    for event in said:
        assert sla_due_at_ms(event, accepted_at_ms=START_MS, policy=POLICY) == START_MS + HOUR_MS + GRACE_MS


@pytest.mark.req("ACK-4")
def test_an_eta_of_another_node_is_bounded_both_ways() -> None:
    """An ETA in the past still leaves the grace, and one in the year 9999 does not hide a black hole."""
    past = _task(deadline_at=format_ms(START_MS - HOUR_MS))
    assert sla_due_at_ms(past, accepted_at_ms=START_MS, policy=POLICY) == START_MS + GRACE_MS
    never = _task(deadline_at="9999-12-31T23:59:59.999Z")
    assert sla_due_at_ms(never, accepted_at_ms=START_MS, policy=POLICY) <= START_MS + 366 * 24 * HOUR_MS
