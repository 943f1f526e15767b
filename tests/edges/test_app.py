"""A command loads itself and not all the others."""

import subprocess
import sys

import pytest
import typer

from agentpost.edges.cli import app

WHOLE = typer.main.get_command(app.make_app()).commands
KNOWN = {word for words in app._COMMANDS.values() for word in words} | set(app._GROUPS)


def test_the_table_of_commands_is_complete() -> None:
    """What a module brings is in the table under that module; otherwise each use of it would load everything."""
    assert set(WHOLE) == KNOWN


@pytest.mark.parametrize("word", WHOLE)
def test_a_command_is_the_same_without_the_others(word: str) -> None:
    """Found by its first word alone, a command has the help and the options that it has among all of them."""
    alone = typer.main.get_command(app.make_app(word)).commands
    assert len(alone) < 15
    assert alone[word].help == WHOLE[word].help
    assert [each.name for each in alone[word].params] == [each.name for each in WHOLE[word].params]


@pytest.mark.parametrize("word", ["stroe", "--help", "", None])
def test_whoever_asks_for_something_else_is_shown_all(word: str | None) -> None:
    """A word that is no command, or none at all, gets the whole list to choose from."""
    assert set(typer.main.get_command(app.make_app(word)).commands) == set(WHOLE)


def test_other_modules_are_not_loaded() -> None:
    """`agentpost inbox` has nothing to do with the mesh, the pipeline or the benches."""
    code = "import sys; from agentpost.edges.cli.app import make_app; make_app('inbox'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    commands = {each for each in loaded if each.startswith("agentpost.edges.cli.")}
    assert "agentpost.edges.cli.mail" in commands
    assert not commands & {f"agentpost.edges.cli.{each}" for each in ("mesh", "bench", "pipeline", "gateway", "demo")}
