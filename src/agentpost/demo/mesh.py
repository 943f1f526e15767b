"""Three gateways as a person would start them: with the command, one home each, joined by invites."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from rich.console import Console
from rich.markup import escape

__all__ = ["MeshShown", "show_mesh"]

Found = TypeVar("Found")

_NODES: Final = {"vps-jane": "backbone", "mbp-jane": "edge", "lab-jane": "edge"}
_SEED: Final = "vps-jane"
_OUTCAST: Final = "lab-jane"
_TIMEOUT_SECONDS: Final = 60


class MeshShown(Struct, frozen=True, kw_only=True):
    nodes: dict[str, str]
    all_joined: bool
    is_out: bool


def show_mesh(root: Path, console: Console) -> MeshShown:
    """Start three gateways below `root`, let two join the first, show the room, revoke one, stop all."""
    homes = {node: root / node for node in _NODES}
    with _gateways(homes):
        url = _agentpost("status", home=homes[_SEED])["url"]
        for node in _NODES:
            if node != _SEED:
                # The token is shown once, to whoever asked for it; it goes to the node through the environment.
                invite = _agentpost("invite", "--node", node, home=homes[_SEED])
                _agentpost("join", "--url", url, home=homes[node], token=invite["token"])
                console.print(f"  {node} joined through {_SEED} with an invite that is used up now.")
        everybody = dict.fromkeys(sorted(_NODES), "online")
        nodes = _once(lambda: _statuses(homes[_SEED]), lambda found: found == everybody)
        for node, status in nodes.items():
            console.print(f"  [bold]{node:<9}[/bold] {_NODES.get(node, ''):<9} {escape(status)}", highlight=False)
        _agentpost("revoke", _OUTCAST, home=homes[_SEED])
        outcast = _once(
            lambda: _agentpost("nodes", home=homes[_OUTCAST])["seeds"][0], lambda seed: not seed["connected"]
        )
        revoked = _statuses(homes[_SEED])[_OUTCAST]
        console.print(f"  {_OUTCAST} is {revoked}; its link: {escape(str(outcast['problem'] or 'cut'))}")
    return MeshShown(
        nodes=nodes,
        all_joined=nodes == everybody,
        is_out=revoked == "revoked" and not outcast["connected"],
    )


@contextmanager
def _gateways(homes: dict[str, Path]) -> Generator[None]:
    started: list[Path] = []
    try:
        for node, home in homes.items():
            _agentpost("up", "--detach", "--node", node, "--tier", _NODES[node], "--listen", "127.0.0.1:0", home=home)
            started.append(home)
        yield
    finally:
        for home in reversed(started):
            _agentpost("down", home=home)


def _statuses(home: Path) -> dict[str, str]:
    found = _agentpost("nodes", home=home)["nodes"]
    return {node["nodeId"]: "revoked" if node["revoked"] else node["status"] for node in found}


def _once(look: Callable[[], Found], is_so: Callable[[Found], bool]) -> Found:
    """What is seen once it is so, or when the time is up: news needs a moment to arrive."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not is_so(found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _agentpost(*words: str, home: Path, token: str | None = None) -> Any:
    """Run the command as a person would, and read its JSON."""
    environment = None if token is None else {"PATH": "/usr/bin:/bin", "AGENTPOST_TOKEN": token}
    command = [sys.executable, "-m", "agentpost", *words, "--home", str(home), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"agentpost {words[0]} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)
