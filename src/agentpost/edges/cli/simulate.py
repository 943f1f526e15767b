"""`agentpost simulate …`: lakes of fleets that never ran, to measure and to test the pipeline with."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, stderr, stdout
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import parse_ms

__all__ = ["simulate_app"]

simulate_app = typer.Typer(help="Make fleets that never ran, from a seed.", no_args_is_help=True)

LakeOption = Annotated[Path, typer.Option("--lake", help="The directory of the lake.", show_default=False)]


@simulate_app.command(
    "fleet",
    epilog="Example: [bold]agentpost simulate fleet --lake /tmp/lake --nodes 20 --events 1000000 --seed 7[/bold]",
)
def fleet_command(
    lake: LakeOption,
    nodes: Annotated[int, typer.Option("--nodes", help="How many gateways.")] = 20,
    agents: Annotated[int, typer.Option("--agents", help="How many agents, spread over them.")] = 200,
    events: Annotated[int, typer.Option("--events", help="About how many events.")] = 5_000_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed makes the same lake.")] = 1,
    hours: Annotated[float, typer.Option("--hours", help="The time that the events are spread over.")] = 72,
    end: Annotated[str, typer.Option("--end", help="When it ends.")] = "2026-03-03T00:00:00.000Z",
    faults: Annotated[str, typer.Option("--faults", help="all, none, or rules: gap,fork,black_hole")] = "all",
    batches: Annotated[
        str, typer.Option("--batches", help="Parts to release one by one: a number, or shares such as 99,1")
    ] = "1",
    output: FormatOption = Format.TEXT,
) -> None:
    """Write the lake of a fleet, with faults of which `truth.json` keeps the list.

    With several batches nothing is in the lake yet: `simulate release` brings one after the other.
    """
    _require_numpy()
    from agentpost.simulate.faults import chosen_rules
    from agentpost.simulate.fleet import write_fleet
    from agentpost.simulate.plan import FleetPlan

    plan = FleetPlan(
        seed=seed,
        nodes=nodes,
        agents=agents,
        events=events,
        hours=hours,
        end_ms=parse_ms(end, field="end"),
        parts=_parts(batches),
        faults=chosen_rules(faults),
    )
    start = time.perf_counter()
    with _bar(events) as at:
        done = write_fleet(plan, lake, at=at)
    seconds = time.perf_counter() - start
    if output is Format.JSON:
        print_json(msgspec.to_builtins(done) | {"seconds": round(seconds, 3)})
        return
    stdout.print(
        f"{done.events:,} events in {done.segments:,} segments, {done.faults:,} faults: {lake}\n"
        f"{seconds:.1f} s, {done.events / seconds:,.0f} events/s",
        highlight=False,
    )


@simulate_app.command("release", epilog="Example: [bold]agentpost simulate release --lake /tmp/lake --part 0[/bold]")
def release_command(
    lake: LakeOption,
    part: Annotated[int, typer.Option("--part", min=0, help="Which part; they are numbered from 0.")],
    output: FormatOption = Format.TEXT,
) -> None:
    """Bring one part of a fleet that was made with --batches into its lake."""
    _require_numpy()
    from agentpost.simulate.fleet import release_part

    segments = release_part(lake, part)
    if output is Format.JSON:
        print_json({"part": part, "segments": segments})
        return
    stdout.print(f"part {part}: {segments:,} segments are in {escape(str(lake))} now", highlight=False)


@contextmanager
def _bar(total: int) -> Generator[Callable[[int], None]]:
    """How far it is, for a person at a terminal."""
    columns = (TextColumn("{task.completed:,} events"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        bar = progress.add_task("", total=total)
        yield lambda written: progress.update(bar, completed=written)


def _require_numpy() -> None:
    if find_spec("numpy") is None or find_spec("pyarrow") is None:
        raise Refusal(
            Code.UNAVAILABLE,
            "fleets are made with numpy and pyarrow, which are not installed",
            hint="Install them with: pip install 'agentpost[pipeline]'",
        )


def _parts(text: str) -> tuple[float, ...]:
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError:
        raise Refusal(
            Code.INVALID_FIELD, f"{text!r:.40} is no number of batches", field="batches", hint="Use 4, or 99,1."
        ) from None
    if len(shares) > 1:
        return tuple(shares)
    if not 1 <= shares[0] <= 10_000:
        raise Refusal(Code.INVALID_FIELD, "there can be 1 to 10000 batches", field="batches")
    return (1.0,) * int(shares[0])
