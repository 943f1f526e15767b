"""A few events written by hand, as bronze has them, and the tables over them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
    spark: "SparkSession",
    rows: Sequence[Row],
    *,
    now_us: int = START_US,
    facts: Sequence[Row] = (),
    sealed_us: int | None = None,
    **settings: Any,
) -> "Mapping[str, DataFrame]":
    """Every gold table over these events, made when it is asked for.

    The outboxes of all nodes are sealed through `sealed_us`, which is far in the future if it is not given.
    """
    from pyspark.sql import functions as sf

    from agentpost.pipeline.codes import name_hash
    from agentpost.pipeline.frames import local_frame
    from agentpost.pipeline.gold.deliveries import fold
    from agentpost.pipeline.gold.inputs import FleetInputs, HourInputs
    from agentpost.pipeline.silver import legs, throughput
    from agentpost.pipeline.silver import tasks as silver_tasks
    from agentpost.pipeline.tables import FLEET, GOLD, Params
    from agentpost.pipeline.transform import FIRST

    events = bronze(spark, rows)
    params = Params(now_us=now_us, **settings)

    def stored(frame: "DataFrame") -> "DataFrame":
        # As the pipeline does, which never plans gold on top of events: Spark takes minutes to reason about that.
        return local_frame(spark, frame.toArrow())

    all_legs = stored(legs.partials(legs.narrow(events)))
    segments = local_frame(spark, segments_of(rows, sealed_us))
    said = {row["node"] for row in rows} | {name for row in rows for name in row["to_nodes"]}
    said |= {row[name] for row in rows for name in _NAMED if row.get(name)}
    names = local_frame(spark, pa.table({"name": sorted(filter(None, said))}))
    outboxes = segments.select("node", "epoch").distinct()
    hours = HourInputs(
        legs=all_legs,
        deliveries=stored(fold(all_legs, params)),
        tasks=stored(silver_tasks.partials(events)),
        names=names.withColumn("name_hash", sf.expr(name_hash("name"))),
        outboxes=outboxes,
        params=params,
    )
    made: dict[str, DataFrame] = {"throughput": stored(throughput.partials(events)), "segments": segments}
    empty = {name: local_frame(spark, schema.empty_table()) for name, schema in FIRST.items()}
    told = pa.Table.from_pylist(list(facts), schema=FACTS).select(["topic", "key", "at_us", "value"])

    def fleet_inputs() -> FleetInputs:
        return FleetInputs(
            segments=segments,
            facts=local_frame(spark, told),
            names=hours.names,
            outboxes=outboxes,
            throughput=made["throughput"],
            delivery_minutes=of("delivery_minutes"),
            delivery_findings=of("delivery_findings"),
            open_deliveries=of("open_deliveries"),
            task_findings=of("task_findings"),
            backlog=made.get("backlog", empty["backlog"]),
            completeness=made.get("completeness", segments),
            params=params,
            since_hour=0,
        )

    makers = {table.name: partial(lambda table: table.build(hours), table) for table in GOLD}

    def of(name: str) -> "DataFrame":
        if name not in made:
            if name in makers:
                made[name] = stored(makers[name]())
            else:
                for needed in ("completeness", "backlog"):
                    if name not in ("completeness", needed):
                        of(needed)
                (table,) = [each for each in FLEET if each.name == name]
                made[name] = stored(table.build(fleet_inputs()))
        return made[name]

    everything = [*made, *makers, *(table.name for table in FLEET)]
    return Lazy({name: partial(of, name) for name in everything})


_NAMED = ("source_agent", "requester_agent", "capability_id", "skill_version", "task_type", "failure_class")


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


def segments_of(rows: Sequence[Row], sealed_us: int | None = None) -> pa.Table:
    """The ledger over these events: one segment for each outbox, sealed by its owner."""
    from agentpost.pipeline.ledger import SEGMENTS, Rank, Segment

    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        outbox = row["node"], row["epoch"]
        found[outbox].append(row["seq"])
        newest[outbox] = max(newest[outbox], row["created_us"])
    segments = [
        Segment(
            node=node,
            epoch=epoch,
            first_seq=min(seqs),
            last_seq=max(seqs),
            manifest=f"{node}/{epoch}",
            sealed_at_us=START_US + 10_000 * HOUR if sealed_us is None else sealed_us,
            sealed_by=node,
            rank=Rank.OWNER,
            slices=((min(seqs), max(seqs)),),
            newest_us=newest[node, epoch],
        )
        for (node, epoch), seqs in found.items()
    ]
    return pa.Table.from_pylist([each.row() for each in segments], SEGMENTS)


def rows_of(frame: "DataFrame") -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def findings_of(frame: "DataFrame") -> set[tuple[Any, ...]]:
    """(rule, node, seq, event, agent) of every finding."""
    return {(row["rule"], row["node"], row["seq"], row["event_id"], row["agent_id"]) for row in rows_of(frame)}
