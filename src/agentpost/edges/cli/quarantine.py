"""`quarantine`: events of other gateways that this one could not read."""

import json
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
    print_said,
    print_table,
    say,
    stdout,
)
from agentpost.edges.operator_client import OperatorClient, path_of

__all__ = ["quarantine_app"]

_LONG: Final[dict[str, Any]] = {"highlight": False, "soft_wrap": True}

quarantine_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Events of other gateways that this one could not read: of a newer version, or malformed.",
)


@quarantine_app.command("list", epilog="Example: [bold]agentpost quarantine list --source lab-jane[/bold]")
def list_events(
    source: Annotated[
        str | None, typer.Option("--source", help="Only events of this gateway.", show_default=False)
    ] = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this id.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="Number of events at most.")] = 50,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """List them, oldest first. No agent got them; their senders get no ACK and have a dead letter in the end.

    A gateway keeps up to 1,000 events and 16 MiB of each source, for 30 days. After an upgrade it reads them again.
    """
    query: dict[str, str | int] = {"after": after, "limit": limit} | ({} if source is None else {"source": source})
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get("/ansible/quarantine", query)
    if output is Format.JSON:
        print_json(found)
        return
    events: list[dict[str, Any]] = found["events"]
    if not events:
        stdout.print("the quarantine is empty" if source is None else f"nothing of {escape(source)}", **_LONG)
    else:
        now_ms = time.time() * 1000
        rows = [
            (
                str(each["id"]),
                escape(each["sourceNodeId"]),
                escape(each.get("eventId") or ""),
                escape(f"{each['code']}: {each['message']}"),
                ago(now_ms - each["atMs"]),
            )
            for each in events
        ]
        print_table("Quarantine", ("id", "from", "event", "why", "when"), rows, numbers=(0,))
        ask_for_more(events, limit, f"agentpost quarantine list --after {events[-1]['id']}")
    for each in found["sources"]:
        if each["dropped"] and source in (None, each["sourceNodeId"]):
            say(f"{each['dropped']:,} older events of {each['sourceNodeId']} were dropped: there were too many")


@quarantine_app.command(epilog="Example: [bold]agentpost quarantine show 3[/bold]")
def show(
    event: Annotated[int, typer.Argument(help="The id in the list.", min=1)],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Show one event, as much of it as can be made out. What it says was written by another gateway."""
    path = path_of("ansible", "quarantine", str(event))
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(path)
    if output is Format.JSON:
        print_json(found)
        return
    line = found["event"]
    for name, value in (
        ("from", line["sourceNodeId"]),
        ("seq", line.get("sourceSeq")),
        ("event", line.get("eventId")),
        ("why", f"{line['code']}: {line['message']}"),
        ("bytes", f"{line['sizeBytes']:,}"),
    ):
        if value is not None:
            stdout.print(f"[dim]{name:5}[/dim] {escape(str(value))}", **_LONG)
    if found.get("fields") is not None:
        print_said(json.dumps(found["fields"], indent=2, ensure_ascii=False))
    elif found.get("begins"):
        print_said(found["begins"], after="[dim]begins, in base64:[/dim]")
