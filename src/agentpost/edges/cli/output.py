"""What a command prints: text for people, JSON for programs. Data goes to stdout, everything else to stderr."""

import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.visible import in_json, visible
from agentpost.terminal import SafeConsole, escape

__all__ = [
    "INTERRUPTED",
    "Format",
    "FormatOption",
    "ago",
    "ahead",
    "ask_for_more",
    "break_lines_only_for_terminals",
    "escape",
    "exit_code",
    "failing_since",
    "other_words",
    "print_defect",
    "print_error",
    "print_json",
    "print_json_line",
    "print_quoted",
    "print_said",
    "print_table",
    "print_text",
    "say",
    "stderr",
    "stdout",
]

stdout = SafeConsole()
stderr = SafeConsole(stderr=True)

# 128 and the number of SIGINT: what a shell says of a program that Ctrl-C ended.
INTERRUPTED: Final = 130

_WIDE: Final = 80
_UNBOUNDED: Final = 100_000
_INDENT: Final = "    "


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("-o", "--output", help="Text for people, or JSON for programs.")]

_REFUSED = frozenset({401, 403})
_UNREACHABLE = frozenset({Code.UNAVAILABLE})
# Whatever the state of the gateway: said like this, it is never accepted.
_MISUSED = frozenset({Code.INVALID_FIELD, Code.MISSING_ROUTE_FIELDS})


def break_lines_only_for_terminals() -> None:
    """A line stays one line for a program that reads it: only a terminal has an edge, or who says `COLUMNS`."""
    for console in (stdout, stderr):
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _UNBOUNDED


def exit_code(refusal: Refusal) -> int:
    """1 failed, 2 usage, 3 unreachable, 4 refused. 0 and 5 (timed out) are not refusals."""
    if refusal.code in _MISUSED:
        return 2
    if refusal.code in _UNREACHABLE:
        return 3
    return 4 if refusal.status in _REFUSED else 1


def print_said(text: str, *, after: str = "") -> None:
    """What somebody said, on stdout, as it was said.

    `after` begins the first line. The others are indented then, so that none of them passes for such a beginning.
    """
    said = visible(text)
    if after:
        stdout.print(after, end=" " if said else "\n", highlight=False, soft_wrap=True)
        said = said.replace("\n", f"\n{_INDENT}")
    # Past the console, which breaks lines and turns tabs into spaces.
    if said or not after:
        typer.echo(said)


def print_quoted(text: str) -> None:
    """What somebody said, below a line that tells who. It is indented, so that none of it passes for such a line."""
    typer.echo(textwrap.indent(visible(text), _INDENT, lambda _: True))


def other_words(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a message says besides subject and body, each with its name: the words of a task, its output, a context."""
    return [
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in content.items()
        if name not in ("subject", "body")
    ]


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(in_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_json_line(value: Any) -> None:
    """One JSON document on a line of stdout, at once: for a program that reads them as they come."""
    typer.echo(in_json(msgspec.json.encode(value).decode()))
    sys.stdout.flush()


def print_text(text: str) -> None:
    """A text on stdout as it is, line breaks and all, for a person or for a program."""
    typer.echo(visible(text), nl=False)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> None:
    """A table on stdout; the columns in `numbers` are aligned to the right."""
    table = Table(title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    table.title = escape(title)
    for place, column in enumerate(columns):
        # An event id is there to be copied: it stays in one piece, where that leaves room for the others.
        in_one_piece = column == "event" and stdout.width >= _WIDE
        justify = "right" if place in numbers else "left"
        table.add_column(escape(column), justify=justify, overflow="fold", no_wrap=in_one_piece)
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        stdout.print(table)
    else:
        stdout.print(f"[bold]{escape(title)}[/bold]: none", highlight=False)


def ago(elapsed_ms: float) -> str:
    """How long ago, in the unit that fits: 12 s, 5 min, 3 h, 2 d."""
    seconds = max(0.0, elapsed_ms / 1000)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def ahead(left_ms: float) -> str:
    """How soon, in the unit that fits."""
    return "now" if left_ms < 500 else "in " + ago(left_ms).removesuffix(" ago")


def failing_since(failing: Mapping[str, Any], *, now_ms: float) -> str:
    """For how long an agent of this gateway has been failing, and how often, in a few words."""
    tries, given_up = failing.get("tries", 0), failing.get("givenUp", 0)
    lasting = ago(now_ms - failing["sinceMs"]).removesuffix(" ago")
    gave_up = f", {given_up:,} given up" if given_up else ""
    return f"failing for {lasting} ({tries:,} {'try' if tries == 1 else 'tries'}{gave_up})"


def ask_for_more(shown: Sequence[Any], limit: int, how: str) -> None:
    """Tell a person whose list was cut how to see the rest: nothing is left out in silence."""
    if len(shown) == limit:
        say(f"{limit:,} are shown, and there may be more: {how}")


def say(text: str) -> None:
    """A line of progress, for a person who watches; not part of the result."""
    stderr.print(f"[dim]{escape(text)}[/dim]", highlight=False)


def print_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python prints of an error that nobody has foreseen: its text may quote others."""
    import traceback

    typer.echo(visible("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def print_error(refusal: Refusal, output: Format) -> None:
    """What went wrong and what to do, on stderr; with `-o json` in the one shape that all errors have."""
    if output is Format.JSON:
        typer.echo(in_json(msgspec.json.encode(refusal.to_wire()).decode()), err=True)
        return
    # The terminal breaks the lines, if there is one: a path or an id in them is there to be copied.
    message = f"[bold red]{refusal.code}[/bold red]: {escape(refusal.message)}"
    stderr.print(message, highlight=False, soft_wrap=True)
    stderr.print(f"  {escape(refusal.hint)}", highlight=False, soft_wrap=True)
