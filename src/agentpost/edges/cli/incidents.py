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

__all__ = ["incidents_app"]

incidents_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="What went wrong and needs somebody to look at it."
)


# What a person can do about those that do not close by themselves.
_NEXT: Final = {
    "indeterminate": "find out whether the agent did the work, then `agentpost resolve EVENT --agent AGENT --how "
    "retry` or `--how settle`",
    "no_route": "`agentpost agents list --mesh` tells who is there; `agentpost deadletters resend` sends it again",
    "owner_silent": "bring that gateway back; `agentpost agents stand-ins` names others for the next time",
    "runtime_unusable": "correct its options with `agentpost agents add`; its mail waits until then",
    "sla_missed": "`agentpost trace EVENT`, and look at the agent's gateway",
}


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
    for kind in sorted({each["kind"] for each in found if not each.get("closedAtMs")} & _NEXT.keys()):
        say(f"{kind}: {_NEXT[kind]}")


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
