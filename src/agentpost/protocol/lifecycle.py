"""The life of one delivery, `(eventId, toAgentId)`, as its sender sees it (RTY-6).

Knows nothing of sockets, clocks or SQLite. The seven arrows of ARROWS are all there are; docs/lifecycle.md shows
the picture. Signals that imply more than one arrow walk them one after the other:

- a `processed`, a `failed_terminal` or a reply also proves the acceptance that the sender has not seen yet;
- an acknowledgement that comes while a resend is waiting withdraws the resend and counts for the event;
- an event that expires unaccepted has no attempt left, which is the dead-letter path.

A terminal state stays: what the receiver says after it is heard and changes nothing.
"""

from enum import StrEnum
from typing import Final

from agentpost.protocol.machine import Table

__all__ = ["ARROWS", "DELIVERY", "DeliverySignal", "DeliveryState"]


class DeliveryState(StrEnum):
    # That of an enum is a function in Python, and these are looked up with every ACK.
    __hash__ = str.__hash__

    EMITTED = "Emitted"
    ACCEPTED = "Accepted"
    RETRY_PENDING = "RetryPending"
    DEAD_LETTER = "DeadLetter"
    PROCESSED = "Processed"
    REPLIED = "Replied"
    INCIDENT = "Incident"


class DeliverySignal(StrEnum):
    __hash__ = str.__hash__

    ACCEPTED = "ack:accepted"
    PROCESSED = "ack:processed"
    FAILED_TERMINAL = "ack:failed_terminal"
    REPLY = "reply"
    ACK_TIMEOUT = "ack timeout"
    RESENT = "retry append"
    EXHAUSTED = "max attempts"
    EXPIRED = "expired"
    UNROUTABLE = "no route"
    SLA_TIMEOUT = "SLA timeout"


_S = DeliveryState
_G = DeliverySignal

ARROWS: Final = frozenset(
    {
        (_S.EMITTED, _S.ACCEPTED),
        (_S.EMITTED, _S.RETRY_PENDING),
        (_S.RETRY_PENDING, _S.EMITTED),
        (_S.RETRY_PENDING, _S.DEAD_LETTER),
        (_S.ACCEPTED, _S.PROCESSED),
        (_S.ACCEPTED, _S.REPLIED),
        (_S.ACCEPTED, _S.INCIDENT),
    }
)

_TERMINAL = frozenset({_S.PROCESSED, _S.REPLIED, _S.DEAD_LETTER, _S.INCIDENT})

_MOVES: Final[dict[tuple[DeliveryState, DeliverySignal], tuple[DeliveryState, ...]]] = {
    (_S.EMITTED, _G.ACCEPTED): (_S.ACCEPTED,),
    (_S.EMITTED, _G.PROCESSED): (_S.ACCEPTED, _S.PROCESSED),
    (_S.EMITTED, _G.FAILED_TERMINAL): (_S.ACCEPTED, _S.PROCESSED),
    (_S.EMITTED, _G.REPLY): (_S.ACCEPTED, _S.REPLIED),
    (_S.EMITTED, _G.ACK_TIMEOUT): (_S.RETRY_PENDING,),
    (_S.EMITTED, _G.EXPIRED): (_S.RETRY_PENDING, _S.DEAD_LETTER),
    (_S.EMITTED, _G.UNROUTABLE): (_S.RETRY_PENDING, _S.DEAD_LETTER),
    (_S.RETRY_PENDING, _G.ACCEPTED): (_S.EMITTED, _S.ACCEPTED),
    (_S.RETRY_PENDING, _G.PROCESSED): (_S.EMITTED, _S.ACCEPTED, _S.PROCESSED),
    (_S.RETRY_PENDING, _G.FAILED_TERMINAL): (_S.EMITTED, _S.ACCEPTED, _S.PROCESSED),
    (_S.RETRY_PENDING, _G.REPLY): (_S.EMITTED, _S.ACCEPTED, _S.REPLIED),
    (_S.RETRY_PENDING, _G.RESENT): (_S.EMITTED,),
    (_S.RETRY_PENDING, _G.EXHAUSTED): (_S.DEAD_LETTER,),
    (_S.RETRY_PENDING, _G.EXPIRED): (_S.DEAD_LETTER,),
    (_S.RETRY_PENDING, _G.UNROUTABLE): (_S.DEAD_LETTER,),
    (_S.ACCEPTED, _G.ACCEPTED): (),
    (_S.ACCEPTED, _G.PROCESSED): (_S.PROCESSED,),
    (_S.ACCEPTED, _G.FAILED_TERMINAL): (_S.PROCESSED,),
    (_S.ACCEPTED, _G.REPLY): (_S.REPLIED,),
    (_S.ACCEPTED, _G.SLA_TIMEOUT): (_S.INCIDENT,),
    # What the receiver says after the end is heard and changes nothing; what a timer says then is a bug.
    **{(end, heard): () for end in _TERMINAL for heard in (_G.ACCEPTED, _G.PROCESSED, _G.FAILED_TERMINAL, _G.REPLY)},
}

DELIVERY: Final = Table[DeliveryState, DeliverySignal](
    name="delivery",
    initial=_S.EMITTED,
    terminal=_TERMINAL,
    arrows=ARROWS,
    signals=_MOVES,
)
