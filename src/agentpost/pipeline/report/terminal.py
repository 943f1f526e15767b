"""The report for a terminal: tables, bars and sparks."""

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentpost.pipeline.report.model import Report
from agentpost.pipeline.report.words import (
    NOTHING,
    OBJECTIVE_WORDS,
    bar,
    burn_text,
    clock_text,
    count_text,
    hour_text,
    share_text,
    span_text,
    spark,
    title_of,
)
from agentpost.terminal import escape

__all__ = ["print_report"]

_COLOURS = {"good": "green", "warning": "yellow", "bad": "red", "plain": "default"}
_MOST_ROWS = 12


def print_report(report: Report, console: Console) -> None:
    console.print(
        f"[bold]{escape(report.lake)}[/bold], version {report.version}, as of {clock_text(report.now_us)}\n",
        highlight=False,
    )
    _print(
        console,
        "Overview",
        ("", "", ""),
        [(tile.label, Text(tile.value, style=_COLOURS[tile.verdict]), tile.note) for tile in report.tiles],
        numbers=(1,),
    )
    _print_objectives(report, console)
    _print_latency(report, console)
    _print_throughput(report, console)
    _print_backlog(report, console)
    _print_tasks(report, console)
    _print_integrity(report, console)
    reviews = [
        (r.capability_id, r.failure_class, count_text(r.count), " ".join(r.sample_corr_ids[:1])) for r in report.reviews
    ]
    _print(console, "Reviews", ("capability", "why", "times", "for example"), reviews, numbers=(2,))
    fresh = [(f.node, span_text(max(0, report.now_us - f.sealed_us)), count_text(f.last_seq)) for f in report.freshness]
    _print(console, "Freshness", ("gateway", "newest segment", "last seq"), fresh, numbers=(1, 2))


def _print_objectives(report: Report, console: Console) -> None:
    rows = [
        (
            each.name,
            each.target,
            each.measured,
            "  ".join(f"{window} {burn_text(rate)}" for window, rate in each.burn_rates.items()),
            Text(OBJECTIVE_WORDS[each.verdict], style=_COLOURS[each.verdict]),
        )
        for each in report.objectives
    ]
    _print(console, "Objectives", ("objective", "target", "measured", "burn rate", ""), rows)


def _print_latency(report: Report, console: Console) -> None:
    rows: list[tuple[str, ...]] = []
    for kind, latency in sorted(report.latency.items(), key=lambda item: -item[1].count):
        p95 = [float(each.p95_us) for each in report.latency_by_hour if each.kind == kind]
        rows.append(
            (
                kind,
                count_text(latency.count),
                *(span_text(value) for value in (latency.p50_us, latency.p95_us, latency.p99_us)),
                spark(_squeezed(p95, max, width=24)),
            )
        )
    head = ("kind", "delivered", "p50", "p95", "p99", "p95 by hour")
    _print(console, "Latency until accepted", head, rows, numbers=(1, 2, 3, 4))
    top = max((each.p95_us for each in report.slow_nodes), default=1) or 1
    slow = [
        (each.node, span_text(each.p95_us), Text(bar(each.p95_us / top), style="yellow")) for each in report.slow_nodes
    ]
    _print(console, "Slowest gateways", ("gateway", "p95", ""), slow, numbers=(1,))


def _print_throughput(report: Report, console: Console) -> None:
    by_hour: dict[int, float] = {}
    for each in report.throughput:
        by_hour[each.hour] = by_hour.get(each.hour, 0) + each.events
    hours = sorted(by_hour)
    if hours:
        console.print("[bold]Events an hour[/bold]")
        console.print(f"[blue]{spark(_squeezed([by_hour[hour] for hour in hours], sum))}[/blue]")
        console.print(f"[dim]{hour_text(hours[0])} to {hour_text(hours[-1])}[/dim]\n", highlight=False)
    sends = sum(each.sends for each in report.rates)
    if sends:
        retries, copies, dead = (
            sum(getattr(each, name) for each in report.rates) for name in ("retries", "duplicates", "dead_letters")
        )
        console.print(
            f"[bold]Sends[/bold] {count_text(sends)}, retries {share_text(retries / sends)},"
            f" duplicates {share_text(copies / sends)}, dead letters {count_text(dead)}\n",
            highlight=False,
        )


def _print_backlog(report: Report, console: Console) -> None:
    rows = [
        (
            each.node,
            count_text(each.open_deliveries),
            NOTHING if each.oldest_us is None else span_text(report.now_us - each.oldest_us),
            span_text(each.growing_us) if each.growing_us else NOTHING,
            Text("alert" if each.is_alert else "", style="red"),
        )
        for each in report.backlogs
    ]
    _print(console, "Backlog", ("gateway", "open", "oldest", "growing for", ""), rows, numbers=(1, 2, 3))


def _print_tasks(report: Report, console: Console) -> None:
    tasks = report.tasks
    if not tasks.created:
        return
    rows = [
        (name, count_text(count), Text(bar(count / tasks.created), style=colour))
        for name, count, colour in (
            ("completed", tasks.completed, "green"),
            ("failed", tasks.failed, "red"),
            ("canceled", tasks.canceled, "yellow"),
            ("open", tasks.open, "blue"),
            ("ETA kept", tasks.kept, "green"),
        )
    ]
    _print(console, f"{count_text(tasks.created)} tasks", ("", "", ""), rows, numbers=(1,))


def _print_integrity(report: Report, console: Console) -> None:
    if not report.rules:
        console.print("[bold]Integrity[/bold] [green]nothing is broken[/green]\n")
        return
    top = max(each.count for each in report.rules)
    rows = [
        (title_of(r.rule), r.rule, count_text(r.count), Text(bar(r.count / top), style="red")) for r in report.rules
    ]
    _print(console, "Integrity", ("what", "rule", "findings", ""), rows, numbers=(2,), most=len(rows))


def _squeezed(values: Sequence[float], how: Callable[[Sequence[float]], float], width: int = 60) -> list[float]:
    """As many values as fit, each of some neighbours."""
    size = max(1, -(-len(values) // width))
    return [how(values[start : start + size]) for start in range(0, len(values), size)]


def _print(
    console: Console,
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: Iterable[int] = (),
    most: int = _MOST_ROWS,
) -> None:
    if not rows:
        return
    right = set(numbers)
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        show_header=any(head),
    )
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place in right else "left", overflow="fold")
    for row in rows[:most]:
        table.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(table, highlight=False)
    console.print(f"[dim]and {len(rows) - most} more[/dim]\n" if len(rows) > most else "", highlight=False)
