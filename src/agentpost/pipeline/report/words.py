"""Figures as people read them: lengths of time, counts, shares, hours."""

import html
import math
from datetime import UTC, datetime
from typing import Final

from agentpost.protocol.visible import visible

__all__ = [
    "NOTHING",
    "OBJECTIVE_WORDS",
    "bar",
    "burn_text",
    "clock_text",
    "count_text",
    "hour_text",
    "in_html",
    "share_text",
    "span_text",
    "spark",
    "title_of",
]

# An en dash, for what there is no figure of.
NOTHING: Final = "\u2013"
# What became of an objective, by its verdict.
OBJECTIVE_WORDS: Final[dict[str, str]] = {"good": "kept", "bad": "missed", "plain": "no data"}

_BLOCKS = " ▁▂▃▄▅▆▇█"
_RULES = {
    "gap": "Missing events",
    "fork": "Two histories",
    "regression": "Seq went back",
    "duplicate": "Duplicates",
    "orphan_ack": "ACK of nothing",
    "wrong_acker": "ACK by a wrong node",
    "accept_before_emit": "Accepted before emitted",
    "unaccepted_outcome": "Outcome never accepted",
    "double_injection": "Injected twice",
    "black_hole": "Black holes",
    "chain_break": "Broken hash chain",
    "foreign_source": "Foreign source",
    "bad_signature": "Bad signature",
    "bad_segment": "Bad segment",
    "clock_off": "Clock off",
    "sla_breach": "SLA missed",
    "expired": "Expired",
    "dead_letter": "Dead letters",
    "eta_missed": "ETA missed",
    "task_failed": "Task failed",
}


def span_text(us: float | None) -> str:
    """A length of time in the unit that fits: 80 ms, 1.2 s, 4 min, 3 h, 2 d."""
    if us is None:
        return NOTHING
    seconds = us / 1_000_000
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length, most in (("s", 1, 120), ("min", 60, 5400), ("h", 3600, 172_800)):
        if abs(seconds) < most:
            value = seconds / length
            return f"{value:.1f} {unit}".replace(".0 ", " ") if value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def count_text(value: float) -> str:
    """12, 3,400, 1.2 M."""
    return f"{value / 1_000_000:.1f} M" if value >= 1_000_000 else f"{value:,.0f}"


def share_text(share: float | None) -> str:
    """A share with as many digits as say something: 99.97 %, 3.1 %, 40 %."""
    if share is None:
        return NOTHING
    percent = share * 100
    digits = 0 if percent in (0, 100) else 2 if percent > 99 or percent < 1 else 1
    return f"{percent:.{digits}f} %"


def burn_text(rate: float | None) -> str:
    """A burn rate; without any budget a single miss burns all of it."""
    if rate is None:
        return NOTHING
    return "over" if math.isinf(rate) else f"{rate:.2f}"


def hour_text(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%d %b %H:00")


def clock_text(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def title_of(rule: str) -> str:
    return _RULES.get(rule, rule.replace("_", " ").capitalize())


def spark(values: list[float]) -> str:
    """A row of blocks, as high as the values."""
    top = max(values, default=0)
    return "".join(_BLOCKS[0 if not top else round(value / top * 8)] for value in values)


def bar(share: float, width: int = 24) -> str:
    return "█" * round(max(0.0, min(1.0, share)) * width)


def in_html(text: str) -> str:
    """A text that others wrote, for a page: no tags, and no marks that turn the writing direction."""
    return html.escape(visible(text))
