"""`incidents`: what went wrong and needs somebody to look at it."""

import time
from typing import Annotated, Any, Final

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    ago,
    ask_for_more,
    escape,
    print_json,
    print_table,
    say,
    stdout,
)
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.protocol.incidents import hint_for, meaning_of

__all__ = ["incidents_app"]

# Sentences are not broken in the middle of a command that a person copies.
_WHOLE: Final[dict[str, Any]] = {"highlight": False, "soft_wrap": True}

incidents_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="What went wrong and needs somebody to look at it."
)


@incidents_app.command("list", epilog="Example: [bold]agentpost incidents list --all[/bold]")
def list_incidents(
    everything: Annotated[bool, typer.Option("--all", help="Those that are closed too.")] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only those after this id.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many at most.")] = 50,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The incidents of this gateway, in the order in which they were raised."""
    query = {"only_open": not everything, "after": after, "limit": limit}
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
            escape(" ".join(f"{name}={value}" for name, value in each.get("detail", {}).items())),
        )
        for each in found
    ]
    print_table("Incidents", ("id", "what", "about", "when", "", "detail"), rows, numbers=(0,))
    ask_for_more(found, limit, f"agentpost incidents list --after {found[-1]['id']}")
    for kind in sorted({each["kind"] for each in found if not each.get("closedAtMs")}):
        say(f"{kind}: {meaning_of(kind).what} {hint_for(kind)}")


@incidents_app.command(epilog="Example: [bold]agentpost incidents show 3[/bold]")
def show(
    incident_id: Annotated[int, typer.Argument(help="The id of the incident.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Show one incident: what it means, what to do about it, and when it closes."""
    path = path_of("ansible", "incidents", str(incident_id))
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(path)
    if output is Format.JSON:
        print_json(found)
        return
    incident = found["incident"]
    state = "closed" if incident.get("closedAtMs") else "open"
    raised = ago(time.time() * 1000 - incident["atMs"])
    stdout.print(f"{escape(incident['kind'])} {escape(incident['subject'])}: {state}, raised {raised}", **_WHOLE)
    stdout.print(escape(incident["what"]), **_WHOLE)
    for name, value in incident.get("detail", {}).items():
        stdout.print(f"  [dim]{escape(name)}[/dim] {escape(str(value))}", **_WHOLE)
    for each in found.get("deliveries", []):
        reason = f" ({escape(each['reason'])})" if each.get("reason") else ""
        stdout.print(f"  [dim]delivery[/dim] to {escape(each['toAgentId'])}: {escape(each['state'])}{reason}", **_WHOLE)
    stdout.print(f"[dim]what to do[/dim] {escape(incident['hint'])}", **_WHOLE)
    by_hand = f"Only by hand: `agentpost incidents close {incident_id}`."
    stdout.print(f"[dim]closes[/dim]     {escape(incident.get('closes') or by_hand)}", **_WHOLE)


@incidents_app.command(epilog="Example: [bold]agentpost incidents kinds -o json[/bold]")
def kinds(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """List the kinds of incidents: what each means, what to do, and how many are open here."""
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/incidents/kinds")
    if output is Format.JSON:
        print_json(found)
        return
    for each in found:
        count = f" ({each['open']} open)" if each["open"] else ""
        stdout.print(f"[bold]{escape(each['kind'])}[/bold]{count} {escape(each['what'])}", **_WHOLE)
        stdout.print(f"  {escape(each['hint'])}", **_WHOLE)


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
