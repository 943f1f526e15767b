"""`pipeline trace`: everything that happened in a conversation, across nodes, complete and in causal order (OBS-10).

Reads single events with pyarrow; needs no Spark.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow.dataset as ds
from msgspec import Struct

from agentpost.lake.schema import FACTS
from agentpost.pipeline.events import Bronze
from agentpost.pipeline.files import Files
from agentpost.pipeline.warehouse import Snapshot, Warehouse
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import ulid_time_ms
from agentpost.protocol.payloads import Kind

__all__ = ["TraceLine", "causally_ordered", "trace"]

# An id is made before its event is appended, elsewhere and by another clock.
_CLOCKS_APART_US: Final = 86_400 * 1_000_000
Row = Mapping[str, Any]


class TraceLine(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One event. `at_us` is its own clock's time; the order of the lines is that of cause and effect."""

    at_us: int
    node: str
    epoch: str
    seq: int
    event_id: str
    kind: str
    corr_id: str
    text: str
    session_id: str | None = None
    source_agent: str | None = None
    to_agents: tuple[str, ...] = ()
    ref_event_id: str | None = None
    task_id: str | None = None
    attempt: int = 1


def trace(lake: Files, warehouse: Warehouse, what: str) -> list[TraceLine]:
    """The events of a conversation, a session, a task, or of one event and all that speaks of it."""
    version = warehouse.require()
    bronze = Bronze(lake, warehouse, version)
    sessions = _sessions(warehouse, version)
    prefix = what.split("_", 1)[0]
    match prefix:
        case "corr":
            rows = _conversation(bronze, [what])
        case "ses":
            rows = _conversation(bronze, [corr for corr, session in sessions.items() if session == what])
        case "evt":
            rows = _about(bronze, "event_id", what)
        case "tsk":
            rows = _about(bronze, "task_id", what)
        case _:
            raise Refusal(
                Code.INVALID_FIELD,
                f"{what!r:.60} is no id that can be followed",
                field="id",
                hint="Use a corrId (corr_…), a sessionId (ses_…), an eventId (evt_…) or a taskId (tsk_…).",
            )
    if not rows:
        raise Refusal(
            Code.NOT_FOUND,
            f"the tables know nothing of {what:.60}",
            field="id",
            hint="Has the gateway exported it, and did `agentpost pipeline run` take it in?",
        )
    return [_line(row, sessions.get(row["corr_id"])) for row in causally_ordered(rows)]


def causally_ordered(rows: Iterable[Row]) -> list[Row]:
    """Each event after the one it refers to and after those before it in its outbox; beyond that, by time.

    Events that refer to each other in a circle, which only a forger can make, come last.
    """
    events = sorted(rows, key=_by_time)
    first_of: dict[str, int] = {}
    last_in: dict[tuple[str, str], int] = {}
    after: dict[int, list[int]] = defaultdict(list)
    waits_for = [0] * len(events)
    by_place = sorted(range(len(events)), key=lambda at: (events[at]["node"], events[at]["epoch"], events[at]["seq"]))
    for at in by_place:
        first_of.setdefault(events[at]["event_id"], at)
        outbox = events[at]["node"], events[at]["epoch"]
        if outbox in last_in:
            after[last_in[outbox]].append(at)
            waits_for[at] += 1
        last_in[outbox] = at
    for at, event in enumerate(events):
        cause = first_of.get(event["ref_event_id"] or "")
        if cause is not None and cause != at:
            after[cause].append(at)
            waits_for[at] += 1
    ready = [(_by_time(events[at]), at) for at, count in enumerate(waits_for) if count == 0]
    heapq.heapify(ready)
    ordered: list[int] = []
    while ready:
        _, at = heapq.heappop(ready)
        ordered.append(at)
        for effect in after[at]:
            waits_for[effect] -= 1
            if waits_for[effect] == 0:
                heapq.heappush(ready, (_by_time(events[effect]), effect))
    circular = set(range(len(events))) - set(ordered)
    return [events[at] for at in (*ordered, *sorted(circular))]


def _by_time(row: Row) -> tuple[int, str, str, int]:
    return row["created_us"], row["node"], row["epoch"], row["seq"]


def _conversation(bronze: Bronze, corr_ids: Sequence[str]) -> list[Row]:
    if not corr_ids:
        return []
    since_us = min(_since_us(corr_id) for corr_id in corr_ids)
    return list(bronze.where(ds.field("corr_id").isin(list(corr_ids)), since_us=since_us))


def _about(bronze: Bronze, column: str, what: str) -> list[Row]:
    """The events that have this id, and what speaks of them: ACKs, replies and dead letters."""
    since_us = _since_us(what)
    own = bronze.where(ds.field(column).isin([what]), since_us=since_us)
    ids = sorted({row["event_id"] for row in own} | ({what} if column == "event_id" else set()))
    said = bronze.where(ds.field("ref_event_id").isin(ids), since_us=since_us)
    places = {(row["node"], row["epoch"], row["seq"]): row for row in (*own, *said)}
    return list(places.values())


def _since_us(made: str) -> int:
    return ulid_time_ms(made) * 1000 - _CLOCKS_APART_US


def _sessions(warehouse: Warehouse, version: Snapshot) -> dict[str, str]:
    """The session that each conversation belongs to."""
    facts = warehouse.read(version, "facts", FACTS)
    found: dict[str, str] = {}
    for row in facts.filter(ds.field("topic").isin(["session"])).to_pylist():
        value = cast("dict[str, Any]", msgspec.json.decode(row["value"])) if row["value"] else {}
        if isinstance(value.get("sessionId"), str):
            found[row["key"]] = value["sessionId"]
    return found


def _line(row: Row, session_id: str | None) -> TraceLine:
    return TraceLine(
        at_us=row["created_us"],
        node=row["node"],
        epoch=row["epoch"],
        seq=row["seq"],
        event_id=row["event_id"],
        kind=row["kind"],
        corr_id=row["corr_id"],
        text=_sentence(row),
        session_id=session_id,
        source_agent=row["source_agent"] or None,
        to_agents=tuple(row["to_agents"] or ()),
        ref_event_id=row["ref_event_id"],
        task_id=row["task_id"],
        attempt=row["attempt"],
    )


def _sentence(row: Row) -> str:
    """What happened, in a few words, without any content."""
    again = f" (attempt {row['attempt']})" if row["attempt"] > 1 else ""
    to = ", ".join(row["to_agents"] or ())
    match row["kind"]:
        case Kind.ACK:
            reason = f": {row['reason']}" if row["reason"] else ""
            return f"{row['ack_type']} for {row['acked_by_agent']}{reason}"
        case Kind.REPLY:
            return f"{row['source_agent']} replies to {to}{again}"
        case Kind.DEAD_LETTER:
            return f"given up for {row['dead_for_agent']}: {row['reason']} after {row['dead_attempts']} attempts"
        case Kind.SIGNAL:
            return f"signal {row['signal']}"
        case Kind.TASK_UPDATE:
            progress = "" if row["progress"] is None else f", {row['progress']} %"
            return f"{row['source_agent']} reports {row['task_status']}{progress}{again}"
        case Kind.TASK_FAILED:
            return f"{row['source_agent']} fails: {row['failure_class']}{again}"
        case kind:
            verb = {
                Kind.MESSAGE: "writes to",
                Kind.TASK_CREATE: "gives a task to",
                Kind.TASK_ACCEPT: "accepts the task of",
                Kind.TASK_COMPLETE: "completes the task of",
            }.get(kind, "sends to")
            return f"{row['source_agent']} {verb} {to}{again}"
