"""The header convention of plain-text messages."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.headers import (
    HeadedText,
    HeaderKind,
    parse_headers,
    render_headers,
    with_headers,
)
from agentpost.protocol.payloads import Priority

pytestmark = pytest.mark.req("OPS-7")

FULL = HeadedText(
    kind=HeaderKind.REQUEST,
    priority=Priority.HIGH,
    corr="7f3a",
    thread="release 1.3",
    extra=(("X-Build", "42"), ("x-build", "43")),
    body="Please validate.\n\nThanks.\n",
)


def test_a_header_block_is_parsed():
    """A message that starts with the four headers is taken apart into them, the others, and its body."""
    text = (
        "kind: request\nX-Build: 42\npriority: high\ncorr: 7f3a\nthread: release 1.3\nx-build: 43\n\n"
        "Please validate.\n\nThanks.\n"
    )
    assert parse_headers(text) == FULL


def test_headers_are_rendered_in_the_conventions_order():
    """The four headers come first, then the others in their order, a blank line, and the body untouched."""
    assert render_headers(FULL) == (
        "kind: request\npriority: high\ncorr: 7f3a\nthread: release 1.3\nX-Build: 42\nx-build: 43\n\n"
        "Please validate.\n\nThanks.\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "\n\nhello",
        "TODO: call Ann",
        "Note: this\n\nis prose",
        "https://example.org/a\n\nlook",
        "kind: request\nplease help",
        "kind request\n\nplease help",
        " kind: request\n\nplease help",
        "kind: wish\n\nplease help",
        "priority: urgent\n\nplease help",
        "kind: request\nkind: status\n\nplease help",
        "kind: request\nthread: a\rb\n\nplease help",
    ],
)
def test_what_is_not_a_header_block_is_body(text: str):
    """A text that does not follow the convention is kept whole: nothing is refused, nothing is lost."""
    assert parse_headers(text) == HeadedText(body=text)
    assert render_headers(HeadedText(body=text)) == text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Kind:REQUEST\r\nThread:  a b  \r\n\r\nhi", HeadedText(kind=HeaderKind.REQUEST, thread="a b", body="hi")),
        ("kind: status", HeadedText(kind=HeaderKind.STATUS, body="")),
        ("kind: status\n", HeadedText(kind=HeaderKind.STATUS, body="")),
        ("kind: alert\ncorr:\n \t\nhi", HeadedText(kind=HeaderKind.ALERT, body="hi")),
        ("corr: a: b\n\n\nhi", HeadedText(corr="a: b", body="\nhi")),
    ],
    ids=["other line ends and case", "no body", "no body, one line end", "unfilled header", "colon in value"],
)
def test_small_deviations_are_forgiven(text: str, parsed: HeadedText):
    """Line ends, capitals, blanks and unfilled headers do not keep a header block from being read."""
    assert parse_headers(text) == parsed


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\n"])
def test_a_value_of_two_lines_is_refused(bad: str):
    """A header value with a line break in it could forge a header, so it cannot be written."""
    for make in (
        lambda: HeadedText(corr=bad, body=""),
        lambda: HeadedText(thread=bad, body=""),
        lambda: HeadedText(extra=(("x", bad),), body=""),
    ):
        with pytest.raises(Refusal) as caught:
            make()
        assert caught.value.code is Code.INVALID_FIELD
        assert caught.value.field in {"corr", "thread", "extra[0]"}


@pytest.mark.parametrize("name", ["", "Kind", "a b", "a:b", "a\nb", "é", "x" * 65])
def test_a_name_that_could_not_be_read_back_is_refused(name: str):
    """An extra header needs a plain name of its own."""
    with pytest.raises(Refusal) as caught:
        HeadedText(extra=((name, "1"),), body="")
    assert caught.value.field == "extra[0]"


one_line = st.text(st.characters(exclude_characters="\r\n"), max_size=12)
header_like = st.lists(
    st.sampled_from(["kind: request", "kind:", "x: 1", "corr: a", "\n", "\n\n", "kind: wish", "\r\n", " ", "body"]),
    max_size=8,
).map("\n".join)
headed_texts = st.builds(
    HeadedText,
    kind=st.none() | st.sampled_from(HeaderKind),
    priority=st.none() | st.sampled_from(Priority),
    corr=st.none() | one_line,
    thread=st.none() | one_line,
    extra=st.lists(st.tuples(st.sampled_from(["x", "X-Y", "note_1"]), one_line), max_size=3).map(tuple),
    body=st.text(max_size=40) | header_like,
)


@given(headed_texts)
@example(HeadedText(body="kind: request\n\nhi"))
@example(HeadedText(body="kind:\n\nkind: request\n\nhi"))
@example(HeadedText(extra=(("x", ""),), body="hi"))
def test_what_is_rendered_is_read_back(text: HeadedText):
    """Whatever a sender puts into headers and body, the receiver reads the same, look-alike bodies included."""
    assert parse_headers(render_headers(text)) == text


@given(st.text() | header_like)
def test_any_text_is_a_message(text: str):
    """No text is refused, and reading, writing and reading again changes nothing."""
    parsed = parse_headers(text)
    assert parse_headers(render_headers(parsed)) == parsed
    assert text.endswith(parsed.body)


@pytest.mark.req("OPS-7")
@pytest.mark.parametrize(
    ("text", "headers", "expected"),
    [
        ("Go.", {}, "Go."),
        (None, {}, None),
        (None, {"thread": "release 1.3"}, "thread: release 1.3\n\n"),
        ("Go.", {"kind": HeaderKind.REQUEST}, "kind: request\n\nGo."),
        (
            "kind: status\npriority: high\nticket: 42\n\nGo.",
            {"kind": HeaderKind.RESULT, "thread": "release 1.3"},
            "kind: result\npriority: high\nthread: release 1.3\nticket: 42\n\nGo.",
        ),
        ("kind: status\n\nGo.", {}, "kind: status\n\nGo."),
    ],
    ids=str,
)
def test_headers_are_added_to_what_a_text_has_already(text: str | None, headers: Any, expected: str | None) -> None:
    """What is given counts before what the text says; everything else stays as it was written."""
    assert with_headers(text, **headers) == expected


@pytest.mark.req("OPS-7")
def test_a_thread_of_two_lines_is_refused() -> None:
    """A header is one line: a second one would pass for another header, or for the body."""
    with pytest.raises(Refusal) as caught:
        with_headers("Go.", thread="release\nkind: alert")
    assert caught.value.field == "thread"
