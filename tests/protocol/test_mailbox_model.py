"""The mailbox protocol's messages and states."""

import json
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.machine import walk
from agentpost.protocol.mailbox import (
    MAILBOX,
    MAX_MESSAGE_BYTES,
    DeadLetterEntry,
    EnqueueAck,
    MailboxMessage,
    MailboxSignal,
    MailboxState,
    MessageSummary,
    WireCase,
    decode_message,
    encode_message,
    from_wire,
    nack_outcome,
    retry_delay_seconds,
    to_wire,
)
from agentpost.protocol.plain import MAX_DEPTH

SNAKE: dict[str, Any] = {
    "msg_id": "orchestrator:1743999600123456789",
    "from": "orchestrator",
    "to": "analyst",
    "payload": "analyze the auth module",
    "created_at": 1743999600,
    "attempt": 0,
}
CAMEL: dict[str, Any] = {
    "msgId": SNAKE["msg_id"],
    "from": SNAKE["from"],
    "to": SNAKE["to"],
    "payload": SNAKE["payload"],
    "createdAt": SNAKE["created_at"],
    "attempt": SNAKE["attempt"],
}
MESSAGE = MailboxMessage(
    msg_id="orchestrator:1743999600123456789",
    sender="orchestrator",
    to="analyst",
    payload="analyze the auth module",
    created_at=1743999600,
    attempt=0,
)


def refusal(data: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        decode_message(data)
    return caught.value


@pytest.mark.req("MBX-1")
@pytest.mark.parametrize("wire", [SNAKE, CAMEL], ids=["snake_case", "camelCase"])
def test_both_spellings_are_the_same_message(wire: dict[str, Any]):
    """A message written in snake_case and one written in camelCase are read alike."""
    assert decode_message(json.dumps(wire).encode()) == MESSAGE


@pytest.mark.req("MBX-1")
def test_either_spelling_can_be_written():
    """A message is written in the spelling that its reader prefers, and an absent version is left out."""
    assert json.loads(encode_message(MESSAGE)) == SNAKE
    assert json.loads(encode_message(MESSAGE, case=WireCase.CAMEL)) == CAMEL


@pytest.mark.req("MBX-1")
@pytest.mark.parametrize("case", WireCase)
def test_unknown_fields_pass_through(case: WireCase):
    """What a newer sender adds is not understood here and still reaches the receiver."""
    added = {"trace": {"spanId": [1, 2.5, None, True]}, "extra": {}, "reply_to": "ann", "replyTo": 2**64 - 1}
    wire = {**SNAKE, "protocolVersion": "1.0", **added}
    message = decode_message(json.dumps(wire).encode())
    assert (message.protocol_version, message.extra) == ("1.0", added)
    again = json.loads(encode_message(message, case=case))
    assert {name: again[name] for name in added} == added
    assert decode_message(encode_message(message, case=case)) == message


@pytest.mark.req("MBX-1")
def test_two_spellings_must_agree():
    """A message that gives one field in both spellings is read if they say the same and refused otherwise."""
    assert from_wire(MailboxMessage, {**SNAKE, **CAMEL}) == MESSAGE
    refused = refusal(json.dumps({**SNAKE, "msgId": "another"}).encode())
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, "msg_id")


@pytest.mark.req("MBX-1")
@pytest.mark.parametrize("field", SNAKE)
def test_a_missing_field_is_named(field: str):
    """A message without one of its six fields is refused, and the refusal names the field."""
    refused = refusal(json.dumps({name: SNAKE[name] for name in SNAKE if name != field}).encode())
    assert (refused.code, refused.status, refused.field) == (Code.INVALID_FIELD, 400, field)


@pytest.mark.req("MBX-1")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("msg_id", ""),
        ("msg_id", 7),
        ("msg_id", None),
        ("from", ""),
        ("to", ["analyst"]),
        ("payload", {"not": "text"}),
        ("created_at", "yesterday"),
        ("created_at", -1),
        ("created_at", 1.5),
        ("created_at", 2**63),
        ("attempt", -1),
        ("attempt", True),
        ("attempt", 2**32),
        ("protocol_version", 1.0),
    ],
)
def test_a_wrong_value_is_named(field: str, value: Any):
    """A field of the wrong type or out of its range is refused by name."""
    refused = refusal(json.dumps({**SNAKE, field: value}).encode())
    assert (refused.code, refused.field) == (Code.INVALID_FIELD, field)


