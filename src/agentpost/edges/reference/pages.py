"""The reference pages by name, and how each is made."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from agentpost.edges.reference.commands import commands_page
from agentpost.edges.reference.configuration import configuration_page
from agentpost.edges.reference.errors import errors_page
from agentpost.edges.reference.http import http_page, openapi_documents
from agentpost.edges.reference.incidents import incidents_page
from agentpost.edges.reference.tools import tools_page
from agentpost.protocol.errors import Code, Refusal

__all__ = ["PAGES", "make_page", "write_pages"]


# Each is given the command line, which one of them is about.
_MAKERS: Final[Mapping[str, Callable[[Any], str]]] = {
    "commands": commands_page,
    "http": lambda _: http_page(asyncio.run(openapi_documents())),
    "tools": lambda _: tools_page(),
    "configuration": lambda _: configuration_page(),
    "errors": lambda _: errors_page(),
    "incidents": lambda _: incidents_page(),
}
PAGES: Final[Mapping[str, str]] = {
    "commands": "every command, its options and an example",
    "http": "every call of a gateway's two doors",
    "tools": "the MCP tools of a model",
    "configuration": "every key of agentpost.toml",
    "errors": "every code of a refusal, and what to do",
    "incidents": "every kind of incident, what to do, and when it closes",
}


def make_page(name: str, command_line: Any) -> str:
    """One page, as Markdown."""
    if name not in _MAKERS:
        raise Refusal(Code.NOT_FOUND, f"there is no reference page {name!r:.40}", hint=f"There are {', '.join(PAGES)}.")
    return _MAKERS[name](command_line)


def write_pages(directory: Path, command_line: Any) -> list[Path]:
    """All pages, into a directory that is made if it is not there."""
    made = {directory / f"{name}.md": make_page(name, command_line) for name in PAGES}
    index = "\n".join(f"- [{name}]({name}.md): {what}" for name, what in PAGES.items())
    made[directory / "README.md"] = f"# Reference\n\nMade from the code by `agentpost docs`.\n\n{index}\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refusal(
            Code.INVALID_FIELD, f"{directory} cannot be written: {error.strerror}", field="out", hint="Name another."
        ) from None
    return list(made)
