"""Options that several commands share, and how they are written."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from agentpost.protocol.errors import Code, Refusal

__all__ = ["HomeOption", "NodeOption", "seconds_of"]

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
