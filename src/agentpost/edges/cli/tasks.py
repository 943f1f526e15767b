"""`task` and `rebuild`: what agents ask of each other, from the command line."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import typer

from agentpost.config import home_of
from agentpost.edges.cli.mail import only_agent
from agentpost.edges.cli.options import (
    TIME,
    CapabilitiesOption,
    HomeOption,
    KeyOption,
    expect_somebody,
    post_once,
    seconds,
)
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    ago,
    ask_for_more,
    escape,
    print_json,
    print_said,
    print_table,
    print_text,
    stderr,
    stdout,
)
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Priority
from agentpost.protocol.timestamps import format_ms

__all__ = ["register", "task_app"]

task_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Tasks: asked for, accepted with an ETA, worked on, ended."
)

TaskArgument = Annotated[str, typer.Argument(help="The id of the task.")]
# As `work.tasks` has them, which takes longer to load than the command to run.
Role = Literal["requester", "worker"]
EtaOption = typer.Option(
    "--eta", parser=seconds, metavar=TIME, help="When it will be done, counted from now, as 30m.", show_default=False
)
AgentOption = Annotated[
    str | None, typer.Option("--agent", "-a", help="The agent; the only one here without it.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands of tasks to the command line."""
    app.add_typer(task_app, name="task")
    app.command(epilog="Example: [bold]agentpost rebuild --check[/bold]")(rebuild)
    app.command(epilog="Example: [bold]agentpost context --agent builder --max-bytes 4000[/bold]")(context)


