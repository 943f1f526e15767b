"""`capability`: what the agents of the mesh offer to each other."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.declared import read_declared
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient, path_of

__all__ = ["capability_app"]

capability_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="What the agents of the mesh offer to each other."
)

IdArgument = Annotated[str, typer.Argument(help="The id of the capability.")]


@capability_app.command(epilog="Example: [bold]agentpost capability publish summarize.toml[/bold]")
def publish(
    file: Annotated[Path, typer.Argument(help="What is declared, as TOML or JSON; docs/capabilities.md has it all.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Publish a capability of an agent of this gateway, or a new version of one.

    Its skills have to be in the agent's directory of skills, in the versions that the file names. The other agents get
    the delegation skill; the version before is retired. If anything is wrong, nothing changes.
    """
    made: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/capabilities", read_declared(file))
    if output is Format.JSON:
        print_json(made)
        return
    line = made["line"]
    stdout.print(
        escape(f"{line['capabilityId']} {line['version']} is published; policy {line['policyVersion']}"),
        highlight=False,
    )
    _print_problems(made["health"])


@capability_app.command(epilog="Example: [bold]agentpost capability unpublish docs.summarize[/bold]")
def unpublish(capability_id: IdArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Take a capability back. The next task for it is refused with no_route; what is running goes on."""
    client = OperatorClient(home_of(None, home=home))
    done: dict[str, Any] = client.delete(path_of("ansible", "capabilities", capability_id))
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(escape(f"{done['unpublished']} {done['version']} is not offered any more"), highlight=False)


@capability_app.command(epilog="Example: [bold]agentpost capability distribute docs.summarize[/bold]")
def distribute(capability_id: IdArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Have the skill installed by those where that failed or was declined. All others get it by themselves."""
    client = OperatorClient(home_of(None, home=home))
    done: dict[str, Any] = client.post(path_of("ansible", "capabilities", capability_id, "distribute"))
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(f"{done['tasks']} agents are asked again", highlight=False)


@capability_app.command("list", epilog="Example: [bold]agentpost capability list -o json[/bold]")
def list_capabilities(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """All capabilities of the mesh."""
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/capabilities")
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (
            escape(each["capabilityId"]),
            escape(each["version"]),
            each["status"],
            escape(f"{each['ownerAgentId']} at {each['ownerNodeId']}"),
            f"{each['defaultEtaSeconds']:,.0f} s",
            escape(each["name"]),
        )
        for each in found
    ]
    print_table("Capabilities", ("capability", "version", "status", "owner", "usual ETA", "name"), rows, numbers=(4,))


@capability_app.command(epilog="Example: [bold]agentpost capability show docs.summarize[/bold]")
def show(capability_id: IdArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """One capability: its contract, how it is doing, and which agents have its skill."""
    client = OperatorClient(home_of(None, home=home))
    found: dict[str, Any] = client.get(path_of("ansible", "capabilities", capability_id))
    if output is Format.JSON:
        print_json(found)
        return
    line = found["line"]
    rows = [
        ("capability", f"{line['capabilityId']} {line['version']} ({line['status']})"),
        ("name", line["name"]),
        ("owner", f"{line['ownerAgentId']} at {line['ownerNodeId']}"),
        ("skills", f"delegation {found['delegationSkill']}, executor {found['executorSkill']}"),
        ("published", f"{found['publishedAt']} by {found['publishedByAgentId']}"),
        ("policy", line["policyVersion"] or ""),
        ("contract", found["contractSchemaRef"] or ""),
        ("health", found["health"]["health"]),
    ]
    if contract := found.get("contract"):
        rows.append(("delegate", contract["delegation"]["when"]))
    if found["openReviewIds"]:
        rows.append(("reviews", ", ".join(found["openReviewIds"])))
    print_table("Capability", ("", ""), [(name, escape(value)) for name, value in rows])
    _print_problems(found["health"])
    if found["installations"]:
        installed = [
            (
                escape(each["agentId"]),
                each["state"],
                escape(each.get("installedVersion") or ""),
                escape(each.get("installedAt") or each.get("problem") or ""),
            )
            for each in found["installations"]
        ]
        print_table("Who has its skill", ("agent", "state", "version", "when, or why not"), installed)


@capability_app.command(
    epilog="Examples: [bold]agentpost capability health[/bold] · "
    "[bold]agentpost capability health docs.summarize[/bold]"
)
def health(
    capability_id: Annotated[str | None, typer.Argument(help="One capability; all of them without it.")] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """How the capabilities are doing. Exit code 1 if one of them cannot be had."""
    query = {} if capability_id is None else {"capability_id": capability_id}
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/capability-health", query)
    if output is Format.JSON:
        print_json(found)
    else:
        rows = [
            (escape(each["capabilityId"]), escape(each["version"]), each["health"], escape("; ".join(each["problems"])))
            for each in found
        ]
        print_table("Health", ("capability", "version", "health", "problems"), rows)
    if any(each["health"] == "unavailable" for each in found):
        raise typer.Exit(1)


def _print_problems(health: dict[str, Any]) -> None:
    for problem in health["problems"]:
        stdout.print(f"  {health['health']}: {escape(problem)}", highlight=False)
