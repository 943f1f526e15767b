"""The report as one HTML file: style and charts are in it, it has no script, and it asks nothing of any network."""

from collections.abc import Iterable, Sequence
from importlib.resources import files

from agentpost.pipeline.report.charts import Line, bars, lines
from agentpost.pipeline.report.model import HourLatency, Latency, Report
from agentpost.pipeline.report.words import (
    NOTHING,
    OBJECTIVE_WORDS,
    burn_text,
    clock_text,
    count_text,
    hour_text,
    in_html,
    share_text,
    span_text,
    title_of,
)

__all__ = ["page"]

_PERCENTILES = (("p50", "a"), ("p95", "b"), ("p99", "c"))
_MOST_ROWS = 200


def page(report: Report) -> str:
    """The whole file."""
    sections = (
        ("overview", "Overview", "", _overview(report)),
        ("objectives", "Objectives", "Burn rate 1 uses up the error budget just in time.", _objectives(report)),
        (
            "latency",
            "Latency",
            "From the event to its acceptance at the other gateway, the time included for which that one was away.",
            _latency(report),
        ),
        ("throughput", "Throughput", "Events that the gateways appended.", _throughput(report)),
        ("retries", "Retries and dead letters", "", _rates(report)),
        (
            "backlog",
            "Backlog",
            "What is sent and not acknowledged yet, by the gateway that it is for.",
            _backlog(report),
        ),
        ("tasks", "Tasks", "", _tasks(report)),
        ("integrity", "Integrity", "Broken rules, over all history.", _integrity(report)),
        ("reviews", "Reviews", "Skills that somebody should look at.", _reviews(report)),
        ("freshness", "Freshness", "The newest that the lake has of each gateway.", _freshness(report)),
    )
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _, _ in sections)
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>'
        + (f'<p class="hint">{hint}</p>' if hint else "")
        + f"{content}</section>"
        for name, title, hint, content in sections
    )
    style = (files("agentpost.pipeline.report") / "page.css").read_text()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>agentpost: what became of every message</title><style>{style}</style></head><body>"
        '<a class="skip" href="#main">Skip to the report</a>'
        "<header><h1>What became of every message</h1>"
        f'<p class="about">{in_html(report.lake)} · version {report.version} · as of {clock_text(report.now_us)}</p>'
        f'</header><nav aria-label="Sections"><ul>{links}</ul></nav><main id="main">{body}</main>'
        f"<footer>Made by agentpost. Times are UTC.{_missing(report)}</footer></body></html>\n"
    )


def _missing(report: Report) -> str:
    return f" Not in this version: {in_html(', '.join(report.missing))}." if report.missing else ""


def _overview(report: Report) -> str:
    return (
        '<ul class="tiles">'
        + "".join(
            f'<li class="tile {tile.verdict}"><span class="label">{in_html(tile.label)}</span>'
            f'<b>{in_html(tile.value)}</b><span class="note">{in_html(tile.note)}</span></li>'
            for tile in report.tiles
        )
        + "</ul>"
    )


def _objectives(report: Report) -> str:
    windows = list(dict.fromkeys(name for each in report.objectives for name in each.burn_rates))
    rows = [
        (
            in_html(each.name),
            in_html(each.target),
            in_html(each.measured),
            share_text(each.good_share),
            *(_burn(each.burn_rates.get(window)) for window in windows),
            f'<span class="word {each.verdict}">{OBJECTIVE_WORDS[each.verdict]}</span>',
        )
        for each in report.objectives
    ]
    head = ("objective", "target", "measured", "good", *(f"burn {window}" for window in windows), "")
    return _card(
        _table("Objectives and burn rates", head, rows, numbers=range(3, 4 + len(windows)), look="prose"), wide=True
    )


def _burn(rate: float | None) -> str:
    look = "plain" if rate is None else "bad" if rate > 2 else "warning" if rate > 1 else "good"
    return f'<span class="word {look}">{burn_text(rate)}</span>'


def _latency(report: Report) -> str:
    kinds = sorted(report.latency, key=lambda kind: -report.latency[kind].count)
    hours = sorted({each.hour for each in report.latency_by_hour})
    cards = [_latency_card(kind, hours, report) for kind in kinds]
    pairs = [(in_html(each.source), in_html(each.to), *_percentiles(each)) for each in report.slow_pairs]
    cards.append(
        _card(
            "<h3>Slowest pairs of gateways</h3>"
            + _table("By p95", ("from", "to", "events", "p50", "p95", "p99"), pairs, numbers=range(2, 6))
        )
    )
    slowest = [(each.node, float(each.p95_us), f"p95 {span_text(each.p95_us)}") for each in report.slow_nodes]
    cards.append(_card("<h3>Slowest gateways</h3>" + bars("p95 until accepted, by gateway", slowest, look="b")))
    return _cards(cards)


