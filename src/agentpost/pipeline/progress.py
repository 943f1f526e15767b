"""What a batch is doing, for a person at a terminal: a line for each phase. Spark's own pages tell of its stages."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["Phases", "phases"]

# What a batch does once it has reached a phase.
_NEXT: Final = {
    "begun": "checking new segments",
    "taken_in": "silver: what they say of each delivery",
    "silver": "gold: the hours they speak of",
    "gold": "gold: the fleet",
    "fleet": "committing",
    "committed": "publishing",
}


class Phases:
    """A line for each phase, with the time that it takes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._line: TaskID | None = None

    def at_phase(self, name: str) -> None:
        """A batch has come this far: end its line, begin the next."""
        if self._line is not None:
            self._progress.update(self._line, total=1, completed=1)
        title = _NEXT.get(name)
        self._line = None if title is None else self._progress.add_task(title, total=None)


@contextmanager
def phases(console: Console) -> Generator[Phases]:
    """Lines while the block runs; none where the console is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Phases(progress)
