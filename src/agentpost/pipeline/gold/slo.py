"""`slo`: the two objectives of OBS-3 over four windows, and how fast their budgets burn."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import math
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agentpost.pipeline.gold.fleet import FleetInputs, Row

__all__ = ["SLO", "WINDOWS", "build"]

_MINUTES: Final = pa.schema([("minute", pa.int32()), ("in_time", pa.int64()), ("eligible", pa.int64())])
_ALERTS: Final = pa.schema([("minute", pa.int32()), ("is_alert", pa.bool_())])
WINDOWS: Final = {"1h": 1, "6h": 6, "24h": 24, "3d": 72}  # hours, back from now
SLO: Final = pa.schema(
    [
        ("objective", pa.string()),
        ("window", pa.string()),
        ("hours", pa.int32()),
        ("good", pa.int64()),
        ("total", pa.int64()),
        ("share", pa.float64()),
        ("target", pa.float64()),
        ("burn_rate", pa.float64()),
        ("is_met", pa.bool_()),
    ]
)


def build(inputs: FleetInputs) -> pa.Table:
    """One row for each objective and window.

    "delivery": `good` of `total` deliveries between online nodes were accepted within the objective. `burn_rate` 1
    means that exactly the share that may be late is late. "backlog": `total` minutes in which a backlog changed, `good`
    of them without an alert; a single alert burns.
    """
    now_minute = inputs.params.now_us / 60_000_000
    within = pc.field("minute") >= pc.scalar(math.ceil(now_minute - 60 * max(WINDOWS.values())))
    deliveries = inputs.hour_rows("delivery_minutes", _MINUTES, within)
    waiting = inputs.hour_rows("backlog", _ALERTS, within)
    is_quiet = pc.invert(waiting["is_alert"]).cast(pa.int64())
    quiet = pa.table([waiting["minute"], is_quiet, pa.repeat(1, waiting.num_rows)], names=_MINUTES.names)
    objectives = (("delivery", deliveries, inputs.params.delivery_objective_share), ("backlog", quiet, 1.0))
    rows = [
        _measured(measured, objective, window, target, now_minute)
        for objective, measured, target in objectives
        for window in WINDOWS
    ]
    return pa.Table.from_pylist(rows, SLO)


def _measured(measured: pa.Table, objective: str, window: str, target: float, now_minute: float) -> Row:
    minute = pc.field("minute")
    first, last = math.ceil(now_minute - 60 * WINDOWS[window]), math.floor(now_minute)
    within = measured.filter((minute >= pc.scalar(first)) & (minute <= pc.scalar(last)))
    good, total = (pc.sum(within[name]).as_py() or 0 for name in ("in_time", "eligible"))
    share = good / total if total else None
    return {
        "objective": objective,
        "window": window,
        "hours": WINDOWS[window],
        "good": good,
        "total": total,
        "share": share,
        "target": target,
        "burn_rate": None if share is None else _burn_rate(share, target),
        "is_met": share is None or share >= target,
    }


def _burn_rate(share: float, target: float) -> float:
    bad = 1 - share
    if target < 1:
        return bad / (1 - target)
    return float("inf") if bad > 0 else 0.0
