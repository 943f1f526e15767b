"""What a table of the fleet is computed from, and how hashes become names on the driver.

These tables are small and made by every run, from small ones of the hours: pyarrow and Python on the driver are done
before Spark has planned a job for each.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from agentpost.pipeline.hashes import hash_of_name, hash_of_outbox
from agentpost.pipeline.params import Params
from agentpost.pipeline.places import SEQ_BITS, SEQ_MASK

__all__ = ["FleetInputs", "FromHour", "HourRows", "Row", "located", "newest", "selected"]

Row = dict[str, Any]


class HourRows(Protocol):
    """Reads a table with hours: the columns of a schema, of all rows or of those that fulfil a condition."""

    def __call__(self, name: str, schema: pa.Schema, where: pc.Expression | None = None, /) -> pa.Table: ...


class FromHour(NamedTuple):
    """Rows of a table with hours that take the place of all that it has from an hour on."""

    hour: int
    rows: pa.Table


class FleetInputs(NamedTuple):
    """`hour_rows` reads tables of the hours, and tables of the fleet with hours that are made before.

    `facts` has the columns of a change log. `segments` is one row for each segment that is read: node, epoch,
    first_seq, last_seq, sealed_at_us and more. `findings` is what the intake found wrong: rule, node, epoch, seq,
    event_id, agent_id, corr_id, at_us, text. All three are of the whole lake.

    `changed` gives the rows of an hour table that the run replaced, and those that it put in their place; None if it
    made all of it. `hours` are those that a table has.
    """

    hour_rows: HourRows
    facts: pa.Table
    segments: pa.Table
    findings: pa.Table
    params: Params
    changed: Callable[[str, pa.Schema], tuple[pa.Table, pa.Table] | None] = lambda _name, _schema: None
    hours: Callable[[str], Iterable[int]] = lambda _name: ()


def selected(table: pa.Table, condition: pc.Expression) -> list[Row]:
    """The rows that fulfil a condition."""
    return table.filter(condition).to_pylist()


def newest(facts: pa.Table, topic: str) -> Iterator[tuple[str, int, str]]:
    """Key, time and JSON text of the newest fact of every key of a topic that is not gone."""
    told = facts.filter(pc.equal(facts["topic"], pa.scalar(topic))).sort_by("at_us")
    last = dict(zip(*(told[name].to_pylist() for name in ("key", "at_us")), strict=True))
    values = dict(zip(*(told[name].to_pylist() for name in ("key", "value")), strict=True))
    return ((key, last[key], value) for key, value in values.items() if value is not None)


def located(rows: Iterable[Row], segments: pa.Table) -> Iterator[Row]:
    """`rows` with `node`, `epoch` and `seq` for `by`, the hash of a node, and `place`.

    A row whose place is in no outbox of that node goes: it was a guess, and a wrong one.
    """
    outboxes = {
        (hash_of_name(row["node"]), hash_of_outbox(row["node"], row["epoch"])): row
        for row in segments.select(["node", "epoch"]).group_by(["node", "epoch"]).aggregate([]).to_pylist()
    }
    for row in rows:
        place = cast("int | None", row["place"])
        outbox = None if place is None else outboxes.get((row["by"], place >> SEQ_BITS))
        if place is not None and outbox is not None:
            yield {**row, **outbox, "seq": place & SEQ_MASK}
