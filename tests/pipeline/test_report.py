"""The report: what it says of the tables, and how it shows it."""

import io
import re
from collections.abc import Sequence
from html.parser import HTMLParser

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from agentpost.pipeline.report.gather import gather
from agentpost.pipeline.report.model import Report
from agentpost.pipeline.report.page import page
from agentpost.pipeline.report.terminal import print_report
from agentpost.pipeline.report.words import NOTHING, count_text, share_text, span_text
from tests.pipeline.sample_report import sample_report

NOW_US = 492_300 * 3_600_000_000
SECTIONS = (
    *("overview", "objectives", "latency", "throughput", "retries"),
    *("backlog", "tasks", "integrity", "reviews", "freshness"),
)


def deliveries(count: int = 4000) -> pa.Table:
    rng = np.random.default_rng(7)
    emitted = NOW_US - rng.integers(0, 20 * 3_600_000_000, count)
    took = rng.integers(10_000, 9_000_000, count)
    return pa.table(
        {
            "hour": (emitted // 3_600_000_000).astype(np.int32),
            "kind": rng.choice(["message", "reply"], count),
            "source_node": rng.choice(["node-a", "node-b"], count),
            "to_node": rng.choice(["node-c", "node-d"], count),
            "emitted_us": emitted,
            "accepted_us": pa.array(emitted + took, mask=rng.random(count) < 0.1),
        }
    )


TABLES = {
    "lifecycle": deliveries(),
    "slo": pa.table(
        {
            "objective": ["delivery", "delivery", "backlog"],
            "window": ["1h", "6h", "1h"],
            "hours": [1, 6, 1],
            "good": [99, 900, 10],
            "total": [100, 1000, 10],
            "share": [0.99, 0.9, 1.0],
            "burn_rate": [0.2, 2.0, 0.0],
            "is_met": [True, False, True],
        }
    ),
    "open_deliveries": pa.table(
        {
            "to_node": ["node-c", "node-c", "node-d"],
            "emitted_us": [NOW_US - 900_000_000, NOW_US - 5_000_000, NOW_US - 1],
            "accepted_us": pa.array([None, None, NOW_US], pa.int64()),
        }
    ),
    "backlog": pa.table(
        {
            "node": ["node-c", "node-c"],
            "minute": [100, 90],
            "waiting": [2, 1],
            "growing_since": [85, 85],
            "is_alert": [True, False],
        }
    ),
    "tasks": pa.table(
        {
            "capability_id": ["docs.review", "docs.review", None, None, None],
            "eta_us": pa.array([NOW_US, NOW_US - 1, NOW_US - 900_000_000, None, NOW_US], pa.int64()),
            "ended_us": pa.array([NOW_US - 5, NOW_US + 10**9, None, None, NOW_US - 5], pa.int64()),
            "outcome": ["completed", "failed", None, None, "canceled"],
        }
    ),
    "rates": pa.table(
        {
            "hour": [1, 1, 2],
            "sends": [10, 5, 7],
            "resends": [1, 0, 2],
            "duplicates": [0, 1, 0],
            "dead_letters": [0, 0, 3],
        }
    ),
    "throughput": pa.table({"hour": [1, 1, 2], "node": ["a", "a", "b"], "events": [3, 4, 5]}),
    "integrity": pa.table(
        {
            "rule": ["gap", "black_hole", "gap"],
            "node": ["a", "b", "b"],
            "epoch": ["e", "e", "e"],
            "seq": [5, 6, 7],
            "event_id": [None, "evt_x", None],
            "agent_id": [None, "bob", None],
            "text": ["", "nothing was ever said of it", ""],
        }
    ),
}


def read(name: str, columns: Sequence[str]) -> pa.Table | None:
    return TABLES[name].select(list(columns)) if name in TABLES else None


def gathered() -> Report:
    return gather(read, lake="/lake", version=3, now_us=NOW_US, newest_us=NOW_US - 1_000_000, events=12_345)


def test_percentiles_are_exact() -> None:
    """Latency percentiles equal those of numpy over the same deliveries, by kind, by hour and by pair."""
    report = gathered()
    table = TABLES["lifecycle"].drop_null().to_pandas()
    table["took"] = table["accepted_us"] - table["emitted_us"]
    for kind, rows in table.groupby("kind"):
        found = report.latency[kind]
        assert found.count == len(rows)
        assert [found.p50_us, found.p95_us, found.p99_us] == pytest.approx(
            np.percentile(rows["took"], (50, 95, 99)), abs=1
        )
    for each in report.latency_by_hour:
        rows = table[(table["kind"] == each.kind) & (table["hour"] == each.hour)]
        assert each.p95_us == pytest.approx(np.percentile(rows["took"], 95), abs=1)
    for each in report.slow_pairs:
        rows = table[(table["source_node"] == each.source) & (table["to_node"] == each.to)]
        assert each.p99_us == pytest.approx(np.percentile(rows["took"], 99), abs=1)


def test_what_the_tables_say_is_in_the_report() -> None:
    """Objectives, backlog, tasks, rates and findings stand in the report as the tables have them."""
    report = gathered()
    delivery, backlog = report.objectives
    assert (delivery.is_kept, delivery.burn_rates, backlog.is_kept) == (False, {"1h": 0.2, "6h": 2.0}, True)
    (waiting,) = report.backlogs
    assert (waiting.node, waiting.open_deliveries, waiting.is_alert) == ("node-c", 2, True)
    assert waiting.growing_us == 15 * 60_000_000
    tasks = report.tasks
    assert (tasks.created, tasks.completed, tasks.failed, tasks.canceled, tasks.open) == (5, 1, 1, 1, 2)
    assert (tasks.promised, tasks.kept) == (3, 1)
    assert [(each.hour, each.sends, each.retries, each.dead_letters) for each in report.rates] == [
        (1, 15, 1, 0),
        (2, 7, 2, 3),
    ]
    assert [(each.hour, each.node, each.events) for each in report.throughput] == [(1, "a", 7), (2, "b", 5)]
    assert [(each.rule, each.count) for each in report.rules] == [("gap", 2), ("black_hole", 1)]
    assert report.findings[0].event_id == "evt_x"
    assert set(report.missing) == {"reviews", "segments"}


def test_a_report_of_nothing_is_a_report() -> None:
    """With no table at all every section is there and says that it has nothing."""
    empty = gather(lambda name, columns: None, lake="/lake", version=1, now_us=NOW_US, newest_us=0, events=0)
    text = page(empty)
    assert all(f'id="{section}"' in text for section in SECTIONS)
    print_report(empty, Console(file=io.StringIO()))


class Page(HTMLParser):
    """Checks that every tag is closed, and takes down what refers to somewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        self.ids += [values["id"]] if values.get("id") else []
        self.targets += [values[name] or "" for name in ("href", "src", "xlink:href") if name in values]
        if tag not in ("meta", "line", "rect", "path", "circle", "br") or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself() -> None:
    """The HTML file has no script and refers to nothing outside: every link leads to a place in it."""
    text = page(sample_report())
    found = Page(text)
    assert found.open == []
    assert not [tag for tag, _ in found.tags if tag in ("script", "link", "img", "iframe")]
    assert all(target.startswith("#") for target in found.targets)
    assert {target[1:] for target in found.targets} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    assert not re.search(r"https?://|url\(|@import", text)


def test_the_page_can_be_read_without_eyes_or_a_mouse() -> None:
    """Every chart has a title and a description, every table a caption, and what scrolls takes the focus."""
    found = Page(page(sample_report()))
    charts = [values for tag, values in found.tags if tag == "svg"]
    assert len(charts) >= 6
    for chart in charts:
        assert chart["role"] == "img"
        assert set((chart["aria-labelledby"] or "").split()) <= set(found.ids)
    tables = [tag for tag, _ in found.tags if tag == "table"]
    assert len(tables) == len([tag for tag, _ in found.tags if tag == "caption"])
    assert all(values.get("tabindex") == "0" for _, values in found.tags if values.get("class") == "scroll")


def test_what_people_named_is_never_markup() -> None:
    """A name with markup in it is shown as it is."""
    report = msgspec.structs.replace(sample_report(), lake="<script>alert(1)</script>")
    assert "<script>" not in page(report)
    assert "&lt;script&gt;" in page(report)
    assert "eta_missed &lt;b&gt;" in page(report)


def test_the_terminal_shows_the_same() -> None:
    """The terminal has the figures of every section, and names in brackets stay names."""
    out = io.StringIO()
    report = msgspec.structs.replace(sample_report(), lake="/lake[bold]")
    print_report(report, Console(file=out, width=120))
    said = out.getvalue()
    for word in ("/lake[bold]", "Overview", "missed", "p95", "Slowest gateways", "25 min", "ETA kept", "Black holes"):
        assert word in said
    assert "▁" in said


def test_an_objective_is_not_kept_by_silence() -> None:
    """Where nothing happened in the window of an objective, the report says that there is no data, and not "kept"."""
    kept, missed = sample_report().objectives
    silent = msgspec.structs.replace(kept, measured="0 of 0 in 3d", good_share=None)
    assert [each.verdict for each in (kept, missed, silent)] == ["good", "bad", "plain"]
    out = io.StringIO()
    report = msgspec.structs.replace(sample_report(), objectives=(silent,))
    print_report(report, Console(file=out, width=120))
    assert "no data" in out.getvalue()
    assert '<span class="word plain">no data</span>' in page(report)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, NOTHING),
        (80_000, "80 ms"),
        (1_240_000, "1.2 s"),
        (5_000_000, "5 s"),
        (240_000_000, "4 min"),
        (10**12, "12 d"),
    ],
)
def test_lengths_of_time_have_the_unit_that_fits(us: int | None, text: str) -> None:
    """A length of time is short to read: 80 ms, 1.2 s, 4 min, 12 d."""
    assert span_text(us) == text


def test_counts_and_shares_are_short() -> None:
    """Counts above a million are rounded, and shares have as many digits as say something."""
    assert (count_text(1234), count_text(5_012_345)) == ("1,234", "5.0 M")
    assert (share_text(0.9997), share_text(0.31), share_text(1.0)) == ("99.97 %", "31.0 %", "100 %")
