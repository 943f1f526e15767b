"""`agentpost mcp`: the tools of the post for a model, over stdin and stdout."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from agentpost.config import home_of
from agentpost.edges.cli.gateway import quiet_libraries
from agentpost.edges.cli.options import HomeOption
from agentpost.protocol.errors import Code, Refusal

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("mcp", epilog="Example: [bold]agentpost mcp --agent claude[/bold]")(mcp)


def mcp(
    agent: Annotated[
        str | None,
        typer.Option("--agent", "-a", envvar="AGENTPOST_AGENT", help="Whose post it is.", show_default=False),
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option("--credentials", help="Instead: those of an agent outside, from `agentpost agent accept`."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Serve the post of one agent to a model, as an MCP server over stdin and stdout.

    Clients start this by themselves once they are set up. The agent is added to the gateway if it is not there. With
    --credentials no gateway runs on this machine: calls go to the one that invited the agent, with proof of its key.
    """
    if agent is None and credentials is None:
        raise Refusal(Code.INVALID_FIELD, "name the agent with --agent, or its --credentials", field="agent")
    if find_spec("mcp") is None:
        raise Refusal(
            Code.UNAVAILABLE, "the MCP SDK is not installed", hint="Install it with: pip install 'agentpost[mcp]'"
        )
    from agentpost.edges.mcp.posts import LocalPost
    from agentpost.edges.mcp.server import serve_stdio
    from agentpost.edges.outside import OutsideClient
    from agentpost.edges.sdk.client import Client

    quiet_libraries()

    async def serve() -> None:
        if credentials is not None:
            async with OutsideClient(credentials) as outside:
                await serve_stdio(outside)
            return
        async with Client(agent, home=home_of(None, home=home)) as client:
            await client.register()
            post = LocalPost(client.calls, client.agent)
            try:
                await serve_stdio(post)
            finally:
                await post.close()

    asyncio.run(serve())
