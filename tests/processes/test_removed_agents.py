"""An agent is removed from a machine: whoever wrote to it from another machine hears so at once."""

from pathlib import Path

import pytest

from tests.processes.machines import eventually, faulty_mesh

pytestmark = pytest.mark.waits


@pytest.mark.req("ROUTE-3", "TASK-7")
def test_the_senders_of_a_removed_agent_are_told(tmp_path: Path) -> None:
    """One message was accepted, another was on its way while the agent's machine was cut off: both end as no_route."""
    with faulty_mesh(tmp_path, "mbp-jane", "lab-jane") as (_, laptop, lab):
        lab.add_agent("bob")
        eventually(lambda: laptop.knows("bob"))
        task = {"requesterAgentId": "architect", "title": "Build", "toAgents": ["bob"]}
        path = "/ansible/tasks/" + laptop.post("/ansible/tasks", task)["taskId"]
        accepted = laptop.send("bob", "first", sender="architect")["eventId"]
        eventually(lambda: laptop.delivery(accepted)["state"] == "Accepted")
        eventually(lambda: len(lab.get("/ansible/agents/bob/inbox")) == 2)
        lab.post(f"{path}/claim", {"agentId": "bob", "etaSeconds": 3600})
        eventually(lambda: laptop.get(path)["task"]["state"] == "accepted")
        lab.proxy.hold()
        on_its_way = laptop.send("bob", "second", sender="architect")["eventId"]
        removed = lab.gateway.operator.delete("/ansible/agents/bob")
        assert removed == {"removed": "bob", "ended": 2, "waiting": 0}
        lab.proxy.release()

        def has_failed(event_id: str) -> bool:
            found = laptop.delivery(event_id)
            return (found["state"], found.get("reason")) == ("Processed", "no_route")

        eventually(lambda: has_failed(accepted) and has_failed(on_its_way))
        eventually(lambda: laptop.get(path)["task"]["state"] == "failed")
        assert laptop.get(path)["task"]["failureClass"] == "no_route"
        assert lab.incidents("no_route") == ["bob"]
        lab.add_agent("bob")
        assert lab.incidents("no_route") == []
