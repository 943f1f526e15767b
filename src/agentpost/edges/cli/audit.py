"""`audit`: what the gateway decided, for whom, and when."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table
from agentpost.edges.operator_client import OperatorClient

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    epilog = (
        "Examples: [bold]agentpost audit --session ses_01JV3T7E6Q8M1W2R4D9K0N5P7H[/bold] · "
        "[bold]agentpost audit --corr corr_01JV3T7E6Q8M1W2R4D9K0N5P7H -o json[/bold]"
    )
    app.command(epilog=epilog)(audit)


def audit(
    session: Annotated[str | None, typer.Option("--session", help="Only of this session.", show_default=False)] = None,
    corr: Annotated[str | None, typer.Option("--corr", help="Only of this conversation.", show_default=False)] = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only what came after the entry of this id.")] = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 100,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The audit log, the oldest entry first: joins, sessions of agents outside, each of their calls, every refusal."""
    query: dict[str, str | int] = {"after": after, "limit": limit}
    query |= {} if session is None else {"sessionId": session}
    query |= {} if corr is None else {"corrId": corr}
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/audit", query)
    if output is Format.JSON:
        print_json(found)
        return
    rows = [(str(e["id"]), _time(e["atMs"]), e["actor"], e["action"], _about(e)) for e in found]
    columns = ("id", "at", "actor", "action", "about")
    print_table("Audit", columns, [tuple(escape(cell) for cell in row) for row in rows], numbers=(0,))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _about(entry: dict[str, Any]) -> str:
    parts = [entry.get("subject"), entry.get("corrId"), entry.get("sessionId")]
    parts += [f"{name}={value}" for name, value in entry.get("detail", {}).items() if value is not None]
    return " ".join(part for part in parts if part)