@pytest.mark.req("MBX-1")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", Code.MALFORMED),
        (b"{", Code.MALFORMED),
        (b"[]", Code.MALFORMED),
        (b'"text"', Code.MALFORMED),
        (b"{} {}", Code.MALFORMED),
        (b'{"msg_id": "\xff"}', Code.MALFORMED),
        (b'{"msg_id": "\\ud800"}', Code.MALFORMED),
        (b'{"x": 1e999}', Code.MALFORMED),
        (b'{"x": ' + b"9" * 5000 + b"}", Code.MALFORMED),
        (b" " * (MAX_MESSAGE_BYTES + 1), Code.TOO_LARGE),
        (b"[" * 500_000, Code.TOO_DEEP),
        (b'{"x": ' * 300 + b"1" + b"}" * 300, Code.TOO_DEEP),
    ],
    ids=[
        "empty",
        "cut off",
        "a list",
        "a text",
        "two objects",
        "not UTF-8",
        "half a character",
        "infinite",
        "huge number",
        "too large",
        "bottomless",
        "deep",
    ],
)
def test_bad_input_is_refused_with_a_code(data: bytes, code: Code):
    """Whatever arrives instead of a message is answered with a code, never with a crash."""
    assert refusal(data).code is code


@pytest.mark.req("MBX-1")
def test_nesting_is_allowed_to_its_limit():
    """An unknown field may be nested to the limit and not one level further."""

    def nested(levels: int) -> bytes:
        return json.dumps({**SNAKE, "x": json.loads("[" * levels + "]" * levels)}).encode()

    assert decode_message(nested(MAX_DEPTH - 1)).extra["x"]
    assert refusal(nested(MAX_DEPTH)).code is Code.TOO_DEEP


@pytest.mark.req("MBX-1")
def test_a_message_may_be_a_mebibyte_and_no_more():
    """A message of exactly one MiB is taken, one byte more is refused."""
    room_left = MAX_MESSAGE_BYTES - len(encode_message(msgspec.structs.replace(MESSAGE, payload="")))
    largest = encode_message(msgspec.structs.replace(MESSAGE, payload="x" * room_left))
    assert decode_message(largest).payload == "x" * room_left
    too_large = encode_message(msgspec.structs.replace(MESSAGE, payload="x" * (room_left + 1)))
    assert refusal(too_large).code is Code.TOO_LARGE


@pytest.mark.req("MBX-1", "MBX-11")
@pytest.mark.parametrize("name", ["\x00", "../../etc/passwd", "a/b\\c", "\U0001f4ec", " ", "x" * 10_000])
def test_ids_are_data(name: str):
    """A session may have any name that is text; nothing in it is taken for a path or an end of text."""
    message = msgspec.structs.replace(MESSAGE, msg_id=name, sender=name, to=name)
    assert decode_message(encode_message(message)) == message


@pytest.mark.req("MBX-1")
@pytest.mark.parametrize(
    ("wire", "field"),
    [
        ({**SNAKE, "payload": "\ud800"}, "payload"),
        ({**SNAKE, "x\ud800": 1}, None),
        ({**SNAKE, "x": float("nan")}, "x"),
        ({**SNAKE, "x": object()}, "x"),
        ({**SNAKE, "x": [b"bytes"]}, "x[0]"),
        ({**SNAKE, 1: 2}, None),
        ({**SNAKE, "x": {"y": 2**64}}, "x.y"),
        ({**SNAKE, "x": 10**5000}, "x"),
    ],
)
def test_objects_that_cannot_travel_are_refused(wire: Any, field: str | None):
    """A program that hands over something that cannot travel is told so at once, not when it is sent on."""
    with pytest.raises(Refusal) as caught:
        from_wire(MailboxMessage, wire)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, field)


@pytest.mark.req("MBX-1")
def test_what_is_no_object_is_refused():
    """A program that hands over something else than an object is told so."""
    with pytest.raises(Refusal) as caught:
        from_wire(MailboxMessage, None)
    assert caught.value.code is Code.MALFORMED


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from([*SNAKE, *CAMEL, "protocol_version", "protocolVersion", "x"])


@pytest.mark.req("MBX-1")
@given(st.binary() | st.text().map(str.encode) | json_values.map(lambda value: json.dumps(value).encode()))
@example(b"\x00")
def test_arbitrary_bytes_are_read_or_refused(data: bytes):
    """No input makes the mailbox do anything but read it or refuse it."""
    try:
        message = decode_message(data)
    except Refusal:
        return
    assert message.msg_id


@pytest.mark.req("MBX-1")
@given(changes=st.dictionaries(field_names, json_values, max_size=3), case=st.sampled_from(WireCase))
def test_what_is_read_is_written_back(changes: dict[str, Any], case: WireCase):
    """A message that differs anywhere from a good one is refused, or passes through without a change."""
    try:
        message = decode_message(json.dumps({**SNAKE, **changes}).encode())
    except Refusal:
        return
    assert decode_message(encode_message(message, case=case)) == message
    assert all(message.extra[name] == value for name, value in changes.items() if name == "x")


