"""What the demo shows: a crash that loses nothing, a mesh, mail that says what became of it, tasks, the pipeline."""

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

from agentpost.demo.mesh import show_mesh
from agentpost.demo.pipeline import PipelineShown, has_pipeline, show_pipeline
from agentpost.demo.telling import head, left_out
from agentpost.store.integrity import check_home

__all__ = ["DemoResult", "run_demo"]

_ENOUGH_ACKNOWLEDGED: Final = 500
_NODE: Final = "vps-jane"
# Outlives the demo, so that somebody can look at it.
_REPORT: Final = "agentpost-demo-report.html"


class DemoResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the demo found, for `-o json`. `kept` says whether every promise held."""

    acknowledged: int
    found_after_crash: int
    missing: int
    chain_whole: bool
    states: list[str]
    answers: list[str]
    review: str
    mailbox_answer: str
    tasks: list[str]
    model_answer: str | None
    nodes: dict[str, str]
    pipeline: PipelineShown | None
    kept: bool


def run_demo(console: Console, *, with_pipeline: bool = True) -> DemoResult:
    """Run the story on `console`, in a temporary directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="agentpost-demo-") as folder:
        return uvloop.run(_story(Path(folder), console, with_pipeline=with_pipeline))


async def _story(root: Path, console: Console, *, with_pipeline: bool) -> DemoResult:
    home = root / _NODE
    home.mkdir(mode=0o700)

    head(console, 1, "A gateway appends messages, and is killed in the middle of it (kill -9)")
    acknowledged = await asyncio.to_thread(_kill_while_appending, home)
    console.print(f"  {len(acknowledged)} messages were acknowledged as durable before it died.")

    head(console, 2, "The same home is opened again")
    report = await asyncio.to_thread(check_home, home)
    found = report.outbox_last_seq
    missing = len([seq for seq in acknowledged if seq > found])
    console.print(f"  {found} messages are there, seq 1 to {found}, without a hole.")
    console.print(f"  Acknowledged and missing: {missing}.")
    console.print(f"  Hash chain over all of them: {'whole' if not report.problems else report.problems[0]}.")

    head(console, 3, "Three gateways on this machine join by invites")
    lake = root / "lake" if with_pipeline and has_pipeline() else None
    mesh = await asyncio.to_thread(show_mesh, root / "mesh", lake, console)

    head(console, 11, "The pipeline on Spark reads all that was said, and finds out what became of it")
    tables: PipelineShown | None = None
    if lake is None:
        why = "Spark is not installed (pip install 'agentpost[pipeline]')" if with_pipeline else "nobody asked for it"
        left_out(console, why)
    else:
        tables = await asyncio.to_thread(show_pipeline, lake, Path(tempfile.gettempdir()) / _REPORT, console)

    kept = (
        missing == 0
        and mesh.all_joined
        and mesh.is_out
        and bool(mesh.capability.review)
        and not report.problems
        and mesh.mail.states == ["Replied", "Replied"]
        and bool(mesh.mailbox_answer)
        and mesh.tasks.states == ["completed", "failed"]
        and (mesh.model is None or bool(mesh.model.answer))
        and (tables is None or not tables.broken)
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
        states=mesh.mail.states,
        answers=mesh.mail.answers,
        review=mesh.capability.review,
        mailbox_answer=mesh.mailbox_answer,
        tasks=mesh.tasks.states,
        model_answer=None if mesh.model is None else mesh.model.answer,
        nodes=mesh.nodes,
        pipeline=tables,
        kept=kept,
    )


def _kill_while_appending(home: Path) -> list[int]:
    """Start the victim, let it work, kill it without warning; gives the seqs that it was told are durable."""
    command = [sys.executable, "-m", "agentpost.demo.victim", str(home), _NODE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        output = victim.stdout
        if output is None:
            raise RuntimeError("the victim has no output")
        lines = [line for _, line in zip(range(_ENOUGH_ACKNOWLEDGED), output, strict=False)]
        os.kill(victim.pid, signal.SIGKILL)
        lines += output.readlines()
    # The last line may have been cut off by the kill.
    return [int(line) for line in lines if line.endswith("\n")]