@task_app.command(
    epilog='Examples: [bold]agentpost task create "Build v2" --to builder --deadline 2h[/bold] · '
    '[bold]agentpost task create "Check the release" --capability cap.release.check[/bold]'
)
def create(
    title: Annotated[str, typer.Argument(help="What is to be done, in a few words.")],
    description: Annotated[str, typer.Option("--description", "-d", help="All that is needed to do it.")] = "",
    to: Annotated[list[str] | None, typer.Option("--to", "-t", help="An agent; again for more.")] = None,
    capability: CapabilitiesOption = None,
    each: Annotated[
        bool, typer.Option("--each", help="Every target has to do it; without, the first that claims it does.")
    ] = False,
    requester: Annotated[
        str | None, typer.Option("--from", "-f", help="Who wants it; the only agent here without it.")
    ] = None,
    priority: Annotated[Priority, typer.Option("--priority", help="How urgent it is.")] = Priority.NORMAL,
    deadline: Annotated[
        int | None,
        typer.Option(
            "--deadline", parser=seconds, metavar=TIME, help="How much time there is, as 2h.", show_default=False
        ),
    ] = None,
    task_input: Annotated[
        str | None, typer.Option("--input", help="What the work begins with, as JSON.", show_default=False)
    ] = None,
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Ask for something to be done. When this returns, the task is durable and on its way."""
    expect_somebody(to, capability)
    begins_with = None if task_input is None else _json(task_input, field="input")
    client = OperatorClient(home_of(None, home=home))
    body: dict[str, Any] = {
        "requesterAgentId": requester or only_agent(client, said_with="--from"),
        "title": title,
        "description": description,
        "toAgents": to or [],
        "requiredCapabilities": capability or [],
        "priority": priority,
        "deadlineAt": None if deadline is None else _in(deadline),
        "input": begins_with,
    }
    made: Any = post_once(client, "/ansible/tasks/each" if each else "/ansible/tasks", body, key)
    if output is Format.JSON:
        print_json(made)
        return
    for offered in made if each else [made]:
        names = ", ".join(recipient["agentId"] for recipient in offered["receipt"]["recipients"])
        stdout.print(f"created {offered['taskId']} for {escape(names)}", highlight=False)
        for rejected in offered["receipt"]["rejected"]:
            stderr.print(f"  not for {escape(rejected['agentId'])}: {escape(rejected['reason'])}", highlight=False)


@task_app.command("list", epilog="Example: [bold]agentpost task list --agent builder --open[/bold]")
def list_tasks(
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Only the tasks of this agent.", show_default=False)
    ] = None,
    role: Annotated[
        Role | None, typer.Option("--role", help="With --agent: as requester, or as worker.", show_default=False)
    ] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are not over.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many at most.")] = 50,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The tasks that this gateway knows, the newest first."""
    query: dict[str, str | int] = {"limit": limit, "only_open": "true" if only_open else "false"}
    query |= {name: value for name, value in (("agent", agent), ("role", role)) if value is not None}
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/tasks", query)
    if output is Format.JSON:
        print_json(found)
        return
    if not found:
        stdout.print("no tasks")
        return
    now_ms = time.time() * 1000
    print_table(
        "Tasks",
        ("task", "title", "state", "%", "from", "by", "due", "created"),
        [_row(line, now_ms) for line in found],
        numbers=(3,),
    )
    ask_for_more(found, limit, "--limit takes up to 500, and --agent and --open choose")


@task_app.command(epilog="Example: [bold]agentpost task show tsk_01K…[/bold]")
def show(task_id: TaskArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """One task: where it stands, and all that was said about it."""
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(path_of("ansible", "tasks", task_id))
    if output is Format.JSON:
        print_json(found)
        return
    task = found["task"]
    by = task.get("acceptedByAgentId") or "nobody yet"
    stdout.print(f"[bold]{escape(task_id)}[/bold] {_state(found)}", highlight=False)
    stdout.print(f"[dim]from[/dim]  {escape(task['requesterAgentId'])}", highlight=False)
    stdout.print(f"[dim]by[/dim]    {escape(by)}", highlight=False)
    if found.get("offerEnded"):
        stdout.print(
            "  Nobody has it whom it was offered to. Send it again if it is among the dead letters (`agentpost "
            "deadletters list`), or cancel it and ask somebody else.",
            highlight=False,
        )
    for claim in task.get("claims", ()):
        stdout.print(f"[dim]claim[/dim] {escape(claim['agentId'])}: {claim['verdict']}", highlight=False)
    for step in found["steps"]:
        words = " · ".join(str(text) for text in step.get("content", {}).values() if text)
        who = f"{step['byAgentId']}@{step['byNodeId']}"
        at = format_ms(step["atMs"])[11:19]
        said = words or step.get("problem") or ""
        print_said(said, after=f"[dim]{at}[/dim] {escape(step['kind']):13} {escape(who)} ")


@task_app.command(epilog="Example: [bold]agentpost task claim tsk_01K… --agent builder --eta 30m[/bold]")
def claim(
    task_id: TaskArgument,
    eta: Annotated[int, EtaOption],
    agent: AgentOption = None,
    plan: Annotated[str | None, typer.Option("--plan", help="How, in a sentence.", show_default=False)] = None,
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Accept a task. If others were asked too, work begins when the claim is won: see `task show`."""
    client = OperatorClient(home_of(None, home=home))
    _move(
        client,
        task_id,
        "claim",
        {
            "agentId": agent or only_agent(client),
            "etaSeconds": eta,
            "planSummary": plan,
        },
        output,
        key,
    )


@task_app.command(epilog="Example: [bold]agentpost task update tsk_01K… --progress 60 --note 'Links are next.'[/bold]")
def update(
    task_id: TaskArgument,
    agent: AgentOption = None,
    progress: Annotated[
        int | None,
        typer.Option("--progress", "-p", min=0, max=100, help="How far it is, in percent.", show_default=False),
    ] = None,
    note: Annotated[str | None, typer.Option("--note", "-n", help="How it goes.", show_default=False)] = None,
    eta: Annotated[int | None, EtaOption] = None,
    status: Annotated[str, typer.Option("--status", help="A word of your own.")] = "in_progress",
    notify: Annotated[bool, typer.Option("--notify", help="Tell the requester's agent, too.")] = False,
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Say how it goes. Only the agent that accepted the task may."""
    client = OperatorClient(home_of(None, home=home))
    body = {
        "agentId": agent or only_agent(client),
        "status": status,
        "progress": progress,
        "note": note,
        "notify": notify,
        "revisedEtaSeconds": eta,
    }
    _move(client, task_id, "update", body, output, key)


@task_app.command(epilog='Example: [bold]agentpost task complete tsk_01K… "It is built." --agent builder[/bold]')
def complete(
    task_id: TaskArgument,
    summary: Annotated[str, typer.Argument(help="What came of it.")],
    agent: AgentOption = None,
    result: Annotated[str | None, typer.Option("--result", help="Where the result is.", show_default=False)] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="What the contract asks for, as JSON.", show_default=False)
    ] = None,
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """End a task well. The requester always hears of it."""
    made = None if data is None else _json(data, field="data")
    client = OperatorClient(home_of(None, home=home))
    body = {
        "agentId": agent or only_agent(client),
        "resultSummary": summary,
        "resultRef": result,
        "output": made,
    }
    _move(client, task_id, "complete", body, output, key)


@task_app.command(
    epilog='Example: [bold]agentpost task fail tsk_01K… "No changelog." --class dependency_missing[/bold]'
)
def fail(
    task_id: TaskArgument,
    error: Annotated[str, typer.Argument(help="Why, in a sentence.")],
    agent: AgentOption = None,
    failure_class: Annotated[str, typer.Option("--class", help="Why, in a word that programs sort by.")] = "failed",
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """End a task badly. The requester always hears of it."""
    client = OperatorClient(home_of(None, home=home))
    body = {"agentId": agent or only_agent(client), "errorSummary": error, "failureClass": failure_class}
    _move(client, task_id, "fail", body, output, key)


@task_app.command(epilog="Example: [bold]agentpost task cancel tsk_01K… --agent architect[/bold]")
def cancel(
    task_id: TaskArgument,
    agent: AgentOption = None,
    key: KeyOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Take a task back that is not over. Only who asked for it can; what its worker says later is refused."""
    client = OperatorClient(home_of(None, home=home))
    _move(client, task_id, "cancel", {"agentId": agent or only_agent(client)}, output, key)


def context(
    agent: AgentOption = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes", min=512, max=1_048_576, help="How large it may be.", show_default="8192, or as configured"
        ),
    ] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """What an agent should know before its next turn: unread mail, open tasks, who is there.

    One bounded block for a prompt. What is in it was written by others: it is data, and marked as such.
    """
    client = OperatorClient(home_of(None, home=home))
    query: dict[str, str | int] = {} if max_bytes is None else {"max_bytes": max_bytes}
    path = path_of("ansible", "agents", agent or only_agent(client), "context")
    found: dict[str, Any] = client.get(path, query)
    if output is Format.JSON:
        print_json(found)
    else:
        print_text(found["text"])


def rebuild(
    check: Annotated[bool, typer.Option("--check", help="Only compare; change nothing.")] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make the tasks anew from their events, and say whether that is what was kept: byte for byte."""
    client = OperatorClient(home_of(None, home=home), timeout_seconds=600)
    found: dict[str, Any] = client.post("/ansible/rebuild", {"check": check})
    if output is Format.JSON:
        print_json(found)
    elif not found["differing"]:
        stdout.print(f"{found['tasks']:,} tasks from {found['events']:,} events: all as they were", highlight=False)
    else:
        what = "differ" if check else "differed, and are replaced"
        stdout.print(f"{len(found['differing']):,} of {found['tasks']:,} tasks {what}", highlight=False)
        for task_id in found["differing"][:20]:
            stdout.print(f"  {task_id}", highlight=False)
    if check and found["differing"]:
        raise typer.Exit(1)


def _move(
    client: OperatorClient, task_id: str, move: str, body: dict[str, Any], output: Format, key: str | None
) -> None:
    moved: dict[str, Any] = post_once(client, path_of("ansible", "tasks", task_id, move), body, key)
    if output is Format.JSON:
        print_json(moved)
        return
    verdict = moved.get("verdict")
    told = f", claim {verdict}" if verdict else ""
    stdout.print(f"{escape(task_id)}: {moved['state']}{told}", highlight=False)
    if verdict == "pending":
        stdout.print("  wait for the verdict before you begin: `agentpost task show`", highlight=False)


def _row(line: dict[str, Any], now_ms: float) -> tuple[str, ...]:
    task = line["task"]
    due_ms = task.get("etaAtMs") or task.get("deadlineAtMs")
    due = "" if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC).strftime("%m-%d %H:%MZ")
    return (
        task["taskId"],
        escape(line.get("title") or ""),
        _state(line),
        str(task.get("progress", "")),
        escape(task["requesterAgentId"]),
        escape(task.get("acceptedByAgentId") or ", ".join(task["toAgents"][:3])),
        due,
        ago(now_ms - task["createdAtMs"]),
    )


def _state(found: dict[str, Any]) -> str:
    task = found["task"]
    state: str = task.get("state", "created")
    if task.get("isCanceled"):
        return "canceled"
    if task.get("isWithdrawn"):
        return "withdrawn"
    if ended := found.get("offerEnded"):
        return f"{state} (offer ended: {escape(ended)})"
    failure: str = task.get("failureClass") or ""
    return f"{state} ({escape(failure)})" if failure else state


def _in(seconds_left: int) -> str:
    return format_ms(round(time.time() * 1000) + seconds_left * 1000)


def _json(text: str, *, field: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Refusal(Code.INVALID_FIELD, f"{field} is not JSON: {error}", field=field) from None
