"""A program of the demo that knows only its mailbox, and reaches an agent on another machine with it."""

from pathlib import Path
from typing import Any, Final

from rich.console import Console

from agentpost.demo.command import agentpost, agentpost_at, once
from agentpost.terminal import escape

__all__ = ["show_mailbox"]

_TEXT: Final = "measure the fence"


def show_mailbox(home: Path, console: Console, *, sender: str, address: str) -> str:
    """Put one message for an address into the gateway's mailbox, and wait for what the agent there answers."""
    ack = agentpost_at("mailbox", "send", address, _TEXT, "--from", sender, "--at", f"gateway:{home}")
    console.print(f"  put into the mailbox of {address}: {'queued' if ack['queued'] else 'refused'}.", highlight=False)

    def look() -> list[dict[str, Any]]:
        lines = agentpost("inbox", sender, home=home)
        return [agentpost("read", lines[-1]["eventId"], home=home)] if lines else []

    answered = once(look, lambda found: bool(found) and _TEXT in (found[0]["content"].get("body") or ""))
    answer = answered[0]["content"].get("body") or "" if answered else ""
    left = agentpost_at("mailbox", "peek", address, "--at", f"gateway:{home}")
    console.print(f"  {sender} finds the answer in its inbox: [italic]{escape(answer)}[/italic]")
    console.print(f"  left in the mailbox: {len(left)}.", highlight=False)
    return answer if not left else ""
