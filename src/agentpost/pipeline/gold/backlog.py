"""`backlog`: what waited at every gateway, and when it grew for too long (OBS-3)."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.gold.fleet import FleetInputs

__all__ = ["BACKLOG", "alerts", "build"]

Longs = npt.NDArray[np.int64]

_MINUTE_US: Final = 60_000_000
_CHANGES: Final = pa.schema(
    [("node", pa.string()), ("minute", pa.int32()), ("begun", pa.int64()), ("ended", pa.int64())]
)
BACKLOG: Final = pa.schema(
    [
        *_CHANGES,
        pa.field("waiting", pa.int64()),
        pa.field("growing_since", pa.int32()),
        pa.field("is_alert", pa.bool_()),
    ]
)


def build(inputs: FleetInputs) -> pa.Table:
    """One row for each gateway and minute in which its backlog changed; `is_alert` once it grew for too long.

    A growth begins with the first minute in which more began than ended to wait, and lasts until one in which more
    ended than began. Minutes in which nothing changed are part of it.
    """
    told = inputs.hour_rows("delivery_minutes", _CHANGES)
    changes = told.group_by(["node", "minute"]).aggregate([("begun", "sum"), ("ended", "sum")])
    changes = (
        changes.rename_columns(_CHANGES.names).cast(_CHANGES).sort_by([("node", "ascending"), ("minute", "ascending")])
    )
    if not changes.num_rows:
        return BACKLOG.empty_table()
    minute, begun, ended = (_longs(changes[name]) for name in ("minute", "begun", "ended"))
    change = begun - ended
    node = np.asarray(changes["node"])
    is_first = np.r_[True, node[1:] != node[:-1]]
    since, is_growing = _growths(minute, change, is_first)
    limit = inputs.params.backlog_alert_us // _MINUTE_US
    columns = [
        *(changes[name] for name in _CHANGES.names),
        pa.array(_running_sum(change, is_first)),
        pa.array(since.astype(np.int32), mask=~is_growing),
        pa.array(is_growing & (change > 0) & (minute - since > limit)),
    ]
    return pa.table(columns, schema=BACKLOG)


def _growths(minute: Longs, change: Longs, is_first: npt.NDArray[np.bool_]) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """Since which minute the backlog has been growing, and where it is."""
    # What is between two minutes in which it fell belongs together.
    stretch = np.cumsum(is_first | (change < 0)) - 1
    grew = np.flatnonzero(change > 0)
    begins = np.full(len(change), len(change))
    np.minimum.at(begins, stretch[grew], grew)
    begin = begins[stretch]
    is_growing = (change >= 0) & (begin <= np.arange(len(change)))
    return minute[np.minimum(begin, len(change) - 1)], is_growing


def _running_sum(change: Longs, is_first: npt.NDArray[np.bool_]) -> Longs:
    """The sum so far, from each first row on."""
    total = np.cumsum(change)
    before = (total - change)[is_first]
    return total - before[np.cumsum(is_first) - 1]


def _longs(column: pa.ChunkedArray) -> Longs:
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