@pytest.mark.req("MBX-3", "MBX-7")
@pytest.mark.parametrize("case", WireCase)
def test_the_answers_are_read_in_both_spellings(case: WireCase):
    """Answers, summaries and dead letters can be written for either kind of client and read back."""
    ack = EnqueueAck(msg_id="m1", queued=True, pending=2)
    summary = MessageSummary(msg_id="m1", sender="ann", created_at=1, attempt=0, state=MailboxState.IN_FLIGHT)
    noted = msgspec.structs.replace(MESSAGE, extra={"x": 1, "reason": "the sender's own", "failedAt": 0})
    entry = DeadLetterEntry.of(noted, attempts=4, failed_at=1744086000)
    assert entry.reason == "max_retries exhausted"
    assert entry.extra == {"x": 1}
    assert from_wire(EnqueueAck, to_wire(ack, case=case)) == ack
    assert from_wire(MessageSummary, to_wire(summary, case=case)) == summary
    assert from_wire(DeadLetterEntry, to_wire(entry, case=case)) == entry


@pytest.mark.req("MBX-7")
def test_a_dead_letter_is_the_message_with_its_end():
    """A dead letter shows the whole message, why it failed, when, and after how many deliveries."""
    entry = DeadLetterEntry.of(MESSAGE, attempts=4, failed_at=1744086000, reason="pane is gone")
    assert to_wire(entry) == {**SNAKE, "reason": "pane is gone", "failed_at": 1744086000, "attempts": 4}


S = MailboxState
G = MailboxSignal

MOVES = {
    (S.PENDING, G.DEQUEUE): (S.IN_FLIGHT,),
    (S.PENDING, G.TTL): (S.EXPIRED,),
    (S.IN_FLIGHT, G.ACK): (S.ACKED,),
    (S.IN_FLIGHT, G.NACK): (S.NACKED,),
    (S.IN_FLIGHT, G.IN_FLIGHT_TIMEOUT): (S.NACKED,),
    (S.IN_FLIGHT, G.TTL): (S.EXPIRED,),
    (S.NACKED, G.RETRY): (S.PENDING,),
    (S.NACKED, G.EXHAUSTED): (S.DEAD_LETTER,),
    (S.ACKED, G.ACK): (),
    (S.DEAD_LETTER, G.NACK): (),
}


@pytest.mark.req("MBX-2", "MBX-5")
@pytest.mark.parametrize(("state", "signal"), [*product(MailboxState, MailboxSignal)])
def test_only_the_listed_moves_exist(state: MailboxState, signal: MailboxSignal):
    """In every state, each signal does what the protocol lists or is refused; nothing else can happen."""
    if (state, signal) in MOVES:
        assert walk(MAILBOX, state, signal) == MOVES[state, signal]
    else:
        with pytest.raises(Refusal) as caught:
            walk(MAILBOX, state, signal)
        assert (caught.value.code, caught.value.status) == (Code.INVALID_TRANSITION, 409)


@pytest.mark.req("MBX-2")
@given(st.lists(st.sampled_from(MailboxSignal), max_size=40))
def test_a_message_that_has_ended_stays_ended(signals: list[MailboxSignal]):
    """Once a message is acked, dead or expired, no sequence of signals brings it back."""
    state = MAILBOX.initial
    for signal in signals:
        before = state
        try:
            state = (state, *walk(MAILBOX, state, signal))[-1]
        except Refusal:
            continue
        assert before not in MAILBOX.terminal or state is before


@pytest.mark.req("MBX-2")
def test_every_state_can_be_reached_and_ended():
    """There are six states, three of them final, and the table knows them all."""
    assert MAILBOX.states == set(MailboxState)
    assert MAILBOX.terminal == {S.ACKED, S.DEAD_LETTER, S.EXPIRED}


@pytest.mark.req("MBX-5")
def test_three_retries_are_four_deliveries():
    """A message is retried after 5, 10 and 20 s; the fourth nack makes it a dead letter with four attempts."""
    outcomes = [nack_outcome(attempt) for attempt in range(4)]
    assert [each.delay_seconds for each in outcomes] == [5, 10, 20, None]
    assert [each.signal for each in outcomes] == [G.RETRY, G.RETRY, G.RETRY, G.EXHAUSTED]
    assert outcomes[-1].attempts == 4


@pytest.mark.req("MBX-5")
def test_without_retries_the_first_nack_is_the_end():
    """A mailbox that is set to no retries makes a dead letter of the first failure."""
    outcome = nack_outcome(0, max_retries=0)
    assert (outcome.signal, outcome.attempts) == (G.EXHAUSTED, 1)


@pytest.mark.req("MBX-5")
@given(attempt=st.integers(0, 2**32 - 1), base_seconds=st.floats(0.001, 1e6))
def test_a_retry_comes_within_a_day(attempt: int, base_seconds: float):
    """However many retries a mailbox allows, each delay is at least the base and bounded."""
    assert base_seconds <= retry_delay_seconds(attempt, base_seconds) <= max(86_400, base_seconds)
