"""`ack_lag` and `watermarks`: how far every gateway has read every outbox, and what may be pruned (OBS-1, PIPE-7)."""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections import defaultdict
from typing import Annotated, Final

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct

from agentpost.pipeline.gold.fleet import FleetInputs, Row, newest

__all__ = ["ACK_LAG", "WATERMARKS", "ack_lag", "watermarks"]

ACK_LAG: Final = pa.schema(
    [
        ("consumer", pa.string()),
        ("source", pa.string()),
        ("epoch", pa.string()),
        ("last_seq", pa.int64()),
        ("latest_seq", pa.int64()),
        ("lag", pa.int64()),
        ("is_active", pa.bool_()),
        ("at_us", pa.int64()),
    ]
)
WATERMARKS: Final = pa.schema(
    [
        ("node", pa.string()),
        ("epoch", pa.string()),
        ("sealed_seq", pa.int64()),
        ("smallest_cursor", pa.int64()),
        ("subscribers", pa.int64()),
        ("prune_through_seq", pa.int64()),
    ]
)


_Long = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Cursor(Struct, frozen=True, rename="camel"):
    consumer: str | None = None
    source: str | None = None
    epoch: str | None = None
    last_seq: _Long | None = None
    lease_expires_us: _Long | None = None
    status: str | None = None


_cursors = msgspec.json.Decoder(_Cursor)


def ack_lag(inputs: FleetInputs) -> pa.Table:
    """One row for each consumer and source: what of its present outbox it has not read."""
    return pa.Table.from_pylist(_lags(inputs), ACK_LAG)


def watermarks(inputs: FleetInputs) -> pa.Table:
    """One row for each node: up to which seq its outbox may be pruned.

    That is below the smallest cursor of the active subscribers, less the retention window, and never beyond what the
    lake holds. Without an active subscriber nothing may be pruned: nobody has said that they read it.
    """
    read: defaultdict[str, list[int]] = defaultdict(list)
    for row in _lags(inputs):
        if row["is_active"] and row["consumer"] != row["source"]:
            read[row["source"]].append(row["last_seq"])
    rows: list[Row] = []
    for node, (epoch, sealed) in _heads(inputs.segments).items():
        cursors = read.get(node, [])
        smallest = min(cursors, default=None)
        safe = 0 if smallest is None else min(smallest, sealed) - inputs.params.retention_events
        rows.append(
            {
                "node": node,
                "epoch": epoch,
                "sealed_seq": sealed,
                "smallest_cursor": smallest,
                "subscribers": len(cursors),
                "prune_through_seq": max(safe, 0),
            }
        )
    return pa.Table.from_pylist(rows, WATERMARKS)


def _lags(inputs: FleetInputs) -> list[Row]:
    heads = _heads(inputs.segments)
    rows: list[Row] = []
    for _, at_us, value in newest(inputs.facts, "cursor"):
        cursor = _cursor(value)
        if cursor is None or cursor.source not in heads:
            continue
        epoch, latest = heads[cursor.source]
        # A cursor in an earlier epoch has read nothing of the present one.
        last_seq = (cursor.last_seq or 0) if cursor.epoch == epoch else 0
        rows.append(
            {
                "consumer": cursor.consumer,
                "source": cursor.source,
                "epoch": epoch,
                "last_seq": last_seq,
                "latest_seq": latest,
                "lag": max(latest - last_seq, 0),
                "is_active": cursor.status == "active" and (cursor.lease_expires_us or 0) > inputs.params.now_us,
                "at_us": at_us,
            }
        )
    return rows


def _cursor(text: str) -> _Cursor | None:
    """None for what is no cursor: whoever wrote it, the tables go on without it."""
    try:
        return _cursors.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _heads(segments: pa.Table) -> dict[str, tuple[str, int]]:
    """The present epoch of every node, and the last seq that the lake has of it. Epochs sort by time."""
    ends = segments.group_by(["node", "epoch"]).aggregate([("last_seq", "max")])
    rows = sorted(zip(*(ends[name].to_pylist() for name in ("node", "epoch", "last_seq_max")), strict=True))
    return {node: (epoch, last_seq) for node, epoch, last_seq in rows}
