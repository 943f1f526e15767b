"""`conformance`: each rule, and the tests that show it. For a checkout, since that is where the tests are."""

import re
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from agentpost.conformance import LEDGERS, Standing, as_rows, find_root, read_ledgers, read_rules, standings, summary
from agentpost.edges.cli.output import Format, FormatOption, print_json, say, stdout
from agentpost.protocol.errors import Code, Refusal

__all__ = ["register"]

_LOOKS: Final = {
    "shown": Text("shown", style="green"),
    "failed": Text("FAILED", style="bold red"),
    "skipped": Text("skipped", style="yellow"),
    "none": Text("—", style="dim"),
}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    epilog = (
        "Examples: [bold]make conformance[/bold] · [bold]agentpost conformance --missing[/bold] · "
        "[bold]agentpost conformance -o json[/bold]"
    )
    app.command(epilog=epilog)(conformance)


def conformance(
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="A ledger that `pytest --rule-ledger=FILE` wrote; else those of the last `make test`.",
            show_default=False,
        ),
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only the rules that no test shows.")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Each rule of docs/requirements.md with the tests that show it, as the last `make test` left them.

    For a checkout of the repository. Exit code 1 if a test of a rule failed, or could not be run.
    """
    root = find_root(Path.cwd())
    ledger = read_ledgers(results or _last_ledgers(root))
    rows = standings(read_rules(root), ledger.checks)
    shown = [row for row in rows if row.result == "none"] if missing else rows
    if output is Format.JSON:
        print_json(as_rows(shown))
    else:
        if shown:
            stdout.print(_table(shown))
        stdout.print(summary(rows), highlight=False)
    if not ledger.complete:
        say("Not all tests could be run, so this is not complete.")
    if not ledger.complete or any(row.result == "failed" for row in rows):
        raise typer.Exit(1)


def _last_ledgers(root: Path) -> list[Path]:
    # In the order in which they were written: what was run again, alone, comes last.
    found = sorted((root / LEDGERS).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise Refusal(
            Code.NOT_FOUND,
            f"no test run has left its ledger in {root / LEDGERS}",
            hint="Run `make conformance`, or `make test`: some minutes each.",
        )
    return found


def _table(rows: list[Standing]) -> Table:
    table = Table(expand=True, box=SIMPLE)
    table.add_column("rule", no_wrap=True)
    table.add_column("level", no_wrap=True)
    table.add_column("what it says", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("checks", no_wrap=True, justify="right")
    table.add_column("result", no_wrap=True)
    for section, members in groupby(rows, key=lambda row: row.rule.section):
        table.add_section()
        table.add_row("", "", Text(section, style="bold"))
        for row in members:
            # Text, not str: rich would read the brackets of `toAgents=["all"]` as markup.
            says = Text(re.sub(r"`|\*\*", "", row.rule.text))
            table.add_row(row.rule.id, row.rule.level or "", says, str(len(row.checks)), _LOOKS[row.result])
    return table
