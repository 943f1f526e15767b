"""What is read of segments that overlap: the same whatever order they come in. Pure, without files."""

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentpost.pipeline.buckets import buckets_of, weights_of
from agentpost.pipeline.ledger import Planned, Rank, Segment, Status, plan

# What stands at each seq of an outbox, by the segment's own story of it.
Story = dict[str, tuple[int, str]]


def segment(name: str, first: int, last: int, *, epoch: str = "1", story: str = "true", **more: object) -> Segment:
    values = {"rank": Rank.OWNER, "sealed_at_us": first, "sha256": f"{name}-{story}", "hours": (first // 10,)}
    return Segment(
        node="a", epoch=epoch, first_seq=first, last_seq=last, manifest=name, path=f"{story}/{name}", **(values | more)
    )


def first_difference(one: Segment, other: Segment, seqs: tuple[int, int]) -> int | None:
    """Two segments that tell another story differ from the first seq that they share."""
    return None if one.path.split("/")[0] == other.path.split("/")[0] else seqs[0]


class Ledger:
    """The rows as batch after batch leaves them."""

    def __init__(self) -> None:
        self.rows: dict[str, Segment] = {}

    def take(self, *checked: Segment) -> Planned:
        done = plan(checked, self.rows.values(), first_difference)
        self.rows |= {each.manifest: each for each in done.rows}
        return done

    def read(self) -> dict[tuple[str, int], str]:
        """Which segment each event is read from."""
        found: dict[tuple[str, int], str] = {}
        for each in self.rows.values():
            for first, last in each.slices:
                for seq in range(first, last + 1):
                    assert (each.epoch, seq) not in found, "an event is read twice"
                    found[each.epoch, seq] = each.manifest
        return found


COPIES = (
    segment("owner", 1, 10),
    segment("mirror", 5, 14, rank=Rank.MIRROR, sealed_at_us=0),
    segment("unsigned", 8, 20, rank=Rank.UNSIGNED, sealed_at_us=0),
    segment("forged", 12, 16, rank=Rank.MIRROR, story="other"),
    segment("broken", 1, 20, status=Status.SET_ASIDE),
)


@pytest.mark.req("OBS-4", "OBS-7")
def test_the_order_of_arrival_decides_nothing() -> None:
    """Owner before mirror, mirror before unsigned, broken never: in all orders, one by one or together."""
    whole = Ledger()
    whole.take(*COPIES)
    assert set(whole.read().values()) == {"owner", "mirror", "forged", "unsigned"}
    assert {seq for _, seq in whole.read()} == set(range(1, 21))
    for order in permutations(COPIES):
        ledger = Ledger()
        for each in order:
            ledger.take(each)
        assert ledger.rows == whole.rows
    assert whole.rows["forged"].fork_seq == 12


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 12), st.integers(0, 3), st.sampled_from("xy")), max_size=7)
)
@pytest.mark.req("OBS-4")
def test_any_segments_in_any_order(made: list[tuple[int, int, int, str]]) -> None:
    """Any overlapping copies, forks and broken ones: each event is read once, and every order reads the same."""
    segments = [
        segment(
            f"s{at}",
            first,
            first + length,
            story=story,
            rank=min(rank, Rank.UNSIGNED),
            status=Status.SET_ASIDE if rank == 3 else Status.TAKEN,
        )
        for at, (first, length, rank, story) in enumerate(made)
    ]
    whole = Ledger()
    whole.take(*segments)
    for seed in range(3):
        ledger, order = Ledger(), list(segments)
        random.Random(seed).shuffle(order)
        for each in order:
            ledger.take(each)
        assert ledger.rows == whole.rows


@pytest.mark.req("CUR-6", "OBS-7")
def test_a_restored_gateway_s_events_are_one_event_each() -> None:
    """The same events in a second epoch count once; from where the two lives part, both count and it is told."""
    ledger = Ledger()
    ledger.take(segment("before", 1, 10))
    again = ledger.take(segment("again", 4, 10, epoch="2", sealed_at_us=50))
    assert again.rows[0].status is Status.SUPERSEDED
    assert again.rows[0].regressed_seq is None
    other = ledger.take(segment("other", 4, 12, epoch="3", sealed_at_us=99, story="another"))
    assert other.rows[0].slices == ((4, 12),)
    assert other.rows[0].regressed_seq == 4


def test_what_is_read_otherwise_is_computed_anew() -> None:
    """New events come in addition; where a better copy takes the place of another, its hours are computed anew."""
    ledger = Ledger()
    mirror = ledger.take(segment("mirror", 20, 29, rank=Rank.MIRROR))
    assert [each.manifest for each in mirror.fresh] == ["mirror"]
    assert mirror.hours == frozenset()
    owner = ledger.take(segment("owner", 20, 24))
    assert [each.manifest for each in owner.fresh] == ["owner"]
    assert owner.hours == {2}
    assert owner.replaced == {"mirror"}


def test_a_segment_that_could_not_be_read_comes_in_later() -> None:
    """While it is tried again nothing of it is read; once it can be, it is as if it had come then."""
    ledger = Ledger()
    late = segment("late", 1, 5)
    ledger.take(replace(late, status=Status.RETRY, since_us=7))
    assert ledger.read() == {}
    done = ledger.take(late)
    assert [each.manifest for each in done.fresh] == ["late"]
    assert len(ledger.read()) == 5


def test_a_manifest_written_anew_with_the_same_content_changes_nothing() -> None:
    """Only its time of writing is noted."""
    ledger = Ledger()
    one = segment("one", 1, 5)
    ledger.take(one)
    done = ledger.take(replace(one, manifest_stamp=99))
    assert (done.fresh, done.hours, done.replaced) == ((), frozenset(), {"one"})


def test_events_that_are_wrong_by_themselves_are_left_out() -> None:
    """They are read from no copy."""
    ledger = Ledger()
    ledger.take(segment("owner", 1, 6, left_out=(3, 4)), segment("mirror", 2, 8, rank=Rank.MIRROR))
    assert {seq for _, seq in ledger.read()} == {1, 2, 5, 6, 7, 8}


def test_a_full_hour_is_divided() -> None:
    """Hours share buckets until one is full; an hour with more than fits is spread by the id of the event."""
    weights = weights_of([((1, 2, 3), 300), ((4,), 5000), ((5,), 100)])
    buckets = buckets_of(weights, events_a_bucket=1000)
    assert buckets.count == 7
    assert "when hour <= 3 then 0" in buckets.expression
    assert "when hour <= 4 then 1 + cast(pmod(xxhash64(event_id), 5) as int)" in buckets.expression
    assert "when hour <= 5 then 6" in buckets.expression
    assert buckets_of({}, events_a_bucket=1000).count == 1
