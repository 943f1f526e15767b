"""`invite`, `invites`, `join`, `nodes`, `revoke`: who belongs to the mesh."""

from typing import Annotated, Any, Final

import typer

from agentpost.config import home_of
from agentpost.edges.cli.options import TIME, HomeOption, seconds_from
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient
from agentpost.protocol.snapshot import NodeTier

__all__ = ["register"]

# The gateway gives the other side 10 s for each of challenge, exchange and first sync.
_JOIN_SECONDS: Final = 40.0
_invites_app = typer.Typer(rich_markup_mode="rich")


def register(app: typer.Typer) -> None:
    """Add the commands of the mesh to the command line."""
    app.command(epilog="Example: [bold]agentpost invite --tier edge --node mbp-jane --ttl 15m[/bold]")(invite)
    app.add_typer(_invites_app, name="invites")
    app.command(epilog="Example: [bold]agentpost join --url http://vps-jane:7801 --token agp_…[/bold]")(join)
    app.command(epilog="Example: [bold]agentpost nodes -o json[/bold]")(nodes)
    app.command(epilog="Example: [bold]agentpost revoke mbp-jane[/bold]")(revoke)


def invite(
    node: Annotated[str, typer.Option("--node", help="The id of the node that may join with it.")],
    tier: Annotated[NodeTier, typer.Option("--tier", help="What it is: backbone is always on.")] = NodeTier.EDGE,
    ttl: Annotated[
        int,
        typer.Option(
            "--ttl",
            parser=seconds_from("1s", "24h"),
            metavar=TIME,
            help="How long it is good, as 15m or 2h.",
            show_default="15m",
        ),
    ] = 15 * 60,
    public_key: Annotated[
        str | None, typer.Option("--public-key", help="The key that the node must have.", show_default=False)
    ] = None,
    replace_key: Annotated[
        bool, typer.Option("--replace-key", help="The node lost its home: from now on its old key counts no more.")
    ] = False,
    tailnet: Annotated[
        str | None,
        typer.Option(
            "--tailnet",
            metavar="NAME",
            help="The machine of the tailnet that must join, as mbp-jane.tail1234.ts.net.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Make an invite for one node. The token is shown once and stored nowhere; give it to that node only."""
    body: dict[str, Any] = {"node": node, "tier": tier, "ttlSeconds": ttl, "publicKey": public_key}
    body |= {"replaceKey": True} if replace_key else {}
    body |= {} if tailnet is None else {"tailnet": tailnet.rstrip(".").lower()}
    client = OperatorClient(home_of(None, home=home))
    made: dict[str, Any] = client.post("/operator/invites", body)
    if output is Format.JSON:
        print_json(made)
        return
    status: dict[str, Any] = client.get("/operator/status")
    url = status.get("publicUrl") or status["url"]
    stdout.print(f"On {escape(node)}, before {made['expiresAt']}:", highlight=False)
    stdout.print(f"agentpost join --url {escape(url)} --token {made['token']}", highlight=False, soft_wrap=True)


@_invites_app.callback(invoke_without_command=True, epilog="Example: [bold]agentpost invites -o json[/bold]")
def invites(context: typer.Context, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """The invites in the room, whichever gateway made them, and what became of them."""
    if context.invoked_subcommand is not None:
        return
    found: list[dict[str, Any]] = OperatorClient(home_of(None, home=home)).get("/operator/invites")["invites"]
    if output is Format.JSON:
        print_json(found)
        return
    columns = {
        "inviteId": "invite",
        "expectedNodeId": "for",
        "tier": "tier",
        "status": "status",
        "expiresAt": "good until",
        "createdBy": "made by",
    }
    rows = [tuple(escape(each[name] or "") for name in columns) for each in found]
    print_table("Invites", tuple(columns.values()), rows)


@_invites_app.command(epilog="Example: [bold]agentpost invites withdraw inv_01JV3T7E6Q8M1W2R4D9K0N5P7H[/bold]")
def withdraw(
    invite_id: Annotated[str, typer.Argument(metavar="INVITE", help="The id, as `agentpost invites` shows it.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Take back an invite that nobody has joined with yet. Its gateway is the one that made it."""
    client = OperatorClient(home_of(None, home=home))
    done: dict[str, Any] = client.post("/operator/invites/withdraw", {"inviteId": invite_id})
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(f"{escape(invite_id)} is withdrawn", highlight=False)


def join(
    url: Annotated[str, typer.Option("--url", help="Where the other gateway is, as http://vps-jane:7801.")],
    token: Annotated[
        str, typer.Option("--token", envvar="AGENTPOST_TOKEN", help="The token of the invite.", show_default=False)
    ],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Join the mesh of another gateway with its invite. The gateway of this machine has to be up."""
    client = OperatorClient(home_of(None, home=home), timeout_seconds=_JOIN_SECONDS)
    seed: dict[str, Any] = client.post("/operator/join", {"url": url, "token": token})
    if output is Format.JSON:
        print_json(seed)
    else:
        stdout.print(f"joined through {escape(seed['nodeId'])} at {escape(seed['url'])}", highlight=False)


def nodes(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Who is in the room, as this gateway sees it, and its links to the seeds."""
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get("/operator/nodes")
    if output is Format.JSON:
        print_json(found)
        return
    rows = [(n["nodeId"], n["tier"] or "", "revoked" if n["revoked"] else n["status"]) for n in found["nodes"]]
    print_table("Nodes", ("node", "tier", "status"), [tuple(escape(cell) for cell in row) for row in rows])
    for seed in found["seeds"]:
        state = "connected" if seed["connected"] else f"not connected: {seed['problem']}"
        stdout.print(f"seed {escape(seed['nodeId'])} at {escape(seed['url'])}: {escape(state)}", highlight=False)


def revoke(
    node: Annotated[str, typer.Argument(help="The node to throw out.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Throw a node out: its connections end now, its tickets and invites are void."""
    done: dict[str, Any] = OperatorClient(home_of(None, home=home)).post("/operator/revoke", {"node": node})
    if output is Format.JSON:
        print_json(done)
    else:
        stdout.print(f"{escape(node)} is revoked", highlight=False)
