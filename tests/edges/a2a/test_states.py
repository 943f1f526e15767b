"""The table of states: total, and what the page prints."""

from itertools import product
from pathlib import Path

import pytest

from agentpost.edges.a2a.states import ENDS, FAILURES, INTERRUPTIONS, STATES, STATUSES, A2aState, a2a_state
from agentpost.protocol.tasks import TASK, TaskState

PAGE = (Path(__file__).parents[3] / "docs/a2a.md").read_text()
WORDS = [None, "", "in_progress", "blocked", *STATUSES, *FAILURES]


@pytest.mark.parametrize(("state", "word", "is_canceled"), list(product(TaskState, WORDS, (False, True))))
def test_every_task_has_a_state_of_a2a(state: TaskState, word: str | None, is_canceled: bool) -> None:
    """Whatever an agent calls its progress or its failure; an end is an end on both sides."""
    found = a2a_state(state, status=word, failure_class=word, is_canceled=is_canceled)
    assert (found in ENDS) == (is_canceled or state in TASK.terminal)
    assert found not in INTERRUPTIONS or state is TaskState.IN_PROGRESS


def test_every_state_of_a2a_can_be_reached() -> None:
    """The two that ask for something, and the four ends, too."""
    assert {*STATES.values(), *STATUSES.values(), *FAILURES.values()} == set(A2aState)


def test_the_page_has_the_table() -> None:
    """Row by row, as the code has it."""
    for ours, theirs in STATES.items():
        assert f"| `{ours}` | | `{theirs}` |" in PAGE
    for word, theirs in STATUSES.items():
        assert f"| `in_progress` | `--status {word}` | `{theirs}` |" in PAGE
    for word, theirs in FAILURES.items():
        assert f"| `failed` | `--class {word}` | `{theirs}` |" in PAGE
