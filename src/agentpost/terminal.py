"""The way to a terminal: consoles that show no text with anything in it that a terminal obeys.

`SafeConsole` is the last place that text passes, whatever wrote it and whatever was forgotten before.
"""

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape as without_markup
from rich.segment import Segment

from agentpost.protocol.visible import in_one_line, visible

__all__ = ["SafeConsole", "escape"]

_NO_TAG: Final = "[none][/none]"


class SafeConsole(Console):
    """A console of Rich. Its colours and cursor movements are its own; in text they are made visible."""

    def __init__(self, **settings: Any) -> None:
        # Without emoji: `:smile:` in a message stays what its sender wrote.
        super().__init__(emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def escape(text: str) -> str:
    """A text that others wrote, for one line or one cell, safe among markup."""
    flat = in_one_line(text)
    bare = flat.rstrip("\\")
    # Backslashes escape a tag, if one comes next: two are one then, and elsewhere they are two. So one always comes.
    return without_markup(bare) + ("\\" * 2 * (len(flat) - len(bare)) + _NO_TAG if bare != flat else "")
