"""Work between the gateways of the demo: a task with an ETA and progress, and one that fails."""

import sys
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from rich.console import Console

from agentpost.demo.command import agentpost, once
from agentpost.terminal import escape

__all__ = ["TasksShown", "show_tasks"]

_REQUESTER: Final = "architect"
_HAND: Final = "editor"
_MACHINE: Final = "checker"
# The agent for the second task: it finds that it cannot do it, and says so for good.
_AGENT: Final = """print('{"error": "The changelog is missing.", "failureClass": "dependency_missing"}')"""


class TasksShown(Struct, frozen=True, kw_only=True):
    """How the two tasks ended, as their requester's gateway knows it."""

    states: list[str]


def show_tasks(requester: Path, worker: Path, console: Console, *, number: int) -> TasksShown:
    """Delegate one task to an agent that works by hand, and one to a program that cannot do it."""
    agentpost("agents", "add", _HAND, home=worker)
    program = (sys.executable, "-c", _AGENT)
    agentpost("agents", "add", _MACHINE, "--option", "output=json", home=worker, rest=program)
    once(
        lambda: agentpost("agents", "list", "--mesh", home=requester),
        lambda agents: {_HAND, _MACHINE} <= {agent["agentId"] for agent in agents},
    )
    console.print(f"\n[bold]{number}. A task is accepted with an ETA, worked on and done; another one fails[/bold]")
    task_id = _create(requester, "Write the release notes", _HAND)
    once(lambda: agentpost("task", "list", "--agent", _HAND, home=worker), lambda lines: bool(lines))
    words = ("--agent", _HAND)
    agentpost("task", "claim", task_id, *words, "--eta", "30m", "--plan", "Read the log, then write.", home=worker)
    agentpost("task", "update", task_id, *words, "--progress", "60", "--note", "Half of it stands.", home=worker)
    _wait(requester, task_id, "in_progress", console)
    agentpost("task", "complete", task_id, "They are written.", *words, home=worker)
    first = _wait(requester, task_id, "completed", console)
    for step in first["steps"]:
        said = " · ".join(str(text) for text in step.get("content", {}).values() if text)
        console.print(f"  [bold]{step['kind']:<13}[/bold] {step['byAgentId']}: {escape(said)}", highlight=False)

    failing = _create(requester, "Check the release notes", _MACHINE)
    second = _wait(requester, failing, "failed", console)
    task = second["task"]
    why = second["steps"][-1]["content"].get("errorSummary", "")
    said = escape(f"{_MACHINE}: {task['failureClass']}, {why}")
    console.print(f"  [bold]task_failed[/bold]   {said}", highlight=False)
    mail = [line for line in agentpost("inbox", _REQUESTER, home=requester) if line["kind"].startswith("task_")]
    ends = sum(1 for line in mail if line["kind"] in ("task_complete", "task_failed"))
    console.print(f"  {_REQUESTER} has heard of both ends ({ends} in its inbox).")
    return TasksShown(states=[first["task"]["state"], task["state"]])


def _create(home: Path, title: str, to: str) -> str:
    made: dict[str, Any] = agentpost("task", "create", title, "--from", _REQUESTER, "--to", to, home=home)
    return made["taskId"]


def _wait(home: Path, task_id: str, state: str, console: Console) -> dict[str, Any]:
    found: dict[str, Any] = once(
        lambda: agentpost("task", "show", task_id, home=home), lambda view: view["task"]["state"] == state
    )
    task = found["task"]
    progress = f", {task['progress']} %" if task.get("progress") is not None else ""
    console.print(f"  [dim]{task_id}: {state}{progress}[/dim]", highlight=False)
    return found
