"""How long to wait before trying again, and when to stop: exponential, bounded, with chance as an argument.

Knows nothing of clocks or of what is retried. Attempts count from 1, the first try included (ENV-5); the
mailbox, whose wire counts from 0, converts at its own edge.
"""

import math
from typing import Annotated, Final

import msgspec

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "RetryPolicy",
    "next_delay_seconds",
    "exhausted",
    "ACCEPTED_ACK_TIMEOUT_SECONDS",
    "SENDER_RESEND",
    "DISPATCH_RETRY",
    "MAILBOX_RETRY",
    "RETRY_KEY_PREFIX",
]

# How an idempotency key begins that a client makes for its own retries of a call.
RETRY_KEY_PREFIX: Final = "retry_"

# Beyond this a float no longer counts in ones; no schedule gets near it.
_MAX_EXPONENT: Final = 2**53


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The shape of a schedule. `jitter_share` is the part of each delay that chance may take off it.

    Chance only shortens a delay, so `max_delay_seconds` is a promise; share 0 is an exact schedule, 1 is full
    jitter. A policy comes from somebody's configuration, so a senseless one is refused by field, not
    asserted.
    """

    base_seconds: Annotated[float, msgspec.Meta(description="The first pause.")]
    factor: Annotated[float, msgspec.Meta(description="How much longer each pause is than the one before.")]
    max_delay_seconds: Annotated[float, msgspec.Meta(description="The longest pause.")]
    max_attempts: Annotated[int, msgspec.Meta(description="After so many attempts it is given up.")]
    jitter_share: Annotated[float, msgspec.Meta(description="The part of a pause that chance may take off it.")] = 0.0

    def __post_init__(self) -> None:
        # Written so that NaN, which compares false with everything, is refused too.
        if not 0 < self.base_seconds < math.inf:
            raise _refused("baseSeconds", "must be above 0 and finite")
        if not 1 <= self.factor < math.inf:
            raise _refused("factor", "must be at least 1 and finite")
        if not self.base_seconds <= self.max_delay_seconds < math.inf:
            raise _refused("maxDelaySeconds", "must be at least baseSeconds and finite")
        if not self.max_attempts >= 1:
            raise _refused("maxAttempts", "must be at least 1")
        if not 0 <= self.jitter_share <= 1:
            raise _refused("jitterShare", "must be between 0 and 1")


def next_delay_seconds(policy: RetryPolicy, *, attempt: int, jitter: float) -> float:
    """The pause after attempt number `attempt` (1 = the first) has failed; `jitter` is a draw from [0, 1).

    For the same draw a later attempt never waits less than an earlier one.
    """
    if attempt < 1:
        raise ValueError(f"attempts count from 1, not {attempt}")
    if not 0 <= jitter < 1:
        raise ValueError(f"jitter is a draw from [0, 1), not {jitter}")
    try:
        grown = policy.base_seconds * float(policy.factor) ** min(attempt - 1, _MAX_EXPONENT)
    except OverflowError:
        grown = policy.max_delay_seconds
    return min(grown, policy.max_delay_seconds) * (1 - policy.jitter_share * jitter)


def exhausted(policy: RetryPolicy, attempt: int) -> bool:
    """Whether attempt number `attempt`, having failed, was the last one."""
    return attempt >= policy.max_attempts


def _refused(field: str, problem: str) -> Refusal:
    return Refusal(Code.INVALID_FIELD, f"retry policy: {field} {problem}", field=field)


# RTY-1: how long the sender waits for `accepted` before an attempt counts as failed.
ACCEPTED_ACK_TIMEOUT_SECONDS: Final = 20.0

# RTY-1, RTY-2: ten tries over about half an hour at a gateway that is there and does not accept. Mail for a
# gateway that is known to be away is not spent on this schedule; it waits (Decision.WAIT).
SENDER_RESEND: Final = RetryPolicy(base_seconds=5, factor=2, max_delay_seconds=600, max_attempts=10, jitter_share=0.5)

# RTY-4: a runtime that restarts is back within seconds, one that is broken for minutes needs a person.
DISPATCH_RETRY: Final = RetryPolicy(base_seconds=2, factor=2, max_delay_seconds=300, max_attempts=8, jitter_share=0.2)

# MBX-5: 5, 10, 20 s, then the dead letter: three retries after the first delivery. The mailbox promises exact
# delays, hence no jitter; one above the time to live (24 h) would never run, hence the bound.
MAILBOX_RETRY: Final = RetryPolicy(base_seconds=5, factor=2, max_delay_seconds=86_400, max_attempts=4, jitter_share=0)
