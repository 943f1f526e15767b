"""The backlog, made anew from a day on, is the one that is made of everything."""

import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from agentpost.pipeline.gold.backlog import build, heads
from agentpost.pipeline.gold.fleet import FleetInputs, FromHour
from agentpost.pipeline.params import Params

DAY = 24 * 60
MINUTES = pa.schema(
    [
        ("hour", pa.int32()),
        ("node", pa.string()),
        ("minute", pa.int32()),
        ("begun", pa.int64()),
        ("ended", pa.int64()),
    ]
)


class Fleet:
    """Tables in memory, kept as a run does: what a table gives from an hour on takes the place of what it had."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {"delivery_minutes": [], "backlog": [], "backlog_heads": []}

    def refresh(self, hour: int, rows: list[dict[str, Any]], *, full: bool = False) -> None:
        """New rows of one hour of ids, in the place of those it had."""
        minutes = self.tables["delivery_minutes"]
        before = [row for row in minutes if row["hour"] == hour]
        self.tables["delivery_minutes"] = [row for row in minutes if row["hour"] != hour] + rows

        def changed(_name: str, schema: pa.Schema) -> tuple[pa.Table, pa.Table] | None:
            return None if full else (_table(before, schema), _table(rows, schema))

        def hour_rows(name: str, schema: pa.Schema, where: pc.Expression | None = None, /) -> pa.Table:
            found = _table(self.tables[name], MINUTES if name == "delivery_minutes" else schema)
            return (found if where is None else found.filter(where)).select(schema.names)

        def hours(name: str) -> Iterable[int]:
            return {row["hour"] for row in self.tables[name]}

        nothing = pa.table({})
        inputs = FleetInputs(hour_rows, nothing, nothing, nothing, Params(now_us=0), changed, hours)
        for name, make in (("backlog", build), ("backlog_heads", heads)):
            made: FromHour = make(inputs)
            kept = [row for row in self.tables[name] if row["hour"] < made.hour]
            self.tables[name] = kept + made.rows.to_pylist()


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.req("OBS-3")
def test_a_backlog_made_bit_by_bit_is_the_one_of_all(seed: int) -> None:
    """Hours come, come again with other numbers, and come late: always the rows of one run over everything."""
    chance = random.Random(seed)
    fleet = Fleet()
    for _ in range(30):
        hour = chance.choice((3, 20, 30, 31, 50, 75, 76, 99, 120))
        fleet.refresh(hour, _some_rows(chance, hour))
        whole = Fleet()
        whole.tables["delivery_minutes"] = list(fleet.tables["delivery_minutes"])
        whole.refresh(-1, [], full=True)
        for name in ("backlog", "backlog_heads"):
            assert _sorted(fleet.tables[name]) == _sorted(whole.tables[name]), name


def _some_rows(chance: random.Random, hour: int) -> list[dict[str, Any]]:
    rows = [
        {
            "hour": hour,
            "node": chance.choice("abc"),
            # What waits may end days later.
            "minute": hour * 60 + chance.choice((0, 1, 5, 17, 59, 70, DAY + 3, 3 * DAY)),
            "begun": chance.randrange(3),
            "ended": chance.randrange(3),
        }
        for _ in range(chance.randrange(6))
    ]
    return [row for row in rows if row["begun"] or row["ended"]]


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def test_what_has_not_changed_is_not_made_anew() -> None:
    """A refresh of an hour whose numbers are the same leaves every row where it is."""
    fleet = Fleet()
    rows = [{"hour": 30, "node": "a", "minute": 1800, "begun": 2, "ended": 0}]
    fleet.refresh(30, rows)
    kept = fleet.tables["backlog"]
    fleet.refresh(30, list(rows))
    assert fleet.tables["backlog"] == kept
    fleet.refresh(55, [{"hour": 55, "node": "a", "minute": 3300, "begun": 1, "ended": 0}])
    assert fleet.tables["backlog"][0] == kept[0]
    assert fleet.tables["backlog_heads"] == [{"hour": 48, "node": "a", "waiting": 2, "growing_since": 1800}]
