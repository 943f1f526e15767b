"""What a timer that ran out leads to: a table of cases, and laws that hold for all of them."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentpost.delivery.deciding import AskReader, AskStatus, Command, GiveUp, Move, RaiseIncident, Resend, Wait, decide
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.whereabouts import Place, Whereabouts
from agentpost.protocol.delivery import Change, Delivery, advance
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.testing import START_MS, a_message

POLICY: Final = DeliveryPolicy()
MOST: Final = POLICY.resend.max_attempts
THERE: Final = Whereabouts(place=Place.THERE, node_id="node-b")
BEHIND: Final = Whereabouts(place=Place.BEHIND, node_id="node-b")
UNHEARD: Final = Whereabouts(place=Place.UNHEARD, node_id="node-b")
AWAY: Final = Whereabouts(place=Place.AWAY, node_id="node-b")
IN_DOUBT: Final = Whereabouts(place=Place.IN_DOUBT, node_id="node-b")
MOVED: Final = Whereabouts(place=Place.MOVED, node_id="node-c", decision="owner")
NOWHERE: Final = Whereabouts(place=Place.NOWHERE, node_id=None)

EMITTED, WAITING, ACCEPTED = DeliveryState.EMITTED, DeliveryState.RETRY_PENDING, DeliveryState.ACCEPTED


def _delivery(state: DeliveryState, attempts: int = 1, due_at_ms: int | None = START_MS) -> Delivery:
    event = a_message(1)
    return Delivery(
        event_id=event.event_id,
        to_agent_id="bob",
        to_node_id="node-b",
        state=state,
        attempts=attempts,
        due_at_ms=due_at_ms,
    )


def _decide(
    delivery: Delivery, found: Whereabouts, *, event: MessageEvent | None = None, jitter: float = 0.0
) -> list[Command]:
    event = event or a_message(1)
    return decide(delivery, event=event, whereabouts=found, now_ms=START_MS, jitter=jitter, policy=POLICY)


def _signals(commands: list[Command]) -> list[DeliverySignal]:
    return [change.signal for change in _changes(commands)]


def _changes(commands: list[Command]) -> list[Change]:
    changes: list[Change] = []
    for command in commands:
        match command:
            case Move():
                changes.append(command.change)
            case Resend() | GiveUp():
                changes.extend(command.changes)
            case _:
                pass
    return changes


G = DeliverySignal
CASES: Final = [
    # state, attempts, whereabouts, kinds of commands, signals
    (EMITTED, 1, THERE, [Move], [G.ACK_TIMEOUT]),
    (EMITTED, MOST, THERE, [GiveUp], [G.ACK_TIMEOUT, G.EXHAUSTED]),
    (EMITTED, 1, AWAY, [Wait], []),
    (EMITTED, MOST, AWAY, [Wait], []),
    (EMITTED, 1, IN_DOUBT, [RaiseIncident, Wait], []),
    (EMITTED, 1, MOVED, [Resend], [G.ACK_TIMEOUT, G.RESENT]),
    (EMITTED, MOST, MOVED, [GiveUp], [G.ACK_TIMEOUT, G.EXHAUSTED]),
    (EMITTED, 1, NOWHERE, [RaiseIncident, GiveUp], [G.UNROUTABLE]),
    (EMITTED, MOST, BEHIND, [Wait], []),
    (EMITTED, MOST, UNHEARD, [AskReader, Wait], []),
    (WAITING, 1, THERE, [Resend], [G.RESENT]),
    (WAITING, MOST, BEHIND, [Wait], []),
    (WAITING, MOST, UNHEARD, [AskReader, Wait], []),
    (WAITING, MOST, THERE, [GiveUp], [G.EXHAUSTED]),
    (WAITING, 1, AWAY, [Wait], []),
    (WAITING, 1, IN_DOUBT, [RaiseIncident, Wait], []),
    (WAITING, 1, MOVED, [Resend], [G.RESENT]),
    (WAITING, 1, NOWHERE, [RaiseIncident, GiveUp], [G.UNROUTABLE]),
    (ACCEPTED, 1, THERE, [RaiseIncident, Move, AskStatus], [G.SLA_TIMEOUT]),
    (ACCEPTED, 1, AWAY, [RaiseIncident, Move, AskStatus], [G.SLA_TIMEOUT]),
]


@pytest.mark.req("RTY-1", "RTY-2", "RTY-6", "ACK-4", "ROUTE-3")
@pytest.mark.parametrize(("state", "attempts", "found", "kinds", "signals"), CASES)
def test_what_a_timer_leads_to(
    state: DeliveryState, attempts: int, found: Whereabouts, kinds: list[type], signals: list[DeliverySignal]
) -> None:
    """Each state of a delivery, with its recipient there, away, moved or gone, leads to one known thing."""
    commands = _decide(_delivery(state, attempts), found)
    assert [type(command) for command in commands] == kinds
    assert _signals(commands) == signals


@pytest.mark.req("ENV-7")
@pytest.mark.parametrize("state", [EMITTED, WAITING])
@pytest.mark.parametrize("found", [THERE, AWAY, IN_DOUBT, MOVED, NOWHERE])
def test_what_expired_unaccepted_is_a_dead_letter(state: DeliveryState, found: Whereabouts) -> None:
    """Once its time has passed a message is given up with the reason `expired`, wherever its recipient is."""
    (command,) = _decide(_delivery(state), found, event=a_message(1, expires_at_ms=START_MS))
    assert isinstance(command, GiveUp)
    assert command.reason == "expired"
    assert _signals([command]) == [DeliverySignal.EXPIRED]


@pytest.mark.req("RTY-1")
def test_the_wait_before_a_resend_grows_is_jittered_and_bounded() -> None:
    """The pause doubles with each attempt up to ten minutes, and chance takes up to half of it off."""
    pauses: list[list[int]] = []
    for jitter in (0.0, 0.999):
        row: list[int] = []
        for attempt in range(1, MOST):
            (move,) = _decide(_delivery(EMITTED, attempt), THERE, jitter=jitter)
            assert isinstance(move, Move)
            assert move.change.due_at_ms is not None
            row.append(move.change.due_at_ms - START_MS)
        pauses.append(row)
    longest, shortest = pauses
    assert longest[:4] == [5_000, 10_000, 20_000, 40_000]
    assert max(longest) == 600_000
    assert longest == sorted(longest)
    assert all(low < high for low, high in zip(shortest, longest, strict=True))
    assert all(low >= high // 2 for low, high in zip(shortest, longest, strict=True))


@pytest.mark.req("ENV-7")
def test_no_timer_goes_beyond_the_expiry() -> None:
    """Whatever a message waits for, its expiry is noticed when it comes."""
    event = a_message(1, expires_at_ms=START_MS + 1_000)
    (retry,) = _decide(_delivery(EMITTED), THERE, event=event)
    (wait,) = _decide(_delivery(EMITTED), AWAY, event=event)
    (resend,) = _decide(_delivery(WAITING), THERE, event=event)
    assert isinstance(retry, Move)
    assert isinstance(wait, Wait)
    assert isinstance(resend, Resend)
    assert {retry.change.due_at_ms, wait.due_at_ms, resend.changes[-1].due_at_ms} == {START_MS + 1_000}


def test_an_event_that_the_outbox_lost_is_given_up_loudly() -> None:
    """A delivery without its event cannot be sent again, and does not wait for ever."""
    commands = decide(_delivery(WAITING), event=None, whereabouts=THERE, now_ms=START_MS, jitter=0.0, policy=POLICY)
    assert [type(command) for command in commands] == [GiveUp]


states = st.sampled_from(list(DeliveryState))
places = st.sampled_from([THERE, BEHIND, UNHEARD, AWAY, IN_DOUBT, MOVED, NOWHERE])


@pytest.mark.req("RTY-6")
@given(
    state=states,
    attempts=st.integers(1, 2 * MOST),
    found=places,
    due=st.none() | st.integers(START_MS - 10**9, START_MS + 10**9),
    expires=st.none() | st.integers(START_MS - 10**9, START_MS + 10**9),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_every_decision_is_a_walk_of_the_lifecycle(
    state: DeliveryState, attempts: int, found: Whereabouts, due: int | None, expires: int | None, jitter: float
) -> None:
    """No timer makes a move that is not drawn, none loses a delivery, and none goes beyond the attempts."""
    before = _delivery(state, attempts, due)
    commands = _decide(before, found, event=a_message(1, expires_at_ms=expires), jitter=jitter)
    after = before
    for change in _changes(commands):
        after = advance(after, change)
    is_due = state not in DELIVERY.terminal and (due is None or due <= START_MS)
    assert bool(commands) == is_due
    waits = [command for command in commands if isinstance(command, Wait)]
    for wait in waits:
        after = replace(after, due_at_ms=wait.due_at_ms)
    if is_due:
        # It ended, or it has a timer that is not due at once: no delivery is forgotten, and none spins.
        assert after.state in DELIVERY.terminal or after.due_at_ms is not None
        assert after.due_at_ms is None or after.due_at_ms > START_MS
    assert after.attempts <= max(attempts, MOST)
    assert not waits or after.attempts == attempts
