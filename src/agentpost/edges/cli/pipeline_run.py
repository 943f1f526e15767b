"""`pipeline run`, `watch`, `compact` and `sql`: make the tables, keep them fresh, keep them small, ask them."""

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, say, stderr, stdout
from agentpost.edges.cli.pipeline_options import (
    ConfOption,
    LakeOption,
    MasterOption,
    NowOption,
    RemoteOption,
    WarehouseOption,
    now_us_of,
    places,
    session_of,
    time_us_of,
)
from agentpost.edges.cli.pipeline_report import hand_back
from agentpost.protocol.errors import Code, Refusal

if TYPE_CHECKING:
    import pyarrow as pa

    from agentpost.pipeline.run import RunResult
    from agentpost.pipeline.watch import Watched

__all__ = ["register"]

_LOCAL = "local[*]"


def register(app: typer.Typer) -> None:
    app.command("run", epilog="Example: [bold]agentpost pipeline run --lake /srv/lake[/bold]")(run)
    app.command("watch", epilog="Example: [bold]agentpost pipeline watch --lake /srv/lake[/bold]")(watch)
    app.command("compact", epilog="Example: [bold]agentpost pipeline compact --lake /srv/lake[/bold]")(compact)
    app.command(
        "sql",
        epilog="Example: [bold]agentpost pipeline sql --lake /srv/lake"
        ' "select kind, count(*) from lifecycle group by kind"[/bold]',
    )(sql)


