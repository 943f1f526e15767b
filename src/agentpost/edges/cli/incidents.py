"""`incidents`: what went wrong and needs somebody to look at it."""

import time
from typing import Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, ago, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient, path_of

__all__ = ["incidents_app"]

incidents_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="What went wrong and needs somebody to look at it."
)


@incidents_app.command("list", epilog="Example: [bold]agentpost incidents list --all[/bold]")
def list_incidents(
    everything: Annotated[bool, typer.Option("--all", help="Those that are closed too.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many at most.")] = 50,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The incidents of this gateway, in the order in which they were raised."""
    query: dict[str, str | int] = {"only_open": "false" if everything else "true", "limit": limit}
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/incidents", query)
    if output is Format.JSON:
        print_json(found)
        return
    if not found:
        stdout.print("no incidents")
        return
    now_ms = time.time() * 1000
    rows = [
        (
            str(each["id"]),
            escape(each["kind"]),
            escape(each["subject"]),
            ago(now_ms - each["atMs"]),
            "closed" if each.get("closedAtMs") else "open",
        )
        for each in found
    ]
    print_table("Incidents", ("id", "what", "about", "when", ""), rows, numbers=(0,))


@incidents_app.command(epilog="Example: [bold]agentpost incidents close 3[/bold]")
def close(
    incident_id: Annotated[int, typer.Argument(help="The id of the incident.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Close an incident that was looked after. The audit log has who did."""
    path = path_of("ansible", "incidents", str(incident_id), "close")
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post(path)
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print("closed" if done["closed"] else "it was closed already", highlight=False)
