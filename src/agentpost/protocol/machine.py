"""A state machine as data, and the one function that walks it.

A table lists the moves that exist; each is a single arrow of the spec's diagram. A signal may imply several of
them (an `ack:processed` implies that the event was accepted), so a signal maps to a path of arrows, and a table
whose path uses an arrow that is not drawn does not load. The delivery, task and mailbox lifecycles are three
tables; none of them has code of its own.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Table", "walk"]

S = TypeVar("S", bound=Hashable)
G = TypeVar("G", bound=Hashable)


class Table(Generic[S, G]):
    """The states, the arrows between them, and what each signal means in each state.

    `signals[state, signal]` is the path that the signal takes from that state; an empty path means that the
    signal is known there and changes nothing (a repeat). What is not listed is forbidden.
    """

    def __init__(
        self,
        *,
        name: str,
        initial: S,
        terminal: frozenset[S],
        arrows: frozenset[tuple[S, S]],
        signals: Mapping[tuple[S, G], tuple[S, ...]],
    ) -> None:
        self.name = name
        self.initial = initial
        self.terminal = terminal
        self.arrows = arrows
        self.signals = dict(signals)
        self.states = frozenset({initial, *terminal, *(state for arrow in arrows for state in arrow)})
        for before, _ in arrows:
            if before in terminal:
                raise ValueError(f"{name}: {before} is terminal and cannot be left")
        for (state, signal), path in self.signals.items():
            for step in zip((state, *path), path, strict=False):
                if step not in arrows:
                    raise ValueError(f"{name}: {signal} in {state} takes {step}, which is not an arrow")


def walk(table: Table[S, G], state: S, signal: G) -> tuple[S, ...]:
    """The states that `signal` leads through from `state`; the last one is where it ends.

    An empty path means that nothing changes. A signal that the table does not know in this state is refused with
    `invalid_transition`, so that no caller can invent a move.
    """
    path = table.signals.get((state, signal))
    if path is None:
        raise Refusal(Code.INVALID_TRANSITION, f"{table.name}: {signal} is not possible in state {state}")
    return path
