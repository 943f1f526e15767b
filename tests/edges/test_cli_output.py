"""What the command line prints of texts that somebody else wrote."""

import pytest

from agentpost.edges.cli.output import Format, print_error, print_table, say
from agentpost.protocol.errors import Code, Refusal


def test_brackets_in_a_text_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """An error, a line of progress and a title quote what looks like markup, and are not ended by it."""
    print_error(Refusal(Code.NOT_FOUND, "nobody is [/x]", hint="Try [bold]."), Format.TEXT)
    say("looking for [/dim]")
    print_table("Inbox of [/x]", ("a column that is wide",), [("b",)])
    shown = capsys.readouterr()
    assert shown.err == "not_found: nobody is [/x]\n  Try [bold].\nlooking for [/dim]\n"
    assert shown.out.startswith("Inbox of [/x]")


def test_the_name_of_an_emoji_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Colons around a word are two colons, not a picture."""
    print_error(Refusal(Code.NOT_FOUND, "no :smile: here"), Format.TEXT)
    print_table("of :smile:", ("a column that is wide",), [(":smile:",)])
    shown = capsys.readouterr()
    assert ":smile:" in shown.err
    assert shown.out.count(":smile:") == 2
