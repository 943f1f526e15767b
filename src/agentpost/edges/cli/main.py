"""The commands of `agentpost`."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from agentpost import __version__
from agentpost.bench.measure import Metric
from agentpost.config import home_of
from agentpost.edges.cli import gateway, mesh
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    exit_code,
    print_error,
    print_json,
    print_table,
    say,
    stderr,
    stdout,
)
from agentpost.protocol.errors import MEANINGS, Code, Refusal
from agentpost.store.integrity import back_up, check_home

__all__ = ["app", "main"]

app = typer.Typer(
    name="agentpost",
    help="The durable post between AI agents on several machines.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
store_app = typer.Typer(help="Look after the durable store of a gateway.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure, next to the limits of this machine.", no_args_is_help=True)
app.add_typer(store_app, name="store")
app.add_typer(bench_app, name="bench")

gateway.register(app)
mesh.register(app)

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="AGENTPOST_HOME",
        help="The gateway's home. Without it: the one home in ~/.agentpost.",
        show_default=False,
    ),
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Rounds of each measurement; the best one counts.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentpost {__version__}")
        raise typer.Exit


@app.callback()
def agentpost(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: [bold]agentpost demo[/bold]")
def demo(output: FormatOption = Format.TEXT) -> None:
    """See it work: a message is appended, the process is killed, and nothing acknowledged is lost."""
    from agentpost.demo import run_demo

    result = run_demo(stdout if output is Format.TEXT else stderr)
    if output is Format.JSON:
        print_json(result)
    if not result.kept:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]agentpost errors no_route[/bold]")
def errors(
    code: Annotated[str | None, typer.Argument(help="One code; all of them without it.", show_default=False)] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every code that a refusal can have, and what to do about it."""
    wanted = list(MEANINGS) if code is None else [found for found in MEANINGS if found.value == code]
    if not wanted:
        raise Refusal(Code.NOT_FOUND, f"there is no error code {code}", hint="Run `agentpost errors` to see them all.")
    if output is Format.JSON:
        print_json([{"code": c.value, "status": MEANINGS[c].status, "hint": MEANINGS[c].hint} for c in wanted])
        return
    rows = [(c.value, str(MEANINGS[c].status), MEANINGS[c].hint) for c in wanted]
    print_table("Error codes", ("code", "HTTP", "what to do"), rows, numbers=(1,))


@store_app.command("check", epilog="Example: [bold]agentpost store check --home ~/.agentpost/vps-jane[/bold]")
def store_check(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Check a home: the file, the hash chain of the outbox, its sequence. Works beside a running gateway."""
    path = home_of(None, home=home)
    with stderr.status("checking") as status:
        report = check_home(
            path, progress=lambda done, total: status.update(f"checking the outbox: {done:,} of {total:,} events")
        )
    if output is Format.JSON:
        print_json(report)
    else:
        stdout.print(f"node {escape(report.node_id)}, epoch {escape(report.epoch)}, schema {report.schema_version}")
        stdout.print(
            f"outbox: {report.outbox_events:,} events, seq {report.outbox_first_seq} to {report.outbox_last_seq}"
        )
        stdout.print(f"inbox: {report.inbox_events:,} events")
        for problem in report.problems:
            stdout.print(f"[red]problem[/red] {escape(problem)}")
        stdout.print("[green]whole[/green]" if not report.problems else f"[red]{len(report.problems)} problems[/red]")
    if report.problems:
        raise typer.Exit(1)


@store_app.command(
    "backup", epilog="Example: [bold]agentpost store backup monday.db --home ~/.agentpost/vps-jane[/bold]"
)
def store_backup(
    target: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Copy a home's database while its gateway runs. The keys are not in it; keep those where secrets are kept."""
    path = home_of(None, home=home)
    with stderr.status(f"copying to {target}"):
        size = back_up(path, target)
    if output is Format.JSON:
        print_json({"target": str(target), "sizeBytes": size})
    else:
        stdout.print(f"{escape(str(target))}: {size:,} bytes")


@bench_app.command("protocol", epilog="Example: [bold]agentpost bench protocol -o json[/bold]")
def bench_protocol_command(rounds: RoundsOption = 5, output: FormatOption = Format.TEXT) -> None:
    """Decode, validate, encode and route: the pure core, on one core of this machine."""
    from agentpost.bench.protocol import bench_protocol

    _print_metrics("protocol", bench_protocol(rounds=rounds, say=say), output)


@bench_app.command("store", epilog="Example: [bold]agentpost bench store --rows 200000[/bold]")
def bench_store_command(
    rounds: RoundsOption = 5,
    rows: Annotated[int, typer.Option("--rows", min=20_000, help="Rows of the large outbox.")] = 5_000_000,
    output: FormatOption = Format.TEXT,
) -> None:
    """Durable appends for 1, 16 and 256 callers next to raw SQLite, and the cost of size. Needs 1 kB of disk a row."""
    from agentpost.bench.store import bench_store

    _print_metrics("store", bench_store(rounds=rounds, rows=rows, say=say), output)


@bench_app.command("room", epilog="Example: [bold]agentpost bench room --rounds 3[/bold]")
def bench_room_command(rounds: RoundsOption = 3, output: FormatOption = Format.TEXT) -> None:
    """Updates of the room checked and merged, its size after a month of fifty nodes, and a join to it."""
    from agentpost.bench.room import bench_room

    _print_metrics("room", bench_room(rounds=rounds, say=say), output)


def _print_metrics(name: str, metrics: list[Metric], output: Format) -> None:
    if output is Format.JSON:
        print_json(metrics)
        return
    rows = [(m.metric, _number(m.value), m.unit, _number(m.against), _number(m.ratio)) for m in metrics]
    print_table(f"agentpost bench {name}", ("", "value", "unit", "against", "ratio"), rows, numbers=(1, 3, 4))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def main() -> None:
    """Run the command line. The one place that turns a refusal into an exit code."""
    # When a command fails its options are gone, so the wish for JSON is read from the words themselves.
    words = " ".join(sys.argv[1:])
    wanted = Format.JSON if re.search(r"(^| )(-o|--output)[ =]?json( |$)", words) else Format.TEXT
    try:
        app()
    except Refusal as refusal:
        print_error(refusal, wanted)
        raise SystemExit(exit_code(refusal)) from None
    except BrokenPipeError:
        # The reader went away, as `| head` does: nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
