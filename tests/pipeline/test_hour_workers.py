"""Hours are shared out by their rows, and what a worker makes twice it writes twice."""

from pathlib import Path

import pyarrow as pa
import pytest

from agentpost.pipeline import hour_workers
from agentpost.pipeline.few_rows import Recipe
from agentpost.pipeline.files import Files
from agentpost.pipeline.plans import COLUMN, Expression, Named, Step
from agentpost.pipeline.warehouse import DataFile, Warehouse

ROWS = pa.schema([("hour", pa.int32()), ("event_id", pa.string())])


def file_of(rows: int, *hours: tuple[int, int]) -> DataFile:
    return DataFile(path="p", rows=rows, size_bytes=1, hours=hours)


def test_shares_have_about_as_many_rows_each() -> None:
    """Every hour is in one share, hours that are neighbours together, and no share has much more than the others."""
    files = [file_of(80_000, (0, 79)), file_of(240_000, (40, 79))]
    shares = hour_workers.shares_of(range(80), files, cores=2)
    assert shares is not None
    assert sorted(hour for share in shares for hour in share) == list(range(80))
    assert all(max(share) - min(share) == len(share) - 1 for share in shares)
    rows = [sum(1_000 + 6_000 * (hour >= 40) for hour in share) for share in shares]
    assert 8 <= len(shares) <= 12
    assert max(rows) <= 50_000


def test_a_share_has_no_more_than_fits_into_a_worker() -> None:
    shares = hour_workers.shares_of(range(100), [file_of(25_000_000, (0, 99))], cores=2)
    assert shares is not None
    assert len(shares) == 100


def test_an_hour_that_does_not_fit_is_nobodys_share() -> None:
    """Spark can put aside what does not fit into memory; a worker cannot."""
    many = hour_workers.MOST_ROWS + 1
    assert hour_workers.shares_of([7], [file_of(many, (7, 7))], cores=2) is None
    # Two tables tell of the same hour.
    half = file_of(many // 2 + 1, (7, 7))
    assert hour_workers.shares_of([7], [half, half], cores=2) is None
    assert hour_workers.shares_of([7], [file_of(many, (6, 7))], cores=2) == [{7}]


def test_hours_of_which_nothing_is_known_are_a_share_too() -> None:
    assert hour_workers.shares_of([3], [], cores=2) == [{3}]


@pytest.mark.req("OBS-4")
def test_a_share_that_is_made_again_takes_the_place_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does a task once more if its answer was lost, or is slow: neither writes into the file of the other."""
    monkeypatch.setattr(hour_workers, "_SMALL_ROWS", 2)
    warehouse = Warehouse(Files(str(tmp_path)))
    attempt = warehouse.begin()
    rows = pa.table({"hour": pa.array([5, 5, 6], pa.int32()), "event_id": ["a", "b", "c"]}, schema=ROWS)
    silver = hour_workers.SilverRows(warehouse.write(attempt, "silver", rows, by_hour=True), ROWS, None)
    columns = tuple(Named(n, name, Expression(COLUMN, (), n)) for n, name in enumerate(ROWS.names))
    recipe = Recipe(Step("Input", gives=columns), ROWS, "")
    work = hour_workers.HourWork(str(tmp_path), attempt, (silver,), (), {"copied": recipe})
    first, second = (hour_workers._made(work, frozenset({5})) for _ in range(2))
    assert first.files["copied"] != second.files["copied"]
    for made in (first, second):
        assert made.rows == {}
        assert warehouse.rows(made.files["copied"]).to_pylist() == rows.slice(0, 2).to_pylist()
    # More than a worker can hold is left, whatever was thought of it.
    monkeypatch.setattr(hour_workers, "MOST_ROWS", 1)
    assert hour_workers._made(work, frozenset({5})) == ({}, {}, {"copied"})
    # What is too little for a file comes back as rows.
    few = hour_workers._made(work, frozenset({6}))
    assert few.files == {}
    assert few.rows["copied"].to_pylist() == rows.slice(2).to_pylist()
