"""Retry schedules: the ones we ship, and the laws of any."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpost.protocol.backoff import (
    ACCEPTED_ACK_TIMEOUT_SECONDS,
    DISPATCH_RETRY,
    MAILBOX_RETRY,
    SENDER_RESEND,
    RetryPolicy,
    exhausted,
    next_delay_seconds,
)
from agentpost.protocol.errors import Code, Refusal


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    base_seconds = draw(st.floats(1e-9, 1e6))
    return RetryPolicy(
        base_seconds=base_seconds,
        factor=draw(st.floats(1, 1e6)),
        max_delay_seconds=base_seconds * draw(st.floats(1, 1e300)),
        max_attempts=draw(st.integers(1, 100)),
        jitter_share=draw(st.floats(0, 1)),
    )


attempts = st.integers(1, 50) | st.integers(1, 10**400)
draws = st.floats(0, 1, exclude_max=True)


@pytest.mark.req("RTY-1")
@given(policy=policies(), attempt=attempts, jitter=draws)
def test_a_delay_is_bounded(policy: RetryPolicy, attempt: int, jitter: float):
    """However often something failed, the next try comes within the maximum delay."""
    delay = next_delay_seconds(policy, attempt=attempt, jitter=jitter)
    assert math.isfinite(delay)
    assert 0 <= delay <= policy.max_delay_seconds


@pytest.mark.req("RTY-1")
@given(policy=policies(), one=attempts, other=attempts, jitter=draws)
def test_delays_never_shrink(policy: RetryPolicy, one: int, other: int, jitter: float):
    """With the same luck, a later attempt waits at least as long as an earlier one."""
    earlier, later = sorted((one, other))
    assert next_delay_seconds(policy, attempt=earlier, jitter=jitter) <= next_delay_seconds(
        policy, attempt=later, jitter=jitter
    )


@pytest.mark.req("RTY-1")
@given(policy=policies(), attempt=attempts, jitter=draws)
def test_jitter_takes_at_most_its_share(policy: RetryPolicy, attempt: int, jitter: float):
    """Chance shortens a delay by no more than the policy allows."""
    full = next_delay_seconds(policy, attempt=attempt, jitter=0)
    delay = next_delay_seconds(policy, attempt=attempt, jitter=jitter)
    assert full * (1 - policy.jitter_share) <= delay <= full


@pytest.mark.req("RTY-1", "RTY-2")
def test_a_sender_doubles_its_delay_and_gives_up_in_the_end():
    """A sender waits 5, 10, 20 … s between its tries, ten minutes at most, and stops after the tenth."""
    delays = [next_delay_seconds(SENDER_RESEND, attempt=attempt, jitter=0) for attempt in range(1, 11)]
    assert delays == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert [exhausted(SENDER_RESEND, attempt) for attempt in (1, 9, 10, 11)] == [False, False, True, True]
    assert ACCEPTED_ACK_TIMEOUT_SECONDS == 20


@pytest.mark.req("RTY-4")
def test_dispatch_is_retried_with_a_bound():
    """A gateway tries an agent's runtime again within minutes, and not for ever."""
    assert next_delay_seconds(DISPATCH_RETRY, attempt=1, jitter=0) == 2
    assert next_delay_seconds(DISPATCH_RETRY, attempt=10**9, jitter=0) == 300
    assert exhausted(DISPATCH_RETRY, 8)


@pytest.mark.req("MBX-5")
@given(jitter=draws)
def test_mailbox_delays_are_exact(jitter: float):
    """A mailbox retries after exactly 5, 10 and 20 seconds, and the fourth failure is the last."""
    delays = [next_delay_seconds(MAILBOX_RETRY, attempt=attempt, jitter=jitter) for attempt in (1, 2, 3)]
    assert delays == [5, 10, 20]
    assert [exhausted(MAILBOX_RETRY, attempt) for attempt in (3, 4)] == [False, True]


@pytest.mark.req("RTY-1")
def test_a_factor_of_one_stays_level():
    """A schedule that does not grow does not jump to the maximum after very many attempts either."""
    level = RetryPolicy(base_seconds=3, factor=1, max_delay_seconds=60, max_attempts=5)
    assert next_delay_seconds(level, attempt=10**400, jitter=0) == 3


@pytest.mark.req("RTY-1")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("baseSeconds", 0),
        ("baseSeconds", math.nan),
        ("factor", 0.5),
        ("factor", math.inf),
        ("maxDelaySeconds", 4),
        ("maxDelaySeconds", math.inf),
        ("maxAttempts", 0),
        ("jitterShare", -0.1),
        ("jitterShare", math.nan),
    ],
)
def test_a_senseless_policy_is_refused_by_field(field: str, value: Any):
    """A retry policy that could not work is refused, and the refusal names the setting."""
    raw = {**msgspec.to_builtins(SENDER_RESEND), field: value}
    with pytest.raises(Refusal) as caught:
        msgspec.convert(raw, RetryPolicy)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, field)


@pytest.mark.req("RTY-1")
@pytest.mark.parametrize(("attempt", "jitter"), [(0, 0.0), (1, 1.0), (1, -0.1), (1, math.nan)])
def test_wrong_arguments_are_a_defect_of_the_caller(attempt: int, jitter: float):
    """Attempts count from one and chance is a draw below one; anything else is a bug and says so."""
    with pytest.raises(ValueError, match=r"attempts count|jitter is"):
        next_delay_seconds(SENDER_RESEND, attempt=attempt, jitter=jitter)
