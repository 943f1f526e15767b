"""The reference pages leave nothing out, and what they are made from says what it is."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agentpost.config import load_settings
from agentpost.config_keys import KEYS, TABLES
from agentpost.edges.cli.app import make_app
from agentpost.edges.mcp.tools import tool
from agentpost.edges.operations import OPERATIONS
from agentpost.edges.reference.commands import every_command
from agentpost.edges.reference.http import openapi_documents
from agentpost.edges.reference.pages import PAGES, make_page
from agentpost.protocol.errors import MEANINGS, Code
from agentpost.protocol.incidents import INCIDENTS, hint_for

COMMAND_LINE = typer.main.get_command(make_app())
COMMANDS = {" ".join(words): command for words, command in every_command(COMMAND_LINE, ("agentpost",))}
# What they print is for programs anyway.
NO_JSON = {"agentpost mcp", "agentpost tail", "agentpost mailbox typescript"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages as the command writes them."""
    directory = tmp_path_factory.mktemp("reference") / "new"
    done = CliRunner().invoke(make_app(), ["docs", "--out", str(directory), "-o", "json"])
    written = [Path(each) for each in json.loads(done.stdout)["written"]]
    assert {path.stem for path in written} == {*PAGES, "README"}
    return {path.stem: path.read_text() for path in written}


def test_every_command_is_on_its_page_with_an_example(pages: dict[str, str]) -> None:
    """Each command has its section, says what it does, shows an example, and explains every option."""
    assert len(COMMANDS) > 80
    for words, command in COMMANDS.items():
        section = pages["commands"].partition(f"\n## {words}\n")[2].partition("\n## ")[0]
        assert command.help, words
        assert re.search(rf"Examples?: .*{words}", section), words
        for parameter in command.params:
            assert parameter.help, f"{words} {parameter.name}"
            assert words in NO_JSON or "`--output`" in section, words


def test_every_call_is_on_its_page(pages: dict[str, str]) -> None:
    """Each route of both doors has its section, and each shape that it takes or gives."""
    for document in asyncio.run(openapi_documents()):
        for path, item in document["paths"].items():
            for method in item:
                assert f"\n#### {method.upper()} {path}\n" in pages["http"]
        for name in document["components"]["schemas"]:
            assert f"\n### {name}\n" in pages["http"]


def test_every_tool_is_on_its_page(pages: dict[str, str]) -> None:
    """Each tool that a model is told of has its section, with its arguments."""
    for each in map(tool, OPERATIONS):
        section = pages["tools"].partition(f"\n## {each.name}\n")[2].partition("\n## ")[0]
        assert each.description
        assert each.description in section
        assert set(_keys(section)) == set(each.input_schema.get("properties", {})), each.name


def test_every_key_is_on_its_page_with_what_it_means(pages: dict[str, str], tmp_path: Path) -> None:
    """What a file may say is on the page, each with a sentence; and what is on the page, a file may say."""
    page = pages["configuration"]
    single, *tables = page.split("\n## ")
    assert _keys(single) == [*KEYS]
    assert [each.partition("\n")[0] for each in tables] == [f"[{name}]" for name in TABLES]
    lines: list[str] = []
    for part in "\n## ".join(tables).replace("\n### ", "\n## ").removeprefix("## ").split("\n## "):
        lines.append(part.partition("\n")[0])
        for row in _rows(part):
            key, default, what = (each.strip() for each in row.strip("|").split("|"))
            assert what, key
            value = '"somewhere"' if default == "has to be said" else default.strip("`")
            lines.append(f"{key.strip('`')} = {value}")
    (tmp_path / "agentpost.toml").write_text('node = "vps-jane"\n' + "\n".join(lines))
    loaded = load_settings(home=tmp_path, flags={}, environment={})
    assert loaded.lake is not None
    assert loaded.lake.path == str(tmp_path / "somewhere")
    (tmp_path / "agentpost.toml").write_text('node = "vps-jane"\n')
    default = load_settings(home=tmp_path, flags={}, environment={})
    assert (loaded.delivery, loaded.work, loaded.external) == (default.delivery, default.work, default.external)


def test_every_key_has_its_flag() -> None:
    """`agentpost up` takes each single key, and the path of the lake."""
    options = {name for each in COMMANDS["agentpost up"].params for name in each.opts}
    assert {"--" + key.replace("_", "-") for key in (*KEYS, "lake")} <= options


def test_every_code_has_a_meaning_and_advice(pages: dict[str, str]) -> None:
    """Each code has a row: what it means and what to do are two different sentences."""
    assert [*MEANINGS] == [*Code]
    for code, meaning in MEANINGS.items():
        assert f"| `{code.value}` | {meaning.status} | " in pages["errors"]
        for sentence in (meaning.what, meaning.hint):
            assert sentence in pages["errors"]
            assert sentence[0].isupper()
            assert sentence.endswith(".")
        assert meaning.what != meaning.hint


def test_every_kind_of_incident_is_on_its_page(pages: dict[str, str]) -> None:
    """Each kind has a row: what it means, what to do and when it closes."""
    for kind, meaning in INCIDENTS.items():
        row = next(each for each in _rows(pages["incidents"]) if each.startswith(f"| `{kind.value}` | "))
        assert meaning.what in row
        assert hint_for(kind) in row
        assert (meaning.closes or "agentpost incidents close ID") in row


def test_the_commands_of_hints_exist() -> None:
    """A command that the hint of an incident names is one that can be typed."""
    for kind in INCIDENTS:
        for named in re.findall(r"`(agentpost [^`]*)`", hint_for(kind)):
            assert any(f"{named} ".startswith(f"{command} ") for command in COMMANDS), f"{kind}: {named}"


def test_one_page_is_printed_and_an_unknown_one_refused() -> None:
    """`agentpost docs errors` prints that page; without a name there is a list."""
    assert CliRunner().invoke(make_app(), ["docs", "errors"]).stdout.startswith("# Error codes\n")
    assert make_page("errors", COMMAND_LINE).startswith("# Error codes\n")
    listed = json.loads(CliRunner().invoke(make_app(), ["docs", "-o", "json"]).stdout)
    assert [each["page"] for each in listed] == [*PAGES]
    unknown: Any = CliRunner().invoke(make_app(), ["docs", "surprise"]).exception
    assert unknown.code is Code.NOT_FOUND


def _rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def _keys(text: str) -> list[str]:
    return [row.split("`")[1] for row in _rows(text)]
