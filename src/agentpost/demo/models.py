"""Two agents of the demo on one machine: a program with the Python SDK, and a model with the tools of MCP."""

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from rich.console import Console

from agentpost.demo.command import agentpost
from agentpost.demo.telling import left_out
from agentpost.tasks import TaskOwner
from agentpost.terminal import escape

__all__ = ["ModelShown", "show_model"]

_MODEL: Final = "claude"
_PROGRAM: Final = "nightly"
_PATIENCE_SECONDS: Final = 60
# A program that asks an agent, and prints what it says.
_ASKS: Final = (
    "import sys, agentpost; "
    f"post = agentpost.SyncClient({_PROGRAM!r}, home=sys.argv[1]); post.register(); "
    f"print(post.ask({_MODEL!r}, 'Is the release good to go?', timeout_seconds={_PATIENCE_SECONDS})); post.close()"
)


class ModelShown(Struct, frozen=True, kw_only=True):
    """`tools` is how many the model has; `answer` what the program heard."""

    tools: int
    answer: str


def show_model(home: Path, console: Console) -> ModelShown | None:
    """A question from a Python program, read and answered with the tools that Claude Code or Codex would have."""
    if find_spec("mcp") is None:
        left_out(console, "the MCP SDK is not installed (pip install 'agentpost[mcp]')")
        return None
    agentpost("agents", "add", _MODEL, home=home)
    shown = asyncio.run(_converse(home, console))
    console.print(f"  the program prints: [italic]{escape(shown.answer)}[/italic]")
    return shown


async def _converse(home: Path, console: Console) -> ModelShown:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    words = ["-m", "agentpost", "mcp", "--agent", _MODEL, "--home", str(home)]
    tasks = TaskOwner("demo")
    asking = tasks.spawn(_ask(home), name="program")
    async with Client(StdioServerParameters(command=sys.executable, args=words)) as model:
        tools = (await model.list_tools()).tools
        console.print(f"  {_MODEL} has {len(tools)} tools, {tools[0].name} to {tools[-1].name}.", highlight=False)

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            return (await model.call_tool(tool, arguments)).structured_content or {}

        lines = (await call("ansible_read_messages", waitSeconds=_PATIENCE_SECONDS))["messages"]
        read = await call("ansible_read_messages", eventIds=[lines[0]["eventId"]])
        body = read["bodies"][0]["content"]["body"]
        console.print(f"  ansible_read_messages: from {lines[0]['fromAgentId']}: [italic]{escape(body)}[/italic]")
        await call("ansible_send_message", replyTo=lines[0]["eventId"], body="Yes: all tests are green.")
    return ModelShown(tools=len(tools), answer=await asking)


async def _ask(home: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ASKS, str(home), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().strip()
