"""The gold tables to a report. Reads them with Arrow alone: a report starts no Spark.

Percentiles are exact: they are taken over the deliveries themselves, since those of hours cannot be joined.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from agentpost.pipeline.report.model import (
    Backlog,
    Capability,
    Finding,
    Freshness,
    HourLatency,
    HourRates,
    HourThroughput,
    Latency,
    NodeSpeed,
    Objective,
    PairLatency,
    Report,
    Review,
    RuleCount,
    Tasks,
    Tile,
)
from agentpost.pipeline.report.words import count_text, share_text, span_text

__all__ = ["Reader", "gather"]

# A table of the version that is reported on, with these columns; None if the version has no such table.
Reader: TypeAlias = Callable[[str, Sequence[str]], pa.Table | None]

_SLOWEST: Final = 12
_FEW: Final = 20  # pairs and nodes with fewer deliveries say little about how fast they are
_MOST_FINDINGS: Final = 1000
_ETA_GRACE_US: Final = 120_000_000
_OBJECTIVES: Final = {
    "delivery": ("Delivery between online gateways", "95 % accepted within 5 s"),
    "backlog": ("No backlog grows unnoticed", "none grows for over 10 min"),
}


def gather(read: Reader, *, lake: str, version: int, now_us: int, newest_us: int, events: int) -> Report:
    """Everything that the report says, from one version of the tables."""
    tables = _Tables(read)
    speed = _speed(tables)
    open_rows = tables.rows("open_deliveries", "to_node", "emitted_us", "accepted_us")
    backlogs = _backlogs(tables, open_rows)
    rates = _rates(tables)
    rules, findings = _integrity(tables)
    return Report(
        lake=lake,
        version=version,
        now_us=now_us,
        newest_us=newest_us,
        events=events,
        objectives=_objectives(tables),
        throughput=_throughput(tables),
        rates=rates,
        backlogs=backlogs,
        tasks=_tasks(tables, now_us),
        rules=rules,
        findings=findings,
        reviews=_reviews(tables),
        freshness=_freshness(tables),
        tiles=_tiles(speed, backlogs, rates, rules, events=events, age_us=max(0, now_us - newest_us)),
        latency=speed.kinds,
        latency_by_hour=speed.hours,
        slow_pairs=speed.pairs,
        slow_nodes=speed.nodes,
        missing=tuple(tables.missing),
    )


class _Tables:
    def __init__(self, read: Reader) -> None:
        self._read = read
        self.missing: list[str] = []

    def table(self, name: str, *columns: str) -> pa.Table | None:
        found = self._read(name, columns)
        if found is None:
            self.missing.append(name)
        return found

    def rows(self, name: str, *columns: str) -> list[dict[str, Any]]:
        found = self.table(name, *columns)
        return [] if found is None or not found.num_columns else found.to_pylist()


class _Speed:
    """How long deliveries took, cut in every way that the report shows."""

    def __init__(self) -> None:
        self.deliveries = 0
        self.accepted = 0
        self.overall: Latency | None = None
        self.kinds: dict[str, Latency] = {}
        self.hours: tuple[HourLatency, ...] = ()
        self.pairs: tuple[PairLatency, ...] = ()
        self.nodes: tuple[NodeSpeed, ...] = ()


def _speed(tables: _Tables) -> _Speed:
    found = _Speed()
    table = tables.table("lifecycle", "hour", "kind", "source_node", "to_node", "emitted_us", "accepted_us")
    if table is None or not table.num_rows:
        return found
    found.deliveries = table.num_rows
    table = table.drop_null()
    found.accepted = table.num_rows
    took: Any = table["accepted_us"].to_numpy() - table["emitted_us"].to_numpy()
    kinds, sources, targets = (_coded(table[name]) for name in ("kind", "source_node", "to_node"))
    hours = _coded(table["hour"])
    found.overall = next((each for _, each in _cut(took)), None)
    found.kinds = {kinds.names[key[0]]: each for key, each in _cut(took, kinds)}
    found.hours = tuple(
        HourLatency(kind=kinds.names[kind], hour=int(hours.names[hour]), **_fields(each))
        for (kind, hour), each in _cut(took, kinds, hours)
    )
    pairs = [
        PairLatency(source=sources.names[source], to=targets.names[target], **_fields(each))
        for (source, target), each in _cut(took, sources, targets)
    ]
    nodes = [NodeSpeed(node=targets.names[key[0]], **_fields(each)) for key, each in _cut(took, targets)]
    found.pairs, found.nodes = tuple(_slowest(pairs)), tuple(_slowest(nodes))
    return found


class _Coded:
    def __init__(self, codes: Any, names: list[Any]) -> None:
        self.codes = codes
        self.names = names


def _coded(column: Any) -> _Coded:
    encoded = column.combine_chunks().dictionary_encode()
    return _Coded(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())


def _cut(took: Any, *by: _Coded) -> list[tuple[tuple[int, ...], Latency]]:
    """The exact percentiles of each group, with interpolation between neighbours."""
    if not len(took):
        return []
    group = np.zeros(len(took), dtype=np.int64)
    for each in by:
        group = group * len(each.names) + each.codes
    order = np.lexsort((took, group))
    took, group = took[order], group[order]
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    ends = np.concatenate([starts[1:], [len(group)]])
    values = [_at(took, starts, ends, share) for share in (0.5, 0.95, 0.99)]
    found: list[tuple[tuple[int, ...], Latency]] = []
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        key, rest = list[int](), int(group[start])
        for each in reversed(by):
            rest, code = divmod(rest, len(each.names))
            key.insert(0, code)
        p50, p95, p99 = (round(float(value[place])) for value in values)
        found.append((tuple(key), Latency(count=end - start, p50_us=p50, p95_us=p95, p99_us=p99)))
    return found


def _at(took: Any, starts: Any, ends: Any, share: float) -> Any:
    place = starts + (ends - starts - 1) * share
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, ends - 1)
    return took[low] + (took[high] - took[low]) * (place - low)


def _fields(latency: Latency) -> dict[str, int]:
    return {
        "count": latency.count,
        "p50_us": latency.p50_us,
        "p95_us": latency.p95_us,
        "p99_us": latency.p99_us,
    }


def _slowest(found: Iterable[Any]) -> list[Any]:
    return sorted((each for each in found if each.count >= _FEW), key=lambda each: -each.p95_us)[:_SLOWEST]


def _objectives(tables: _Tables) -> tuple[Objective, ...]:
    rows = tables.rows("slo", "objective", "window", "hours", "good", "total", "share", "burn_rate", "is_met")
    found: list[Objective] = []
    for name in dict.fromkeys(row["objective"] for row in rows):
        windows = sorted((row for row in rows if row["objective"] == name), key=lambda row: row["hours"])
        longest = windows[-1]
        title, target = _OBJECTIVES.get(name, (name, ""))
        found.append(
            Objective(
                name=title,
                target=target,
                measured=f"{count_text(longest['good'])} of {count_text(longest['total'])} in {longest['window']}",
                good_share=longest["share"],
                is_kept=all(row["is_met"] for row in windows),
                burn_rates={row["window"]: row["burn_rate"] for row in windows},
            )
        )
    return tuple(found)


def _throughput(tables: _Tables) -> tuple[HourThroughput, ...]:
    table = tables.table("throughput", "hour", "node", "events")
    if table is None or not table.num_rows:
        return ()
    grouped: Any = table.group_by(["hour", "node"]).aggregate([("events", "sum")])
    rows = sorted(grouped.to_pylist(), key=lambda row: (row["hour"], row["node"]))
    return tuple(HourThroughput(hour=row["hour"], node=row["node"], events=row["events_sum"]) for row in rows)


def _rates(tables: _Tables) -> tuple[HourRates, ...]:
    by_hour: dict[int, list[int]] = {}
    for row in tables.rows("rates", "hour", "sends", "resends", "duplicates", "dead_letters"):
        sums = by_hour.setdefault(row["hour"], [0, 0, 0, 0])
        for place, name in enumerate(("sends", "resends", "duplicates", "dead_letters")):
            sums[place] += row[name] or 0
    return tuple(
        HourRates(hour=hour, sends=sums[0], retries=sums[1], duplicates=sums[2], dead_letters=sums[3])
        for hour, sums in sorted(by_hour.items())
    )


def _backlogs(tables: _Tables, open_rows: Sequence[dict[str, Any]]) -> tuple[Backlog, ...]:
    """What waits now, and what the last minutes of each gateway say about it."""
    waiting: dict[str, list[int]] = {}
    for row in open_rows:
        if row["emitted_us"] is not None and row["accepted_us"] is None:
            waiting.setdefault(row["to_node"] or "", []).append(row["emitted_us"])
    last: dict[str, dict[str, Any]] = {}
    for row in tables.rows("backlog", "node", "minute", "waiting", "growing_since", "is_alert"):
        if row["node"] not in last or row["minute"] > last[row["node"]]["minute"]:
            last[row["node"]] = row
    found: list[Backlog] = []
    for node in sorted({*waiting, *(name for name, row in last.items() if row["is_alert"])}):
        row, times = last.get(node, {}), waiting.get(node, [])
        since = row.get("growing_since")
        growing_us = 0 if since is None else (row["minute"] - since) * 60_000_000
        found.append(
            Backlog(
                node=node,
                open_deliveries=len(times),
                oldest_us=min(times, default=None),
                growing_us=growing_us,
                is_alert=bool(row.get("is_alert")),
            )
        )
    return tuple(sorted(found, key=lambda each: (not each.is_alert, -each.open_deliveries, each.node)))


def _tasks(tables: _Tables, now_us: int) -> Tasks:
    table = tables.table("tasks", "capability_id", "eta_us", "ended_us", "outcome")
    if table is None or not table.num_rows:
        return Tasks()
    rows = table.to_pylist()
    late: list[int] = []
    by_capability: dict[str, list[int]] = {}
    promised = kept = 0
    for row in rows:
        ended_us, eta_us = row["ended_us"], row["eta_us"]
        lateness = 0 if eta_us is None else (ended_us or now_us) - eta_us
        is_late = lateness > _ETA_GRACE_US
        if eta_us is not None and (row["outcome"] in ("completed", "failed") or is_late):
            promised += 1
            kept += not is_late
        if is_late:
            late.append(lateness)
        if row["capability_id"]:
            sums = by_capability.setdefault(row["capability_id"], [0, 0, 0])
            sums[0] += 1
            sums[1] += row["outcome"] == "failed"
            sums[2] += is_late
    outcomes = [row["outcome"] for row in rows]
    return Tasks(
        created=len(rows),
        completed=outcomes.count("completed"),
        failed=outcomes.count("failed"),
        canceled=outcomes.count("canceled"),
        open=outcomes.count(None),
        promised=promised,
        kept=kept,
        lateness=next((each for _, each in _cut(np.array(late, dtype=np.int64))), None),
        capabilities=tuple(
            Capability(name=name, tasks=sums[0], failed=sums[1], late=sums[2])
            for name, sums in sorted(by_capability.items())
        ),
    )


def _integrity(tables: _Tables) -> tuple[tuple[RuleCount, ...], tuple[Finding, ...]]:
    columns = ("rule", "node", "epoch", "seq", "event_id", "agent_id", "text")
    rows = tables.rows("integrity", *columns)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["rule"]] = counts.get(row["rule"], 0) + 1
    rows.sort(key=lambda row: (row["rule"], row["node"] or "", row["epoch"] or "", row["seq"] or 0))
    findings = tuple(
        Finding(seq=row["seq"], **{name: row[name] or "" for name in columns if name != "seq"})
        for row in rows[:_MOST_FINDINGS]
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(RuleCount(rule=rule, count=count) for rule, count in ordered), findings


def _reviews(tables: _Tables) -> tuple[Review, ...]:
    columns = ("review_key", "trigger", "capability_id", "failure_class", "count", "sample_corr_ids")
    return tuple(
        Review(
            review_id=row["review_key"],
            capability_id=row["capability_id"],
            failure_class=", ".join(dict.fromkeys(word for word in (row["trigger"], row["failure_class"]) if word)),
            count=row["count"],
            sample_corr_ids=tuple(row["sample_corr_ids"] or ()),
        )
        for row in sorted(tables.rows("reviews", *columns), key=lambda row: (-row["count"], row["review_key"]))
    )


def _freshness(tables: _Tables) -> tuple[Freshness, ...]:
    newest: dict[str, dict[str, Any]] = {}
    for row in tables.rows("segments", "node", "last_seq", "sealed_at_us"):
        if row["node"] not in newest or row["sealed_at_us"] > newest[row["node"]]["sealed_at_us"]:
            newest[row["node"]] = row
    found = [Freshness(node=n, sealed_us=r["sealed_at_us"], last_seq=r["last_seq"]) for n, r in newest.items()]
    return tuple(sorted(found, key=lambda each: (each.sealed_us, each.node)))


def _tiles(
    speed: _Speed,
    backlogs: Sequence[Backlog],
    rates: Sequence[HourRates],
    rules: Sequence[RuleCount],
    *,
    events: int,
    age_us: int,
) -> tuple[Tile, ...]:
    accepted = speed.accepted / speed.deliveries if speed.deliveries else None
    alerts = [each.node for each in backlogs if each.is_alert]
    waiting = sum(each.open_deliveries for each in backlogs)
    dead = sum(each.dead_letters for each in rates)
    broken = sum(each.count for each in rules)
    p95_us = None if speed.overall is None else speed.overall.p95_us
    return (
        Tile(label="Events", value=count_text(events), note="in the lake"),
        Tile(
            label="Accepted",
            value=share_text(accepted),
            note=f"of {count_text(speed.deliveries)} deliveries",
            verdict="plain" if accepted is None else "good" if accepted > 0.999 else "warning",
        ),
        Tile(
            label="Delivery p95",
            value=span_text(p95_us),
            note="objective: under 5 s",
            verdict="plain" if p95_us is None else "good" if p95_us < 5_000_000 else "bad",
        ),
        Tile(label="Waiting", value=count_text(waiting), note="sent, and not accepted yet"),
        Tile(
            label="Backlog alerts",
            value=str(len(alerts)),
            note=", ".join(alerts[:3]) or "no backlog grows",
            verdict="bad" if alerts else "good",
        ),
        Tile(
            label="Dead letters", value=count_text(dead), note="over all history", verdict="warning" if dead else "good"
        ),
        Tile(
            label="Broken rules",
            value=count_text(broken),
            note=f"findings of {len(rules)} rules" if broken else "nothing is broken",
            verdict="bad" if broken else "good",
        ),
        Tile(label="Fresh", value=span_text(age_us), note="age of the newest event"),
    )
