"""Events of a simulated fleet as columns of numbers, before they become bytes.

Names are indices, words are codes of the tables below, times are numbers. `t_us` is when the event is appended; it
orders an outbox and is not written anywhere. The id of a task follows from the conversation (`TASK_STEP`).
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from agentpost.protocol.payloads import AckType, Kind
from agentpost.simulate.arrays import Flags, Ints

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
    "TASK_STEP",
    "Rows",
    "code",
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

Column: TypeAlias = NDArray[Any]

# The type of each column, and what it says where nobody said anything: first attempts, of nobody.
_COLUMNS: Final[dict[str, tuple[str, int]]] = {
    "t_us": ("i8", 0),
    "node": ("i4", -1),  # whose outbox
    "source": ("i4", -1),  # what the event says; another node only where that is the fault
    "agent": ("i4", 0),
    "kind": ("i1", 0),
    "attempt": ("i1", 1),
    "made_ms": ("i8", 0),  # of the ULID
    "word": ("u8", 0),
    "created_ms": ("i8", 0),
    "corr_ms": ("i8", 0),
    "corr_word": ("u8", 0),
    "expires_ms": ("i8", 0),
    "fan": ("i1", 0),  # how many recipients
    "peers": ("i4", -1),  # a matrix: the recipients; for an ack, whom it is told to
    "route": ("i1", 0),
    "priority": ("i1", 0),
    "expects_reply": ("i1", 0),
    "ref_ms": ("i8", 0),
    "ref_word": ("u8", 0),
    "ref_kind": ("i1", 0),
    "ack": ("i1", 0),
    "reason": ("i1", 0),
    "dead_attempts": ("i1", 0),
    "deadline_ms": ("i8", 0),
    "eta_ms": ("i8", 0),
    "progress": ("i1", 0),
    "failure": ("i1", 0),
    "capability": ("i1", 0),  # from 1; 0 is none
    "version": ("i1", 0),
    "fault": ("i4", 0),  # the number of the fault that the row is the evidence of, see `faults`; 0 is none
    "alone": ("i4", 0),  # the same, for rows that stand together in a segment of their own
}


class Rows:
    """So many events. A column exists once it was asked for: most kinds of events use a few of them only."""

    __slots__ = ("_columns", "_count")

    def __init__(self, count: int, columns: dict[str, Column] | None = None) -> None:
        self._count = count
        self._columns = {} if columns is None else columns

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, which: str) -> Column: ...
    @overload
    def __getitem__(self, which: slice) -> "Rows": ...
    def __getitem__(self, which: str | slice) -> "Column | Rows":
        """A column, which can be written to; or some of the rows, which share their columns with these."""
        if isinstance(which, str):
            found = self._columns.get(which)
            if found is None:
                found = self._columns[which] = _said_by_nobody(which, self._count)
            return found
        columns = {name: column[which] for name, column in self._columns.items()}
        return Rows(len(range(self._count)[which]), columns)

    def only(self, which: Flags | Ints) -> "Rows":
        """A copy of the rows where `which` is true, or of those at these places."""
        places: Any = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return Rows(len(places), {name: column.take(places, axis=0) for name, column in self._columns.items()})

    def __setitem__(self, name: str, value: object) -> None:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = np.empty(_shape(name, self._count), dtype=_COLUMNS[name][0])
        column[...] = value

    def copy(self) -> "Rows":
        return Rows(self._count, {name: column.copy() for name, column in self._columns.items()})

    @staticmethod
    def joined(blocks: "Sequence[Rows]") -> "Rows":
        """All of these, in their order."""
        count = sum(map(len, blocks))
        used = [name for name in _COLUMNS if any(name in block._columns for block in blocks)]
        columns = {name: np.empty(_shape(name, count), dtype=_COLUMNS[name][0]) for name in used}
        for name, column in columns.items():
            start = 0
            for block in blocks:
                column[start : start + len(block)] = block._columns.get(name, _COLUMNS[name][1])
                start += len(block)
        return Rows(count, columns)


def _shape(name: str, count: int) -> tuple[int, ...]:
    return (count, MAX_FAN) if name == "peers" else (count,)


def _said_by_nobody(name: str, count: int) -> Column:
    kind, value = _COLUMNS[name]
    return np.full(_shape(name, count), value, dtype=kind)


def code(kind: str) -> int:
    return KINDS.index(kind)
