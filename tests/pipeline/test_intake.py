"""Taking in segments: each event once, and what is wrong is left out with the reason."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from agentpost.lake.manifest import SegmentManifest
from agentpost.pipeline.check_job import LOGGED, rows_of_log
from agentpost.pipeline.checking import Checked, Claim, check_manifest
from agentpost.pipeline.files import Files, Listed
from agentpost.pipeline.intake import Intake, take_in
from agentpost.pipeline.ledger import SEGMENTS, Status
from agentpost.protocol.timestamps import format_ms
from agentpost.testing import START_MS
from tests.pipeline.lakes import HOUR_MS, NOW_US, Outbox, read_segment, rewrite, write_keys, write_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YEAR_US = 366 * 86_400_000_000


class Known:
    """The ledger and the tables beside it, in memory, as batch after batch leaves them."""

    def __init__(self, lake: Path) -> None:
        self.lake = Files(str(lake))
        self.tables: dict[str, pa.Table] = {}

    def read(
        self, table: str, schema: pa.Schema, *, columns: list[str] | None = None, where: ds.Expression | None = None
    ) -> pa.Table:
        found = self.tables.get(table, schema.empty_table())
        return ds.dataset(found).to_table(columns=columns, filter=where)

    def check(self, claims: Sequence[Claim], keys: Mapping[str, Sequence[str]]) -> list[Checked]:
        return [check_manifest(self.lake, claim, keys, now_us=NOW_US) for claim in claims]

    def read_logs(self, logs: Sequence[Listed]) -> pa.Table:
        return pa.concat_tables([LOGGED.empty_table(), *(rows_of_log(self.lake, log.name) for log in logs)])

    def take(self) -> Intake:
        """Take in what is new."""
        found = take_in(self, None, since_us=None, now_us=NOW_US)
        rows = {row["manifest"]: row for row in self.rows()} | {
            each.manifest: each.row() for each in found.planned.rows
        }
        self.tables["segments"] = pa.Table.from_pylist(list(rows.values()), SEGMENTS)
        for name, added in (("change_logs", found.change_logs), ("node_keys", found.node_keys)):
            self.tables[name] = pa.concat_tables([self.tables.get(name, added.schema.empty_table()), added])
        return found

    def rows(self) -> list[dict[str, Any]]:
        return self.tables.get("segments", SEGMENTS.empty_table()).to_pylist()

    def seqs(self) -> list[int]:
        """Every seq that is read, as often as it is."""
        return sorted(
            seq
            for row in self.rows()
            for first, last in zip(row["slice_first"], row["slice_last"], strict=True)
            for seq in range(first, last + 1)
        )

    def rules(self, spark: "SparkSession") -> list[tuple[str, int]]:
        """What is wrong with the lake as it is now."""
        from agentpost.pipeline.frames import local_frame
        from agentpost.pipeline.gold.inputs import FleetInputs
        from agentpost.pipeline.gold.integrity import of_segments
        from agentpost.pipeline.params import Params

        segments = local_frame(spark, self.tables["segments"])
        inputs = FleetInputs(*([segments] * 11), params=Params(now_us=NOW_US), since_hour=0)
        return sorted((row["rule"], row["seq"]) for row in of_segments(inputs).toArrow().to_pylist())


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    write_keys(tmp_path, "node-a", "node-b")
    return Outbox(tmp_path)


def test_whole_segments_are_read_whole(outbox: Outbox, spark: "SparkSession") -> None:
    """Segments that are as they should be are read from the first event to the last, without a finding."""
    for _ in range(3):
        outbox.seal(outbox.messages(4))
    known = Known(outbox.lake)
    found = known.take()
    assert (found.events, found.set_aside, found.retried) == (12, 0, 0)
    assert known.seqs() == list(range(1, 13))
    assert known.rules(spark) == []


@pytest.mark.req("OBS-4")
def test_what_was_taken_in_is_not_taken_in_again(outbox: Outbox) -> None:
    """A second look finds nothing new, and only the new segment once there is one."""
    outbox.seal(outbox.messages(3))
    known = Known(outbox.lake)
    known.take()
    again = known.take()
    assert (again.events, again.planned.rows, again.change_logs.num_rows) == (0, (), 0)
    outbox.seal(outbox.messages(2))
    more = known.take()
    assert (more.events, len(more.planned.rows)) == (2, 1)
    assert known.seqs() == [1, 2, 3, 4, 5]


def damage_truncated(lake: Path, manifest: SegmentManifest) -> None:
    path = lake / manifest.path
    path.write_bytes(path.read_bytes()[:-100])


def damage_empty(lake: Path, manifest: SegmentManifest) -> None:
    (lake / manifest.path).write_bytes(b"")


def damage_flipped(lake: Path, manifest: SegmentManifest) -> None:
    path = lake / manifest.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_missing(lake: Path, manifest: SegmentManifest) -> None:
    (lake / manifest.path).unlink()


def damage_foreign_schema(lake: Path, manifest: SegmentManifest) -> None:
    rewrite(lake, manifest, pa.table({"seq": [1, 2, 3], "note": ["a", "b", "c"]}))


def damage_other_type(lake: Path, manifest: SegmentManifest) -> None:
    table = read_segment(lake, manifest)
    at = table.schema.get_field_index("created_us")
    rewrite(lake, manifest, table.set_column(at, "created_us", table["created_us"].cast(pa.string())))


def damage_not_parquet(lake: Path, manifest: SegmentManifest) -> None:
    replace_file(lake, manifest, b"[]" * 2000)


def damage_bodies(lake: Path, manifest: SegmentManifest) -> None:
    """All is well but the pages of the bodies, which cannot be unpacked."""
    content = bytearray((lake / manifest.path).read_bytes())
    group = pq.ParquetFile(lake / manifest.path).metadata.row_group(0)
    column = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "body")
    start = column.data_page_offset if not column.has_dictionary_page else column.dictionary_page_offset
    assert start is not None
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    replace_file(lake, manifest, bytes(content))


def replace_file(lake: Path, manifest: SegmentManifest, content: bytes) -> None:
    """Other content, and a manifest that fits it."""
    (lake / manifest.path).write_bytes(content)
    digest = sha256(content).hexdigest()
    write_manifest(lake, msgspec.structs.replace(manifest, size_bytes=len(content), sha256=digest, signature=""))


def damage_out_of_order(lake: Path, manifest: SegmentManifest) -> None:
    rewrite(lake, manifest, read_segment(lake, manifest).take([0, 2, 1]))


def damage_nulls(lake: Path, manifest: SegmentManifest) -> None:
    table = read_segment(lake, manifest)
    at = table.schema.get_field_index("corr_id")
    holes = pa.array([None, "x", "y"], pa.string())
    rewrite(lake, manifest, table.set_column(at, pa.field("corr_id", pa.string()), holes))


def damage_path(lake: Path, manifest: SegmentManifest) -> None:
    write_manifest(lake, msgspec.structs.replace(manifest, path="outbox/../../../etc/passwd"))


def damage_manifest(lake: Path, manifest: SegmentManifest) -> None:
    path = next((lake / "manifests").rglob(f"{manifest.first_seq:019d}.json"))
    path.write_bytes(b"{not json \xff")


DAMAGES: list[tuple[Callable[[Path, SegmentManifest], None], str]] = [
    (damage_truncated, "bytes where the manifest says"),
    (damage_empty, "0 bytes"),
    (damage_flipped, "sha256"),
    (damage_missing, "missing"),
    (damage_foreign_schema, "not a segment"),
    (damage_other_type, "has the type string"),
    (damage_not_parquet, "not readable as Parquet"),
    (damage_bodies, "not readable as Parquet"),
    (damage_out_of_order, "stands where"),
    (damage_nulls, "corr_id is missing"),
    (damage_path, "outside of its outbox"),
    (damage_manifest, "the manifest cannot be read"),
]


@pytest.mark.req("OBS-5")
@pytest.mark.parametrize(("damage", "reason"), DAMAGES, ids=[damage.__name__[7:] for damage, _ in DAMAGES])
def test_a_bad_segment_is_set_aside(
    outbox: Outbox, damage: Callable[[Path, SegmentManifest], None], reason: str
) -> None:
    """A segment that is not what it should be is left out, with the reason; its neighbours are read."""
    outbox.seal(outbox.messages(3))
    bad = outbox.seal(outbox.messages(3))
    outbox.seal(outbox.messages(3))
    damage(outbox.lake, bad)
    known = Known(outbox.lake)
    known.take()
    assert known.seqs() == [1, 2, 3, 7, 8, 9]
    (row,) = [row for row in known.rows() if row["first_seq"] == 4]
    assert reason in row["reason"]
    # What is missing may come: it is tried again.
    assert row["status"] == (Status.RETRY if damage is damage_missing else Status.SET_ASIDE)


@pytest.mark.req("OBS-5")
def test_what_cannot_be_read_for_a_while_comes_in_later(outbox: Outbox, spark: "SparkSession") -> None:
    """A store that fails for a batch costs nothing: the segment is tried again, and leaves no trace once it is read."""
    manifest = outbox.seal(outbox.messages(3))
    path = outbox.lake / manifest.path
    path.rename(path.with_suffix(".away"))
    path.mkdir()  # what is there, and cannot be opened as a file
    known = Known(outbox.lake)
    found = known.take()
    assert (found.events, found.retried, known.seqs()) == (0, 1, [])
    assert known.rules(spark) == []
    path.rmdir()
    path.with_suffix(".away").rename(path)
    assert known.take().events == 3
    assert (known.seqs(), known.rules(spark)) == ([1, 2, 3], [])


def _no_answer(*_args: object, **_named: object) -> None:
    raise OSError("the store does not answer")


@pytest.mark.req("OBS-5")
def test_what_cannot_be_read_for_hours_is_a_finding(outbox: Outbox, spark: "SparkSession") -> None:
    """A file that stays away is tried again and again, and after hours it is told."""
    gone = outbox.seal(outbox.messages(3))
    damage_missing(outbox.lake, gone)
    known = Known(outbox.lake)
    known.take()
    assert known.rules(spark) == []
    rows = [{**row, "since_us": row["since_us"] - 3 * HOUR_MS * 1000} for row in known.rows()]
    known.tables["segments"] = pa.Table.from_pylist(rows, SEGMENTS)
    assert known.take().retried == 0
    assert known.rules(spark) == [("bad_segment", 1)]


def test_a_good_copy_heals_a_bad_segment(outbox: Outbox, spark: "SparkSession") -> None:
    """Once the range is exported again, it is read, and nothing is wrong any more."""
    outbox.seal(outbox.messages(3))
    before = outbox.chain
    events = outbox.messages(3)
    bad = outbox.seal(events)
    damage_truncated(outbox.lake, bad)
    known = Known(outbox.lake)
    known.take()
    assert known.rules(spark) == [("bad_segment", 4)]
    (outbox.lake / bad.path).unlink()
    next((outbox.lake / "manifests").rglob(f"{4:019d}.json")).unlink()
    outbox.seal_from(events, first_seq=4, chain=before, sealed_by="node-b")
    known.take()
    assert (known.rules(spark), known.seqs()) == ([], [1, 2, 3, 4, 5, 6])


@pytest.mark.req("OBS-5")
def test_single_bad_events_are_put_aside(outbox: Outbox) -> None:
    """An event that cannot be read, or is far too large, is left out alone; those around it are read."""
    from agentpost.protocol.codec import encode_event

    events = [*outbox.messages(2), *outbox.messages(3, body="x" * 10_000_000)[2:], *outbox.messages(5)[3:]]
    bodies = [encode_event(event) for event in events]
    bodies[4] = b"{this is no event"
    outbox.seal_bodies(bodies, first_seq=1, chain=bytes(32))
    known = Known(outbox.lake)
    known.take()
    assert known.seqs() == [1, 2, 4]
    (row,) = known.rows()
    assert row["left_out"] == [3, 5]
    assert {(each["rule"], each["seq"]) for each in row["findings"]} == {("bad_event", 3), ("bad_event", 5)}
    assert any("larger than" in each["text"] for each in row["findings"])


@pytest.mark.parametrize("shift_us", [YEAR_US, -YEAR_US])
def test_a_clock_that_is_a_year_off(outbox: Outbox, shift_us: int) -> None:
    """An event whose time is a year away from its id is left out and found, whichever way it is off."""
    events = outbox.messages(3)
    at_ms = START_MS + shift_us // 1000
    events[1] = msgspec.structs.replace(events[1], created_at=format_ms(at_ms))
    outbox.seal(events)
    known = Known(outbox.lake)
    known.take()
    (row,) = known.rows()
    assert (row["left_out"], [(each["rule"], each["seq"]) for each in row["findings"]]) == ([2], [("clock_off", 2)])


def test_a_sealer_whose_clock_is_wrong_costs_no_event(outbox: Outbox) -> None:
    """A mirror that seals with a clock of years ago is told of; the events, whose own times agree, are read."""
    events = outbox.messages(3)
    manifest = outbox.seal(events, sealed_by="node-b")
    wrong = msgspec.structs.replace(manifest, sealed_at_us=manifest.sealed_at_us - 2 * YEAR_US, signature="")
    write_manifest(outbox.lake, wrong)
    known = Known(outbox.lake)
    assert known.take().events == 3
    (row,) = known.rows()
    assert {each["rule"] for each in row["findings"]} == {"bad_signature", "sealer_clock"}
    assert any("node-b" in each["text"] for each in row["findings"])


@pytest.mark.req("OBS-5", "PIPE-9")
@pytest.mark.parametrize("column", ["created_us", "ack_type", "to_agents"])
def test_columns_that_do_not_say_what_the_events_say(outbox: Outbox, column: str) -> None:
    """A mirror that leaves the bodies alone and changes the columns is not believed, whatever it signs."""
    manifest = outbox.seal(outbox.messages(3), sealed_by="node-b")
    table = read_segment(outbox.lake, manifest)
    values = table[column].to_pylist()
    values[1] = values[1] + 3_600_000_000 if column == "created_us" else {"ack_type": "processed"}.get(column, ["eve"])
    at = table.schema.get_field_index(column)
    changed = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    rewrite(outbox.lake, manifest, changed)
    known = Known(outbox.lake)
    found = known.take()
    assert (found.events, found.set_aside) == (0, 1)
    assert f"column {column}" in known.rows()[0]["reason"]


def test_a_segment_of_before_a_column_was_added_is_read(outbox: Outbox) -> None:
    """A column that may be null may be missing; one that no event is without may not."""
    manifest = outbox.seal(outbox.messages(3))
    whole = read_segment(outbox.lake, manifest)
    rewrite(outbox.lake, manifest, whole.drop(["skill_version", "priority"]))
    known = Known(outbox.lake)
    assert known.take().events == 3
    rewrite(outbox.lake, manifest, whole.drop(["corr_id"]))
    found = known.take()
    assert (found.set_aside, known.seqs()) == (1, [])


@pytest.mark.req("OBS-7")
def test_gaps_are_found_and_closed(outbox: Outbox, spark: "SparkSession") -> None:
    """Missing seqs are a finding until a late segment brings them."""
    outbox.seal(outbox.messages(3))
    missing, chain, first = outbox.messages(2), outbox.chain, outbox.seq + 1
    late = outbox.seal(missing)
    held = (outbox.lake / late.path).read_bytes()
    (outbox.lake / late.path).unlink()
    next((outbox.lake / "manifests").rglob(f"{first:019d}.json")).unlink()
    outbox.seal(outbox.messages(3))
    known = Known(outbox.lake)
    known.take()
    assert known.rules(spark) == [("gap", 4)]
    again = outbox.seal_from(missing, first_seq=first, chain=chain)
    assert (outbox.lake / again.path).read_bytes() == held
    known.take()
    assert (known.rules(spark), known.seqs()) == ([], list(range(1, 9)))


@pytest.mark.req("OBS-7")
def test_two_events_under_one_seq_are_a_fork(
    outbox: Outbox, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that tells another story is found at the first seq that differs; a copy of the same story is not."""
    events = outbox.messages(6)
    outbox.seal(events)
    chain_at_2 = bytes(read_segment(outbox.lake, last_manifest(outbox))["chain"][1].as_py())
    outbox.seal_from(events[2:5], first_seq=3, chain=chain_at_2, sealed_by="node-b")
    known = Known(outbox.lake)
    known.take()
    assert (known.rules(spark), known.seqs()) == ([], [1, 2, 3, 4, 5, 6])
    chain_at_3 = bytes(read_segment(outbox.lake, last_manifest(outbox))["chain"][2].as_py())
    forged = [events[3], *outbox.messages(2, at_ms=START_MS + 9 * HOUR_MS)]
    outbox.seal_from(forged, first_seq=4, chain=chain_at_3, sealed_by="node-b")
    with monkeypatch.context() as failing:
        # While the files cannot be compared, nothing is said of either.
        failing.setattr(pq, "read_table", _no_answer)
        assert known.take().retried > 0
    assert ("fork", 5) not in known.rules(spark)
    known.take()
    assert ("fork", 5) in known.rules(spark)
    assert known.seqs() == [1, 2, 3, 4, 5, 6]


