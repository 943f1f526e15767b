"""Content: which fields are somebody's words, and those words as bytes."""

import inspect
import re
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.delivery.content import (
    CONTENT_FIELDS,
    content_of,
    decode_content,
    encode_content,
    with_content,
    without_content,
)
from agentpost.delivery.ports import Content
from agentpost.protocol import payloads
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Message, Payload, Reply, Signal, TaskComplete, TaskUpdate
from agentpost.testing import START_MS, an_event_id
from tests.store.building import refused

TASK_ID = "tsk_01KJ9M8H4Z3V7Q2T6X5R0W1Y9B"
TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(st.characters(codec="utf-8"))),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(st.characters(codec="utf-8")), inner)),
    max_leaves=10,
)


@pytest.mark.req("PIPE-4")
@pytest.mark.parametrize("kind", CONTENT_FIELDS, ids=lambda kind: kind.__name__)
def test_content_is_what_the_contracts_call_content(kind: type[Payload]) -> None:
    """Every field that a contract marks as content is taken out of it, and no other."""
    marked = re.findall(r"^    (\w+): .*# content$", inspect.getsource(kind), re.MULTILINE)
    assert sorted(CONTENT_FIELDS[kind]) == sorted(marked)


@pytest.mark.req("PIPE-4")
def test_no_contract_with_content_is_forgotten() -> None:
    """All contracts with content can be sealed."""
    said = {kind for kind in get_args(Payload) if "# content" in inspect.getsource(kind)}
    assert set(CONTENT_FIELDS) == said


@pytest.mark.req("PIPE-4")
def test_a_payload_without_its_content_keeps_the_rest() -> None:
    """What routing and the pipeline need stays, and what was said is gone and can be put back."""
    update = TaskUpdate(task_id=payloads.TaskId(TASK_ID), progress=40, note="nearly there")
    bare = without_content(update)
    assert (bare.note, bare.progress) == (None, 40)
    assert with_content(bare, content_of(update)) == update


def test_a_payload_that_never_has_content_is_left_alone() -> None:
    """A signal has nothing to take out or to put back."""
    signal = Signal(signal="status")
    assert without_content(signal) is signal
    assert with_content(signal, Content()) is signal
    assert content_of(signal) == Content()


def test_content_for_another_contract_is_refused() -> None:
    """A message has no title: the refusal names the field instead of losing it."""
    with refused(Code.INVALID_FIELD) as caught:
        with_content(Message(to_agents=("bob",)), Content(title="Paint the fence"))
    assert caught.value.field == "payload.title"
    with refused(Code.INVALID_FIELD) as caught:
        with_content(Reply(ref_event_id=an_event_id("any")), Content(result_summary="done"))
    assert caught.value.field == "payload.resultSummary"


@given(subject=TEXTS, body=TEXTS, context=PLAIN)
def test_content_comes_back_from_its_bytes(subject: str | None, body: str | None, context: object) -> None:
    """Any text and any plain value survive."""
    content = Content(subject=subject, body=body, context=context)
    assert decode_content(encode_content(content)) == content


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (Content(body=7), "payload.body"),  # type: ignore[arg-type]
        (Content(subject="half \ud800 a pair"), "payload.subject"),
        (Content(context={"at": START_MS, "by": object()}), "payload.context.by"),
        (Content(output=float("nan")), "payload.output"),
    ],
)
def test_what_nobody_could_read_is_refused(content: Content, field: str) -> None:
    """Content that its readers could not decode is refused at its sender, by field."""
    with refused(Code.INVALID_FIELD) as caught:
        encode_content(content)
    assert caught.value.field == field


@given(raw=st.one_of(st.binary(), PLAIN.map(msgspec.msgpack.encode)))
def test_bytes_that_are_no_content_are_refused_and_not_repeated(raw: bytes) -> None:
    """Whatever another gateway sealed, the answer is content or a refusal that says nothing of what was in it."""
    assert _answer(raw) in (
        "content",
        "what was sealed is not content that this protocol knows",
        "what was sealed holds a value that cannot travel",
    )


def _answer(raw: bytes) -> str:
    try:
        decode_content(raw)
    except Refusal as refusal:
        return refusal.message
    return "content"


def test_content_that_is_nested_without_end_is_refused() -> None:
    """A bomb of lists ends as a refusal, however deep it is."""
    for depth in (40, 100_000):
        bomb = b"\x81\xa7context" + b"\x91" * depth + b"\xc0"
        with pytest.raises(Refusal):
            decode_content(bomb)


def test_an_unknown_field_of_content_is_passed_over() -> None:
    """What a later version says besides is no reason to lose the rest (ENV-6)."""
    assert decode_content(msgspec.msgpack.encode({"body": "hello", "mood": "good"})) == Content(body="hello")


def test_a_result_keeps_its_output() -> None:
    """Free-form output is content as well."""
    complete = TaskComplete(
        task_id=payloads.TaskId(TASK_ID),
        completed_by_agent_id="bob",
        completed_at="2026-02-25T16:22:10.000Z",
        result_summary="done",
        output={"files": 3},
    )
    assert content_of(complete) == Content(result_summary="done", output={"files": 3})
    assert without_content(complete).output is None
