"""Ids: what they name, how they sort, and what is refused."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import (
    CorrId,
    EventId,
    InviteId,
    ReviewId,
    SessionId,
    TaskId,
    UlidSource,
    corr_id_of,
    derived_event_id,
    mark_in,
    mark_of,
    next_ulid,
    parse_id,
    ulid_time_ms,
)

pytestmark = pytest.mark.req("ENV-1")

PREFIXES = {
    EventId: "evt_",
    CorrId: "corr_",
    TaskId: "tsk_",
    ReviewId: "rev_",
    InviteId: "inv_",
    SessionId: "ses_",
}
NOW_MS = 1_772_000_000_000
LAST_MS = 2**48 - 1
NO_CHANCE = bytes(10)
ALL_ONES = b"\xff" * 10
ULID = "01K2H7Q4ZB9D6XW3T5N8RMVCGA"

entropies = st.binary(min_size=10, max_size=10)
clocks = st.integers(0, LAST_MS - 1)


@pytest.mark.parametrize(("kind", "prefix"), PREFIXES.items(), ids=PREFIXES.values())
@given(now_ms=clocks, entropy=entropies)
def test_an_id_says_what_it_names(kind: type[EventId], prefix: str, now_ms: int, entropy: bytes):
    """Every id is a prefix that says what it names, and a ULID that says when it was made."""
    made = UlidSource().make(kind, now_ms=now_ms, entropy=entropy)
    assert re.fullmatch(prefix + "[0-7][0-9A-HJKMNP-TV-Z]{25}", made)
    assert ulid_time_ms(made) == now_ms
    assert parse_id(kind, made, field="id") == made


def test_a_ulid_is_written_as_others_write_it():
    """The form is that of the public ULID specification: the clock in ten letters, chance in sixteen."""
    entropy = bytes.fromhex("d6764c61efb99302bd5b")
    made = UlidSource().make(EventId, now_ms=1_469_918_176_385, entropy=entropy)
    assert made == "evt_01ARYZ6S41TSV4RRFFQ69G5FAV"


@given(st.lists(st.tuples(clocks, entropies), min_size=2, max_size=30))
@example([(NOW_MS, ALL_ONES), (NOW_MS, NO_CHANCE)])
@example([(NOW_MS, NO_CHANCE), (NOW_MS - 1, ALL_ONES)])
@example([(NOW_MS, ALL_ONES), (NOW_MS, ALL_ONES), (NOW_MS + 1, NO_CHANCE), (NOW_MS + 2, NO_CHANCE)])
def test_ids_sort_in_the_order_they_were_made(draws: list[tuple[int, bytes]]):
    """Ids of one gateway sort as they were made, whatever the clock and chance do."""
    source = UlidSource()
    made = [source.make(EventId, now_ms=now_ms, entropy=entropy) for now_ms, entropy in draws]
    assert made == sorted(set(made))


def test_within_a_millisecond_ids_count_up():
    """Ids of the same millisecond follow each other by one, so that none has to be drawn again."""
    source = UlidSource()
    first, second = (source.make(EventId, now_ms=NOW_MS, entropy=NO_CHANCE) for _ in range(2))
    assert (first[-1], second[-1]) == ("0", "1")
    assert first[:-1] == second[:-1]


def test_a_clock_that_steps_back_does_not_disturb_the_order():
    """After the clock was set back, new ids still sort after the old ones."""
    source = UlidSource()
    before = source.make(EventId, now_ms=NOW_MS, entropy=NO_CHANCE)
    after = source.make(EventId, now_ms=NOW_MS - 3_600_000, entropy=ALL_ONES)
    assert after > before
    assert ulid_time_ms(after) == NOW_MS


def test_when_chance_is_used_up_the_next_millisecond_is_borrowed():
    """The id after the last one of a millisecond belongs to the next, and the order goes on from there."""
    source = UlidSource()
    last = source.make(EventId, now_ms=NOW_MS, entropy=ALL_ONES)
    borrowed = source.make(EventId, now_ms=NOW_MS, entropy=NO_CHANCE)
    following = source.make(EventId, now_ms=NOW_MS + 1, entropy=NO_CHANCE)
    assert last < borrowed < following
    assert [ulid_time_ms(each) for each in (last, borrowed, following)] == [NOW_MS, NOW_MS + 1, NOW_MS + 1]


def test_beyond_the_last_ulid_nothing_is_made():
    """A clock beyond what ULIDs can say is refused instead of starting over."""
    with pytest.raises(Refusal) as caught:
        next_ulid(0, now_ms=LAST_MS + 1, entropy=NO_CHANCE)
    assert caught.value.code is Code.INTERNAL
    with pytest.raises(Refusal):
        next_ulid(2**128 - 1, now_ms=0, entropy=NO_CHANCE)


@pytest.mark.parametrize("kind", PREFIXES, ids=PREFIXES.values())
@pytest.mark.parametrize(
    "text",
    [
        "",
        ULID,
        "xyz_" + ULID,
        "{prefix}",
        "{prefix}" + ULID[:-1],
        "{prefix}" + ULID + "0",
        "{prefix}" + ULID + "\n",
        " {prefix}" + ULID,
        "{prefix}" + ULID.lower(),
        "{prefix}" + ULID[:-1] + "-",
        "{prefix}" + ULID[:-1] + "\u0966",
        "{prefix}{prefix}" + ULID,
    ],
)
def test_what_is_not_an_id_is_refused(kind: type[EventId], text: str):
    """A text that is not an id of the wanted sort is refused, and the refusal names the field."""
    with pytest.raises(Refusal) as caught:
        parse_id(kind, text.replace("{prefix}", PREFIXES[kind]), field="payload.refEventId")
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "payload.refEventId")


@pytest.mark.parametrize("wanted", PREFIXES, ids=PREFIXES.values())
@pytest.mark.parametrize("given_kind", PREFIXES, ids=PREFIXES.values())
def test_one_sort_of_id_is_not_another(wanted: type[EventId], given_kind: type[EventId]):
    """A task's id does not pass for an event's, nor any other for another."""
    text = PREFIXES[given_kind] + ULID
    if wanted is given_kind:
        assert parse_id(wanted, text, field="id") == text
    else:
        with pytest.raises(Refusal):
            parse_id(wanted, text, field="id")


def test_ids_of_other_makes_are_read():
    """An id with letters that Crockford's alphabet leaves out is somebody else's, and is read."""
    text = "corr_01JV3M2B1P2M4E6R7T8Y9U0I1O"
    assert parse_id(CorrId, text, field="corrId") == text


@pytest.mark.req("ENV-3")
def test_a_conversation_is_named_after_its_first_event():
    """The corrId of a first message is its own ULID, so that a repeat gets the same one."""
    assert corr_id_of(EventId("evt_" + ULID)) == "corr_" + ULID


@given(node_id=st.text(max_size=64), time_ms=clocks, seed=st.binary(max_size=64))
def test_an_id_tells_whose_it_is(node_id: str, time_ms: int, seed: bytes):
    """The mark of a node stands in its ids, which are ULIDs as all others are."""
    made = derived_event_id(seed, time_ms=time_ms, node_id=node_id)
    assert mark_in(made) == mark_of(node_id)
    assert mark_of(node_id) != mark_of(node_id + "2")
    assert parse_id(EventId, made, field="id") == made
    assert ulid_time_ms(made) == time_ms


@pytest.mark.parametrize("text", ["", "evt_", "evt_IIIIIIIIIIIIIIIIIIIIIIIIII", "evt_8" + "0" * 25, "evt_" + "z" * 26])
def test_an_id_without_a_time_says_none(text: str):
    """An id that does not start with a ULID's clock has no time."""
    assert ulid_time_ms(text) == 0
