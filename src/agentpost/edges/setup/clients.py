"""What each program needs to know of the post: the MCP server, a skill that teaches its tools, and hooks."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct

from agentpost.edges.setup.edits import Edit, JsonEdit, TomlEdit, WholeFile

__all__ = ["ClientName", "Wish", "edits_of"]


class ClientName(StrEnum):
    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCLAW = "openclaw"


class Wish(Struct, frozen=True, kw_only=True):
    """`agent` is who the program speaks for, `gateway` the home of the gateway, `wake` how long a hook waits."""

    agent: str
    gateway: Path | None
    user_home: Path
    project: Path
    wake: str | None = None


def edits_of(client: ClientName, wish: Wish) -> Sequence[Edit]:
    server = _server(wish)
    home = wish.user_home
    match client:
        case ClientName.CLAUDE:
            return (
                JsonEdit(wish.project / ".mcp.json", ((("mcpServers", "agentpost"), {"type": "stdio", **server}),)),
                JsonEdit(wish.project / ".claude" / "settings.json", _claude_hooks(wish)),
                _skill(wish.project / ".claude" / "skills"),
            )
        case ClientName.CODEX:
            lines = (f"command = {json.dumps(server['command'])}", f"args = {json.dumps(server['args'])}")
            return (
                TomlEdit(home / ".codex" / "config.toml", "mcp_servers.agentpost", lines),
                _skill(home / ".agents" / "skills"),
            )
        case ClientName.GEMINI:
            return (
                JsonEdit(home / ".gemini" / "settings.json", ((("mcpServers", "agentpost"), server),)),
                _skill(home / ".agents" / "skills"),
            )
        case ClientName.OPENCLAW:
            return (
                JsonEdit(home / ".openclaw" / "openclaw.json", ((("mcp", "servers", "agentpost"), server),)),
                _skill(home / ".agents" / "skills"),
            )


def _server(wish: Wish) -> dict[str, Any]:
    where = [] if wish.gateway is None else ["--home", str(wish.gateway)]
    program, *words = _program()
    return {"command": program, "args": [*words, "mcp", "--agent", wish.agent, *where]}


def _program() -> list[str]:
    """How others start this program: by its full path, since theirs may be another."""
    found = shutil.which("agentpost")
    return [found] if found else [sys.executable, "-m", "agentpost"]


def _claude_hooks(wish: Wish) -> tuple[tuple[tuple[str, ...], Any], ...]:
    where = "" if wish.gateway is None else f" --home {shlex.quote(str(wish.gateway))}"
    program = " ".join(shlex.quote(word) for word in _program())
    wait = f" --wait {wish.wake}" if wish.wake else ""

    def hook(event: str, more: str = "") -> list[Any]:
        command = f"{program} hook {event} --agent {shlex.quote(wish.agent)}{where}{more}"
        return [{"hooks": [{"type": "command", "command": command}]}]

    return (
        (("hooks", "SessionStart"), hook("start")),
        (("hooks", "Stop"), hook("stop", wait)),
    )


def _skill(directory: Path) -> WholeFile:
    content = (files("agentpost.edges.setup") / "SKILL.md").read_bytes()
    return WholeFile(directory / "agentpost" / "SKILL.md", content)
