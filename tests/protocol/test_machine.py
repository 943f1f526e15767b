"""State machines as tables: what loads, and how a signal walks."""

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DELIVERY
from agentpost.protocol.machine import Table, walk
from agentpost.protocol.mailbox import MAILBOX
from agentpost.protocol.tasks import TASK

ARROWS = frozenset({("open", "half"), ("half", "shut")})


def door(
    signals: dict[tuple[str, str], tuple[str, ...]], arrows: frozenset[tuple[str, str]] = ARROWS
) -> Table[str, str]:
    return Table(name="door", initial="open", terminal=frozenset({"shut"}), arrows=arrows, signals=signals)


def test_a_signal_may_take_several_arrows():
    """A signal that implies more than one arrow walks all of them, in their order."""
    table = door({("open", "push"): ("half",), ("open", "slam"): ("half", "shut"), ("half", "slam"): ("shut",)})
    assert walk(table, "open", "push") == ("half",)
    assert walk(table, "open", "slam") == ("half", "shut")
    assert table.states == {"open", "half", "shut"}


def test_a_known_signal_may_change_nothing():
    """A signal with an empty path is heard and changes nothing, also after the end."""
    table = door({("open", "look"): (), ("shut", "look"): ()})
    assert walk(table, "open", "look") == ()
    assert walk(table, "shut", "look") == ()


@pytest.mark.req("RTY-6")
@pytest.mark.parametrize(
    ("state", "path"),
    [
        ("open", ("shut",)),
        ("half", ("open",)),
        ("open", ("open",)),
        ("open", ("half", "open")),
        ("open", ("half", "half")),
        ("open", ("half", "elsewhere")),
        ("shut", ("open",)),
        ("elsewhere", ("open",)),
    ],
)
def test_a_path_that_is_not_drawn_does_not_load(state: str, path: tuple[str, ...]):
    """A table in which a signal takes an arrow that the diagram lacks is refused when it is loaded."""
    with pytest.raises(ValueError, match="not an arrow"):
        door({(state, "push"): path})


@pytest.mark.req("RTY-6")
def test_an_arrow_out_of_an_end_does_not_load():
    """A table whose diagram leaves a final state is refused when it is loaded."""
    with pytest.raises(ValueError, match="shut is terminal"):
        door({}, ARROWS | {("shut", "open")})


@pytest.mark.req("TASK-5")
def test_what_is_not_listed_is_refused():
    """A signal that a state does not list is refused as a forbidden move, with the state and the signal."""
    with pytest.raises(Refusal) as caught:
        walk(door({}), "open", "push")
    assert (caught.value.code, caught.value.status) == (Code.INVALID_TRANSITION, 409)
    assert caught.value.message == "door: push is not possible in state open"


@pytest.mark.parametrize("table", [DELIVERY, TASK, MAILBOX], ids=lambda table: table.name)
def test_every_state_is_reached_by_signals_alone(table: Table[str, str]):
    """In each lifecycle signals lead from the first state to all others, and out of all but the ends."""
    reached = {table.initial}
    while new := {path[-1] for (state, _), path in table.signals.items() if path and state in reached} - reached:
        reached |= new
    assert reached == table.states
    assert {state for (state, _), path in table.signals.items() if path} == table.states - table.terminal
