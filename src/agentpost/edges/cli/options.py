"""Options that several commands share, and how they are written."""

import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from agentpost.edges.operator_client import not_utf8
from agentpost.protocol.errors import Code, Refusal

__all__ = ["HomeOption", "NodeOption", "seconds_of", "text_of"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

NodeOption = Annotated[str | None, typer.Option("--node", help="The id of this node.", show_default=False)]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="AGENTPOST_HOME",
        help="The home; else ~/.agentpost/<node>, or the only one there.",
        show_default=False,
    ),
]


def seconds_of(text: str, *, field: str) -> int:
    """A length of time as people write it: 90s, 15m, 2h, 7d."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise Refusal(Code.INVALID_FIELD, f"{text!r:.40} is not a time", field=field, hint="Use 90s, 15m, 2h or 7d.")
    return int(found[1]) * _UNITS[found[2]]


def text_of(word: str) -> str:
    """What a person says on the command line; `-` is what comes on stdin."""
    try:
        text = sys.stdin.read() if word == "-" else word
        # An argument holds bytes that are no text as lone surrogates, and only writing them shows it.
        text.encode()
    except UnicodeError:
        raise not_utf8() from None
    return text
