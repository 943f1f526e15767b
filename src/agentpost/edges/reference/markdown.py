"""Markdown as the reference pages need it."""

import re
from collections.abc import Iterable, Sequence

__all__ = ["anchor", "code", "table"]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing, if it has no rows."""
    lines = ["| " + " | ".join(_cell(each) for each in row) + " |" for row in rows]
    if not lines:
        return ""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*head, *lines]) + "\n"


def code(text: object) -> str:
    return f"`{text}`"


def anchor(heading: str) -> str:
    """Where a link to this heading leads."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
