"""The warehouse: versions are seen whole or not at all, and nothing that a reader needs is ever removed. No Spark."""

from pathlib import Path

import pyarrow as pa
import pytest

from agentpost.pipeline.files import Files
from agentpost.pipeline.ranges import members, ranges_of, subtract
from agentpost.pipeline.warehouse import DataFile, Version, Warehouse, replace_hours
from agentpost.protocol.errors import Refusal


def version(number: int, attempt: str, tables: dict[str, tuple[DataFile, ...]], created_us: int = 0) -> Version:
    return Version(number=number, attempt=attempt, created_us=created_us, now_us=0, tables=tables)


def publish(warehouse: Warehouse, rows: list[int]) -> Version:
    """A run that writes one table of these rows."""
    attempt = warehouse.begin()
    files = warehouse.write(attempt, "numbers", pa.table({"n": rows}))
    made = version(attempt.number, attempt.name, {"numbers": files})
    warehouse.commit(attempt, made)
    warehouse.publish(attempt)
    return made


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Files(str(tmp_path / "tables")))


def numbers(warehouse: Warehouse) -> list[int]:
    return warehouse.read(warehouse.require(), "numbers")["n"].to_pylist()


def test_a_version_is_what_readers_see(warehouse: Warehouse) -> None:
    """Before the first run there is nothing; after each, readers see what it published."""
    assert warehouse.current() is None
    with pytest.raises(Refusal, match="no tables"):
        warehouse.require()
    publish(warehouse, [1, 2])
    assert numbers(warehouse) == [1, 2]
    publish(warehouse, [3])
    assert numbers(warehouse) == [3]


def test_a_killed_run_leaves_nothing(warehouse: Warehouse) -> None:
    """What a run wrote and never committed is not seen, and is gone with the next one."""
    publish(warehouse, [1])
    dead = warehouse.begin()
    warehouse.write(dead, "numbers", pa.table({"n": [666]}))
    assert numbers(warehouse) == [1]
    publish(warehouse, [2])
    assert numbers(warehouse) == [2]
    assert not warehouse.files.exists(dead.directory("numbers"))


def test_a_version_without_its_pointer_is_finished(warehouse: Warehouse) -> None:
    """A run that died between its version and the pointer is whole: the next one shows it first."""
    publish(warehouse, [1])
    attempt = warehouse.begin()
    files = warehouse.write(attempt, "numbers", pa.table({"n": [2]}))
    warehouse.commit(attempt, version(attempt.number, attempt.name, {"numbers": files}))
    assert numbers(warehouse) == [1]
    after = warehouse.begin()
    assert numbers(warehouse) == [2]
    assert after.number == attempt.number + 1


def test_one_of_two_runs_gets_the_number(warehouse: Warehouse) -> None:
    """Of two runs that want to make the same version one succeeds, and the other is told."""
    one, two = warehouse.begin(), warehouse.begin()
    assert one.number == two.number
    warehouse.commit(one, version(one.number, one.name, {}))
    with pytest.raises(Refusal, match="another run"):
        warehouse.commit(two, version(two.number, two.name, {}))


def test_only_one_works_at_a_time(warehouse: Warehouse) -> None:
    """A second run at the same place is refused while the first is at work."""
    with (
        warehouse.files.locked("LOCK"),
        pytest.raises(Refusal, match="another pipeline"),
        Files(warehouse.files.where).locked("LOCK"),
    ):
        pytest.fail("two had the lock")


def test_pruning_keeps_what_is_named(warehouse: Warehouse) -> None:
    """Old versions go with the files that only they name; files that live on in a newer one stay."""
    first = publish(warehouse, [1])
    for number in range(2, 6):
        attempt = warehouse.begin()
        more = warehouse.write(attempt, "more", pa.table({"n": [number]}))
        made = version(attempt.number, attempt.name, {"numbers": first.tables["numbers"], "more": more})
        warehouse.commit(attempt, made)
        warehouse.publish(attempt)
    assert warehouse.prune(keep=2, keep_seconds=0) == 3
    assert numbers(warehouse) == [1]
    assert len(warehouse.files.directories("batches")) == 3


def test_recent_versions_are_not_pruned(warehouse: Warehouse) -> None:
    """A version that somebody may be reading right now stays, however many came after it."""
    import time

    for _ in range(6):
        attempt = warehouse.begin()
        warehouse.commit(attempt, version(attempt.number, attempt.name, {}, created_us=time.time_ns() // 1000))
        warehouse.publish(attempt)
    assert warehouse.prune(keep=2, keep_seconds=600) == 0


def test_replaced_hours_are_not_read(warehouse: Warehouse) -> None:
    """Rows of an hour that another file has replaced do not count, though they are still in the file."""
    attempt = warehouse.begin()
    old = warehouse.write(attempt, "t", pa.table({"hour": pa.array([5, 5, 6, 9], pa.int32()), "n": [1, 2, 3, 4]}))
    old = warehouse.described(attempt.directory("t"), by_hour=True)
    assert old[0].hours == ((5, 6), (9, 9))
    new = warehouse.write(attempt, "u", pa.table({"hour": pa.array([5], pa.int32()), "n": [7]}))
    kept = replace_hours(old, frozenset({5}))
    made = version(attempt.number, attempt.name, {"t": (*kept, *new)})
    assert sorted(warehouse.read(made, "t")["n"].to_pylist()) == [3, 4, 7]
    assert sorted(warehouse.read(made, "t", columns=["n"])["n"].to_pylist()) == [3, 4, 7]
    assert replace_hours(kept, frozenset({6, 9})) == ()


def test_ranges() -> None:
    """Sets of numbers as ranges, and what is left of one."""
    assert ranges_of([3, 1, 2, 7, 7]) == ((1, 3), (7, 7))
    assert list(members(((1, 3), (7, 7)))) == [1, 2, 3, 7]
    assert subtract((1, 10), [(3, 4), (4, 6), (9, 20)]) == ((1, 2), (7, 8))
    assert subtract((5, 6), [(1, 10)]) == ()


def test_a_url_works_like_a_path(tmp_path: Path) -> None:
    """A file:// URL is the same place as its path; a scheme that nobody knows is refused."""
    publish(Warehouse(Files(f"file://{tmp_path}/tables")), [4])
    assert numbers(Warehouse(Files(str(tmp_path / "tables")))) == [4]
    with pytest.raises(Refusal, match="gopher"):
        Files("gopher://host/lake")
