"""A few events written by hand, as bronze has them, and the tables over them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from agentpost.lake.schema import FACTS, SEGMENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 3600 * SECOND
START_US = 492_000 * HOUR  # the beginning of an hour in 2026
NODES = ("a", "b", "c")

Row = dict[str, Any]


def event_id(number: int) -> str:
    return f"evt_{number:026d}"


class Story:
    """Events of a few nodes, each appended to the outbox of its node."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._seqs: dict[str, int] = defaultdict(int)

    def add(self, node: str, kind: str, *, at_us: int = START_US, epoch: str = "1", **values: Any) -> Row:
        self._seqs[node] += 1
        row: Row = {
            "seq": self._seqs[node],
            "event_id": event_id(10_000_000 + len(self.rows)),
            "kind": kind,
            "attempt": 1,
            "source_node": node,
            "source_agent": f"agent-{node}",
            "corr_id": "corr_" + "0" * 26,
            "created_us": at_us,
            "to_agents": [],
            "to_nodes": [],
            "required_capabilities": [],
            "event_hour": START_US // HOUR,
            "ref_event_id": None,
            "node": node,
            "epoch": epoch,
            **values,
        }
        for name in ("ref", "task"):
            if row.get({"ref": "ref_event_id", "task": "task_id"}[name]):
                row.setdefault(f"{name}_hour", START_US // HOUR)
        self.rows.append(row)
        return row

    def send(self, number: int, *, node: str = "a", to: str = "b", kind: str = "message", **values: Any) -> Row:
        """A send of event `number` to the agent of another node."""
        return self.add(
            node,
            kind,
            event_id=event_id(number),
            to_agents=[f"agent-{to}"],
            to_nodes=[to],
            route_decision="owner",
            **values,
        )

    def ack(self, number: int, ack_type: str, *, node: str = "b", agent: str | None = None, **values: Any) -> Row:
        """What a gateway says of event `number`; `node` is in whose outbox."""
        named = {"acked_by_node": node, "acked_by_agent": agent or f"agent-{node}", **values}
        at_us = named.get("at_us", START_US)
        return self.add(node, "ack", ref_event_id=event_id(number), ack_type=ack_type, acked_us=at_us, **named)

    def reply(self, number: int, *, node: str = "b", **values: Any) -> Row:
        return self.add(node, "reply", ref_event_id=event_id(number), to_agents=["agent-a"], to_nodes=["a"], **values)

    def dead(self, number: int, reason: str, *, node: str = "a", agent: str = "agent-b", **values: Any) -> Row:
        return self.add(
            node, "dead_letter", ref_event_id=event_id(number), dead_for_agent=agent, reason=reason, **values
        )


def bronze(spark: "SparkSession", rows: Sequence[Row]) -> "DataFrame":
    from agentpost.pipeline.frames import bronze_schema, local_frame

    fields = [field for field in SEGMENT if field.name not in ("chain", "body")]
    schema = pa.schema([*fields, pa.field("node", pa.string()), pa.field("epoch", pa.string())])
    return local_frame(spark, pa.Table.from_pylist(list(rows), schema=schema)).select(*bronze_schema().names)


def tables(
    spark: "SparkSession", rows: Sequence[Row], *, now_us: int = START_US, facts: Sequence[Row] = (), **settings: Any
) -> "Mapping[str, DataFrame]":
    """Every gold table over these events, made when it is asked for."""
    from agentpost.pipeline.frames import local_frame
    from agentpost.pipeline.gold.names import all_names
    from agentpost.pipeline.intake import FINDINGS
    from agentpost.pipeline.tables import (
        FLEET,
        GOLD,
        SILVER,
        FleetInputs,
        FleetTable,
        FromHour,
        GoldInputs,
        Params,
        SilverTable,
    )

    events = bronze(spark, rows)

    @cache
    def stored(table: SilverTable) -> "DataFrame":
        # As the pipeline does, which never plans gold on top of events: Spark takes minutes to reason about that.
        return local_frame(spark, table.partials(events).toArrow())

    silver = Lazy({table.name: partial(stored, table) for table in SILVER})
    told, segments = pa.Table.from_pylist(list(facts), schema=FACTS), segments_of(rows)
    params = Params(now_us=now_us, **settings)
    inputs = GoldInputs(
        silver=silver,
        segments=local_frame(spark, segments),
        names=local_frame(spark, all_names(silver["names"].toArrow(), segments, told)),
        params=params,
    )
    hour_gold = Lazy({table.name: partial(table.build, inputs) for table in GOLD})

    def hour_rows(name: str, schema: pa.Schema, where: pc.Expression | None = None, /) -> pa.Table:
        rows = found[name].toArrow()
        return (rows if where is None else rows.filter(where)).select(schema.names).cast(schema)

    fleet_inputs = FleetInputs(hour_rows, told, segments, FINDINGS.empty_table(), params)

    def of_fleet(table: FleetTable) -> "DataFrame":
        made = table.build(fleet_inputs)
        return local_frame(spark, (made.rows if isinstance(made, FromHour) else made).cast(table.schema))

    found = Lazy({**hour_gold.makers, **{table.name: partial(of_fleet, table) for table in FLEET}})
    return found


class Lazy(Mapping[str, "DataFrame"]):
    """Frames that are put together when they are looked at."""

    def __init__(self, makers: "Mapping[str, Callable[[], DataFrame]]") -> None:
        self.makers = makers

    def __getitem__(self, name: str) -> "DataFrame":
        return self.makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)


def segments_of(rows: Sequence[Row]) -> pa.Table:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        found[row["node"], row["epoch"]].append(row["seq"])
    segments = [
        {"node": node, "epoch": epoch, "first_seq": min(seqs), "last_seq": max(seqs), "sealed_at_us": START_US}
        for (node, epoch), seqs in found.items()
    ]
    return pa.Table.from_pylist(segments)


def rows_of(frame: "DataFrame") -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def findings_of(frame: "DataFrame") -> set[tuple[Any, ...]]:
    """(rule, node, seq, event, agent) of every finding."""
    return {(row["rule"], row["node"], row["seq"], row["event_id"], row["agent_id"]) for row in rows_of(frame)}
