"""A gateway that is killed between the commit and the answer: the call is repeated with its key, and done once."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentpost import SyncClient
from agentpost.protocol.errors import Code, Refusal
from tests.processes.machines import FaultyMachine, eventually

KEY = "order-17"
SAID = {"fromAgentId": "architect", "toAgents": ["builder"], "body": "Build it."}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[FaultyMachine]:
    machine = FaultyMachine(tmp_path, "vps-jane", "backbone")
    try:
        machine.start()
        for agent in ("architect", "builder"):
            machine.add_agent(agent)
        yield machine
    finally:
        machine.stop()


def messages(machine: FaultyMachine, agent: str = "builder") -> list[str]:
    return [line["eventId"] for line in machine.get(f"/ansible/agents/{agent}/inbox")]


def restart_to_die(machine: FaultyMachine, point: str) -> None:
    machine.kill()
    machine.start(die_at=point)


@pytest.mark.req("PIPE-3", "RTY-3")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_message_is_sent_once_across_a_kill(machine: FaultyMachine, when: str) -> None:
    """Killed just before or just after the commit, its sender without an answer: repeated, there is one message."""
    restart_to_die(machine, f"commit:append:{when}")
    with pytest.raises(Refusal) as lost:
        machine.gateway.operator.post("/ansible/messages", SAID, key=KEY)
    assert lost.value.code is Code.UNAVAILABLE
    eventually(machine.has_died)
    machine.start()
    receipts = [machine.gateway.operator.post("/ansible/messages", SAID, key=KEY) for _ in range(2)]
    assert receipts[0] == receipts[1]
    eventually(lambda: bool(messages(machine)))
    assert messages(machine) == [receipts[0]["eventId"]]
    assert machine.get("/ansible/metrics")["deliveries"]["DeadLetter"] == 0


@pytest.mark.req("PIPE-3", "RTY-3")
def test_the_sdk_gets_its_receipt_from_the_gateway_that_comes_back(machine: FaultyMachine) -> None:
    """One call of the SDK, a kill after its commit, a start: the call returns, and what it said is there once."""
    with SyncClient("architect", home=machine.home) as architect, ThreadPoolExecutor(1) as pool:
        restart_to_die(machine, "commit:append:after")
        sending: Future[Any] = pool.submit(architect.send, "builder", "Build it.")
        eventually(machine.has_died)
        machine.start()
        receipt = sending.result(timeout=120)
    eventually(lambda: bool(messages(machine)))
    assert messages(machine) == [receipt.event_id]


@pytest.mark.req("PIPE-3", "RTY-3")
def test_a_reply_is_said_once_across_a_kill(machine: FaultyMachine) -> None:
    """Killed after the commit that settles a message with its reply: repeated, the sender has one reply."""
    event_id = machine.send("builder", "Build it.", sender="architect")["eventId"]
    eventually(lambda: bool(messages(machine)))
    restart_to_die(machine, "commit:settle:after")
    path = f"/ansible/agents/builder/inbox/{event_id}/reply"
    with pytest.raises(Refusal):
        machine.gateway.operator.post(path, {"body": "Built."}, key=KEY)
    eventually(machine.has_died)
    machine.start()
    answered = machine.gateway.operator.post(path, {"body": "Built."}, key=KEY)
    assert answered["settled"] is True
    eventually(lambda: bool(messages(machine, "architect")))
    assert messages(machine, "architect") == [answered["eventId"]]


@pytest.mark.req("PIPE-3", "TASK-5")
def test_a_task_is_created_once_across_a_kill(machine: FaultyMachine) -> None:
    """Killed after the commit of a task: repeated, there is one task."""
    said = {"requesterAgentId": "architect", "title": "Build it.", "toAgents": ["builder"]}
    restart_to_die(machine, "commit:append:after")
    with pytest.raises(Refusal):
        machine.gateway.operator.post("/ansible/tasks", said, key=KEY)
    eventually(machine.has_died)
    machine.start()
    made = machine.gateway.operator.post("/ansible/tasks", said, key=KEY)
    assert [each["task"]["taskId"] for each in machine.get("/ansible/tasks")] == [made["taskId"]]
