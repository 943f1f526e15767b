"""`pipeline check` and `pipeline trace`: is anything broken, and what happened here. Neither starts a JVM."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.cli.pipeline_options import LakeOption, WarehouseOption, places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentpost.pipeline.checks import Finding

__all__ = ["register"]

_MOST_LINES = 200


def register(app: typer.Typer) -> None:
    app.command("check", epilog="Example: [bold]agentpost pipeline check --lake /srv/lake[/bold]")(check)
    app.command("trace", epilog="Example: [bold]agentpost pipeline trace corr_01K… --lake /srv/lake[/bold]")(trace)


def check(
    lake: LakeOption,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what no rule forbids: missed SLAs, dead letters, late tasks.")
    ] = False,
    warehouse: WarehouseOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Say which integrity rules are broken, over all history; exit code 1 if one is.

    Speaks of the tables as the last `pipeline run` left them. docs/pipeline.md has every rule.
    """
    files, tables = places(lake, warehouse)
    from agentpost.pipeline.checks import check as check_tables

    result = check_tables(files, tables, with_observed=everything)
    if output is Format.JSON:
        print_json(result)
    else:
        if result.findings:
            _print_findings("Broken rules", result.findings)
        else:
            stdout.print(f"nothing broken in {result.events:,} events", highlight=False)
        if result.observed:
            _print_findings("Worth a look", result.observed)
    if result.findings:
        raise typer.Exit(1)


def trace(
    what: Annotated[str, typer.Argument(metavar="ID", help="A corrId, sessionId, eventId or taskId.")],
    lake: LakeOption,
    warehouse: WarehouseOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Show what happened, over all nodes: causes before effects, whatever their clocks say."""
    files, tables = places(lake, warehouse)
    from agentpost.pipeline.trace import trace as trace_tables

    lines = trace_tables(files, tables, what)
    if output is Format.JSON:
        print_json({"id": what, "events": lines})
        return
    print_table(
        what,
        ("time", "node", "seq", "kind", "what", "event"),
        [
            (time_text(line.at_us), escape(line.node), str(line.seq), line.kind, escape(line.text), line.event_id)
            for line in lines
        ],
        numbers=(2,),
    )


def time_text(at_us: int | None) -> str:
    if at_us is None:
        return ""
    try:
        return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, OSError, ValueError):
        return f"{at_us} us"  # a clock that is off by more than a calendar


def _print_findings(title: str, findings: "Sequence[Finding]") -> None:
    rows = [
        (each.rule, escape(each.node), str(each.seq), escape(each.text), each.corr_id or "")
        for each in findings[:_MOST_LINES]
    ]
    columns = ("rule", "node", "seq", "what", "conversation")
    print_table(f"{title}: {len(findings):,}", columns, rows, numbers=(2,))
    if len(findings) > _MOST_LINES:
        stdout.print(f"and {len(findings) - _MOST_LINES:,} more; -o json has all", style="dim", highlight=False)
