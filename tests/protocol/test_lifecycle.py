"""The delivery lifecycle, against a model of its own, and the record that it moves."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentpost.protocol.delivery import Change, Delivery, advance, has_arrived_late, has_failed
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import ARROWS, DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.machine import walk

S = DeliveryState
G = DeliverySignal

# The diagram, word for word: where an arrow starts, where it ends, what it is called.
DIAGRAM = """
    Emitted      -> Accepted      ack:accepted
    Emitted      -> RetryPending  ack timeout
    RetryPending -> Emitted       retry append
    RetryPending -> DeadLetter    max attempts
    Accepted     -> Processed     ack:processed
    Accepted     -> Replied       reply
    Accepted     -> Incident      SLA timeout
"""
DRAWN = {(line.split()[0], line.split()[2]): " ".join(line.split()[3:]) for line in DIAGRAM.strip().splitlines()}
ENDS = {"Processed", "Replied", "DeadLetter", "Incident"}

# The model: where each signal leads, and from which states a timer may send it. The path is then the shortest way
# over the drawn arrows. What the receiver says can come in any state, and after an end it changes nothing.
HEARD = {
    "ack:accepted": "Accepted",
    "ack:processed": "Processed",
    "ack:failed_terminal": "Processed",
    "reply": "Replied",
}
TIMED = {
    "ack timeout": ("RetryPending", {"Emitted"}),
    "retry append": ("Emitted", {"RetryPending"}),
    "max attempts": ("DeadLetter", {"RetryPending"}),
    "expired": ("DeadLetter", {"Emitted", "RetryPending"}),
    "no route": ("DeadLetter", {"Emitted", "RetryPending"}),
    "SLA timeout": ("Incident", {"Accepted"}),
}


def shortest(start: str, goal: str) -> tuple[str, ...]:
    ways: list[tuple[str, ...]] = [()]
    while True:
        for way in ways:
            if (way[-1] if way else start) == goal:
                return way
        ways = [(*way, after) for way in ways for before, after in DRAWN if before == (way[-1] if way else start)]


def expected(state: str, signal: str) -> tuple[str, ...] | None:
    """The path of the model; None where the move is forbidden."""
    if signal in HEARD:
        return () if state in ENDS else shortest(state, HEARD[signal])
    goal, open_in = TIMED[signal]
    return shortest(state, goal) if state in open_in else None


def test_the_model_knows_every_state_and_signal():
    """The model of this test speaks of the same states and signals as the protocol."""
    assert {state for arrow in DRAWN for state in arrow} == set(DeliveryState)
    assert {*HEARD, *TIMED} == set(DeliverySignal)


@pytest.mark.req("RTY-6")
def test_the_arrows_are_the_seven_of_the_diagram():
    """There are seven states and seven moves between them, and four states are final."""
    assert {(str(before), str(after)) for before, after in ARROWS} == set(DRAWN)
    assert len(ARROWS) == len(DELIVERY.states) == 7
    assert DELIVERY.arrows == ARROWS
    assert (DELIVERY.initial, DELIVERY.terminal) == ("Emitted", ENDS)


@pytest.mark.req("RTY-6", "ACK-3")
@pytest.mark.parametrize(("state", "signal"), [*product(DeliveryState, DeliverySignal)])
def test_every_signal_in_every_state(state: DeliveryState, signal: DeliverySignal):
    """In every state each signal takes drawn arrows only, changes nothing, or is refused; as the model says."""
    path = expected(state, signal)
    if path is None:
        with pytest.raises(Refusal) as caught:
            walk(DELIVERY, state, signal)
        assert (caught.value.code, caught.value.status) == (Code.INVALID_TRANSITION, 409)
        return
    walked = walk(DELIVERY, state, signal)
    assert walked == path
    assert set(zip((state, *walked), walked, strict=False)) <= set(DRAWN)
    assert not walked or state not in ENDS


@pytest.mark.req("RTY-6")
@pytest.mark.parametrize(("arrow", "signal"), DRAWN.items(), ids=DRAWN.values())
def test_every_arrow_is_taken_by_the_signal_it_is_drawn_with(arrow: tuple[str, str], signal: str):
    """Each arrow of the diagram is one step, taken by the signal that is written at it."""
    before, after = arrow
    assert walk(DELIVERY, DeliveryState(before), DeliverySignal(signal)) == (after,)


def delivery(**changes: Any) -> Delivery:
    fields: dict[str, Any] = {
        "event_id": EventId("evt_01K2H7Q4ZB9D6XW3T5N8RMVCGA"),
        "to_agent_id": "ann",
        "emitted_at_ms": 1000,
        "due_at_ms": 21_000,
        **changes,
    }
    return Delivery(**fields)


def change(signal: DeliverySignal, at_ms: int = 2000, **fields: Any) -> Change:
    return Change(
        event_id=EventId("evt_01K2H7Q4ZB9D6XW3T5N8RMVCGA"),
        to_agent_id="ann",
        signal=signal,
        at_ms=at_ms,
        **fields,
    )


@pytest.mark.req("ACK-3")
def test_an_acceptance_sets_the_next_timer():
    """Once accepted, a delivery knows when, and its timer is that of the SLA and not of the resend."""
    accepted = advance(delivery(), change(G.ACCEPTED, due_at_ms=90_000))
    assert (accepted.state, accepted.accepted_at_ms, accepted.due_at_ms) == (S.ACCEPTED, 2000, 90_000)
    assert (accepted.closed_at_ms, accepted.attempts, accepted.emitted_at_ms) == (None, 1, 1000)


@pytest.mark.req("ENV-5", "RTY-6")
def test_a_resend_counts():
    """The first send is attempt one, and every resend adds one; waiting for it does not."""
    waiting = advance(delivery(), change(G.ACK_TIMEOUT, due_at_ms=30_000))
    assert (waiting.state, waiting.attempts, waiting.due_at_ms) == (S.RETRY_PENDING, 1, 30_000)
    resent = advance(waiting, change(G.RESENT, due_at_ms=50_000))
    assert (resent.state, resent.attempts, resent.due_at_ms) == (S.EMITTED, 2, 50_000)


@pytest.mark.req("RTY-6", "ACK-3")
@pytest.mark.parametrize("signal", [G.ACCEPTED, G.PROCESSED, G.FAILED_TERMINAL, G.REPLY])
def test_an_answer_withdraws_a_waiting_resend(signal: DeliverySignal):
    """An answer that comes while a resend is waiting counts for the event, and the resend is not counted."""
    answered = advance(delivery(state=S.RETRY_PENDING, attempts=3), change(signal))
    assert (answered.attempts, answered.accepted_at_ms) == (3, 2000)


@pytest.mark.req("RTY-6")
@pytest.mark.parametrize(
    ("state", "signal"), [(s, g) for s, g in product(S, G) if (expected(s, g) or [""])[-1] in ENDS]
)
def test_an_end_has_a_time_and_no_timer(state: DeliveryState, signal: DeliverySignal):
    """Whatever ends a delivery, the time is kept, the reason and the answer too, and no timer is left."""
    answer = EventId("evt_01K2H7Q0YA8C5WV2S4M7QKTBFZ")
    ended = advance(
        delivery(state=state, accepted_at_ms=1500 if state is S.ACCEPTED else None),
        change(signal, due_at_ms=99_000, answered_by_event_id=answer, reason="because"),
    )
    assert ended.state in ENDS
    assert (ended.due_at_ms, ended.closed_at_ms) == (None, 2000)
    assert (ended.answered_by_event_id, ended.reason) == (answer, "because")
    was_accepted = state is S.ACCEPTED or S.ACCEPTED in walk(DELIVERY, state, signal)
    assert ended.accepted_at_ms == (None if not was_accepted else 1500 if state is S.ACCEPTED else 2000)


@pytest.mark.req("RTY-6")
@pytest.mark.parametrize(("state", "signal"), [(s, g) for s, g in product(S, G) if expected(s, g) == ()])
def test_a_repeat_changes_nothing(state: DeliveryState, signal: DeliverySignal):
    """What is heard again, or after the end, leaves the record as it was, but for a note of what came late."""
    before = delivery(state=state, accepted_at_ms=1500, closed_at_ms=1600, reason="first")
    after = advance(before, change(signal, at_ms=9999, due_at_ms=1, reason="second"))
    assert replace(after, late=None, late_at_ms=None) == before
    assert advance(after, change(signal, at_ms=99_999)) is after


@pytest.mark.req("RTY-3", "RTY-6")
@pytest.mark.parametrize("state", [S.DEAD_LETTER, S.INCIDENT])
def test_what_comes_after_the_end_is_noted(state: DeliveryState):
    """A dead letter that did arrive, and an outcome that came after its SLA, are told from those that never came."""
    now = delivery(state=state, closed_at_ms=1600)
    assert not has_arrived_late(now)
    words = [G.ACCEPTED, G.FAILED_TERMINAL, G.ACCEPTED, G.PROCESSED, G.FAILED_TERMINAL, G.REPLY, G.PROCESSED]
    heard: list[tuple[str | None, int | None, bool]] = []
    for at_ms, word in enumerate(words, start=2000):
        now = advance(now, change(word, at_ms=at_ms))
        heard.append((now.late, now.late_at_ms, has_arrived_late(now)))
    assert heard == [
        (G.ACCEPTED, 2000, True),
        (G.FAILED_TERMINAL, 2001, False),
        (G.FAILED_TERMINAL, 2001, False),
        (G.PROCESSED, 2003, True),
        (G.PROCESSED, 2003, True),
        (G.REPLY, 2005, True),
        (G.REPLY, 2005, True),
    ]
    assert (now.state, now.closed_at_ms) == (state, 1600)


@pytest.mark.req("RTY-6")
def test_a_missed_outcome_that_comes_as_a_failure_counts_as_failed():
    """Mail whose SLA was missed and whose agent then gave up has failed, and can be sent again."""
    missed = delivery(state=S.INCIDENT, reason="sla_missed")
    assert not has_failed(missed)
    assert has_failed(advance(missed, change(G.FAILED_TERMINAL)))
    assert not has_failed(advance(missed, change(G.REPLY)))


@pytest.mark.req("RTY-6")
@pytest.mark.parametrize(("state", "signal"), [(s, g) for s, g in product(S, G) if expected(s, g) is None])
def test_a_forbidden_move_is_refused(state: DeliveryState, signal: DeliverySignal):
    """A timer that fires for a delivery that has moved on is refused."""
    with pytest.raises(Refusal) as caught:
        advance(delivery(state=state), change(signal))
    assert caught.value.code is Code.INVALID_TRANSITION


@pytest.mark.req("RTY-6", "ENV-5")
@given(st.lists(st.sampled_from(DeliverySignal), max_size=40))
def test_any_sequence_of_signals_keeps_the_record_sound(signals: list[DeliverySignal]):
    """However signals come, an ended delivery stays as it ended, and times, timer and attempts fit its state."""
    now = delivery()
    resends = 0
    for at_ms, signal in enumerate(signals, start=2000):
        before = now
        try:
            now = advance(before, change(signal, at_ms=at_ms, due_at_ms=at_ms + 20))
        except Refusal:
            continue
        resends += signal is G.RESENT
        assert before.state not in ENDS or replace(now, late=before.late, late_at_ms=before.late_at_ms) == before
        assert (now.closed_at_ms is not None) == (now.state in ENDS) == (now.due_at_ms is None)
        assert (now.accepted_at_ms is not None) == (now.state in {S.ACCEPTED, S.PROCESSED, S.REPLIED, S.INCIDENT})
        assert now.attempts == 1 + resends