def run(
    lake: LakeOption,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Leave out what was sealed before: 2026-02-25, 7d.", show_default=False
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Build everything anew from the lake.")] = False,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Hand incidents, reviews and watermarks to the gateway of the home.")
    ] = False,
    warehouse: WarehouseOption = None,
    master: MasterOption = _LOCAL,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    now: NowOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Take in what is new in the lake, and publish the tables.

    What is malformed is put aside with the reason. A run that is cut off leaves nothing behind.
    """
    files, tables = places(lake, warehouse)
    now_us = now_us_of(now)
    since_us = None if since is None else time_us_of(since, field="since", now_us=now_us)
    if not files.exists("manifests"):
        raise _no_lake(lake)
    start = time.perf_counter()
    with stderr.status("starting Spark") as status, session_of(master, remote, conf) as spark:
        status.stop()
        # What takes long to import comes while the JVM starts, not before.
        from agentpost.pipeline.progress import phases
        from agentpost.pipeline.run import RunOptions, run_batch

        with phases(stderr) as lines:
            options = RunOptions(now_us=now_us, since_us=since_us, full=full)
            result = run_batch(spark, files, tables, options, at_phase=lines.at_phase)
        told = hand_back(tables) if feedback else None
        elapsed = time.perf_counter() - start
        if output is Format.JSON:
            print_json(msgspec.to_builtins(result) | ({} if told is None else {"feedback": told}))
        else:
            _print_result(result, elapsed)


def _print_result(result: "RunResult", elapsed: float) -> None:
    stdout.print(
        f"version {result.version}: {result.events:,} new events of {result.segments:,} segments "
        f"in {result.hours:,} hours, {elapsed:.1f} s",
        highlight=False,
    )
    if result.quarantined:
        stdout.print(f"[yellow]{result.quarantined:,} set aside[/yellow]: see the view `quarantine`", highlight=False)
    if result.retried:
        stdout.print(
            f"[yellow]{result.retried:,} segments cannot be read[/yellow]: each run tries them again", highlight=False
        )


def watch(
    lake: LakeOption,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between looks at the lake.")] = 1.0,
    batches: Annotated[
        int | None, typer.Option("--batches", min=1, help="End after so many.", show_default=False)
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when there is nothing new.")] = False,
    warehouse: WarehouseOption = None,
    master: MasterOption = _LOCAL,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Keep the tables fresh: a small run whenever the lake has something new. Ctrl-C ends it.

    With `-o json` each run is a line.
    """
    files, tables = places(lake, warehouse)
    if not files.exists("manifests"):
        raise _no_lake(lake)
    from agentpost.pipeline.watch import WatchOptions
    from agentpost.pipeline.watch import watch as watch_lake

    stop = threading.Event()
    options = WatchOptions(every_seconds=every, batches=batches, until_idle=until_idle)
    say(f"watching {lake}")
    with session_of(master, remote, conf) as spark:
        # Only now: Spark, too, sets a handler when it starts. A batch that is under way is finished.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: stop.set())
        for done in watch_lake(spark, files, tables, options, stop=stop, now_us=lambda: time.time_ns() // 1000):
            if output is Format.JSON:
                typer.echo(msgspec.json.encode(done).decode())
                sys.stdout.flush()
            else:
                _print_watched(done)


def _print_watched(done: "Watched") -> None:
    lags = sorted(done.freshness.node_lag.items(), key=lambda item: -item[1])[:3]
    slow = ", ".join(f"{escape(node)} {lag:,.0f} s" for node, lag in lags)
    made = done.snapshot
    stdout.print(
        f"version {made.number}: {made.new_events:,} events in {sum(made.seconds.values()):.1f} s; "
        f"newest {done.freshness.newest_event_age:,.1f} s old; furthest behind: {slow}",
        highlight=False,
    )


def compact(
    lake: LakeOption,
    warehouse: WarehouseOption = None,
    master: MasterOption = _LOCAL,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Join small files, and delete files that were superseded a day ago. The tables stay the same."""
    _, tables = places(lake, warehouse)
    tables.require()
    from agentpost.pipeline.compact import compact as compact_tables

    with stderr.status("joining files"), session_of(master, remote, conf) as spark:
        done = compact_tables(spark, tables)
    if output is Format.JSON:
        print_json(done)
        return
    stdout.print(
        f"version {done.version}: {done.files_before:,} files became {done.files_after:,}, "
        f"{done.bytes_before:,} bytes {done.bytes_after:,}; {done.files_deleted:,} old files deleted",
        highlight=False,
    )


def sql(
    query: Annotated[str, typer.Argument(help="The query.", show_default=False)],
    lake: LakeOption,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many rows at most.")] = 1000,
    warehouse: WarehouseOption = None,
    master: MasterOption = _LOCAL,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    now: NowOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Ask the tables: `show views` lists them, `describe lifecycle` shows the columns of one."""
    files, tables = places(lake, warehouse)
    version = tables.require()
    from agentpost.pipeline.params import Params
    from agentpost.pipeline.sql import query as ask
    from agentpost.pipeline.sql import register_tables

    with stderr.status("starting Spark"), session_of(master, remote, conf) as spark:
        register_tables(spark, files, tables, version, Params(now_us=now_us_of(now)))
        found = ask(spark, query, limit=limit)
    if csv:
        _print_csv(found)
    elif output is Format.JSON:
        print_json([{name: _plain(value) for name, value in row.items()} for row in _rows(found)])
    else:
        rows = [[_shown(value) for value in row.values()] for row in _rows(found)]
        print_table(f"{len(rows):,} rows", found.column_names, rows)


def _rows(found: "pa.Table") -> list[dict[str, Any]]:
    return found.to_pylist()


def _print_csv(found: "pa.Table") -> None:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(found.column_names)
    writer.writerows([[_plain(value) for value in row.values()] for row in _rows(found)])
    typer.echo(text.getvalue(), nl=False)


def _plain(value: Any) -> Any:
    """A value that JSON has: times and decimals as text, bytes as hex."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    return str(value)


def _shown(value: Any) -> str:
    return "" if value is None else escape(str(_plain(value)))


def _no_lake(lake: str) -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        f"there is no lake at {lake}",
        hint="Gateways write one with `agentpost lake export`; `agentpost simulate fleet` makes one to try.",
    )
