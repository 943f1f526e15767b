"""`a2a`: which agents clients that speak A2A can find here."""

from typing import Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient, path_of

__all__ = ["a2a_app"]

a2a_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Agents of the mesh for clients that speak A2A: show them, hide them.",
)

AgentArgument = Annotated[str, typer.Argument(help="The id of the agent.", show_default=False)]


@a2a_app.command(epilog="Example: [bold]agentpost a2a expose scribe --skill docs.summarize[/bold]")
def expose(
    agent: AgentArgument,
    skill: Annotated[
        list[str] | None,
        typer.Option("--skill", "-s", help="A capability of the agent; again for more. Without it, all."),
    ] = None,
    description: Annotated[
        str | None, typer.Option("--description", "-d", help="What its card says of it.", show_default=False)
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Its card is the one at /.well-known/agent-card.json.")
    ] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Show an agent of the mesh to A2A clients, or change how it is shown. Nobody is shown by default.

    Anybody can read the card. Calls need a session: `agentpost agent invite --scope task.create --scope task.read`.
    """
    body = {"agentId": agent, "skills": skill or [], "description": description, "isDefault": default}
    made: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/a2a/agents", body)
    if output is Format.JSON:
        print_json(made)
    else:
        stdout.print(f"{escape(agent)} has a card at {escape(made['cardUrl'])}", highlight=False, soft_wrap=True)


@a2a_app.command(epilog="Example: [bold]agentpost a2a hide scribe[/bold]")
def hide(agent: AgentArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Show an agent to A2A clients no more. Tasks that it has go on."""
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).delete(path_of("ansible", "a2a", "agents", agent))
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(f"{escape(agent)} is hidden from A2A clients", highlight=False)


@a2a_app.command("list", epilog="Example: [bold]agentpost a2a list -o json[/bold]")
def list_exposed(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """The agents that A2A clients find here, with the URLs of their cards."""
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/a2a/agents")
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (each["agentId"], "yes" if each.get("isDefault") else "", ", ".join(each.get("skills", [])), each["cardUrl"])
        for each in found
    ]
    columns = ("agent", "default", "skills", "card")
    print_table("Agents for A2A", columns, [tuple(escape(cell) for cell in row) for row in rows])
