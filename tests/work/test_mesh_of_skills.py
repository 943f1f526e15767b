"""Capabilities over three real gateways: published on one, installed on the others, used, reviewed, withdrawn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentpost.protocol.errors import Code, Refusal
from tests.edges.mailing import Machine, three_machines
from tests.edges.meshing import eventually
from tests.work.building import CAPABILITY, a_declaration, write_pair


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine, Machine]]:
    """A seed, a laptop with `architect`, and a lab with `builder` and `scribe`, who offers summaries."""
    with three_machines(tmp_path_factory.mktemp("mesh")) as (seed, laptop, lab):
        seed.add_agent("warden")
        laptop.add_agent("loner")
        laptop.post("/ansible/agents/loner/skills", {"accepts": False})
        lab.add_agent("scribe")
        write_pair(lab.home / "skills/scribe")
        eventually(lambda: lab.knows("warden") and lab.knows("loner") and laptop.knows("scribe"))
        lab.post("/ansible/capabilities", a_declaration())
        yield seed, laptop, lab


def installations(machine: Machine) -> dict[str, Any]:
    found = machine.get(f"/ansible/capabilities/{CAPABILITY}")["installations"]
    return {each["agentId"]: each for each in found}


def ask(machine: Machine, **changed: Any) -> dict[str, Any]:
    body = {
        "requesterAgentId": "architect",
        "title": "Summarize the design",
        "requiredCapabilities": [CAPABILITY],
        "input": {"document": "A long text."},
    } | changed
    return machine.post("/ansible/tasks", body)


def reviews(machine: Machine) -> list[dict[str, Any]]:
    return machine.get("/ansible/reviews")


@pytest.mark.req("CAP-4")
def test_the_skill_is_installed_on_the_others(machines: tuple[Machine, Machine, Machine]) -> None:
    """Every active agent but the owner gets the delegation skill from its gateway, with version and time; one that
    takes no skills of others has declined."""
    seed, laptop, lab = machines
    eventually(lambda: {each["state"] for each in installations(lab).values()} <= {"installed", "declined"})
    found = installations(lab)
    assert {agent_id: each["state"] for agent_id, each in found.items()} == {
        "architect": "installed",
        "builder": "installed",
        "loner": "declined",
        "warden": "installed",
    }
    assert found["architect"]["installedVersion"] == "1.0.0"
    assert found["architect"]["installedAt"].endswith("Z")
    for machine, agent_id in ((seed, "warden"), (laptop, "architect"), (lab, "builder")):
        folder = machine.home / "skills" / agent_id / "ask-summary"
        assert (folder / "guide.md").read_text() == "When to ask for a summary.\n"
    assert not (laptop.home / "skills" / "loner").exists()
    # The agents were not bothered with any of it.
    assert lab.counted() == []
    assert laptop.get("/ansible/agents/architect/skills")["skills"][0]["name"] == "ask-summary"


@pytest.mark.req("CAP-4")
def test_nobody_replaces_the_skill_of_another_publisher(machines: tuple[Machine, Machine, Machine]) -> None:
    """A capability of another gateway that calls its skill by a name that is taken is not installed over it."""
    seed, laptop, lab = machines
    eventually(lambda: installations(lab).get("architect", {}).get("state") == "installed")
    write_pair(seed.home / "skills/warden-own", "6.6.6")
    seed.post("/ansible/agents/warden/skills", {"directory": str(seed.home / "skills/warden-own")})
    seed.post("/ansible/capabilities", a_declaration("warden", "6.6.6", capabilityId="docs.other"))

    def theirs() -> dict[str, Any]:
        found = seed.get("/ansible/capabilities/docs.other")["installations"]
        return {each["agentId"]: each for each in found}

    eventually(lambda: theirs().get("architect", {}).get("state") in ("installed", "failed"))
    assert theirs()["architect"]["state"] == "failed"
    assert "1.0.0" in (laptop.home / "skills/architect/ask-summary/SKILL.md").read_text()
    assert seed.gateway.operator.delete("/ansible/capabilities/docs.other")


@pytest.mark.req("CAP-5", "CAP-6")
def test_an_output_that_breaks_the_contract_ends_in_a_review(machines: tuple[Machine, Machine, Machine]) -> None:
    """A task by capability reaches its owner; a wrong input is refused at once, a wrong output is refused and leaves a
    review with the versions and the conversation, which every gateway sees."""
    seed, laptop, lab = machines
    eventually(lambda: installations(lab).get("architect", {}).get("state") == "installed")
    with pytest.raises(Refusal) as caught:
        ask(laptop, input={"text": "no document"})
    assert caught.value.code is Code.CONTRACT_MISMATCH
    task = ask(laptop)
    task_id, corr_id = task["taskId"], task["receipt"]["corrId"]
    eventually(lambda: any(each["task"]["taskId"] == task_id for each in lab.get("/ansible/tasks?agent_id=scribe")))
    lab.post(f"/ansible/tasks/{task_id}/claim", {"agentId": "scribe", "etaSeconds": 60})
    body = {"agentId": "scribe", "resultSummary": "done", "output": {"sumary": "typo"}}
    with pytest.raises(Refusal) as caught:
        lab.post(f"/ansible/tasks/{task_id}/complete", body)
    assert caught.value.code is Code.CONTRACT_MISMATCH
    for machine in (seed, laptop, lab):
        eventually(lambda m=machine: any(each["sampleCorrIds"] == [corr_id] for each in reviews(m)))
    (item,) = [each for each in reviews(seed) if corr_id in each["sampleCorrIds"]]
    assert (item["capabilityId"], item["failureClass"]) == (CAPABILITY, "contract_mismatch")
    assert (item["delegationSkillVersion"], item["executorSkillVersion"]) == ("1.0.0", "1.0.0")
    lab.post(
        f"/ansible/tasks/{task_id}/complete",
        {"agentId": "scribe", "resultSummary": "done", "output": {"summary": "Short."}},
    )
    eventually(lambda: laptop.get(f"/ansible/tasks/{task_id}")["task"]["state"] == "completed")


@pytest.mark.req("CAP-6")
def test_a_failed_task_and_repeated_misses_end_in_reviews_too(machines: tuple[Machine, Machine, Machine]) -> None:
    """A failure is reported by the requester's gateway; a capability whose skill is gone by the third miss."""
    _, laptop, lab = machines
    eventually(lambda: any(each["capabilityId"] == CAPABILITY for each in laptop.get("/ansible/capabilities")))
    task_id = ask(laptop)["taskId"]
    eventually(lambda: any(each["task"]["taskId"] == task_id for each in lab.get("/ansible/tasks?agent_id=scribe")))
    lab.post(f"/ansible/tasks/{task_id}/claim", {"agentId": "scribe", "etaSeconds": 60})
    lab.post(
        f"/ansible/tasks/{task_id}/fail",
        {"agentId": "scribe", "failureClass": "no_model", "errorSummary": "No model answered."},
    )
    eventually(lambda: any(each["failureClass"] == "no_model" for each in reviews(laptop)))
    skill = lab.home / "skills/scribe/do-summary"
    skill.rename(skill.with_name("away"))
    eventually(lambda: laptop.get("/ansible/capabilities")[0]["status"] == "disabled")
    for _ in range(3):
        with pytest.raises(Refusal) as caught:
            ask(laptop)
        assert (caught.value.code, caught.value.status) == (Code.CAPABILITY_UNAVAILABLE, 409)
    eventually(lambda: any(each["failureClass"] == "no_route" for each in reviews(laptop)))
    skill.with_name("away").rename(skill)
    eventually(lambda: laptop.get("/ansible/capabilities")[0]["status"] == "active")


