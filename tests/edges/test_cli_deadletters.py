"""Dead letters from the command line where it is easy to be told too little."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agentpost.edges.cli.app import make_app
from agentpost.edges.operator_client import OperatorClient

EVENT_ID = "evt_01KJASQ7TGJFQKFHGNGGBDE0YP"
LETTER = {"eventId": EVENT_ID, "toAgentId": "architect", "reason": "max_attempts", "attempts": 10}


def run(monkeypatch: pytest.MonkeyPatch, home: Path, answer: Any, *words: str) -> Result:
    """The command, with a gateway that answers this."""
    monkeypatch.setattr(OperatorClient, "get", lambda *_: answer)
    monkeypatch.setattr(OperatorClient, "post", lambda *_: answer)
    return CliRunner().invoke(make_app(), [*words, "--home", str(home)])


@pytest.mark.req("RTY-7")
@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("message", {"subject": "Release", "body": "Two\nlines."}, ("subject Release\n", "\nTwo\nlines.\n")),
        ("task_create", {"title": "Build it", "description": "All of it.", "context": {"v": 2}}, ('{"v":2}', "All of")),
        ("task_complete", {"resultSummary": "It stands.", "output": {"pages": 2}}, ("It stands.", '{"pages":2}')),
        ("task_failed", {"errorSummary": "It fell."}, ("It fell.",)),
    ],
)
def test_a_dead_letter_shows_what_it_says_of_whatever_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, content: dict[str, Any], said: tuple[str, ...]
) -> None:
    """An operator who decides about it sees which kind it is, and all of its words."""
    found = {"eventId": EVENT_ID, "letters": [LETTER], "history": [], "kind": kind, "content": content}
    shown = run(monkeypatch, tmp_path, found, "deadletters", "show", EVENT_ID)
    assert shown.exit_code == 0
    assert kind in shown.stdout
    for words in said:
        assert words in shown.stdout


@pytest.mark.req("RTY-7")
def test_a_dead_letter_that_cannot_be_opened_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not look like a letter without words. One that was sent again says as what."""
    letter = {**LETTER, "resentAs": "evt_01KJBDT060JFQKFHGNCATN6CNF"}
    found = {"eventId": EVENT_ID, "letters": [letter], "history": [], "problem": "the outbox has it no more"}
    shown = run(monkeypatch, tmp_path, found, "deadletters", "show", EVENT_ID)
    assert "the outbox has it no more" in shown.stdout
    assert "sent again as evt_01KJBDT060JFQKFHGNCATN6CNF" in shown.stdout


@pytest.mark.req("RTY-7")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_dead_letter_that_stays_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """A script that sends one again, and could not, sees it in the exit code."""
    stays = {"eventId": EVENT_ID, "toAgents": ["bob"], "reason": "no gateway hosts bob"}
    sent = {"eventId": EVENT_ID, "toAgents": ["cid"], "resentAs": "evt_01KJBDT060JFQKFHGNCATN6CNF"}
    words = ("deadletters", "resend", EVENT_ID, "-o", form)
    done = run(monkeypatch, tmp_path, {"resent": [sent], "refused": [stays]}, *words)
    assert done.exit_code == 1
    assert "no gateway hosts bob" in done.stdout
    assert run(monkeypatch, tmp_path, {"resent": [sent], "refused": []}, *words).exit_code == 0


def test_a_list_of_tasks_that_is_cut_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of as many tasks as are shown at most does not look like all of them."""
    task = {"taskId": "tsk_01KJASQ7TGCSBGZW2T4MQKC5WA", "state": "created", "requesterAgentId": "ada"}
    line = {"task": {**task, "toAgents": ["bob"], "createdAtMs": 0}, "title": "Build it"}
    cut = run(monkeypatch, tmp_path, [line, line], "task", "list", "--limit", "2")
    assert "2 are shown, and there may be more" in cut.stderr
    assert "there may be more" not in run(monkeypatch, tmp_path, [line], "task", "list", "--limit", "2").stderr
