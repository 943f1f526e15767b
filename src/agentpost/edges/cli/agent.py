"""`agent`: agents outside the mesh (Claude Code, Codex, a script), what they may do here, and until when."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from agentpost.config import expanded, home_of
from agentpost.edges.cli.options import TIME, HomeOption, seconds_from
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient

__all__ = ["agent_app"]

agent_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Agents outside the mesh: invite them, see their sessions, end them.",
)


@agent_app.command(
    epilog="Example: [bold]agentpost agent accept --url https://vps-jane.example --agent codex --token agp_invite_… "
    "--credentials ~/codex.json[/bold]"
)
def accept(
    url: Annotated[str, typer.Option("--url", help="Where the gateway is, as https://vps-jane.example.")],
    agent: Annotated[str, typer.Option("--agent", help="The agent that was invited.")],
    credentials: Annotated[Path, typer.Option("--credentials", help="The file to write, for its owner only.")],
    token: Annotated[
        str, typer.Option("--token", envvar="AGENTPOST_TOKEN", help="The token of the invite.", show_default=False)
    ],
    output: FormatOption = Format.TEXT,
) -> None:
    """Take an invite to a gateway elsewhere: makes a key, gets a session, and keeps both in a file.

    `agentpost mcp --credentials FILE` serves the agent's post from it to a model.
    """

    # Only here: it brings cryptography, which other commands need not wait for.
    from agentpost.edges.outside import OutsideClient

    async def take() -> tuple[str, ...]:
        accepting = OutsideClient.accept(expanded(credentials), url=url, agent_id=agent, invite_token=token)
        async with await accepting as outside:
            return outside.scopes

    scopes = asyncio.run(take())
    if output is Format.JSON:
        print_json({"agentId": agent, "url": url, "credentials": str(credentials), "scopes": list(scopes)})
    else:
        stdout.print(f"{escape(agent)} has a session at {escape(url)}: {', '.join(scopes)}", highlight=False)


@agent_app.command(
    epilog="Example: [bold]agentpost agent invite --agent codex --scope message.read --scope message.send[/bold]"
)
def invite(
    agent: Annotated[str, typer.Option("--agent", help="The id of the agent; added here if it is new.")],
    scope: Annotated[
        list[str],
        typer.Option("--scope", "-s", help="What it may do, as message.read; again for more. See the page of scopes."),
    ],
    ttl: Annotated[
        int,
        typer.Option(
            "--ttl",
            parser=seconds_from("5m", "15m"),
            metavar=TIME,
            help="How long the invite is good: 5m to 15m.",
            show_default="15m",
        ),
    ] = 15 * 60,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="A web origin whose pages may use the session, as https://app.example."),
    ] = None,
    max_sessions: Annotated[
        int | None,
        typer.Option("--max-sessions", min=1, help="How many sessions the agent may have.", show_default=False),
    ] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make an invite for one agent. The token is shown once and stored nowhere; it opens one session.

    Scopes: message.read, message.send, status.read, task.read, task.create, task.claim, task.update, task.complete.
    """
    constraints = {"origins": origin or []} | ({} if max_sessions is None else {"maxSessions": max_sessions})
    body = {
        "agentId": agent,
        "scopes": [each if each.startswith("ansible.") else f"ansible.{each}" for each in scope],
        "ttlSeconds": ttl,
        "constraints": constraints,
    }
    client = OperatorClient(home_of(None, home=home))
    made: dict[str, Any] = client.post("/ansible/agent/invites", body)
    if output is Format.JSON:
        print_json(made)
        return
    url = client.get("/operator/status")["url"]
    taken = f"agentpost agent accept --url {url} --agent {agent} --token {made['inviteToken']}"
    stdout.print(f"Where {escape(agent)} runs, before {made['expiresAt']}:", highlight=False)
    stdout.print(f"{escape(taken)} --credentials {escape(agent)}.json", highlight=False, soft_wrap=True)
    stdout.print(f"  scopes: {' '.join(made['scopes'])}", highlight=False, soft_wrap=True)
    stdout.print("  A program of its own exchanges it at /ansible/agent/auth/exchange.", highlight=False)


@agent_app.command(epilog="Example: [bold]agentpost agent sessions --agent codex -o json[/bold]")
def sessions(
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.", show_default=False)] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most, the newest first.")
    ] = 100,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """The sessions of agents outside the mesh, the newest first; with -o json also what each of them may do."""
    query: dict[str, str | int] = {"limit": limit} | ({} if agent is None else {"agentId": agent})
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/ansible/agent/sessions", query)
    if output is Format.JSON:
        print_json(found)
        return
    # Ids are there to be copied, so a row has no more than fits beside one.
    rows = [(each["sessionId"], each["agentId"], each["state"], each["expiresAt"][:16]) for each in found]
    columns = ("session", "agent", "state", "good until")
    print_table("Sessions", columns, [tuple(escape(cell) for cell in row) for row in rows])


@agent_app.command(
    epilog="Examples: [bold]agentpost agent revoke --agent codex[/bold] · "
    "[bold]agentpost agent revoke --session ses_01JV3T7E6Q8M1W2R4D9K0N5P7H[/bold]"
)
def revoke(
    session: Annotated[str | None, typer.Option("--session", help="This session.", show_default=False)] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="All sessions and open invites of this agent.", show_default=False)
    ] = None,
    family: Annotated[
        str | None, typer.Option("--family", help="The session of this family of tokens.", show_default=False)
    ] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """End sessions of an agent outside the mesh. Calls that wait are cut, and no token of theirs is good any more."""
    given = {"sessionId": session, "agentId": agent, "familyId": family}
    body = {name: value for name, value in given.items() if value is not None}
    if len(body) != 1:
        raise typer.BadParameter("say one of --session, --agent and --family")
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/agent/revoke", body)
    if output is Format.JSON:
        print_json(done)
        return
    for each in done["sessionIds"]:
        stdout.print(f"{escape(each)} has ended", highlight=False)
    if not done["sessionIds"]:
        stdout.print("no session was live", highlight=False)


@agent_app.command("rotate-keys", epilog="Example: [bold]agentpost agent rotate-keys --drop[/bold]")
def rotate_keys(
    drop: Annotated[
        bool, typer.Option("--drop", help="Also make void what was signed before; agents refresh their sessions.")
    ] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Sign access tokens with a new key from now on. It happens by itself every 30 days."""
    body = {"dropOthers": drop}
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/ansible/agent/keys/rotate", body)
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(f"access tokens are signed with {escape(done['kid'])} from now on", highlight=False)
