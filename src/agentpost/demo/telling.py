"""How the demo tells its story. What is told is text: nothing in it passes for markup."""

from rich.console import Console

from agentpost.terminal import escape

__all__ = ["head", "left_out"]


def head(console: Console, number: int, text: str) -> None:
    """The title of the next step."""
    console.print()
    console.print(f"[bold]{number}. {escape(text)}[/bold]")


def left_out(console: Console, why: str) -> None:
    """A step that cannot be shown here."""
    console.print(f"  left out: {escape(why)}.")
