"""`agents`: who lives at this gateway, and how each is engaged."""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from agentpost.config import expanded, home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    escape,
    failing_since,
    print_json,
    print_said,
    print_table,
    stderr,
    stdout,
)
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import Failover

__all__ = ["agents_app"]

agents_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Who lives at this gateway.")

# As `edges/runtimes` has them, which takes longer to load than the command to run.
RuntimeName = Literal["command", "webhook", "handler", "pull", "mailbox"]
# Options that are paths.
_PATHS: Final = frozenset({"cwd", "file"})
AgentArgument = Annotated[str, typer.Argument(help="The id of the agent.")]


@agents_app.command(
    epilog="Examples: [bold]agentpost agents add builder --runtime command -- ./build-agent --once[/bold] · "
    "[bold]agentpost agents add reviewer --runtime webhook --option url=http://127.0.0.1:9000/hook[/bold] · "
    "[bold]agentpost agents add codex --runtime pull[/bold]"
)
def add(
    agent_id: AgentArgument,
    command: Annotated[
        list[str] | None, typer.Argument(help="For the runtime command: the program and its arguments.")
    ] = None,
    runtime: Annotated[
        RuntimeName | None,
        typer.Option("--runtime", "-r", help="How it is engaged, see above.", show_default="pull, or command"),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="name=value for the runtime; again for more.")
    ] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Add an agent, or change how it is engaged. The mesh knows it at once.

    [bold]command[/bold]: the program gets each message as JSON on stdin, and what it prints is the reply. Exit code 0
    is success, 65 means never, and after any other code the message is tried again.
    [bold]webhook[/bold]: each message is posted to a URL, signed, with an idempotency key.
    [bold]handler[/bold]: a Python function, as module:function.
    [bold]pull[/bold]: the agent fetches its messages and settles them itself.
    [bold]mailbox[/bold]: each message is put into a mailbox file (option file), and the agent's ack settles it.

    Paths are those of the directory that this is said in, wherever the gateway runs.
    """
    options: dict[str, Any] = dict(_pair(text) for text in option or [])
    options |= {name: str(Path.cwd() / expanded(Path(options[name]))) for name in _PATHS & options.keys()}
    if command:
        options["argv"] = _from_here(command, options.get("cwd"))
    chosen = runtime or ("command" if command else "pull")
    if (chosen == "command") != ("argv" in options):
        problem = "needs a program, after --" if chosen == "command" else "takes no program"
        raise typer.BadParameter(f"the runtime {chosen} {problem}")
    body = {"agentId": agent_id, "runtime": chosen, "options": options}
    made: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/agents", body)
    if output is Format.JSON:
        print_json(made)
    else:
        stdout.print(f"{escape(agent_id)} is here, engaged by {escape(made['runtime'])}", highlight=False)
    if command and not _is_program(options["argv"][0], options.get("cwd")):
        # It may be there later, or be in the gateway's PATH alone: what comes meanwhile is tried again.
        stderr.print(f"no program {escape(options['argv'][0])} is found from here", highlight=False, soft_wrap=True)


@agents_app.command("list", epilog="Example: [bold]agentpost agents list --mesh[/bold]")
def list_agents(
    mesh: Annotated[bool, typer.Option("--mesh", help="All agents of the mesh, wherever they live.")] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The agents of this gateway, or of the whole mesh."""
    client = OperatorClient(home_of(None, home=home))
    if mesh:
        known: list[dict[str, Any]] = client.get("/ansible/directory")
        if output is Format.JSON:
            print_json(known)
            return
        found = [(a["agentId"], a["nodeId"] or "", "online" if a["isOnline"] else "away", a["status"]) for a in known]
        rows = [tuple(escape(cell) for cell in row) for row in found]
        print_table("Agents of the mesh", ("agent", "node", "its gateway", "status"), rows)
        return
    agents: list[dict[str, Any]] = client.get("/ansible/agents")
    if output is Format.JSON:
        print_json(agents)
        return
    rows = [(escape(a["agentId"]), escape(a["runtime"]), _state_of(a), f"{a['waiting']:,}") for a in agents]
    print_table("Agents", ("agent", "runtime", "state", "waiting"), rows, numbers=(3,))
    for agent in agents:
        if failing := agent.get("failing"):
            print_said(failing["error"], after=f"{escape(agent['agentId'])} fails, last with {failing['eventId']}:")


@agents_app.command(epilog="Example: [bold]agentpost agents remove builder[/bold]")
def remove(agent_id: AgentArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Remove an agent. Mail and tasks that it has not finished end as no_route, and their senders are told."""
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).delete(path_of("ansible", "agents", agent_id))
    ended, busy = done["ended"], done["waiting"]
    what = "message or task" if ended == 1 else "messages or tasks"
    told = f"; told the senders of {ended:,} {what} (no_route)" if ended else ""
    running = f"; {busy:,} still running, to end with the turn" if busy else ""
    _said(done, f"removed {agent_id}{told}{running}", output)


@agents_app.command(epilog="Example: [bold]agentpost agents pause builder[/bold]")
def pause(agent_id: AgentArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Stop engaging an agent. Its mail is still accepted, and waits."""
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post(
        path_of("ansible", "agents", agent_id, "pause")
    )
    _said(done, f"{agent_id} is paused", output)


@agents_app.command(epilog="Example: [bold]agentpost agents resume builder[/bold]")
def resume(agent_id: AgentArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Engage an agent again, with what waits first."""
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post(
        path_of("ansible", "agents", agent_id, "resume")
    )
    _said(done, f"{agent_id} is engaged again", output)


@agents_app.command(
    "stand-ins",
    epilog="Examples: [bold]agentpost agents stand-ins builder lab-two lab-three[/bold], and at lab-two "
    "[bold]agentpost agents add builder -- ./build-agent --once[/bold] · "
    "[bold]agentpost agents stand-ins builder[/bold] (nobody any more)",
)
def stand_ins(
    agent_id: AgentArgument,
    nodes: Annotated[list[str] | None, typer.Argument(help="The gateways, the first choice first.")] = None,
    failover: Annotated[
        Failover,
        typer.Option(
            "--failover",
            help="What becomes of mail that the silent gateway may have taken: it waits, or goes to a stand-in at the "
            "risk that the agent gets it twice.",
        ),
    ] = Failover.WAIT,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Say which gateways get an agent's mail while this one is silent. The agent is added there as well."""
    body = {"nodeIds": nodes or [], "failover": failover.value}
    path = path_of("ansible", "agents", agent_id, "stand-ins")
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post(path, body)
    named = ", ".join(done["nodeIds"]) or "nobody"
    _said(done, f"standing in for {agent_id}: {named}", output)


def _state_of(agent: dict[str, Any]) -> str:
    state = "paused" if agent["isPaused"] else "active"
    failing: dict[str, Any] | None = agent.get("failing")
    return state if failing is None else f"{state}, [red]{failing_since(failing, now_ms=time.time() * 1000)}[/red]"


def _said(done: dict[str, Any], text: str, output: Format) -> None:
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(escape(text), highlight=False)


def _from_here(command: list[str], cwd: str | None) -> list[str]:
    """A program that is named by a path is found from another directory, too."""
    program, *rest = command
    return [str(Path.cwd() / program) if "/" in program and cwd is None else program, *rest]


def _is_program(name: str, cwd: str | None) -> bool:
    return shutil.which(Path(cwd or "", name) if "/" in name else name) is not None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        hint = "As in --option url=http://127.0.0.1:9000/hook."
        raise Refusal(Code.INVALID_FIELD, f"{text!r:.60} is not name=value", field="option", hint=hint)
    return name, value
