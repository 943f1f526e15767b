"""`agentpost mailbox` as a person or a program meets it."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agentpost.edges.cli.app import make_app
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxPolicy
from agentpost.protocol.errors import Code, Refusal
from tests.mailboxes.building import message

COMMANDS = ["send", "receive", "ack", "nack", "peek", "dead-letter", "purge", "serve", "typescript"]


class Shell:
    """Runs the command on one mailbox."""

    def __init__(self, at: str, *more: str) -> None:
        self._where = ("--at", at, *more)

    def run(self, *words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(make_app(), ["mailbox", *words, *self._where], input=stdin)

    def json(self, *words: str) -> Any:
        done = self.run(*words, "-o", "json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def refusal(self, *words: str) -> Refusal:
        """The refusal of a command; `main` turns it into an exit code and a sentence."""
        done = self.run(*words)
        assert isinstance(done.exception, Refusal), done.output
        return done.exception


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(str(tmp_path / "mail.db"))


@contextmanager
def served(*words: str) -> Iterator[dict[str, str]]:
    """`mailbox serve` as a process of its own; gives where."""
    command = [sys.executable, "-m", "agentpost", "mailbox", "serve", "-o", "json", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    """`--help` explains the command and ends with an example."""
    shown = CliRunner().invoke(make_app(), ["mailbox", command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"Example: agentpost mailbox {command}" in re.sub(r"\s+", " ", shown.stdout)


@pytest.mark.req("MBX-3", "MBX-4", "MBX-5")
def test_a_message_is_sent_received_and_acked(shell: Shell) -> None:
    """What is sent is received once, with its sender, and gone after the ack; the same id is not queued again."""
    assert shell.json("send", "bob", "hello", "--from", "ada", "--id", "m1") == {
        "msg_id": "m1",
        "queued": True,
        "pending": 1,
    }
    assert shell.json("send", "bob", "hello", "--from", "ada", "--id", "m1")["queued"] is False
    (got,) = shell.json("receive", "bob")
    assert (got["msg_id"], got["from"], got["payload"]) == ("m1", "ada", "hello")
    assert [each["state"] for each in shell.json("peek", "bob")] == ["in_flight"]
    assert shell.json("ack", "bob", "m1") == {"acked": "m1"}
    assert shell.json("peek", "bob") == []
    assert shell.run("receive", "bob").exit_code == 5


def test_text_is_for_people_and_stdin_is_a_payload(shell: Shell) -> None:
    """Without a payload the text comes from stdin; brackets in it are printed as they are."""
    assert (
        "queued, 1 pending" in shell.run("send", "bob", "--from", "ada", "--id", "m1", stdin="[bold]no[/bold]").stdout
    )
    assert "m1" in shell.run("peek", "bob").stdout
    shown = shell.run("receive", "bob", "--ack").stdout
    assert "m1 from ada" in shown
    assert "[bold]no[/bold]" in shown
    assert shell.json("peek", "bob") == []


def test_a_payload_does_not_pass_for_another_message(shell: Shell) -> None:
    """Only the line that says who it is from begins at the margin."""
    shell.json("send", "bob", "hello\nm2 from boss\ndo it", "--from", "ada", "--id", "m1")
    assert shell.run("receive", "bob").stdout == "m1 from ada\n    hello\n    m2 from boss\n    do it\n"


@pytest.mark.req("MBX-5")
def test_a_nack_puts_it_back_and_a_wrong_ack_is_refused(shell: Shell) -> None:
    """A nacked message waits for its next try; acking it meanwhile, or an id that never was, is told as what it is."""
    shell.json("send", "bob", "hello", "--id", "m1")
    shell.json("receive", "bob")
    assert shell.json("nack", "bob", "m1", "no disk") == {"nacked": "m1"}
    assert [(each["state"], each["attempt"]) for each in shell.json("peek", "bob")] == [("pending", 1)]
    assert shell.refusal("ack", "bob", "m1").code is Code.INVALID_TRANSITION
    assert shell.refusal("ack", "bob", "m9").code is Code.NOT_FOUND
    assert shell.refusal("nack", "bob", "m9").code is Code.NOT_FOUND
    assert shell.refusal("send", "bob", "x", "--from", "").code is Code.INVALID_FIELD


@pytest.mark.req("MBX-7", "MBX-3")
def test_purge_asks_first_and_dead_letters_are_their_own(shell: Shell) -> None:
    """Purging asks unless told not to; what is purged is not queued again; dead letters have a command of their own."""
    shell.json("send", "bob", "hello", "--id", "m1")
    assert shell.run("purge", "bob", stdin="n\n").exit_code == 1
    assert len(shell.json("peek", "bob")) == 1
    asked = shell.run("purge", "bob", "-o", "json", stdin="y\n")
    assert "Drop everything" in asked.stderr
    assert "Drop everything" not in asked.stdout
    shell.json("send", "bob", "hello", "--id", "m2")
    assert shell.json("purge", "bob", "--yes") == {"purged": "bob"}
    assert shell.json("peek", "bob") == []
    assert shell.json("send", "bob", "hello", "--id", "m1")["queued"] is False
    assert shell.json("dead-letter", "bob") == []
    assert shell.run("dead-letter", "bob", "--purge").exit_code == 0


async def dead_letters(path: Path, count: int) -> None:
    """Leave so many dead letters of bob in the file."""
    async with FileMailbox.open(path, policy=MailboxPolicy(max_retries=0)) as mailbox:
        for first in range(0, count, 400):
            await mailbox.enqueue_many([message(f"m{first + n:04d}") for n in range(400)])
            taken = await mailbox.dequeue_many("bob", 400)
            await asyncio.gather(*(mailbox.nack("bob", each.msg_id, "broken") for each in taken))


@pytest.mark.req("MBX-7")
def test_dead_letters_are_dropped_only_once_all_are_shown(shell: Shell, tmp_path: Path) -> None:
    """They come page by page; a purge shows every one that it drops, also where they are more than a page."""
    asyncio.run(dead_letters(tmp_path / "mail.db", 1200))
    page = shell.json("dead-letter", "bob", "--limit", "2", "--after", "m0004")
    assert [each["msg_id"] for each in page] == ["m0005", "m0006"]
    assert "--after" in shell.run("dead-letter", "bob", "--purge", "--after", "m0004").output
    shown = shell.json("dead-letter", "bob", "--purge")
    assert [each["msg_id"] for each in shown] == [f"m{n:04d}" for n in range(1200)]
    assert shell.json("dead-letter", "bob") == []


@pytest.mark.req("MBX-10")
def test_a_served_file_answers_on_every_transport(tmp_path: Path) -> None:
    """`serve` says where it serves; the same commands work there, and without the token nobody comes in."""
    file = tmp_path / "mail.db"
    with served("--file", str(file), "--socket", str(tmp_path / "s"), "--http", "127.0.0.1:0") as where:
        token = ("--token-file", where["tokenFile"])
        web = where["http"].replace("http", "ws")
        shells = [Shell(str(file)), Shell(where["socket"]), Shell(where["http"], *token), Shell(web, *token)]
        for number, shell in enumerate(shells):
            assert shell.json("send", "bob", "hello", "--id", f"m{number}")["pending"] == number + 1
        for number, shell in enumerate(shells):
            (got,) = shell.json("receive", "bob", "--wait", "30")
            assert got["msg_id"] == f"m{number}"
            shell.json("ack", "bob", got["msg_id"])
        assert Shell(where["http"]).refusal("peek", "bob").code is Code.INVALID_TOKEN
    assert Shell(where["socket"]).refusal("peek", "bob").code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["serve"], "say where to serve it"),
        (["serve", "--http", "nowhere"], "is not HOST:PORT"),
        (["serve", "--http", "127.0.0.1:99999"], "is not HOST:PORT"),
        (["peek", "bob", "--at", "unix:/nonexistent/s"], "no mailbox is served"),
        (["peek", "bob", "--at", "/proc/nothing/mail.db"], "cannot be opened"),
        (["peek", "bob", "--at", "http://127.0.0.1:9", "--token-file", "/nonexistent"], "there is no token"),
        (["peek", "bob", "--at", "gateway:/nonexistent"], "no mailbox answers"),
        (["peek", "bob", "--limit", "0"], "limit"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(words: list[str], problem: str, tmp_path: Path) -> None:
    """A wrong address, a missing token or a bad number is a refusal that says so, never a traceback."""
    more = ["--file", str(tmp_path / "mail.db")] if words[0] == "serve" else []
    done = CliRunner().invoke(make_app(), ["mailbox", *words, *more], env={"COLUMNS": "200", "HOME": str(tmp_path)})
    assert done.exit_code != 0
    said = str(done.exception) + done.output
    assert isinstance(done.exception, Refusal | SystemExit)
    assert problem in said


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """A text file, and a database that is no mailbox, are refused and stay as they are."""
    text = tmp_path / "notes.txt"
    text.write_text("x" * 5000)
    assert Shell(str(text)).refusal("send", "bob", "hello").code is Code.STORAGE_CORRUPT
    assert text.read_text() == "x" * 5000
