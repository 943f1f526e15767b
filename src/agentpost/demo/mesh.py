"""Three gateways as a person would start them: with the command, one home each, joined by invites."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from rich.console import Console

from agentpost.demo.capability import CapabilityShown, show_capability
from agentpost.demo.command import agentpost, once
from agentpost.demo.mail import ARCHITECT, BUILDER, MailShown, show_mail
from agentpost.demo.mailbox import show_mailbox
from agentpost.demo.models import ModelShown, show_model
from agentpost.demo.pipeline import export_mesh
from agentpost.demo.tasks import TasksShown, show_tasks
from agentpost.terminal import escape

__all__ = ["MeshShown", "show_mesh"]

_NODES: Final = {"vps-jane": "backbone", "mbp-jane": "edge", "lab-jane": "edge"}
_SEED: Final = "vps-jane"
_LAPTOP: Final = "mbp-jane"
_OUTCAST: Final = "lab-jane"


class MeshShown(Struct, frozen=True, kw_only=True):
    nodes: dict[str, str]
    all_joined: bool
    is_out: bool
    mail: MailShown
    mailbox_answer: str
    tasks: TasksShown
    capability: CapabilityShown
    model: ModelShown | None


def show_mesh(root: Path, lake: Path | None, console: Console) -> MeshShown:
    """Start three gateways below `root`, let two join the first, send mail, revoke one, stop all.

    What they said is exported to `lake`, if there is one.
    """
    homes = {node: root / node for node in _NODES}
    with _gateways(homes, lake):
        url = agentpost("status", home=homes[_SEED])["url"]
        for node in _NODES:
            if node != _SEED:
                # The token is shown once, to whoever asked for it; it goes to the node through the environment.
                invite = agentpost("invite", "--node", node, home=homes[_SEED])
                agentpost("join", "--url", url, home=homes[node], token=invite["token"])
                console.print(f"  {node} joined through {_SEED} with an invite that is used up now.")
        everybody = dict.fromkeys(sorted(_NODES), "online")
        nodes = once(lambda: _statuses(homes[_SEED]), lambda found: found == everybody)
        for node, status in nodes.items():
            console.print(f"  [bold]{node:<9}[/bold] {_NODES.get(node, ''):<9} {escape(status)}", highlight=False)
        mail = show_mail(homes[_LAPTOP], homes[_OUTCAST], console, numbers=(4, 5))
        console.print("\n[bold]6. A program that knows only its mailbox reaches the same agent[/bold]")
        answer = show_mailbox(homes[_LAPTOP], console, sender=ARCHITECT, address=f"{BUILDER}@{_OUTCAST}")
        tasks = show_tasks(homes[_LAPTOP], homes[_OUTCAST], console, number=7)
        console.print("\n[bold]8. A capability for everybody, and a task that ends in a review[/bold]")
        capability = show_capability(homes[_LAPTOP], homes[_OUTCAST], console, requester_agent=ARCHITECT)
        console.print("\n[bold]9. A Python program asks, and a model answers with its tools (MCP)[/bold]")
        model = show_model(homes[_LAPTOP], console)
        if lake is not None:
            export_mesh(homes[_SEED])
        console.print(f"\n[bold]10. {_OUTCAST} is thrown out[/bold]")
        agentpost("revoke", _OUTCAST, home=homes[_SEED])
        outcast = once(lambda: agentpost("nodes", home=homes[_OUTCAST])["seeds"][0], lambda seed: not seed["connected"])
        revoked = _statuses(homes[_SEED])[_OUTCAST]
        console.print(f"  {_OUTCAST} is {revoked}; its link: {escape(str(outcast['problem'] or 'cut'))}")
    return MeshShown(
        nodes=nodes,
        all_joined=nodes == everybody,
        is_out=revoked == "revoked" and not outcast["connected"],
        mail=mail,
        mailbox_answer=answer,
        tasks=tasks,
        capability=capability,
        model=model,
    )


@contextmanager
def _gateways(homes: dict[str, Path], lake: Path | None) -> Generator[None]:
    started: list[Path] = []
    try:
        for node, home in homes.items():
            words = ("--node", node, "--tier", _NODES[node], "--listen", "127.0.0.1:0")
            if lake is not None and node == _SEED:
                words += ("--lake", str(lake))
            agentpost("up", "--detach", *words, home=home)
            started.append(home)
        yield
    finally:
        for home in reversed(started):
            agentpost("down", home=home)


def _statuses(home: Path) -> dict[str, str]:
    found = agentpost("nodes", home=home)["nodes"]
    return {node["nodeId"]: "revoked" if node["revoked"] else node["status"] for node in found}
