"""Tasks between real gateways, from the command line: what a person who delegates work sees."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from agentpost.edges.cli.app import make_app
from agentpost.edges.operator_client import OperatorClient
from agentpost.protocol.errors import Refusal
from agentpost.store.home import Home
from tests.edges.mailing import three_machines
from tests.edges.meshing import eventually
from tests.edges.running import running_gateway

# An agent for tasks: does what the title says, and fails for what it does not know.
_AGENT = """
import json, sys
given = json.load(sys.stdin)
title = given["content"]["title"]
if title.startswith("Break"):
    sys.exit("cannot: " + title)
print(json.dumps({"reply": {"resultSummary": "did " + title, "output": given["content"].get("context")}}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of one gateway that runs for all tests which need no more than that."""
    path = tmp_path_factory.mktemp("homes") / "vps-jane"
    with running_gateway(path, node="vps-jane", tier="backbone"):
        yield path


def run(home: Path, *words: str) -> Result:
    """The command, in this process: a new one for each would take most of the time of these tests."""
    return CliRunner().invoke(make_app(), [*words, "--home", str(home)])


def command(home: Path, *words: str) -> Any:
    """What the command prints as JSON, or the refusal in its one shape."""
    done = run(home, *words, "-o", "json")
    if isinstance(done.exception, Refusal):
        return done.exception.to_wire()
    return json.loads(done.stdout)


@pytest.mark.req("TASK-1", "TASK-2", "TASK-4", "TASK-7", "PIPE-4")
def test_a_task_is_delegated_to_another_machine_and_comes_back(tmp_path: Path) -> None:
    """A laptop asks an agent on another one: it is accepted with an ETA, done, and its end is in the asker's inbox."""
    with three_machines(tmp_path) as (_, laptop, lab):
        argv = [sys.executable, "-c", _AGENT]
        lab.post(
            "/ansible/agents",
            {"agentId": "worker", "runtime": "command", "options": {"argv": argv, "output": "json"}},
        )
        eventually(lambda: laptop.knows("worker"))
        made = laptop.post(
            "/ansible/tasks",
            {
                "requesterAgentId": "architect",
                "title": "the xylophone thing",
                "toAgents": ["worker"],
                "input": {"size": 3},
            },
        )
        path = f"/ansible/tasks/{made['taskId']}"
        eventually(lambda: laptop.get(path)["task"]["state"] == "completed")
        view = laptop.get(path)
        assert [step["kind"] for step in view["steps"]] == ["task_create", "task_accept", "task_complete"]
        assert view["steps"][-1]["content"] == {"resultSummary": "did the xylophone thing", "output": {"size": 3}}
        assert view["task"]["acceptedByAgentId"] == "worker"
        assert view["task"]["etaAtMs"] > view["task"]["createdAtMs"]
        (line,) = [each for each in laptop.get("/ansible/agents/architect/inbox") if each["kind"] == "task_complete"]
        assert line["state"] == "queued", "it waits for the one who asked"
        for machine in (laptop, lab):
            assert machine.post("/ansible/rebuild", {"check": True})["differing"] == []
            machine.gateway.end()
            files = [each.read_bytes() for each in machine.home.rglob("agentpost.db*")]
            assert not any(b"xylophone" in content for content in files), "what is asked for stays sealed at rest"


@pytest.mark.req("TASK-5", "TASK-6")
def test_a_task_that_nobody_could_begin_says_so(home: Path) -> None:
    """Two agents are offered a task, and both give up before they have claimed it: lists and `task show` tell why."""
    for agent in ("asker", "first", "second"):
        command(home, "agents", "add", agent)
    made = command(home, "task", "create", "Fold it", "--from", "asker", "--to", "first", "--to", "second")
    task_id, client = made["taskId"], OperatorClient(home)

    def give_up(agent: str) -> None:
        (got,) = client.post(f"/ansible/agents/{agent}/fetch", {"waitSeconds": 20})
        client.post(f"/ansible/agents/{agent}/inbox/{got['eventId']}/settle", {"kind": "failed", "error": "no hands"})

    give_up("first")
    assert "offer ended" not in run(home, "task", "show", task_id).stdout, "the other may take it"
    give_up("second")
    eventually(lambda: command(home, "task", "show", task_id).get("offerEnded") == "failed")
    shown = run(home, "task", "show", task_id).stdout
    assert "created (offer ended: failed)" in shown
    assert "Nobody has it" in shown
    (line,) = command(home, "task", "list", "--agent", "asker", "--open")
    assert line["offerEnded"] == "failed"


def test_the_words_of_a_task_are_shown_to_people(home: Path) -> None:
    """`fetch` shows what is asked for and `read` how it ended: what a task says stands in fields of its own."""
    for agent in ("eve", "kim"):
        command(home, "agents", "add", agent)
    described = ("--description", "All of them.", "--from", "eve", "--to", "kim")
    made = command(home, "task", "create", "Count the sheep", *described)
    asked = run(home, "fetch", "kim", "--wait", "20s").stdout
    assert "title: Count the sheep" in asked
    assert "description: All of them." in asked
    command(home, "task", "claim", made["taskId"], "--agent", "kim", "--eta", "5m")
    command(home, "task", "complete", made["taskId"], "forty-two", "--agent", "kim")
    (end,) = [line for line in command(home, "inbox", "eve") if line["kind"] == "task_complete"]
    read = run(home, "read", end["eventId"], "--agent", "eve").stdout
    assert "kind    task_complete" in read
    assert "resultSummary forty-two" in read


@pytest.mark.req("TASK-3", "TASK-5", "OPS-2", "OPS-5")
def test_the_commands_of_tasks(home: Path) -> None:
    """Create, list, show, claim, update, complete, fail and cancel work as commands, and say no in one shape."""
    for agent in ("ada", "bob"):
        command(home, "agents", "add", agent)
    made = command(home, "task", "create", "Build v2", "--from", "ada", "--to", "bob", "--deadline", "2h")
    task_id = made["taskId"]
    eventually(lambda: len(command(home, "inbox", "bob")) == 1)
    refused = command(home, "task", "complete", task_id, "done", "--agent", "bob")
    assert refused["error"]["code"] == "invalid_transition"
    assert "claim" in refused["error"]["hint"].lower()
    claimed = command(home, "task", "claim", task_id, "--agent", "bob", "--eta", "30m", "--plan", "With care.")
    assert (claimed["state"], claimed["verdict"]) == ("accepted", "won")
    words = ("--agent", "bob", "--progress", "60", "--note", "Links are next.", "--eta", "1h")
    assert command(home, "task", "update", task_id, *words)["state"] == "in_progress"
    (line,) = command(home, "task", "list", "--agent", "bob", "--open")
    assert (line["title"], line["task"]["progress"]) == ("Build v2", 60)
    context = run(home, "context", "--agent", "bob")
    assert "Build v2" in context.stdout
    assert "not instructions" in context.stdout
    done = command(home, "task", "complete", task_id, "It is built.", "--agent", "bob", "--data", '{"files": 3}')
    assert done["state"] == "completed"
    shown = command(home, "task", "show", task_id)
    assert shown["steps"][-1]["content"]["output"] == {"files": 3}
    other = command(home, "task", "create", "Build v3", "--from", "ada", "--to", "bob")["taskId"]
    eventually(lambda: len(command(home, "inbox", "bob", "--open")) == 1)
    command(home, "task", "claim", other, "--agent", "bob", "--eta", "30m")
    failed = command(home, "task", "fail", other, "No changelog.", "--agent", "bob", "--class", "missing")
    assert failed["state"] == "failed"
    last = command(home, "task", "create", "Build v4", "--from", "ada", "--to", "bob")["taskId"]
    assert command(home, "task", "cancel", last, "--agent", "bob")["error"]["code"] == "invalid_transition"
    assert command(home, "task", "cancel", last, "--agent", "ada")["state"] == "canceled"
    assert command(home, "task", "cancel", last, "--agent", "ada")["error"]["code"] == "invalid_transition"
    assert "canceled" in run(home, "task", "show", last).stdout
    assert command(home, "rebuild", "--check")["differing"] == []
    for bad in (
        ("task", "create", "x", "--from", "ada", "--to", "nobody"),
        ("task", "create", "x", "--from", "ada", "--to", "bob", "--input", "{"),
        ("task", "show", "tsk_nothing"),
    ):
        answer = command(home, *bad)
        assert answer["error"]["code"] in ("invalid_targets", "invalid_field", "not_found"), answer
    for words in (("task", "show", task_id), ("task", "list"), ("rebuild",), ("coordination", "show")):
        assert run(home, *words).exit_code == 0


@pytest.mark.req("OPS-4")
def test_the_commands_of_coordination(home: Path) -> None:
    """A backbone node appoints the coordinator, sets the cadence and says a preference; an unknown node is refused."""
    assert command(home, "coordination", "show")["coordinator"] is None
    assert command(home, "coordination", "set", "nobody")["error"]["code"] == "invalid_field"
    found = command(home, "coordination", "set", "vps-jane", "--every", "30s")
    assert (found["coordinator"], found["acting"], found["sweepEverySeconds"]) == ("vps-jane", "vps-jane", 30)
    found = command(home, "coordination", "prefer", "vps-jane")
    assert found["preferences"]["vps-jane"]["desiredCoordinator"] == "vps-jane"


@pytest.mark.req("OPS-4")
def test_a_coordinator_that_is_refused_changes_nothing_else(home: Path) -> None:
    """Who is to lead and how often are said together: if the one is refused, the other is not done."""
    before = command(home, "coordination", "show")["sweepEverySeconds"]
    refused = command(home, "coordination", "set", "nobody", "--every", "77s")
    assert refused["error"]["code"] == "invalid_field"
    assert command(home, "coordination", "show")["sweepEverySeconds"] == before


def test_the_description_of_the_api_has_the_tasks(home: Path) -> None:
    """Every path of tasks, context and coordination stands in the OpenAPI document."""
    transport = httpx.HTTPTransport(uds=str(Home(home).operator_socket))
    with httpx.Client(transport=transport, base_url="http://gateway") as http:
        paths = http.get("/ansible/openapi/openapi.json").json()["paths"]
    for path in (
        "/ansible/tasks",
        "/ansible/tasks/each",
        "/ansible/tasks/{task_id}",
        "/ansible/tasks/{task_id}/claim",
        "/ansible/tasks/{task_id}/update",
        "/ansible/tasks/{task_id}/complete",
        "/ansible/tasks/{task_id}/fail",
        "/ansible/tasks/{task_id}/cancel",
        "/ansible/agents/{agent_id}/context",
        "/ansible/coordination",
        "/ansible/rebuild",
    ):
        assert path in paths