def _latency_card(kind: str, hours: Sequence[int], report: Report) -> str:
    by_hour = {each.hour: each for each in report.latency_by_hour if each.kind == kind}
    series = [Line(name, look, tuple(_of(by_hour.get(hour), name) for hour in hours)) for name, look in _PERCENTILES]
    all_of_it = report.latency[kind]
    figures = zip(("delivered", "p50", "p95", "p99"), _percentiles(all_of_it), strict=True)
    said = ", ".join(f"{figure} {name}" if name == "delivered" else f"{name} {figure}" for name, figure in figures)
    said = said.replace(" ", "&nbsp;").replace(",&nbsp;", ", ")
    mark = (5_000_000.0, "5 s") if kind == "message" else None
    chart = lines(f"Latency of {kind}", hours, series, text=span_text, is_time=True, mark=mark)
    rows = [(hour_text(each.hour), *_percentiles(each)) for _, each in sorted(by_hour.items())]
    table = _table(f"Latency of {kind} by hour", ("hour", "events", "p50", "p95", "p99"), rows, numbers=range(1, 5))
    return _card(f"<h3>{in_html(kind)}</h3><p class='hint'>{said}</p>{_key(_PERCENTILES)}{chart}{_figures(table)}")


def _of(latency: HourLatency | None, name: str) -> float | None:
    return None if latency is None else float(getattr(latency, f"{name}_us"))


def _percentiles(latency: Latency) -> tuple[str, str, str, str]:
    return (
        count_text(latency.count),
        span_text(latency.p50_us),
        span_text(latency.p95_us),
        span_text(latency.p99_us),
    )


def _throughput(report: Report) -> str:
    hours = sorted({each.hour for each in report.throughput})
    by_hour: dict[int, int] = dict.fromkeys(hours, 0)
    by_node: dict[str, int] = {}
    for each in report.throughput:
        by_hour[each.hour] += each.events
        by_node[each.node] = by_node.get(each.node, 0) + each.events
    series = [Line("events", "a", tuple(float(by_hour[hour]) for hour in hours))]
    chart = lines("Events an hour", hours, series, text=count_text, is_area=True)
    table = _table(
        "Events by hour", ("hour", "events"), [(hour_text(h), count_text(by_hour[h])) for h in hours], numbers=(1,)
    )
    busiest = sorted(by_node.items(), key=lambda item: (-item[1], item[0]))[:12]
    rows = [(node, float(events), count_text(events)) for node, events in busiest]
    return _cards(
        [
            _card(f"<h3>Events an hour, all gateways</h3>{chart}{_figures(table)}"),
            _card("<h3>Busiest gateways</h3>" + bars("Events by gateway", rows)),
        ]
    )


def _rates(report: Report) -> str:
    hours = [each.hour for each in report.rates]
    retries = Line("retries", "b", tuple(_rate(each.retries, each.sends) for each in report.rates))
    duplicates = Line("duplicates", "e", tuple(_rate(each.duplicates, each.sends) for each in report.rates))
    dead = Line("dead letters", "c", tuple(float(each.dead_letters) for each in report.rates))
    rows = [
        (hour_text(each.hour), count_text(each.sends), str(each.retries), str(each.duplicates), str(each.dead_letters))
        for each in report.rates
    ]
    table = _table(
        "Sends by hour", ("hour", "sends", "retries", "duplicates", "dead letters"), rows, numbers=range(1, 5)
    )
    shares = lines("Retries and duplicates of all sends", hours, [retries, duplicates], text=share_text)
    letters = lines("Dead letters an hour", hours, [dead], text=count_text, is_area=True)
    return _cards(
        [
            _card(
                "<h3>Share of sends that were retries or duplicates</h3>"
                f"{_key((('retries', 'b'), ('duplicates', 'e')))}{shares}{_figures(table)}"
            ),
            _card(f"<h3>Dead letters an hour</h3>{letters}"),
        ]
    )


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _backlog(report: Report) -> str:
    rows = [
        (
            in_html(each.node),
            count_text(each.open_deliveries),
            NOTHING if each.oldest_us is None else span_text(report.now_us - each.oldest_us),
            span_text(each.growing_us) if each.growing_us else NOTHING,
            '<span class="word bad">alert</span>' if each.is_alert else '<span class="word good">fine</span>',
        )
        for each in report.backlogs
    ]
    head = ("gateway", "open", "oldest", "growing for", "")
    return _card(_table("Open deliveries by gateway", head, rows, numbers=(1, 2, 3)), wide=True)


