"""The documents say what the code does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from agentpost.edges.cli.app import make_app
from agentpost.edges.reference.commands import every_command
from agentpost.edges.reference.markdown import anchor
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


def _pages() -> list[Path]:
    return [page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if "reference" not in page.parts]


def test_links_between_the_documents_lead_somewhere() -> None:
    """No document points to a file, or a heading, that is not there."""
    broken: list[str] = []
    for page in _pages():
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
            file, _, heading = link.partition("#")
            target = page.parent / file if file else page
            if not target.exists() or (heading and f"#{heading}" not in _anchors(target)):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_the_tests_of_the_threat_models_are_there() -> None:
    """Each test and each file of tests that SECURITY.md names exists."""
    text = (ROOT / "SECURITY.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", tests))
    assert sorted(set(re.findall(r"`(test_\w+)`", text)) - there) == []
    named = re.findall(r"`(tests/[\w/]+(?:\.py|/))`", text)
    assert [each for each in named if not (ROOT / each).exists()] == []


def _anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


_COMMANDS = {words[1:]: command for words, command in every_command(typer.main.get_command(make_app()), ("agentpost",))}
# In a block a command stands on its line; in a sentence it stands between backticks.
_IN_BLOCK = re.compile(r"^(?:\.venv/bin/)?agentpost (.+?)(?:\s+#.*)?$", re.MULTILINE)
_IN_TEXT = re.compile(r"`agentpost ([^`]+)`")


def _said_commands() -> Iterator[tuple[str, list[str]]]:
    """The words of each command, with its page; `task create|list` is two commands."""
    for page in _pages():
        text = page.read_text().replace("\\\n", " ")
        blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for said in [*(said for block in blocks for said in _IN_BLOCK.findall(block)), *_IN_TEXT.findall(text)]:
            words = [word for word in said.partition(" -- ")[0].split() if word != "…"]
            for verb in words[1].split("|") if len(words) > 1 else [None]:
                yield page.name, [words[0], *([] if verb is None else [verb]), *words[2:]]


def _problem(words: list[str]) -> str | None:
    names = [name for name in _COMMANDS if tuple(words[: len(name)]) == name]
    if not names:
        is_group = any(name[: len(words)] == tuple(words) for name in _COMMANDS)
        return None if is_group else "there is no such command"
    options = {name for each in _COMMANDS[max(names, key=len)].params for name in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if re.fullmatch(r"--?[a-z][\w-]*", word) and word not in {*options, "--help"}]
    return f"it has no {unknown[0]}" if unknown else None


def test_every_command_of_the_documents_exists() -> None:
    """Each command that a document shows is one, and has the options that it is shown with."""
    said = list(_said_commands())
    assert len(said) > 200
    assert [f"{page}: {words}: {problem}" for page, words in said if (problem := _problem(words))] == []


def test_a_command_that_is_none_is_noticed() -> None:
    """The test above sees commands and options that do not exist."""
    assert _problem(["send", "--to", "builder"]) is None
    assert _problem(["task"]) is None
    assert _problem(["send", "--too", "builder"]) == "it has no --too"
    assert _problem(["task", "make"]) == "there is no such command"


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python example of the README works as it stands there."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(code[1], "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - it is our own text
    assert capsys.readouterr().out.startswith("1 (StoredEvent(")
