"""An agent that fails, as the people at both ends of its mail see it: each screen tells the story."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.edges.meshing import eventually
from tests.edges.running import RunningGateway, agentpost, running_gateway

BROKEN = ("sh", "-c", r"printf 'broken \033[31mred\n' >&2; exit 7")
NEVER = ("sh", "-c", "echo 'no such branch' >&2; exit 65")
WELL = ("sh", "-c", "echo done")


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    """With boss, who fetches his mail."""
    monkeypatch.delenv("COLUMNS", raising=False)
    with running_gateway(tmp_path / "lab") as running:
        running.operator.post("/ansible/agents", {"agentId": "boss"})
        yield running


def add(gateway: RunningGateway, program: tuple[str, ...]) -> None:
    body = {"agentId": "builder", "runtime": "command", "options": {"argv": list(program)}}
    gateway.operator.post("/ansible/agents", body)


def screen(gateway: RunningGateway, *words: str) -> str:
    """What a command shows, on both of its outputs."""
    done = agentpost(*words, "--home", str(gateway.home))
    return done.stdout + done.stderr


def send(gateway: RunningGateway, *more: str) -> tuple[str, str, int]:
    """A message of boss: its id, the screen, and the exit code."""
    words = ("send", "Build it.", "--from", "boss", "--to", "builder", *more)
    done = agentpost(*words, "--home", str(gateway.home))
    return done.stdout.split()[1], done.stdout + done.stderr, done.returncode


def is_failing(gateway: RunningGateway) -> bool:
    agents: list[dict[str, Any]] = gateway.operator.get("/ansible/agents")
    return any(agent["failing"] for agent in agents)


@pytest.mark.req("RTY-4", "OPS-6")
def test_while_an_agent_fails_every_screen_tells(gateway: RunningGateway) -> None:
    """The sender sees attempt n of m, the error and the next try; the agent's operator who fails and since when."""
    add(gateway, BROKEN)
    event_id, waited, code = send(gateway, "--wait", "4s")
    assert code == 5
    shown = screen(gateway, "show", event_id)
    traced = screen(gateway, "trace", event_id)
    for told in (waited, shown):
        assert "builder: Accepted" in told
        assert "of 8 failed" in told
        assert "next try" in told
    assert "of 8, next try at 20" in traced
    for told in (waited, shown, traced, screen(gateway, "agents", "list")):
        assert "it ended with code 7" in told
        assert r"broken \x1b[31mred" in told, "nothing that a program prints is obeyed by a terminal"
    later, _, _ = send(gateway)
    assert f"builder: Accepted, waits behind {event_id}" in screen(gateway, "show", later)
    assert "failing for" in screen(gateway, "agents", "list")
    doctor = screen(gateway, "doctor")
    assert "problem agents: builder is failing for" in doctor
    assert "none open" in doctor, "it may still succeed"
    (found,) = json.loads(screen(gateway, "show", event_id, "-o", "json"))["deliveries"]
    assert (found["failing"]["mostAttempts"], found["state"]) == (8, "Accepted")


@pytest.mark.req("RTY-4", "RTY-7")
def test_a_program_that_says_never_is_not_tried_again(gateway: RunningGateway) -> None:
    """Exit code 65 ends it at once: the sender hears why and can send it again once the program works."""
    add(gateway, NEVER)
    event_id, waited, code = send(gateway, "--wait", "60s")
    assert code == 1
    assert "builder: Failed" in waited
    assert "no such branch" in waited
    eventually(lambda: len(gateway.operator.get("/ansible/agents/boss/inbox")) == 1)
    (report,) = gateway.operator.get("/ansible/agents/boss/inbox")
    assert "Not handled by builder: failed" in screen(gateway, "inbox", "boss")
    assert "no such branch" in screen(gateway, "read", report["eventId"], "--agent", "boss")
    letters = screen(gateway, "deadletters", "list")
    assert event_id in letters
    assert "failed at the agent" in letters
    assert "no such branch" in screen(gateway, "deadletters", "show", event_id)
    eventually(lambda: "agent_failing" in screen(gateway, "incidents", "list"))
    assert "problem incidents: 1 open: agent_failing" in screen(gateway, "doctor")
    assert "1 given up" in screen(gateway, "agents", "list")
    # The program is put right, and all of that is over by itself.
    add(gateway, WELL)
    assert "1 sent again" in screen(gateway, "deadletters", "resend", event_id)
    eventually(lambda: not is_failing(gateway))
    eventually(lambda: not gateway.operator.get("/ansible/incidents"))
    assert "sent again as evt_" in screen(gateway, "show", event_id)
    assert "problem" not in screen(gateway, "doctor")
    assert "closed" in screen(gateway, "incidents", "list", "--all")


@pytest.mark.req("RTY-4")
def test_who_is_failing_outlives_a_restart(tmp_path: Path) -> None:
    """An agent that failed before its gateway stopped fails after it too, since the same time."""
    with running_gateway(tmp_path / "lab") as running:
        running.operator.post("/ansible/agents", {"agentId": "boss"})
        add(running, NEVER)
        send(running, "--wait", "60s")
        eventually(lambda: is_failing(running) and bool(running.operator.get("/ansible/incidents")))
        before = next(agent["failing"] for agent in running.operator.get("/ansible/agents") if agent["failing"])
        running.end()
    with running_gateway(tmp_path / "lab") as again:
        after = next(agent["failing"] for agent in again.operator.get("/ansible/agents") if agent["failing"])
        assert after["sinceMs"] == before["sinceMs"]
