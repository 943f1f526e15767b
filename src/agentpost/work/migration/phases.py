"""Where a migration stands, and which moves are open. Pure (OPS-9).

    off → dual_write → pipes_first → shared_off → cleaned

Forward goes one step at a time. Back goes as far as one likes, but not from `cleaned`: then the document is empty.
"""

from enum import StrEnum
from typing import Final

from agentpost.protocol.errors import Code, Refusal

__all__ = ["FALLBACK_AFTER_MS", "Phase", "check_move", "reads", "waits_ms", "writes"]

# With pipes first, an entry of the document is a fallback: it is taken if nothing else brought it for so long.
FALLBACK_AFTER_MS: Final = 30_000


class Phase(StrEnum):
    OFF = "off"  # the document is not looked at
    DUAL_WRITE = "dual_write"  # what is sent goes both ways, and both are read
    PIPES_FIRST = "pipes_first"  # what is sent goes both ways; the document is read as a fallback
    SHARED_OFF = "shared_off"  # nothing is written into the document; it is still read
    CLEANED = "cleaned"  # the document is empty, and nobody reads it


_ORDER: Final = tuple(Phase)


def check_move(present: Phase, wanted: Phase) -> None:
    """Refuse a move that is not open."""
    if wanted is present:
        return
    if present is Phase.CLEANED:
        raise Refusal(
            Code.INVALID_TRANSITION,
            "the migration is over, and its last step cannot be taken back",
            field="phase",
            hint="What was in the document is in the archive that the last step wrote.",
        )
    step = _ORDER.index(wanted) - _ORDER.index(present)
    if step > 1:
        following = _ORDER[_ORDER.index(present) + 1]
        raise Refusal(
            Code.INVALID_TRANSITION,
            f"after {present} comes {following}, not {wanted}",
            field="phase",
            hint="Phases are taken one by one, so that each can be watched.",
        )


def writes(phase: Phase) -> bool:
    return phase in (Phase.DUAL_WRITE, Phase.PIPES_FIRST)


def reads(phase: Phase) -> bool:
    return phase in (Phase.DUAL_WRITE, Phase.PIPES_FIRST, Phase.SHARED_OFF)


def waits_ms(phase: Phase) -> int:
    """How old an entry has to be before it is taken from the document."""
    return FALLBACK_AFTER_MS if phase is Phase.PIPES_FIRST else 0