@pytest.mark.req("CAP-3", "ROUTE-5")
def test_after_unpublishing_the_next_task_has_no_route(machines: tuple[Machine, Machine, Machine]) -> None:
    """Once a capability is taken back, the next task for it is refused with 400 no_route on every gateway; a gateway
    that does not own it cannot take it back."""
    seed, laptop, lab = machines
    eventually(lambda: any(each["capabilityId"] == CAPABILITY for each in laptop.get("/ansible/capabilities")))
    with pytest.raises(Refusal) as caught:
        laptop.gateway.operator.delete(f"/ansible/capabilities/{CAPABILITY}")
    assert caught.value.code is Code.FOREIGN_SOURCE
    lab.gateway.operator.delete(f"/ansible/capabilities/{CAPABILITY}")
    with pytest.raises(Refusal) as caught:
        ask(lab, requesterAgentId="builder")
    assert (caught.value.code, caught.value.status) == (Code.NO_ROUTE, 400)
    for machine, agent_id in ((laptop, "architect"), (seed, "warden")):
        eventually(lambda m=machine: m.get("/ansible/capabilities") == [])
        with pytest.raises(Refusal) as caught:
            ask(machine, requesterAgentId=agent_id)
        assert caught.value.code is Code.NO_ROUTE


@pytest.mark.req("CAP-2")
def test_only_the_owners_gateway_publishes(machines: tuple[Machine, Machine, Machine], tmp_path: Path) -> None:
    """A publish for an agent that lives elsewhere is refused, and says where it belongs."""
    _, laptop, _ = machines
    write_pair(laptop.home / "skills/scribe")
    with pytest.raises(Refusal) as caught:
        laptop.post("/ansible/capabilities", a_declaration())
    assert caught.value.code is Code.FOREIGN_SOURCE
    assert "lab-jane" in caught.value.hint
