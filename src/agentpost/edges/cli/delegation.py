"""`delegation`: who does what, in the room and in each agent's IDENTITY.md."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentpost.config import expanded, home_of
from agentpost.edges.cli.declared import read_declared
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient

__all__ = ["delegation_app"]

delegation_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Who does what.")

AgentOption = Annotated[str, typer.Option("--agent", "-a", help="An agent of this gateway.")]


@delegation_app.command(epilog="Example: [bold]agentpost delegation show[/bold]")
def show(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """The policy, who has acknowledged it, and what needs action."""
    _print(OperatorClient(home_of(None, home=home)).get("/ansible/delegation"), output)


@delegation_app.command("set", epilog="Example: [bold]agentpost delegation set policy.toml --by coordinator[/bold]")
def set_policy(
    file: Annotated[Path, typer.Argument(help="The rows, as TOML (one [[intents]] for each) or JSON.")],
    by: Annotated[str, typer.Option("--by", help="The agent of this gateway in whose name it is set.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make this the policy of the mesh, and tell every agent. Only the coordinator's gateway may.

    The version is given by the gateway: today's date and a number. Rows that say nothing new make no new version.
    """
    body = {"by": by, "intents": read_declared(file).get("intents", [])}
    _print(OperatorClient(home_of(None, home=home)).post("/ansible/delegation", body), output)


@delegation_app.command(
    epilog="Example: [bold]agentpost delegation apply --agent builder --file ~/builder/IDENTITY.md[/bold]"
)
def apply(
    agent: AgentOption,
    file: Annotated[Path, typer.Option("--file", "-f", help="The agent's IDENTITY.md.")] = Path("IDENTITY.md"),
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge it, too.")] = True,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Write the section `## Delegation Directory` of a file, in its place or at the end, and acknowledge the policy.

    Everything outside the section stays as it is, to the byte.
    """
    body = {"agentId": agent, "file": str(expanded(file).absolute()), "acknowledge": ack}
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/delegation/apply", body)
    if output is Format.JSON:
        print_json(done)
    else:
        text = f"{done['file']} has the policy {done['version']}" + (", and it is acknowledged" if ack else "")
        stdout.print(escape(text), highlight=False, soft_wrap=True)


@delegation_app.command(
    epilog="Example: [bold]agentpost delegation ack --agent builder --version 2026-02-25.1 --checksum sha256:…[/bold]"
)
def ack(
    agent: AgentOption,
    version: Annotated[str, typer.Option("--version", help="The version that was applied.")],
    checksum: Annotated[str, typer.Option("--checksum", help="Its checksum.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Acknowledge the policy for an agent that keeps its file itself."""
    body = {"agentId": agent, "version": version, "checksum": checksum}
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/delegation/ack", body)
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(escape(f"{done['agentId']} has acknowledged {done['version']}"), highlight=False)


def _print(found: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json(found)
        return
    policy = found["policy"]
    if policy is None:
        stdout.print("There is no delegation policy.", highlight=False)
        return
    rows = [
        (
            escape(each["intent"]),
            escape(each["ownerAgent"]),
            escape(each.get("backupAgent") or "-"),
            escape(", ".join(each.get("requires", ())) or "-"),
            f"{each['slaClaimSec']} / {each['slaUpdateSec']} / {each['escalateAfterSec']} s",
            escape(", ".join(each.get("closeNotify", ("requester",))) or "-"),
        )
        for each in policy["intents"]
    ]
    title = f"Delegation policy {policy['version']}, by {policy['updatedBy']}"
    print_table(title, ("intent", "owner", "backup", "requires", "claim / update / escalate", "tells"), rows)
    stdout.print(policy["checksum"], highlight=False)
    acks = [(escape(each["agentId"]), escape(each["version"]), each["at"]) for each in found["acks"]]
    if acks:
        print_table("Acknowledged", ("agent", "version", "at"), acks)
    for problem in found["problems"]:
        stdout.print(escape(f"{problem['kind']}: {problem['message']}"), highlight=False)
