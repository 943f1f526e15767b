"""The pipeline over the demo's own mesh: the seed hands out every outbox, Spark says what became of each message."""

import importlib.util
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console

from agentpost.demo.command import agentpost, agentpost_at
from agentpost.terminal import escape

__all__ = ["PipelineShown", "export_mesh", "has_pipeline", "show_pipeline"]


class PipelineShown(Struct, frozen=True, kw_only=True):
    """What the tables say. `broken` are the integrity rules that something broke."""

    events: int
    states: dict[str, int]
    broken: list[str]
    report: str


def has_pipeline() -> bool:
    """Whether Spark is installed (`agentpost[pipeline]`)."""
    return importlib.util.find_spec("pyspark") is not None


def export_mesh(seed: Path) -> None:
    """Seal all outboxes into the lake of the seed, which has them all: its own, and those it mirrors."""
    agentpost("lake", "export", "--now", home=seed)


def show_pipeline(lake: Path, report: Path, console: Console) -> PipelineShown:
    """Run the pipeline over the lake of the mesh, check every rule, and leave a report to look at."""
    lake_option = ("--lake", str(lake))
    run: dict[str, Any] = agentpost_at("pipeline", "run", *lake_option)
    by_state = "select state, count(*) as deliveries from lifecycle group by state order by state"
    states = {row["state"]: row["deliveries"] for row in agentpost_at("pipeline", "sql", by_state, *lake_option)}
    checked: dict[str, Any] = agentpost_at("pipeline", "check", *lake_option, may_fail=True)
    agentpost_at("pipeline", "report", "--html", str(report), *lake_option)
    shown = PipelineShown(
        events=run["events"],
        states=states,
        broken=sorted({finding["rule"] for finding in checked["findings"]}),
        report=str(report),
    )
    console.print(f"  {shown.events} events of three outboxes, read from the seed's lake; their content stayed sealed.")
    for state, count in states.items():
        console.print(f"  [bold]{state:<10}[/bold] {count} deliveries", highlight=False)
    console.print(f"  broken rules: {escape(', '.join(shown.broken) or 'none')}")
    console.print(f"  the report, to open in a browser: {escape(shown.report)}", soft_wrap=True)
    return shown
