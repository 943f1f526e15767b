"""`coordination`: who keeps work moving, and what the latest sweeps came to."""

from typing import Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import TIME, HomeOption, seconds_from
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, stdout
from agentpost.edges.operator_client import OperatorClient

__all__ = ["coordination_app"]

coordination_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Who chases late tasks, and how often."
)

EveryOption = Annotated[
    int | None,
    typer.Option(
        "--every",
        parser=seconds_from("10s", "1d"),
        metavar=TIME,
        help="How often is swept, as 60s.",
        show_default=False,
    ),
]


@coordination_app.command(epilog="Example: [bold]agentpost coordination show -o json[/bold]")
def show(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Who coordinates, who acts now, what nodes prefer, and what the latest sweeps came to."""
    _print(OperatorClient(home_of(None, home=home)).get("/ansible/coordination"), output)


@coordination_app.command("set", epilog="Example: [bold]agentpost coordination set vps-jane --every 60s[/bold]")
def set_coordinator(
    coordinator: Annotated[str | None, typer.Argument(help="The node; a backbone node.", show_default=False)] = None,
    every: EveryOption = None,
    confirm_last_resort: Annotated[
        bool,
        typer.Option("--confirm-last-resort", help="Put it in the place of the present one, which is gone or agrees."),
    ] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Appoint the coordinator, or set how often it sweeps."""
    if coordinator is None and every is None:
        raise typer.BadParameter("say a node, or --every, or both")
    body = {
        "coordinator": coordinator,
        "sweepEverySeconds": every,
        "confirmLastResort": confirm_last_resort,
    }
    _print(OperatorClient(home_of(None, home=home)).post("/ansible/coordination", body), output)


@coordination_app.command(epilog="Example: [bold]agentpost coordination prefer lab-jane[/bold]")
def prefer(
    coordinator: Annotated[str | None, typer.Argument(help="The node that this one would like.")] = None,
    every: EveryOption = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Say whom this node would like: it decides who acts while the coordinator is silent."""
    body = {
        "desiredCoordinator": coordinator,
        "desiredSweepEverySeconds": every,
    }
    _print(OperatorClient(home_of(None, home=home)).post("/ansible/coordination/preference", body), output)


def _print(found: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json(found)
        return
    stdout.print(f"[dim]coordinator[/dim] {escape(found['coordinator'] or 'none')}", highlight=False)
    stdout.print(f"[dim]acting[/dim]      {escape(found['acting'] or 'nobody')}, term {found['term']}", highlight=False)
    stdout.print(f"[dim]cadence[/dim]     {found['sweepEverySeconds']} s", highlight=False)
    for node_id, wish in found["preferences"].items():
        wanted = wish.get("desiredCoordinator") or "any"
        stdout.print(f"[dim]preference[/dim]  {escape(node_id)} → {escape(wanted)}", highlight=False)
    for report in [found["lastSweep"], *found["reports"]]:
        if report is not None:
            problems = ", ".join(f"{count} {name}" for name, count in report["problems"].items()) or "all is well"
            stdout.print(
                f"[dim]sweep[/dim]       {escape(report['nodeId'])}: {report['checked']} tasks, {problems}; "
                f"asked {report['asked']}, reassigned {report['reassigned']}, for a person {report['needsAction']}",
                highlight=False,
            )
