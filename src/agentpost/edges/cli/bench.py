"""`agentpost bench …`: measure. The benches are loaded only when they run; other commands need not wait for them."""

from typing import Annotated

import typer

from agentpost.bench.measure import Metric
from agentpost.edges.cli.output import Format, FormatOption, print_json, print_table, say

__all__ = ["bench_app"]

bench_app = typer.Typer(help="Measure, next to the limits of this machine.", no_args_is_help=True)

RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Rounds of each measurement; the best one counts.")]


@bench_app.command("protocol", epilog="Example: [bold]agentpost bench protocol -o json[/bold]")
def bench_protocol_command(rounds: RoundsOption = 5, output: FormatOption = Format.TEXT) -> None:
    """Decode, validate, encode and route: the pure core, on one core of this machine."""
    from agentpost.bench.protocol import bench_protocol

    _print_metrics("protocol", bench_protocol(rounds=rounds, say=say), output)


@bench_app.command("store", epilog="Example: [bold]agentpost bench store --rows 200000[/bold]")
def bench_store_command(
    rounds: RoundsOption = 10,
    rows: Annotated[int, typer.Option("--rows", min=20_000, help="Rows of the large outbox.")] = 5_000_000,
    output: FormatOption = Format.TEXT,
) -> None:
    """Durable appends for 1, 16 and 256 callers next to raw SQLite, and the cost of size. Needs 1 kB of disk a row."""
    from agentpost.bench.store import bench_store
    from agentpost.edges.garbage import spare_what_stays

    # As `agentpost up` does.
    spare_what_stays()
    _print_metrics("store", bench_store(rounds=rounds, rows=rows, say=say), output)


@bench_app.command("room", epilog="Example: [bold]agentpost bench room --rounds 3[/bold]")
def bench_room_command(rounds: RoundsOption = 3, output: FormatOption = Format.TEXT) -> None:
    """Updates of the room checked and merged, its size after a month of fifty nodes, and a join to it."""
    from agentpost.bench.room import bench_room

    _print_metrics("room", bench_room(rounds=rounds, say=say), output)


@bench_app.command("roundtrip", epilog="Example: [bold]agentpost bench roundtrip --rounds 3[/bold]")
def bench_roundtrip_command(rounds: RoundsOption = 3, output: FormatOption = Format.TEXT) -> None:
    """Sent, accepted, processed, seen by the sender, between two gateways; Redis and NATS beside it if installed."""
    from agentpost.bench.roundtrip import bench_roundtrip
    from agentpost.edges.bench_pair import bench_pair

    _print_metrics("roundtrip", bench_roundtrip(rounds=rounds, pair=bench_pair, say=say), output)


@bench_app.command("mailbox", epilog="Example: [bold]agentpost bench mailbox --backlog 100000[/bold]")
def bench_mailbox_command(
    rounds: RoundsOption = 3,
    backlog: Annotated[int, typer.Option("--backlog", min=1_000, help="Messages in the large mailbox.")] = 1_000_000,
    output: FormatOption = Format.TEXT,
) -> None:
    """Enqueue, dequeue and ack in a file and over HTTP, and what a large mailbox costs. Needs 2 kB a message."""
    from agentpost.edges.bench_mailbox import bench_mailbox

    _print_metrics("mailbox", bench_mailbox(rounds=rounds, backlog=backlog, say=say), output)


@bench_app.command("flat", epilog="Example: [bold]agentpost bench flat --events 200000 --unread 20000[/bold]")
def bench_flat_command(
    rounds: RoundsOption = 3,
    events: Annotated[int, typer.Option("--events", min=1, help="Events in the sender's outbox.")] = 1_000_000,
    unread: Annotated[int, typer.Option("--unread", min=1, help="Unread mail at the receiver.")] = 100_000,
    output: FormatOption = Format.TEXT,
) -> None:
    """What a message costs beside a long history, against none. Needs 1.5 kB of disk for an event."""
    from agentpost.bench.flat import bench_flat
    from agentpost.edges.bench_pair import bench_pair

    metrics = bench_flat(rounds=rounds, events=events, unread=unread, pair=bench_pair, say=say)
    _print_metrics("flat", metrics, output)


