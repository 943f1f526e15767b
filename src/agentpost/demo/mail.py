"""Mail between the gateways of the demo: two laptops that cannot dial each other, and one that dies and comes back."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from rich.console import Console

from agentpost.demo.command import agentpost, once
from agentpost.demo.telling import head
from agentpost.terminal import escape

__all__ = ["ARCHITECT", "BUILDER", "MailShown", "show_mail"]

ARCHITECT: Final = "architect"
BUILDER: Final = "builder"
# The agent: reads the message on stdin, and what it prints is its answer.
_AGENT: Final = "import json, sys; print('Done: ' + json.load(sys.stdin)['content']['body'])"
_WORDS: Final = {
    "emitted": "sends it: durable in the outbox of",
    "routed": "is the agent that gets it, at",
    "accepted": "will get it: durable (ack: accepted) at",
    "engaged": "runs at",
    "processed": "has had it (ack: processed) at",
    "replied": "answered from",
}


class MailShown(Struct, frozen=True, kw_only=True):
    """What became of the two messages."""

    states: list[str]
    answers: list[str]
    counted: int


def show_mail(sender: Path, receiver: Path, console: Console, *, numbers: tuple[int, int]) -> MailShown:
    """Send one message to an agent that is there, and one to an agent whose gateway is dead."""
    agentpost("agents", "add", ARCHITECT, home=sender)
    agentpost("agents", "add", BUILDER, home=receiver, rest=(sys.executable, "-c", _AGENT))
    once(
        lambda: agentpost("agents", "list", "--mesh", home=sender),
        lambda agents: {ARCHITECT, BUILDER} <= {agent["agentId"] for agent in agents},
    )
    head(console, numbers[0], "A message from laptop to laptop, through a seed that cannot read it")
    first = _send(sender, "check the release notes")
    ended = [_wait(sender, first["eventId"])]
    for step in agentpost("trace", first["eventId"], home=sender)["steps"]:
        words = _WORDS.get(step["what"], "")
        who = f"{step.get('agentId') or ''} {words} {step.get('nodeId') or ''}"
        console.print(f"  [bold]{step['what']:<10}[/bold] {escape(who)}", highlight=False)
    console.print(f"  {BUILDER} says: [italic]{escape(ended[0].get('answer') or '')}[/italic]")

    head(console, numbers[1], "The same to a gateway that is dead (kill -9), and comes back")
    os.kill(agentpost("status", home=receiver)["pid"], signal.SIGKILL)
    once(lambda: _send(sender, "are you there?"), lambda receipt: not receipt["recipients"][0]["isOnline"])
    second = _send(sender, "run the nightly build")
    seen_ms = second["recipients"][0]["lastSeenMs"]
    console.print(
        f"  sent; {BUILDER}'s gateway is away, last seen {max(0, time.time() - seen_ms / 1000):.0f} s ago: it is kept."
    )
    agentpost("up", "--detach", home=receiver)
    console.print("  the gateway is started again, and takes up where it was.")
    ended.append(_wait(sender, second["eventId"]))
    console.print(f"  {BUILDER} says: [italic]{escape(ended[1].get('answer') or '')}[/italic]")
    inbox = agentpost("inbox", BUILDER, home=receiver)
    return MailShown(
        states=[each["state"] for each in ended],
        answers=[each.get("answer") or "" for each in ended],
        counted=len({line["eventId"] for line in inbox}),
    )


def _send(home: Path, body: str) -> dict[str, Any]:
    return agentpost("send", body, "--from", ARCHITECT, "--to", BUILDER, "--subject", body, home=home)


def _wait(home: Path, event_id: str) -> dict[str, Any]:
    """The end of a delivery, with its answer: the reply is in the sender's inbox a moment after its state is known."""

    def look() -> dict[str, Any]:
        return agentpost("show", event_id, home=home)["deliveries"][0]

    return once(look, lambda delivery: delivery["isOver"] and delivery.get("answer") is not None)
