"""Who keeps work moving (OPS-4): what the room says of it, and who acts when the coordinator is silent. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

__all__ = ["DEFAULT_SWEEP_SECONDS", "CoordinationState", "Preference", "acting_node", "most_terms", "turn_of"]

DEFAULT_SWEEP_SECONDS: Final = 60
_LEAST_SWEEP_SECONDS: Final = 10


class Preference(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one node would like."""

    desired_coordinator: str | None = None
    desired_sweep_every_seconds: int | None = None


class CoordinationState(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the room says. `terms` are the fencing numbers: the highest one belongs to who led the latest sweeps.

    `backups` is the delegation table's word on who takes over whose work.
    """

    coordinator: str | None = None
    sweep_every_seconds: int = DEFAULT_SWEEP_SECONDS
    preferences: Mapping[str, Preference] = field(default_factory=dict[str, Preference])
    terms: Mapping[str, int] = field(default_factory=dict[str, int])
    backups: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def highest_term(self) -> int:
        return max(self.terms.values(), default=0)


def acting_node(state: CoordinationState, backbone: Mapping[str, object], is_live: Callable[[str], bool]) -> str | None:
    """Who leads the sweeps now: the coordinator, else whom most nodes prefer, else the first by name.

    Only backbone nodes that are live come into question, so that everybody who sees the same room says the same.
    """
    wishes = Counter(
        wish.desired_coordinator for wish in state.preferences.values() if wish.desired_coordinator is not None
    )
    preferred = sorted(wishes, key=lambda node_id: (-wishes[node_id], node_id))
    first = () if state.coordinator is None else (state.coordinator,)
    for node_id in (*first, *preferred, *sorted(backbone)):
        if node_id in backbone and is_live(node_id):
            return node_id
    return None


def most_terms(now_ms: int) -> int:
    """The highest number under which anybody can lead by now: one for each sweep, had there always been one in time.

    A higher one is no number that sweeps have led to, and counts nowhere: with it, its author would lead for ever.
    """
    return now_ms // (_LEAST_SWEEP_SECONDS * 1000)


def turn_of(now_ms: int, sweep_every_seconds: int) -> int:
    """The sweep that belongs to this moment: the same number for everybody whose clock says about the same."""
    length_ms = sweep_every_seconds * 1000
    return now_ms // length_ms * length_ms
