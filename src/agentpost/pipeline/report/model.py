"""The report as values. Knows neither tables nor how it is shown. Times are microseconds, as in the tables."""

from typing import Literal

from msgspec import Struct

__all__ = [
    "Backlog",
    "Capability",
    "Finding",
    "Freshness",
    "HourLatency",
    "HourRates",
    "HourThroughput",
    "Latency",
    "NodeSpeed",
    "Objective",
    "PairLatency",
    "Report",
    "Review",
    "RuleCount",
    "Tasks",
    "Tile",
    "Verdict",
]

Verdict = Literal["good", "warning", "bad", "plain"]


class _Value(Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of everything here."""


class Tile(_Value, frozen=True, kw_only=True):
    """One figure of the overview."""

    label: str
    value: str
    note: str = ""
    verdict: Verdict = "plain"


class Objective(_Value, frozen=True, kw_only=True):
    """An objective, how much of it was kept, and how fast its error budget is used up (1 is just fast enough)."""

    name: str
    target: str
    measured: str
    good_share: float | None
    is_kept: bool
    burn_rates: dict[str, float | None] = {}

    @property
    def verdict(self) -> Verdict:
        # Of a time in which nothing happened nobody can say that it was good.
        if self.good_share is None and self.is_kept:
            return "plain"
        return "good" if self.is_kept else "bad"


class Latency(_Value, frozen=True, kw_only=True):
    count: int
    p50_us: int
    p95_us: int
    p99_us: int


class HourLatency(Latency, frozen=True, kw_only=True):
    kind: str
    hour: int


class PairLatency(Latency, frozen=True, kw_only=True):
    source: str
    to: str


class NodeSpeed(Latency, frozen=True, kw_only=True):
    """How fast a node accepts what others send to it."""

    node: str


class HourThroughput(_Value, frozen=True, kw_only=True):
    hour: int
    node: str
    events: int


class HourRates(_Value, frozen=True, kw_only=True):
    hour: int
    sends: int
    retries: int
    duplicates: int
    dead_letters: int


class Backlog(_Value, frozen=True, kw_only=True):
    """What a node has not acknowledged yet, and for how long that has been growing."""

    node: str
    open_deliveries: int
    oldest_us: int | None = None
    growing_us: int = 0
    is_alert: bool = False


class Capability(_Value, frozen=True, kw_only=True):
    name: str
    tasks: int
    failed: int
    late: int


class Tasks(_Value, frozen=True, kw_only=True):
    created: int = 0
    completed: int = 0
    failed: int = 0
    canceled: int = 0
    open: int = 0
    promised: int = 0
    kept: int = 0
    lateness: Latency | None = None  # of those that were late
    capabilities: tuple[Capability, ...] = ()


class RuleCount(_Value, frozen=True, kw_only=True):
    rule: str
    count: int


class Finding(_Value, frozen=True, kw_only=True):
    rule: str
    node: str
    epoch: str
    seq: int | None
    event_id: str
    agent_id: str
    text: str = ""


class Review(_Value, frozen=True, kw_only=True):
    review_id: str
    capability_id: str
    failure_class: str
    count: int
    sample_corr_ids: tuple[str, ...]


class Freshness(_Value, frozen=True, kw_only=True):
    """When a node's newest event in the lake was sealed."""

    node: str
    sealed_us: int
    last_seq: int


class Report(_Value, frozen=True, kw_only=True):
    lake: str
    version: int
    now_us: int
    newest_us: int
    events: int
    tiles: tuple[Tile, ...] = ()
    objectives: tuple[Objective, ...] = ()
    latency: dict[str, Latency] = {}  # by kind
    latency_by_hour: tuple[HourLatency, ...] = ()
    slow_pairs: tuple[PairLatency, ...] = ()
    slow_nodes: tuple[NodeSpeed, ...] = ()
    throughput: tuple[HourThroughput, ...] = ()
    rates: tuple[HourRates, ...] = ()
    backlogs: tuple[Backlog, ...] = ()
    tasks: Tasks = Tasks()
    rules: tuple[RuleCount, ...] = ()
    findings: tuple[Finding, ...] = ()
    reviews: tuple[Review, ...] = ()
    freshness: tuple[Freshness, ...] = ()
    missing: tuple[str, ...] = ()  # tables that this version does not have
