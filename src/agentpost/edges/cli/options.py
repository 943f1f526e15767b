"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["HomeOption", "NodeOption"]

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
