"""`backlog`: what waited at every gateway, and when it grew for too long (OBS-3)."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.gold.fleet import FleetInputs, FromHour

__all__ = ["BACKLOG", "HEADS", "alerts", "build", "heads"]

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MINUTE_US: Final = 60_000_000
_DAY_HOURS: Final = 24
_NEVER: Final = 2**31 - 1
_CHANGES: Final = pa.schema(
    [("node", pa.string()), ("minute", pa.int32()), ("begun", pa.int64()), ("ended", pa.int64())]
)
_HOUR: Final = pa.field("hour", pa.int32())
_STATE: Final = (pa.field("waiting", pa.int64()), pa.field("growing_since", pa.int32()))
BACKLOG: Final = pa.schema([_HOUR, *_CHANGES, *_STATE, pa.field("is_alert", pa.bool_())])
HEADS: Final = pa.schema([_HOUR, _CHANGES.field("node"), *_STATE])


def build(inputs: FleetInputs) -> FromHour:
    """One row for each gateway and minute in which its backlog changed; `is_alert` once it grew for too long.

    A growth begins with the first minute in which more began than ended to wait, and lasts until one in which more
    ended than began. Minutes in which nothing changed are part of it.
    """
    hour = _first_hour(inputs)
    walk = _walk(inputs, hour)
    limit = inputs.params.backlog_alert_us // _MINUTE_US
    is_alert = walk.is_growing & (walk.change > 0) & (walk.minute - walk.since > limit)
    columns = [
        pa.array((walk.minute // 60).astype(np.int32)),
        *(walk.rows[name] for name in _CHANGES.names),
        pa.array(walk.waiting),
        pa.array(walk.since.astype(np.int32), mask=~walk.is_growing),
        pa.array(is_alert),
    ]
    return FromHour(hour, pa.table(columns, schema=BACKLOG).filter(pa.array(walk.is_told)))


def heads(inputs: FleetInputs) -> FromHour:
    """The state of every gateway as each day begins, so that a day can be made anew without those before it."""
    hour = _first_hour(inputs)
    walk = _walk(inputs, hour)
    days = np.unique(walk.minute[walk.is_told] // (60 * _DAY_HOURS)) * _DAY_HOURS
    # Each gateway at each beginning: its last row before.
    order = walk.gateway * 2**32 + np.where(walk.is_told, walk.minute, -1)
    gateways = np.unique(walk.gateway)
    last = np.searchsorted(order, (gateways[:, None] * 2**32 + days * 60).ravel()) - 1
    is_its_own = (last >= 0) & (walk.gateway[last] == np.repeat(gateways, len(days)))
    at, place = np.tile(days, len(gateways))[is_its_own], last[is_its_own]
    columns = [
        pa.array(at.astype(np.int32)),
        walk.rows["node"].take(cast("Any", place)),
        pa.array(walk.waiting[place]),
        pa.array(walk.since[place].astype(np.int32), mask=~walk.is_growing[place]),
    ]
    return FromHour(hour, pa.table(columns, schema=HEADS))


class _Walk(NamedTuple):
    """Rows of gateways in the order of time, and the state after each. Those that are not told are where they begin."""

    rows: pa.Table
    gateway: Longs
    minute: Longs
    change: Longs
    is_told: Flags
    waiting: Longs
    since: Longs
    is_growing: Flags


def _first_hour(inputs: FleetInputs) -> int:
    """From which hour on the backlog is not as it was: the last beginning of a day that is known, before any change."""
    changed = inputs.changed("delivery_minutes", _CHANGES)
    if changed is None:
        return 0
    before, after = changed
    undone = [pc.negate(before[name]) for name in ("begun", "ended")]
    both = pa.concat_tables([after, pa.table([before["node"], before["minute"], *undone], schema=_CHANGES)])
    sums = _summed(both)
    differs = pc.or_(pc.not_equal(sums["begun"], pa.scalar(0)), pc.not_equal(sums["ended"], pa.scalar(0)))
    first = pc.min(sums["minute"].filter(differs)).as_py()
    if first is None:
        return _NEVER
    return max((hour for hour in inputs.hours("backlog_heads") if hour * 60 <= first), default=0)


def _walk(inputs: FleetInputs, hour: int) -> _Walk:
    told = inputs.hour_rows("delivery_minutes", _CHANGES, pc.field("minute") >= pc.scalar(60 * hour))
    begins = (
        inputs.hour_rows("backlog_heads", HEADS, pc.field("hour") == pc.scalar(hour)) if hour else HEADS.empty_table()
    )
    # Where a gateway begins stands before all of its rows: with what waited, and growing or not.
    first = pa.table(
        [
            begins["node"],
            pa.repeat(-1, begins.num_rows).cast(pa.int32()),
            begins["waiting"],
            pa.repeat(0, begins.num_rows),
        ],
        schema=_CHANGES,
    )
    rows = pa.concat_tables([first, _summed(told)]).sort_by([("node", "ascending"), ("minute", "ascending")])
    minute, begun, ended = (_longs(rows[name]) for name in ("minute", "begun", "ended"))
    is_told = minute >= 0
    gateway = _longs(pc.rank(rows["node"], tiebreaker="dense"))
    is_first = np.r_[True, gateway[1:] != gateway[:-1]] if len(gateway) else np.zeros(0, bool)
    change = begun - ended
    waiting = _running_sum(change, is_first)
    grew = begins.sort_by("node")["growing_since"]
    minute, change = minute.copy(), change.copy()
    minute[~is_told] = [since or 0 for since in grew.to_pylist()]
    change[~is_told] = np.where(np.asarray(grew.is_valid()), 1, -1)
    since, is_growing = _growths(minute, change, is_first)
    return _Walk(rows, gateway, minute, change, is_told, waiting, since, is_growing)


def _summed(changes: pa.Table) -> pa.Table:
    sums = changes.group_by(["node", "minute"]).aggregate([("begun", "sum"), ("ended", "sum")])
    return sums.rename_columns(_CHANGES.names).cast(_CHANGES)


def _growths(minute: Longs, change: Longs, is_first: Flags) -> tuple[Longs, Flags]:
    """Since which minute the backlog has been growing, and where it is."""
    # What is between two minutes in which it fell belongs together.
    stretch = np.cumsum(is_first | (change < 0)) - 1
    grew = np.flatnonzero(change > 0)
    begins = np.full(len(change), len(change))
    np.minimum.at(begins, stretch[grew], grew)
    begin = begins[stretch]
    is_growing = (change >= 0) & (begin <= np.arange(len(change)))
    return minute[np.minimum(begin, len(change) - 1)], is_growing


def _running_sum(change: Longs, is_first: Flags) -> Longs:
    """The sum so far, from each first row on."""
    total = np.cumsum(change)
    before = (total - change)[is_first]
    return total - before[np.cumsum(is_first) - 1]


def _longs(column: pa.ChunkedArray | pa.Array) -> Longs:
    return np.asarray(column).astype(np.int64, copy=False)


def alerts(backlog: DataFrame) -> DataFrame:
    """One row for each growth that lasted too long: `node`, `since_us`, `until_us`, `waiting`."""
    found = backlog.where("is_alert").groupBy("node", "growing_since")
    return found.agg(sf.max("minute").alias("until"), sf.max("waiting").alias("waiting")).select(
        "node",
        (sf.col("growing_since").cast("bigint") * _MINUTE_US).alias("since_us"),
        (sf.col("until").cast("bigint") * _MINUTE_US).alias("until_us"),
        "waiting",
    )