def last_manifest(outbox: Outbox) -> SegmentManifest:
    path = min((outbox.lake / "manifests").rglob("*.json"))
    return msgspec.json.decode(path.read_bytes(), type=SegmentManifest)


@pytest.mark.parametrize("at_once", [1, 2, 3, 2000])
def test_a_broken_chain_is_never_read(outbox: Outbox, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """A changed event is found at its seq, however many are hashed at once, and nothing of its segment counts."""
    monkeypatch.setattr("agentpost.pipeline.checking._HASHED_AT_ONCE", at_once)
    manifest = outbox.seal(outbox.messages(4))
    table = read_segment(outbox.lake, manifest)
    bodies = table["body"].to_pylist()
    bodies[2] = bodies[2].replace(b"hello", b"HELLO")
    assert bodies[2] != table["body"][2].as_py()
    at = table.schema.get_field_index("body")
    rewrite(outbox.lake, manifest, table.set_column(at, table.schema.field(at), pa.array(bodies, pa.binary())))
    known = Known(outbox.lake)
    assert known.take().events == 0
    (row,) = known.rows()
    assert (row["status"], [(each["rule"], each["seq"]) for each in row["findings"]]) == (
        Status.SET_ASIDE,
        [("chain_break", 3)],
    )


def test_a_segment_that_does_not_follow_the_one_before(outbox: Outbox, spark: "SparkSession") -> None:
    """A segment whose chain starts elsewhere than the one before it ended is found at its first seq."""
    outbox.seal(outbox.messages(3))
    outbox.chain = b"\x01" * 32
    outbox.seal(outbox.messages(3))
    known = Known(outbox.lake)
    known.take()
    assert known.rules(spark) == [("chain_break", 4)]


def test_a_manifest_cannot_borrow_a_checked_file(outbox: Outbox) -> None:
    """A manifest of another outbox that names a file which was checked before is checked all the same."""
    good = outbox.seal(outbox.messages(3))
    known = Known(outbox.lake)
    known.take()
    name = outbox.lake / "manifests" / "node=node-b" / "epoch=first" / f"{1:019d}.json"
    name.parent.mkdir(parents=True)
    name.write_bytes(msgspec.json.encode(msgspec.structs.replace(good, node_id="node-b")))
    found = known.take()
    assert (found.events, found.set_aside) == (0, 1)


@pytest.mark.req("OBS-7")
def test_signatures_are_judged_as_soon_as_a_key_is_known(tmp_path: Path) -> None:
    """Without the key of its sealer a segment is unsigned; when a change log tells the key, it is looked at again."""
    owner = Outbox(tmp_path, node="node-x")
    owner.seal(owner.messages(2))
    known = Known(tmp_path)
    (tmp_path / "facts").mkdir()
    known.take()
    assert [(row["rank"], row["findings"]) for row in known.rows()] == [(2, [])]
    write_keys(tmp_path, "node-x")
    assert known.take().events == 0
    assert [row["rank"] for row in known.rows()] == [0]


def test_a_change_log_that_cannot_be_read_is_kept_with_its_problem(tmp_path: Path) -> None:
    """It is looked at once, and neither stops the batch nor is forgotten."""
    write_keys(tmp_path, "node-a")
    bad = tmp_path / "facts" / "node=node-a" / f"{2:012d}.parquet"
    bad.write_bytes(b"this is no Parquet")
    known = Known(tmp_path)
    known.take()
    problems = {row["name"]: row["problem"] for row in known.tables["change_logs"].to_pylist()}
    assert [problem is None for _, problem in sorted(problems.items())] == [True, False]
