"""The list of incident kinds: whole, and the only one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentpost
from agentpost.protocol.incidents import INCIDENTS, PIPELINE_PREFIX, IncidentKind, hint_for, meaning_of

SOURCE = Path(agentpost.__file__).parent
# Calls whose first argument is the kind of an incident, or whose `kind` is.
BY_PLACE = {"incident", "forge", "close_incident", "open_incidents"}
REPORTS = SOURCE / "delivery"  # elsewhere `report` is another word
BY_NAME = {"Incident", "RaiseIncident"}


def test_every_kind_has_a_meaning_and_a_hint() -> None:
    """Each kind says what it means and what to do; a kind that never closes by itself leaves that empty."""
    assert set(INCIDENTS) == set(IncidentKind)
    for kind, meaning in INCIDENTS.items():
        assert meaning.what.endswith("."), kind
        assert meaning.hint.endswith("."), kind
        assert not meaning.closes or re.fullmatch(r"When .*\.", meaning.closes), kind


def test_every_kind_that_is_raised_is_in_the_list() -> None:
    """No module writes the kind of an incident as a text of its own: it names a member of the list."""
    written = {(where, text) for where, text in _kinds_as_text() if text not in set(IncidentKind)}
    assert not written, "add these kinds to protocol/incidents.py, with what each means and a hint"


def test_every_kind_of_the_list_is_raised_somewhere() -> None:
    """The list has no kind that no module raises."""
    used = {
        node.attr
        for path in SOURCE.rglob("*.py")
        if path.name != "incidents.py" or path.parent.name != "protocol"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "IncidentKind"
    }
    assert used == {kind.name for kind in IncidentKind}


def test_a_hint_names_the_incident_it_is_about() -> None:
    """The commands of a hint can be pasted: ids of the incident stand in them, quoted for a shell."""
    found = hint_for(
        "indeterminate", subject="evt_1/bob", detail={"eventId": "evt_1", "agentId": "bob; rm -rf ~", "attempts": 1}
    )
    assert "`agentpost resolve evt_1 --agent 'bob; rm -rf ~' --how retry`" in found
    assert "`agentpost resolve EVENT --agent AGENT --how retry`" in hint_for("indeterminate")


@pytest.mark.parametrize("kind", [f"{PIPELINE_PREFIX}gap", "of_a_later_version"])
def test_a_kind_of_elsewhere_has_a_hint_too(kind: str) -> None:
    """Kinds of the pipeline and of other versions are not in the list, and have a meaning all the same."""
    assert meaning_of(kind).what
    assert hint_for(kind, subject="evt_1")


def _kinds_as_text() -> Iterator[tuple[str, str]]:
    """Where the kind of an incident is given as a text, directly or by a constant of the module."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            name.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            for name in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(name, ast.Name)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and (kind := _kind_given_to(call, path)) is not None:
                for part in ast.walk(kind):
                    where = f"{path.relative_to(SOURCE)}:{call.lineno}"
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield where, part.value
                    elif isinstance(part, ast.Name) and part.id in constants:
                        yield where, constants[part.id]


def _kind_given_to(call: ast.Call, path: Path) -> ast.expr | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in BY_NAME:
        return next((each.value for each in call.keywords if each.arg == "kind"), None)
    is_by_place = name in BY_PLACE or (name == "report" and path.is_relative_to(REPORTS))
    return call.args[0] if is_by_place and call.args else None
