"""Taking in segments: each event once, and what is wrong is left out with the reason. No Spark in here."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentpost.lake.manifest import SegmentManifest
from agentpost.pipeline.checking import check_segment
from agentpost.pipeline.files import Files
from agentpost.pipeline.intake import Intake, Known, discover, take_in
from agentpost.protocol.errors import Refusal
from tests.pipeline.lakes import HOUR_MS, Outbox, read_segment, rewrite, write_keys, write_manifest

YEAR_US = 366 * 86_400_000_000


def taken(lake: Path, known: Known | None = None) -> tuple[Intake, Known]:
    """Take in what is new; gives it, and all that is known then."""
    files, before = Files(str(lake)), known or Known()
    new = discover(files, before)
    found = take_in(files, before, new, check=lambda claims: [check_segment(files, claim) for claim in claims])
    return found, Known(
        segments=pa.concat_tables([before.segments, found.segments]),
        findings=found.findings,
        quarantine=pa.concat_tables([before.quarantine, found.quarantine]),
        facts=pa.concat_tables([before.facts, found.facts]),
        change_logs=pa.concat_tables([before.change_logs, found.change_logs]),
    )


def rules(found: Intake) -> list[tuple[str, int]]:
    return [(row["rule"], row["seq"]) for row in found.findings.to_pylist()]


def read_seqs(known: Known) -> list[int]:
    """Every seq that is read, as often as it is."""
    return sorted(
        seq
        for row in known.segments.to_pylist()
        for first, last in zip(row["slice_first"], row["slice_last"], strict=True)
        for seq in range(first, last + 1)
    )


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    write_keys(tmp_path, "node-a", "node-b")
    return Outbox(tmp_path)


def test_whole_segments_are_read_whole(outbox: Outbox) -> None:
    """Segments that are as they should be are read from the first event to the last, without a finding."""
    for _ in range(3):
        outbox.seal(outbox.messages(4))
    found, known = taken(outbox.lake)
    assert (found.events, rules(found), found.quarantine.num_rows) == (12, [], 0)
    assert read_seqs(known) == list(range(1, 13))


@pytest.mark.req("OBS-4")
def test_what_was_taken_in_is_not_taken_in_again(outbox: Outbox) -> None:
    """A second look finds nothing new, and only the new segment once there is one."""
    outbox.seal(outbox.messages(3))
    _, known = taken(outbox.lake)
    again, known = taken(outbox.lake, known)
    assert (again.events, again.segments.num_rows, again.facts.num_rows) == (0, 0, 0)
    outbox.seal(outbox.messages(2))
    more, known = taken(outbox.lake, known)
    assert (more.events, more.segments.num_rows) == (2, 1)
    assert read_seqs(known) == [1, 2, 3, 4, 5]


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
def test_a_bad_segment_is_put_aside(
    outbox: Outbox, damage: Callable[[Path, SegmentManifest], None], reason: str
) -> None:
    """A segment that is not what it should be is left out, with the reason; its neighbours are read."""
    outbox.seal(outbox.messages(3))
    bad = outbox.seal(outbox.messages(3))
    outbox.seal(outbox.messages(3))
    damage(outbox.lake, bad)
    found, known = taken(outbox.lake)
    assert read_seqs(known) == [1, 2, 3, 7, 8, 9]
    assert reason in found.quarantine.to_pylist()[0]["reason"]
    assert ("bad_segment", 4) in rules(found)


def test_a_good_copy_heals_a_bad_segment(outbox: Outbox) -> None:
    """Once somebody exports the range again, it is read, and nothing is wrong any more."""
    outbox.seal(outbox.messages(3))
    before = outbox.chain
    events = outbox.messages(3)
    bad = outbox.seal(events)
    damage_truncated(outbox.lake, bad)
    found, known = taken(outbox.lake)
    assert rules(found) == [("bad_segment", 4)]
    (outbox.lake / bad.path).unlink()
    next((outbox.lake / "manifests").rglob(f"{4:019d}.json")).unlink()
    outbox.seal_from(events, first_seq=4, chain=before, sealed_by="node-b")
    found, known = taken(outbox.lake, known)
    assert (rules(found), read_seqs(known)) == ([], [1, 2, 3, 4, 5, 6])


@pytest.mark.req("OBS-5")
def test_single_bad_events_are_put_aside(outbox: Outbox) -> None:
    """An event that cannot be read, or is far too large, is left out alone; those around it are read."""
    from agentpost.protocol.codec import encode_event

    events = [*outbox.messages(2), *outbox.messages(3, body="x" * 10_000_000)[2:], *outbox.messages(5)[3:]]
    bodies = [encode_event(event) for event in events]
    bodies[4] = b"{this is no event"
    outbox.seal_bodies(bodies, first_seq=1, chain=bytes(32))
    found, known = taken(outbox.lake)
    assert read_seqs(known) == [1, 2, 4]
    assert [(row["first_seq"], row["last_seq"]) for row in found.quarantine.to_pylist()] == [(3, 3), (5, 5)]
    assert "larger than" in found.quarantine.to_pylist()[0]["reason"]


@pytest.mark.parametrize("shift_us", [YEAR_US, -YEAR_US])
def test_a_clock_that_is_a_year_off(outbox: Outbox, shift_us: int) -> None:
    """An event whose time is a year away from its id is left out and found, whichever way it is off."""
    manifest = outbox.seal(outbox.messages(3))
    table = read_segment(outbox.lake, manifest)
    at = table.schema.get_field_index("created_us")
    times = table["created_us"].to_pylist()
    times[1] += shift_us
    changed = rewrite(outbox.lake, manifest, table.set_column(at, table.schema.field(at), pa.array(times, pa.int64())))
    assert changed.sha256 != manifest.sha256
    found, known = taken(outbox.lake)
    assert ("clock_off", 2) in rules(found)
    assert read_seqs(known) == [1, 3]


@pytest.mark.req("OBS-7")
def test_gaps_are_found_and_closed(outbox: Outbox) -> None:
    """Missing seqs are a finding until a late segment brings them."""
    outbox.seal(outbox.messages(3))
    missing, chain, first = outbox.messages(2), outbox.chain, outbox.seq + 1
    late = outbox.seal(missing)
    held = (outbox.lake / late.path).read_bytes()
    (outbox.lake / late.path).unlink()
    next((outbox.lake / "manifests").rglob(f"{first:019d}.json")).unlink()
    outbox.seal(outbox.messages(3))
    found, known = taken(outbox.lake)
    assert rules(found) == [("gap", 4)]
    again = outbox.seal_from(missing, first_seq=first, chain=chain)
    assert (outbox.lake / again.path).read_bytes() == held
    found, known = taken(outbox.lake, known)
    assert (rules(found), read_seqs(known)) == ([], list(range(1, 9)))


@pytest.mark.req("OBS-7")
def test_two_events_under_one_seq_are_a_fork(outbox: Outbox) -> None:
    """A mirror that tells another story is found at the first seq that differs; a copy of the same story is not."""
    events = outbox.messages(6)
    outbox.seal(events)
    chain_at_2 = bytes(read_segment(outbox.lake, last_manifest(outbox))["chain"][1].as_py())
    outbox.seal_from(events[2:5], first_seq=3, chain=chain_at_2, sealed_by="node-b")
    found, known = taken(outbox.lake)
    assert (rules(found), read_seqs(known)) == ([], [1, 2, 3, 4, 5, 6])
    chain_at_3 = bytes(read_segment(outbox.lake, last_manifest(outbox))["chain"][2].as_py())
    forged = [events[3], *outbox.messages(2, at_ms=events_at(9))]
    outbox.seal_from(forged, first_seq=4, chain=chain_at_3, sealed_by="node-b")
    found, known = taken(outbox.lake, known)
    assert ("fork", 5) in rules(found)
    assert read_seqs(known) == [1, 2, 3, 4, 5, 6]


def events_at(hours: int) -> int:
    from agentpost.testing import START_MS

    return START_MS + hours * HOUR_MS


def last_manifest(outbox: Outbox) -> SegmentManifest:
    path = min((outbox.lake / "manifests").rglob("*.json"))
    return msgspec.json.decode(path.read_bytes(), type=SegmentManifest)


@pytest.mark.parametrize("at_once", [1, 2, 3, 2000])
def test_a_broken_chain_is_found(outbox: Outbox, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """A changed event is found at its seq, however many are hashed at once, and no signature at its segment."""
    monkeypatch.setattr("agentpost.pipeline.checking._HASHED_AT_ONCE", at_once)
    manifest = outbox.seal(outbox.messages(4))
    assert rules(taken(outbox.lake)[0]) == []
    table = read_segment(outbox.lake, manifest)
    bodies = table["body"].to_pylist()
    bodies[2] = bodies[2].replace(b"hello", b"HELLO")
    assert bodies[2] != table["body"][2].as_py()
    at = table.schema.get_field_index("body")
    rewrite(outbox.lake, manifest, table.set_column(at, table.schema.field(at), pa.array(bodies, pa.binary())))
    found, known = taken(outbox.lake)
    assert rules(found) == [("bad_signature", 1), ("chain_break", 3)]
    assert read_seqs(known) == [1, 2, 3, 4]


def test_a_segment_that_does_not_follow_the_one_before(outbox: Outbox) -> None:
    """A segment whose chain starts elsewhere than the one before it ended is found at its first seq."""
    outbox.seal(outbox.messages(3))
    outbox.chain = b"\x01" * 32
    outbox.seal(outbox.messages(3))
    found, known = taken(outbox.lake)
    assert rules(found) == [("chain_break", 4)]
    again, _ = taken(outbox.lake, known)
    assert rules(again) == [("chain_break", 4)]


def test_a_manifest_cannot_borrow_a_checked_file(outbox: Outbox) -> None:
    """A manifest of another outbox that names a file which was checked before is checked all the same."""
    good = outbox.seal(outbox.messages(3))
    _, known = taken(outbox.lake)
    name = outbox.lake / "manifests" / "node=node-b" / "epoch=first" / f"{1:019d}.json"
    name.parent.mkdir(parents=True)
    name.write_bytes(msgspec.json.encode(msgspec.structs.replace(good, node_id="node-b")))
    found, known = taken(outbox.lake, known)
    assert (found.events, rules(found)) == (0, [("bad_segment", 1)])


def test_an_unknown_key_is_no_finding(tmp_path: Path) -> None:
    """Where nobody told the key of a gateway its signature cannot be judged; a known one has to fit."""
    stranger = Outbox(tmp_path, node="node-x")
    stranger.seal(stranger.messages(2))
    found, _ = taken(tmp_path)
    assert rules(found) == []


def test_no_lake_is_a_refusal(tmp_path: Path) -> None:
    """A place without a lake is an answer that says what to do, not an empty result."""
    with pytest.raises(Refusal, match="there is no lake"):
        discover(Files(str(tmp_path)), Known())
