"""What the command line prints of texts that somebody else wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from agentpost.edges.cli.output import Format, escape, print_error, print_said, print_table, say
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.visible import visible


def test_brackets_in_a_text_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """An error, a line of progress and a title quote what looks like markup, and are not ended by it."""
    print_error(Refusal(Code.NOT_FOUND, "nobody is [/x]", hint="Try [bold]."), Format.TEXT)
    say("looking for [/dim]")
    print_table("Inbox of [/x]", ("a column that is wide",), [("b",)])
    shown = capsys.readouterr()
    assert shown.err == "not_found: nobody is [/x]\n  Try [bold].\nlooking for [/dim]\n"
    assert shown.out.startswith("Inbox of [/x]")


def test_a_list_with_nothing_in_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A head without a row would look as if the rest had got lost."""
    print_table("Agents", ("agent", "state"), [])
    assert capsys.readouterr().out == "Agents: none\n"


def test_the_name_of_an_emoji_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Colons around a word are two colons, not a picture."""
    print_error(Refusal(Code.NOT_FOUND, "no :smile: here"), Format.TEXT)
    print_table("of :smile:", ("a column that is wide",), [(":smile:",)])
    shown = capsys.readouterr()
    assert ":smile:" in shown.err
    assert shown.out.count(":smile:") == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x7f\x80\x9b31m\x9f", r"\x7f\x80\x9b31m\x9f"),
        ("\u202eevil\u202c \u200e\u200f\u061c\u2066\u2069", r"\u202eevil\u202c \u200e\u200f\u061c\u2066\u2069"),
        ("over\rwritten", r"over\x0dwritten"),
        ("\udcff", r"\udcff"),
        ("two\nlines\tand a tab, Grüße, 你好, 🙂", "two\nlines\tand a tab, Grüße, 你好, 🙂"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    """Escape sequences and marks of the writing direction become visible; everything else stays what it is."""
    assert visible(text) == shown


def test_one_line_stays_one_line() -> None:
    """A line break in a subject cannot begin a line that looks like one of ours, nor can markup colour it."""
    assert escape("hello\nfrom    boss\r\n") == r"hello\nfrom    boss\r\n"
    assert Text.from_markup(escape("[red]x[/red]\x1b[0m")).plain == r"[red]x[/red]\x1b[0m"


@pytest.mark.parametrize("text", ["C:\\", "C:\\\\", "\\\\\\", "[x\\", "C:\\[bold]\\"])
def test_backslashes_at_the_end_stay_as_many_as_they_are(text: str) -> None:
    """Whatever comes after such a text: nothing, words, or markup."""
    for before, after, rest in (("", "", ""), ("", " more", " more"), ("[dim]", "[/dim]", "")):
        assert Text.from_markup(f"{before}{escape(text)}{after}").plain == text + rest


def test_a_body_comes_out_as_it_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Long lines stay whole, and markup, tabs, emoji names and a backslash at the end stay what they are."""
    body = "x " * 200 + "\n[bold]not bold[/bold]\t:smile:\nC:\\"
    print_said(body)
    assert capsys.readouterr().out == body + "\n"


def test_the_lines_of_an_answer_do_not_pass_for_other_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """After the name of who said it, the further lines of an answer are indented."""
    print_said("yes\n  carol: Replied no", after="  bob: Replied")
    print_said("", after="  dave: Accepted")
    assert capsys.readouterr().out == "  bob: Replied yes\n      carol: Replied no\n  dave: Accepted\n"


def test_a_table_and_an_error_show_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a title, a column or an error quotes, no control character reaches the terminal."""
    print_table("of \x1b[31m", ("a column that is wide \x9b",), [(escape("b\nc\x1b"),)])
    print_error(Refusal(Code.NOT_FOUND, "no \x1b]0;x\x07", hint="\u202e"), Format.TEXT)
    shown = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(shown.out + shown.err)
    assert r"b\nc\x1b" in shown.out


@pytest.mark.parametrize(("word", "piped"), [("-", b"\xff bad"), (b"\xff bad", b"")])
def test_a_body_that_is_not_utf8_is_refused_in_words(word: str | bytes, piped: bytes, tmp_path: Path) -> None:
    """Typed or piped, what is no text gets the one JSON shape of errors, and no traceback."""
    words = ("send", "--from", "a", "--to", "b", "-o", "json", "--home", str(tmp_path))
    command = [sys.executable, "-m", "agentpost", *words, word]
    shown = subprocess.run(command, input=piped, capture_output=True, env={**os.environ, "PYTHONUTF8": "0"})
    assert (shown.returncode, shown.stdout) == (1, b"")
    assert json.loads(shown.stderr)["error"]["code"] == "malformed"


def test_an_event_id_in_a_table_stays_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    """It is there to be copied: what stands beside it is broken into lines instead."""
    event_id = "evt_01K0000000000000000000000A"
    print_table("Inbox", ("event", "subject", "from"), [(event_id, "a subject " * 9, "architect@vps-jane " * 3)])
    assert event_id in capsys.readouterr().out