@bench_app.command("sweep", epilog="Example: [bold]agentpost bench sweep --tasks 10000[/bold]")
def bench_sweep_command(
    tasks: Annotated[int, typer.Option("--tasks", min=1_000, help="Open tasks.")] = 10_000,
    output: FormatOption = Format.TEXT,
) -> None:
    """A sweep over many open tasks, with none and with 500 late ones, and what mail notices of it."""
    from agentpost.bench.sweep import bench_sweep

    _print_metrics("sweep", bench_sweep(tasks=tasks, say=say), output)


@bench_app.command("crowd", epilog="Example: [bold]agentpost bench crowd --gateways 5 --rate 100[/bold]")
def bench_crowd_command(
    gateways: Annotated[int, typer.Option("--gateways", min=2, help="Gateways, each a process.")] = 20,
    agents: Annotated[int, typer.Option("--agents", min=2, help="Agents of all gateways together.")] = 200,
    rate: Annotated[float, typer.Option("--rate", min=1, help="Messages a second, of all together.")] = 500,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="For how long they write.")] = 20,
    output: FormatOption = Format.TEXT,
) -> None:
    """Every agent writes to every other, on many gateways: how long delivery takes. Needs 100 MB for each gateway."""
    from agentpost.bench.crowd import bench_crowd

    if agents < gateways:
        raise typer.BadParameter("each gateway needs an agent", param_hint="--agents")
    metrics = bench_crowd(gateways=gateways, agents=agents, rate=rate, seconds=seconds, say=say)
    _print_metrics("crowd", metrics, output)


@bench_app.command("idle", epilog="Example: [bold]agentpost bench idle --gateways 3 --seconds 60[/bold]")
def bench_idle_command(
    gateways: Annotated[
        list[int] | None, typer.Option("--gateways", min=2, help="Gateways of the mesh; can be given several times.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="For how long they are watched.")] = 30,
    output: FormatOption = Format.TEXT,
) -> None:
    """What a gateway costs that is joined to a mesh and has nothing to do: processor and memory. Linux only."""
    from agentpost.bench.idle import bench_idle

    _print_metrics("idle", bench_idle(meshes=gateways or [3, 20], seconds=seconds, say=say), output)


@bench_app.command("pipeline", epilog="Example: [bold]agentpost bench pipeline --events 1000000 --only build[/bold]")
def bench_pipeline_command(
    events: Annotated[int, typer.Option("--events", min=100_000, help="Events of the fleet.")] = 5_000_000,
    history: Annotated[int, typer.Option("--history", min=2, help="How much longer the long history is.")] = 10,
    only: Annotated[
        str, typer.Option("--only", help="Which figures: simulate, start, build, watch, history.")
    ] = "simulate,start,build,watch",
    output: FormatOption = Format.TEXT,
) -> None:
    """A fleet made, its segments to gold, a refresh, `watch`, the start; DuckDB beside it. Needs 250 bytes an event."""
    from agentpost.pipeline.session import require_spark

    require_spark()
    from agentpost.bench.pipeline import PARTS, bench_pipeline

    parts = frozenset(only.split(","))
    if not parts <= PARTS:
        raise typer.BadParameter(f"--only takes some of: {', '.join(sorted(PARTS))}")
    _print_metrics("pipeline", bench_pipeline(events=events, history=history, parts=parts, say=say), output)


def _print_metrics(name: str, metrics: list[Metric], output: Format) -> None:
    if output is Format.JSON:
        print_json(metrics)
        return
    rows = [(m.metric, _number(m.value), m.unit, _number(m.against), _number(m.ratio)) for m in metrics]
    print_table(f"agentpost bench {name}", ("", "value", "unit", "against", "ratio"), rows, numbers=(1, 3, 4))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"
