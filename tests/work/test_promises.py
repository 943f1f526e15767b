"""What the executor of a capability promises (CAP-7): when it accepts, its ETA, its cadence, and how it fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock
from agentpost.work.sweep import SweepReport
from tests.edges.meshing import eventually
from tests.edges.running import ServedGateway, served_gateway
from tests.work.building import CAPABILITY, a_declaration, write_pair

SECOND = 1000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    """A gateway where `ada` asks and `scribe` carries out: accept in 60 s, ETA within 900 s, a word every 120 s."""
    home = tmp_path / "home"
    declared = a_declaration()
    declared["contract"]["executor"]["failureClasses"] = ["no_model", "too_long"]
    declared["contract"]["failure"] = {"properties": {"errorSummary": {"maxLength": 20}}}
    with served_gateway(home, clock=FakeClock()) as served:
        for agent_id in ("ada", "scribe"):
            served.operator.post("/ansible/agents", {"agentId": agent_id})
        write_pair(home / "skills/scribe")
        served.operator.post("/ansible/capabilities", declared)
        # What a publish gives the other agents to install is a task, too, and is not to be late here.
        eventually(lambda: served.operator.get("/ansible/tasks?only_open=true") == [])
        yield served


def offer(served: ServedGateway) -> str:
    wanted = {"requesterAgentId": "ada", "title": "Sum up", "requiredCapabilities": [CAPABILITY]}
    return served.operator.post("/ansible/tasks", wanted | {"input": {"document": "long"}})["taskId"]


def claim(served: ServedGateway, task_id: str, *, eta_seconds: int = 800) -> Any:
    return served.operator.post(f"/ansible/tasks/{task_id}/claim", {"agentId": "scribe", "etaSeconds": eta_seconds})


def sweep(served: ServedGateway, *, after_seconds: int) -> SweepReport:
    served.clock.advance(after_seconds * SECOND)
    swept = served.run(lambda: served.gateway.office.coordination.tick())
    assert swept is not None
    return swept


def open_incidents(served: ServedGateway, kind: str) -> list[str]:
    found = served.operator.get("/ansible/incidents?limit=500")
    return [each["subject"] for each in found if each["kind"] == kind]


@pytest.mark.req("CAP-7")
def test_a_missed_cadence_is_chased_each_time_and_costs_nobody_the_task(served: ServedGateway) -> None:
    """A worker that does not say how it goes is asked once for each silence; a word from it closes the incident."""
    task_id = offer(served)
    claim(served, task_id)
    assert sweep(served, after_seconds=200).problems == {}, "the grace is not over"
    first = sweep(served, after_seconds=60)
    assert (first.problems, first.asked, first.messages) == ({"missed_cadence": 1}, 1, 1)
    assert open_incidents(served, "task_quiet") == [task_id]
    later = sweep(served, after_seconds=400)
    assert (later.asked, later.reassigned, later.needs_action, later.messages) == (0, 0, 0, 0)
    served.operator.post(f"/ansible/tasks/{task_id}/update", {"agentId": "scribe", "progress": 50})
    assert sweep(served, after_seconds=60).problems == {}
    assert open_incidents(served, "task_quiet") == []


@pytest.mark.req("CAP-7", "TASK-8", "CAP-6")
def test_an_eta_missed_after_a_chase_is_asked_about_and_reviewed(served: ServedGateway) -> None:
    """That its cadence was chased before takes nothing from what a missed ETA brings."""
    task_id = offer(served)
    claim(served, task_id)
    sweep(served, after_seconds=300)
    late = sweep(served, after_seconds=700)
    assert (late.problems, late.asked) == ({"missed_eta": 1}, 1)
    assert open_incidents(served, "task_quiet") == []
    assert open_incidents(served, "task_late") == [task_id]
    assert [each["failureClass"] for each in served.operator.get("/ansible/reviews")] == ["eta_missed"]


@pytest.mark.req("CAP-7", "TASK-8")
def test_a_claim_is_missed_when_the_promised_time_is_over(served: ServedGateway) -> None:
    """An executor that promises to accept within a minute is asked after that minute, not after the general SLA."""
    offer(served)
    assert sweep(served, after_seconds=50).problems == {}
    assert sweep(served, after_seconds=60).problems == {"missed_claim": 1}


@pytest.mark.req("CAP-7", "TASK-2")
def test_an_eta_beyond_the_promise_is_refused(served: ServedGateway) -> None:
    """The claim says how far off the ETA may be, and nothing has changed."""
    task_id = offer(served)
    with pytest.raises(Refusal) as caught:
        claim(served, task_id, eta_seconds=901)
    assert (caught.value.code, caught.value.field) == (Code.CONTRACT_MISMATCH, "etaAt")
    assert "900 s" in caught.value.message
    assert served.operator.get(f"/ansible/tasks/{task_id}")["task"]["state"] == "created"
    assert claim(served, task_id, eta_seconds=900)["state"] == "accepted"


@pytest.mark.req("CAP-7", "CAP-6", "TASK-7")
@pytest.mark.parametrize(
    ("failure_class", "error_summary", "is_declared"),
    [("too_long", "9,000 pages", True), ("melted", "9,000 pages", False), ("no_model", "A" * 21, False)],
    ids=["declared", "another class", "another form"],
)
def test_a_failure_that_was_not_declared_is_told_and_reviewed(
    served: ServedGateway, failure_class: str, error_summary: str, is_declared: bool
) -> None:
    """The requester always hears the end; that it broke the contract is a review item beside the failure's own."""
    task_id = offer(served)
    claim(served, task_id)
    body = {"agentId": "scribe", "failureClass": failure_class, "errorSummary": error_summary}
    assert served.operator.post(f"/ansible/tasks/{task_id}/fail", body)["state"] == "failed"
    classes = {each["failureClass"] for each in served.operator.get("/ansible/reviews")}
    assert ("contract_mismatch" in classes) is not is_declared


@pytest.mark.req("CAP-5")
def test_what_is_nested_too_deep_for_a_contract_is_refused(served: ServedGateway) -> None:
    """An input or output that nobody can look through is refused in words, and nothing changes."""
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    with pytest.raises(Refusal) as refused:
        served.operator.post(
            "/ansible/tasks",
            {
                "requesterAgentId": "ada",
                "title": "Sum up",
                "requiredCapabilities": [CAPABILITY],
                "input": {"document": deep},
            },
        )
    assert (refused.value.code, refused.value.field) == (Code.TOO_DEEP, "input")
    task_id = offer(served)
    claim(served, task_id)
    done = {"agentId": "scribe", "resultSummary": "Done.", "output": {"summary": deep}}
    with pytest.raises(Refusal) as refused:
        served.operator.post(f"/ansible/tasks/{task_id}/complete", done)
    assert (refused.value.code, refused.value.field) == (Code.TOO_DEEP, "output")
    assert served.operator.get(f"/ansible/tasks/{task_id}")["task"]["state"] == "accepted"
