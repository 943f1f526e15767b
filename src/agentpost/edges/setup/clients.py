"""What each program needs to know of the post: the MCP server, a skill that teaches its tools, and hooks."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from agentpost.edges.setup.edits import Edit, JsonEdit, TomlEdit, WholeFile

__all__ = ["ClientName", "Wish", "edits_of"]

_SPARE_SECONDS: Final = 30

Values = tuple[tuple[tuple[str, ...], Any], ...]


class ClientName(StrEnum):
    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCLAW = "openclaw"


class Wish(Struct, frozen=True, kw_only=True):
    """`agent` is who the program speaks for, `gateway` the home of the gateway.

    `wake_seconds`: how long a hook waits for mail.
    """

    agent: str
    gateway: Path | None
    user_home: Path
    project: Path
    wake_seconds: int | None = None


def edits_of(client: ClientName, wish: Wish) -> Sequence[Edit]:
    server = _server(wish)
    home = wish.user_home
    match client:
        case ClientName.CLAUDE:
            return (
                JsonEdit(wish.project / ".mcp.json", ((("mcpServers", "agentpost"), {"type": "stdio", **server}),)),
                JsonEdit(wish.project / ".claude" / "settings.json", _hooks(wish)),
                _skill(wish.project / ".claude" / "skills"),
            )
        case ClientName.CODEX:
            lines = (f"command = {json.dumps(server['command'])}", f"args = {json.dumps(server['args'])}")
            return (
                TomlEdit(home / ".codex" / "config.toml", "mcp_servers.agentpost", lines),
                JsonEdit(home / ".codex" / "hooks.json", _hooks(wish)),
                _skill(home / ".agents" / "skills"),
            )
        case ClientName.GEMINI:
            return (
                JsonEdit(
                    home / ".gemini" / "settings.json",
                    ((("mcpServers", "agentpost"), server), *_hooks(wish, stop="AfterAgent", per_second=1000)),
                ),
                _skill(home / ".agents" / "skills"),
            )
        case ClientName.OPENCLAW:
            # Its hooks are code inside its own gateway: there is no command to name.
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


def _hooks(wish: Wish, *, stop: str = "Stop", per_second: int = 1) -> Values:
    """What is called when a session starts, and when it stops: three programs have the same form for it.

    `stop` is the program's name for the event, `per_second` the unit of its time-outs.
    """
    where = "" if wish.gateway is None else f" --home {shlex.quote(str(wish.gateway))}"
    program = " ".join(shlex.quote(word) for word in _program())

    def hook(event: str, wait_seconds: int | None = None) -> list[Any]:
        command = f"{program} hook {event} --agent {shlex.quote(wish.agent)}{where}"
        if wait_seconds is None:
            return [{"hooks": [{"type": "command", "command": command}]}]
        # They end a hook after a minute or so, unless they are told otherwise.
        timeout = (wait_seconds + _SPARE_SECONDS) * per_second
        waiting = {"command": f"{command} --wait {wait_seconds}s", "timeout": timeout}
        return [{"hooks": [{"type": "command", **waiting}]}]

    return (
        (("hooks", "SessionStart"), hook("start")),
        (("hooks", stop), hook("stop", wish.wake_seconds)),
    )


def _skill(directory: Path) -> WholeFile:
    content = (files("agentpost.edges.setup") / "SKILL.md").read_bytes()
    return WholeFile(directory / "agentpost" / "SKILL.md", content)
