"""Free-form values: what may travel."""

import json
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Priority
from agentpost.protocol.plain import MAX_DEPTH, check_plain
from tests.protocol.strategies import plain_values


def refusal(value: Any, field: str = "payload.context") -> Refusal:
    with pytest.raises(Refusal) as caught:
        check_plain(value, field=field)
    return caught.value


def nested(levels: int, *, in_objects: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if in_objects else [value]
    return value


@pytest.mark.req("ENV-6")
@given(plain_values)
def test_what_may_travel_travels_in_both_formats(value: Any):
    """A value that is let through can be written as JSON and as msgpack, and is read back the same."""
    check_plain(value, field="payload.context")
    assert msgspec.json.decode(msgspec.json.encode(value)) == value
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value
    assert json.loads(msgspec.json.encode(value)) == value


@pytest.mark.parametrize(
    "value", [None, True, False, 0, -(2**63), 2**64 - 1, 1.5, "", "\x00", "日本 \U0001f4ec", [], {}]
)
def test_plain_values_are_let_through(value: Any):
    """Numbers, texts, true, false, nothing, lists and objects may travel, alone and inside each other."""
    check_plain(value, field="payload.context")
    check_plain({"a": [value, {"b": value}]}, field="")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "is a number that JSON cannot say"),
        (float("inf"), "is a number that JSON cannot say"),
        (float("-inf"), "is a number that JSON cannot say"),
        (2**64, "is a number beyond 64 bits"),
        (-(2**63) - 1, "is a number beyond 64 bits"),
        ("\ud800", "is text with half a surrogate pair, which is not Unicode"),
        ("Ä\udfff", "is text with half a surrogate pair, which is not Unicode"),
        (b"bytes", "is a value of type bytes, which cannot travel"),
        ((1, 2), "is a value of type tuple, which cannot travel"),
        ({1, 2}, "is a value of type set, which cannot travel"),
        (1j, "is a value of type complex, which cannot travel"),
        (Priority.HIGH, "is a value of type Priority, which cannot travel"),
        (OrderedDict(a=1), "is a value of type OrderedDict, which cannot travel"),
        (datetime(2026, 1, 1, tzinfo=UTC), "is a value of type datetime, which cannot travel"),
        (msgspec.msgpack.Ext(5, b""), "is a value of type Ext, which cannot travel"),
    ],
    ids=lambda given: given if isinstance(given, str) and given.startswith("is ") else type(given).__name__,
)
def test_what_cannot_travel_is_refused_where_it_stands(value: Any, problem: str):
    """A value that one of the formats cannot say is refused, and the refusal says where it stands."""
    places = [
        (value, "payload.context"),
        ({"a": 1, "b": value}, "payload.context.b"),
        ([0, value], "payload.context[1]"),
        ({"a": [{"b": value}]}, "payload.context.a[0].b"),
    ]
    for whole, place in places:
        refused = refusal(whole)
        assert (refused.code, refused.field) == (Code.INVALID_FIELD, place)
        assert refused.message == f"{place} {problem}"


@pytest.mark.parametrize(
    ("key", "problem"), [(1, "text"), (None, "text"), (b"a", "text"), ((), "text"), ("\udc00", "Unicode")]
)
def test_a_key_is_unicode_text(key: Any, problem: str):
    """An object with a key that is not text is refused by the place of the object."""
    refused = refusal({"a": {key: 1}})
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, "payload.context.a")
    assert refused.message == f"payload.context.a has a key that is not {problem}"


def test_the_fields_of_a_whole_object_name_themselves():
    """Where a whole object is checked, the path starts with its own fields."""
    assert refusal({"zone": {"x": [2**64]}}, field="").field == "zone.x[0]"
    whole = refusal({1: 2}, field="")
    assert (whole.field, whole.message) == (None, "the object has a key that is not text")


@pytest.mark.parametrize("in_objects", [False, True], ids=["lists", "objects"])
def test_nesting_ends_at_the_limit(in_objects: bool):
    """Thirty-two levels are let through, the next one is refused; the refusal says where they begin."""
    check_plain(nested(MAX_DEPTH, in_objects=in_objects), field="payload.context")
    for levels in (MAX_DEPTH + 1, 100_000):
        refused = refusal(nested(levels, in_objects=in_objects))
        assert (refused.code, refused.field) == (Code.TOO_DEEP, "payload.context")
    refused = refusal({"zone": nested(MAX_DEPTH, in_objects=in_objects)}, field="")
    assert (refused.code, refused.field) == (Code.TOO_DEEP, "zone")


def test_a_refusal_stays_short():
    """Names that a sender chose cannot make the refusal long, and it can be written as JSON."""
    value: Any = float("nan")
    for _ in range(MAX_DEPTH):
        value = {"key" * 1000: value}
    refused = refusal(value)
    assert len(refused.message) < 400
    assert json.dumps(refused.to_wire())


@given(
    st.recursive(
        st.text(st.characters()) | st.integers() | st.floats() | st.binary(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()) | st.integers(), inner, max_size=3)
        ),
        max_leaves=5,
    )
)
def test_every_value_is_let_through_or_refused(value: Any):
    """Whatever a program hands over is let through and can then be written, or is refused."""
    try:
        check_plain(value, field="payload.context")
    except Refusal as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.code is Code.INVALID_FIELD
        assert msgspec.json.encode(refused.to_wire())
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value
    assert msgspec.json.decode(msgspec.json.encode(value)) == value
