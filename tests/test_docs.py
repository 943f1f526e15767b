"""The documents say what the code does."""

import re
from pathlib import Path

import pytest

from agentpost.protocol.lifecycle import DELIVERY
from agentpost.protocol.machine import Table
from agentpost.protocol.mailbox import MAILBOX
from agentpost.protocol.tasks import TASK

ROOT = Path(__file__).parent.parent
_DIAGRAM = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
_ARROW = re.compile(r"^\s*(\w+) --> (\w+)$", re.MULTILINE)


@pytest.mark.req("RTY-6", "TASK-5", "MBX-2")
@pytest.mark.parametrize(("place", "table"), list(enumerate([DELIVERY, TASK, MAILBOX])))
def test_the_pictures_show_every_arrow_and_no_other(place: int, table: Table) -> None:
    """The lifecycle page draws exactly the moves that the tables have."""
    diagram = _DIAGRAM.findall((ROOT / "docs/lifecycle.md").read_text())[place]
    drawn = {(before, after) for before, after in _ARROW.findall(diagram)}
    assert drawn == {(before.value, after.value) for before, after in table.arrows}


def test_links_between_the_documents_lead_somewhere() -> None:
    """No document points to a file that is not there."""
    broken = [
        f"{page.name}: {link}"
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert broken == []


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python example of the README works as it stands there."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(code[1], "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - it is our own text
    assert capsys.readouterr().out.startswith("1 (StoredEvent(")
