"""Times of the data plane."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import format_ms, is_timestamp, parse_ms

LAST_MS = 253_402_300_799_999
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GOOD = "2026-02-25T16:22:10.123Z"

moments = st.integers(0, LAST_MS)


@given(moments)
@example(0)
@example(999)
@example(951_827_696_789)
@example(LAST_MS)
def test_a_time_is_read_as_it_was_written(epoch_ms: int):
    """Every millisecond from 1970 to 9999 has one text, and that text is read as the same millisecond."""
    text = format_ms(epoch_ms)
    assert is_timestamp(text)
    assert parse_ms(text) == epoch_ms
    calendar = EPOCH + timedelta(milliseconds=epoch_ms)
    assert text == calendar.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@given(moments, moments)
def test_times_sort_as_text(one: int, other: int):
    """Sorting the texts sorts the times."""
    assert (format_ms(one) < format_ms(other)) == (one < other)


def test_the_form_is_rfc_3339_in_utc():
    """A time looks like the protocol's example."""
    assert parse_ms(GOOD) == 1_772_036_530_123
    assert format_ms(1_772_036_530_123) == GOOD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "1772036530123",
        "2026-02-25",
        "2026-02-25T16:22:10Z",
        "2026-02-25T16:22:10.1Z",
        "2026-02-25T16:22:10.12Z",
        "2026-02-25T16:22:10.1234Z",
        "2026-02-25T16:22:10.123456Z",
        "2026-02-25T16:22:10.123",
        "2026-02-25T16:22:10.123+00:00",
        "2026-02-25T16:22:10.123+02:00",
        "2026-02-25T16:22:10+02:00",
        "2026-02-25T16:22:10-00:0",
        "2026-02-25T16:22+01.123Z",
        "2026-02-25T1622-0800.123Z",
        "2026-W09-3T16:22:10.123Z",
        "2026W093T16:22:10.12345Z",
        "2026-056T16:22:10.12345Z",
        "20260225T162210.1234567Z",
        "2026-02-25t16:22:10.123Z",
        "2026-02-25T16:22:10.123z",
        "2026-02-25 16:22:10.123Z",
        "2026-02-25T16:22:10,123Z",
        " 2026-02-25T16:22:10.12Z",
        "2026-02-25T16:22:10.123Z\n",
        "2026-02-25T16:22:10.1 3Z",
        "2026-02-25T16:22:-1.123Z",
        "+026-02-25T16:22:10.123Z",
        "\uff12026-02-25T16:22:10.123Z",
        "2026-02-30T16:22:10.123Z",
        "2025-02-29T16:22:10.123Z",
        "2026-13-01T16:22:10.123Z",
        "2026-00-01T16:22:10.123Z",
        "2026-02-00T16:22:10.123Z",
        "2026-02-25T24:00:00.000Z",
        "2026-02-25T25:00:00.000Z",
        "2026-02-25T16:60:10.123Z",
        "2016-12-31T23:59:60.000Z",
        "1969-12-31T23:59:59.999Z",
        "0000-01-01T00:00:00.000Z",
        "\ud800026-02-25T16:22:10.123",
    ],
)
def test_other_ways_to_write_a_time_are_refused(text: str):
    """Offsets, week dates, days that do not exist, leap seconds and missing milliseconds are refused by field."""
    assert not is_timestamp(text)
    with pytest.raises(Refusal) as caught:
        parse_ms(text, field="expiresAt")
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "expiresAt")
    assert "expiresAt" in caught.value.message


@given(moments, st.integers(0, 23), st.sampled_from("0123456789-:.TZ+W ,"))
@example(1_772_036_530_123, 11, "2")
def test_a_text_is_a_time_only_if_it_is_how_we_write_it(epoch_ms: int, at: int, letter: str):
    """There is one way to write a time: what is read as one is written back letter for letter."""
    text = format_ms(epoch_ms)
    changed = text[:at] + letter + text[at + 1 :]
    assert not is_timestamp(changed) or format_ms(parse_ms(changed)) == changed


@pytest.mark.parametrize("epoch_ms", [-1, LAST_MS + 1])
def test_a_time_outside_the_calendar_is_not_written(epoch_ms: int):
    """A time before 1970 or after 9999 is refused."""
    with pytest.raises(Refusal) as caught:
        format_ms(epoch_ms)
    assert caught.value.code is Code.INVALID_FIELD
