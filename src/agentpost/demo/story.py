"""What the demo shows: a message, a crash, and what became of it."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import uvloop
from msgspec import Struct
from rich.console import Console
from rich.markup import escape

from agentpost.demo.mail import RECEIVER, SENDER, Postman
from agentpost.demo.mesh import show_mesh
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.store.integrity import check_home

__all__ = ["DemoResult", "run_demo"]

_ENOUGH_ACKNOWLEDGED: Final = 500


class DemoResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the demo found, for `-o json`. `kept` says whether every promise held."""

    acknowledged: int
    found_after_crash: int
    missing: int
    chain_whole: bool
    states: list[str]
    unanswered_states: list[str]
    nodes: dict[str, str]
    kept: bool


def run_demo(console: Console) -> DemoResult:
    """Run the story on `console`, in a temporary directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="agentpost-demo-") as folder:
        return uvloop.run(_story(Path(folder), console))


async def _story(root: Path, console: Console) -> DemoResult:
    homes = {node: root / node for node in (SENDER, RECEIVER)}
    for home in homes.values():
        home.mkdir(mode=0o700)

    _head(console, 1, "A gateway appends messages, and is killed in the middle of it (kill -9)")
    acknowledged = await asyncio.to_thread(_kill_while_appending, homes[SENDER])
    console.print(f"  {len(acknowledged)} messages were acknowledged as durable before it died.")

    _head(console, 2, "The same home is opened again")
    report = await asyncio.to_thread(check_home, homes[SENDER])
    found = report.outbox_last_seq
    missing = len([seq for seq in acknowledged if seq > found])
    console.print(f"  {found} messages are there, seq 1 to {found}, without a hole.")
    console.print(f"  Acknowledged and missing: {missing}.")
    console.print(f"  Hash chain over all of them: {'whole' if not report.problems else report.problems[0]}.")

    _head(console, 3, "A message, an agent on another machine, and its life as the sender sees it")
    sender, receiver = Postman(homes[SENDER], SENDER), Postman(homes[RECEIVER], RECEIVER)
    try:
        states = await _show_answered(sender, receiver, console)
        _head(console, 4, "The same to a machine that never answers: retried, then reported")
        unanswered = await _show_unanswered(sender, console)
    finally:
        await sender.store.close()
        await receiver.store.close()

    _head(console, 5, "Three gateways on this machine join by invites, and one is thrown out")
    mesh = await asyncio.to_thread(show_mesh, root / "mesh", console)

    kept = (
        missing == 0
        and mesh.all_joined
        and mesh.is_out
        and not report.problems
        and states[-1] == DeliveryState.REPLIED
        and unanswered[-1] == DeliveryState.DEAD_LETTER
    )
    console.print()
    if kept:
        console.print("[bold green]Nothing acknowledged was lost, and every message has an answer.[/bold green]")
    else:
        console.print("[bold red]A promise was broken; the lines above say which.[/bold red]")
    return DemoResult(
        acknowledged=len(acknowledged),
        found_after_crash=found,
        missing=missing,
        chain_whole=not report.problems,
        states=states,
        unanswered_states=unanswered,
        nodes=mesh.nodes,
        kept=kept,
    )


def _kill_while_appending(home: Path) -> list[int]:
    """Start the victim, let it work, kill it without warning; gives the seqs that it was told are durable."""
    command = [sys.executable, "-m", "agentpost.demo.victim", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        output = victim.stdout
        if output is None:
            raise RuntimeError("the victim has no output")
        lines = [line for _, line in zip(range(_ENOUGH_ACKNOWLEDGED), output, strict=False)]
        os.kill(victim.pid, signal.SIGKILL)
        lines += output.readlines()
    # The last line may have been cut off by the kill.
    return [int(line) for line in lines if line.endswith("\n")]


async def _show_answered(sender: Postman, receiver: Postman, console: Console) -> list[str]:
    event_id, seq = await sender.send("Release", "Please check the release notes.")
    states = [_show(sender, event_id, console, f"{sender.agent_id} sends it: seq {seq} in the outbox of {SENDER}")]

    taken = await receiver.take_from(sender)
    message = next(event for event in taken if isinstance(event, MessageEvent) and event.event_id == event_id)
    await sender.take_from(receiver)
    states.append(_show(sender, event_id, console, f"{RECEIVER} made it durable and said so (ack: accepted)"))

    await receiver.answer(message, "Checked: two links were dead, now fixed.")
    await sender.take_from(receiver)
    states.append(_show(sender, event_id, console, f"{receiver.agent_id} ran, and answered (reply + ack: processed)"))

    again = await receiver.take_from(sender)
    console.print(f"  [dim]{RECEIVER} reads on from its cursor: {len(again)} old messages come again.[/dim]")
    return states


async def _show_unanswered(sender: Postman, console: Console) -> list[str]:
    event_id, _ = await sender.send("Nightly", "Run the nightly build.")
    states = [_show(sender, event_id, console, "sent")]
    await sender.time_out(event_id)
    states.append(_show(sender, event_id, console, "no ack within 20 s: a resend is due"))
    seq = await sender.send_again(event_id)
    states.append(_show(sender, event_id, console, f"sent again: same id, attempt 2, seq {seq}"))
    await sender.time_out(event_id)
    states.append(_show(sender, event_id, console, "no ack again"))
    await sender.give_up(event_id)
    states.append(_show(sender, event_id, console, "the attempts are used up: a dead_letter says why"))
    return states


def _show(sender: Postman, event_id: EventId, console: Console, text: str) -> str:
    delivery: Delivery = sender.store.deliveries_of(event_id)[0]
    console.print(f"  [bold]{delivery.state:<13}[/bold] {escape(text)}")
    return delivery.state.value


def _head(console: Console, number: int, text: str) -> None:
    console.print()
    console.print(f"[bold]{number}. {escape(text)}[/bold]")