def _tasks(report: Report) -> str:
    tasks = report.tasks
    states = [
        ("completed", tasks.completed, "d"),
        ("failed", tasks.failed, "c"),
        ("canceled", tasks.canceled, "b"),
        ("open", tasks.open, "a"),
    ]
    rows = [(name, float(count), count_text(count)) for name, count, _ in states]
    kept = tasks.kept / tasks.promised if tasks.promised else None
    promise = f"<p><b>{share_text(kept)}</b> of {count_text(tasks.promised)} promised times were kept.</p>" + (
        f"<p class='hint'>Those that were late: p50 {span_text(tasks.lateness.p50_us)},"
        f" p95 {span_text(tasks.lateness.p95_us)}, p99 {span_text(tasks.lateness.p99_us)} late.</p>"
        if tasks.lateness
        else ""
    )
    by_capability = [
        (in_html(each.name), count_text(each.tasks), str(each.failed), str(each.late)) for each in tasks.capabilities
    ]
    table = _table("Tasks by capability", ("capability", "tasks", "failed", "late"), by_capability, numbers=range(1, 4))
    return _cards(
        [
            _card(f"<h3>{count_text(tasks.created)} tasks</h3>" + bars("Tasks by state", rows, look="d")),
            _card(f"<h3>ETA</h3>{promise}"),
            _card(f"<h3>Capabilities</h3>{table}"),
        ]
    )


def _integrity(report: Report) -> str:
    if not report.rules:
        return _card('<p><span class="word good">Nothing is broken.</span></p>', wide=True)
    counts = [(title_of(each.rule), float(each.count), count_text(each.count)) for each in report.rules]
    rows = [
        (
            in_html(title_of(each.rule)),
            in_html(each.node),
            f"<code>{in_html(each.epoch)}</code>",
            "" if each.seq is None else str(each.seq),
            f"<code>{in_html(each.event_id)}</code>",
            in_html(each.agent_id),
        )
        for each in report.findings[:_MOST_ROWS]
    ]
    head = ("rule", "gateway", "epoch", "seq", "event", "agent")
    shown = f"The first {len(rows)} of them" if len(report.findings) > len(rows) else "All of them"
    table = _figures(_table(shown, head, rows, numbers=(3,)), "Findings")
    return _cards([_card("<h3>Findings by rule</h3>" + bars("Findings by rule", counts, look="c") + table, wide=True)])


def _reviews(report: Report) -> str:
    rows = [
        (
            in_html(each.capability_id),
            in_html(each.failure_class),
            count_text(each.count),
            " ".join(f"<code>{in_html(corr)}</code>" for corr in each.sample_corr_ids),
        )
        for each in report.reviews[:_MOST_ROWS]
    ]
    return _card(_table("Review items", ("capability", "why", "times", "for example"), rows, numbers=(2,)), wide=True)


def _freshness(report: Report) -> str:
    rows = [
        (in_html(each.node), span_text(max(0, report.now_us - each.sealed_us)), count_text(each.last_seq))
        for each in report.freshness
    ]
    return _card(
        _table("By age of the newest segment", ("gateway", "age", "last seq"), rows, numbers=(1, 2)), wide=True
    )


def _table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Iterable[int] = (), look: str = ""
) -> str:
    """Cells are HTML already."""
    if not rows:
        return f'<p class="none">{in_html(caption)}: none.</p>'
    right = set(numbers)
    cells = [' class="n"' if place in right else "" for place in range(len(head))]
    heads = "".join(f'<th scope="col"{cells[n]}>{in_html(name)}</th>' for n, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{cells[n]}>{cell}</td>" for n, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{in_html(caption)}"><table class="{look}">'
        f"<caption>{in_html(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _figures(table: str, name: str = "Figures") -> str:
    return f"<details><summary>{name}</summary>{table}</details>"


def _key(names: Iterable[tuple[str, str]]) -> str:
    return (
        '<ul class="key">' + "".join(f'<li><span class="{look}"></span>{name}</li>' for name, look in names) + "</ul>"
    )


def _card(content: str, *, wide: bool = False) -> str:
    return f'<div class="card{" wide" if wide else ""}">{content}</div>'


def _cards(cards: Sequence[str]) -> str:
    return f'<div class="grid-of-cards">{"".join(cards)}</div>'
