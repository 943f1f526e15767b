"""One event of a simulated fleet as a record of numbers, before it becomes bytes and columns.

Names are indices, words are codes of the tables below, times are numbers. `t_us` is when the event is appended; it
orders an outbox and is not written anywhere. The id of a task follows from the conversation (`TASK_STEP`).
"""

from typing import Final

import numpy as np

from agentpost.protocol.payloads import AckType, Kind
from agentpost.simulate.arrays import Rows

__all__ = [
    "ACCEPTED",
    "ACKS",
    "ACK_TYPES",
    "FAILED_TERMINAL",
    "FAILURES",
    "KINDS",
    "MAX_FAN",
    "PRIORITIES",
    "PROCESSED",
    "REASONS",
    "ROUTES",
    "ROW",
    "TASK_STEP",
    "code",
    "empty_rows",
]

KINDS: Final = tuple(kind.value for kind in Kind)
ACK_TYPES: Final = (None, *(kind.value for kind in AckType))
ACCEPTED, PROCESSED, FAILED_TERMINAL = 1, 2, 3
ACKS: Final = KINDS.index("ack")
PRIORITIES: Final = ("normal", "high", "low")
ROUTES: Final = (None, "owner", "wait", "answer")
REASONS: Final = (None, "max_attempts", "expired", "no_route", "turn_failed")
FAILURES: Final = (None, "tool_error", "timeout", "contract_mismatch")

MAX_FAN: Final = 4
TASK_STEP: Final = 999

ROW: Final = np.dtype(
    [
        ("t_us", "i8"),
        ("node", "i4"),  # whose outbox
        ("source", "i4"),  # what the event says; another node only where that is the fault
        ("agent", "i4"),
        ("kind", "i1"),
        ("attempt", "i1"),
        ("made_ms", "i8"),  # of the ULID
        ("word", "u8"),
        ("created_ms", "i8"),
        ("corr_ms", "i8"),
        ("corr_word", "u8"),
        ("expires_ms", "i8"),
        ("fan", "i1"),  # how many recipients
        ("peers", "i4", (MAX_FAN,)),  # the recipients; for an ack, whom it is told to
        ("route", "i1"),
        ("priority", "i1"),
        ("expects_reply", "i1"),
        ("ref_ms", "i8"),
        ("ref_word", "u8"),
        ("ref_kind", "i1"),
        ("ack", "i1"),
        ("reason", "i1"),
        ("dead_attempts", "i1"),
        ("deadline_ms", "i8"),
        ("eta_ms", "i8"),
        ("progress", "i1"),
        ("failure", "i1"),
        ("capability", "i1"),  # from 1; 0 is none
        ("version", "i1"),
        ("fault", "i4"),  # the number of the fault that the row is the evidence of, see `faults`; 0 is none
        ("alone", "i4"),  # the same, for rows that stand together in a segment of their own
    ]
)


def code(kind: str) -> int:
    return KINDS.index(kind)


def empty_rows(count: int) -> Rows:
    """Records that say nothing yet: first attempts, without a route."""
    rows = np.zeros(count, dtype=ROW)
    rows["attempt"] = 1
    rows["peers"] = -1
    rows["node"] = -1
    rows["source"] = -1
    return rows
