"""`up`, `down`, `status`: the gateway of this machine."""

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop

from agentpost.config import CONFIG_FILE, Settings, home_of, load_settings
from agentpost.edges.cli.options import HomeOption, NodeOption
from agentpost.edges.cli.output import Format, FormatOption, ago, escape, print_json, stderr, stdout
from agentpost.edges.garbage import spare_what_stays
from agentpost.edges.open_files import raise_open_files
from agentpost.edges.operator_client import OperatorClient
from agentpost.logs import make_logs_safe
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.home import Home

__all__ = ["NO_PROOF", "home_of_node", "not_taken", "quiet_libraries", "register", "why_stopped"]

_WAIT_SECONDS: Final = 30.0
_LOG_FILE: Final = "gateway.log"
NO_PROOF: Final = (
    "this gateway lets nodes in that prove no key (--insecure-no-proof). Whoever has the token of an invite can pass "
    "for its node. This is for a lab; start it without the flag anywhere else."
)


def register(app: typer.Typer) -> None:
    """Add the commands of the gateway to the command line."""
    app.command(epilog="Example: [bold]agentpost up --node vps-jane --tier backbone --listen 127.0.0.1:7801[/bold]")(up)
    app.command(epilog="Example: [bold]agentpost down --node vps-jane[/bold]")(down)
    app.command(epilog="Example: [bold]agentpost status -o json[/bold]")(status)


def up(
    node: NodeOption = None,
    tier: Annotated[
        NodeTier | None, typer.Option("--tier", help="backbone is always on; edge without it.", show_default=False)
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port; port 0 takes a free one.", show_default=False)
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            help="Where others reach a backbone gateway, if not at what it listens on.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it is ready; it logs into its home.")
    ] = False,
    attempts_per_address: Annotated[
        str | None,
        typer.Option(
            "--attempts-per-address",
            metavar="NUMBER",
            help="Attempts to join that one address may make at once (120).",
            show_default=False,
        ),
    ] = None,
    attempts_per_token: Annotated[
        str | None,
        typer.Option(
            "--attempts-per-token",
            metavar="NUMBER",
            help="The same for the token of one invite, from wherever (30).",
            show_default=False,
        ),
    ] = None,
    tailnet_socket: Annotated[
        str | None,
        typer.Option(
            "--tailnet-socket",
            metavar="PATH",
            help="Where tailscaled answers, for invites that name a node of the tailnet.",
            show_default=False,
        ),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="PATH",
            help="Export the outboxes to this directory, or URL of an object store.",
            show_default=False,
        ),
    ] = None,
    insecure_no_proof: Annotated[
        bool, typer.Option("--insecure-no-proof", help="Let nodes in that prove no key. For a lab only; never kept.")
    ] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Start the gateway of this machine. What is said the first time is kept: later `agentpost up` is enough.

    It runs until Ctrl-C, SIGTERM or `agentpost down`, and drains before it stops.
    """
    flags = {
        "node": node,
        "tier": None if tier is None else tier.value,
        "listen": listen,
        "public_url": public_url,
        "attempts_per_address": attempts_per_address,
        "attempts_per_token": attempts_per_token,
        "tailnet_socket": tailnet_socket,
        "lake": lake,
    }
    settings = load_settings(home=home, flags=flags, insecure_no_proof=insecure_no_proof)
    if settings.insecure_no_proof:
        stderr.print(f"[bold red]WARNING[/bold red]: {NO_PROOF}", highlight=False)
    if detach:
        _start_detached(settings, output)
        return
    make_logs_safe(of_all=True)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    quiet_libraries()

    def on_ready(url: str) -> None:
        spare_what_stays()
        if output is Format.JSON:
            print_json({"node": settings.node_id, "url": url, "home": str(settings.home)})
        else:
            stdout.print(
                f"[bold]{escape(settings.node_id)}[/bold] is up at {escape(url)}, home {escape(str(settings.home))}"
            )

    failure = uvloop.run(_run(settings, on_ready))
    if failure is not None:
        raise failure


def quiet_libraries() -> None:
    """Libraries log what they were asked, which may hold secrets (AUTH-9); ours never do."""
    for noisy in ("httpx", "httpcore", "uvicorn", "websockets", "mcp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # A line for each request that is none would let strangers fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


async def _run(settings: Settings, on_ready: Callable[[str], None]) -> Refusal | None:
    """Run a gateway to its end. Gives what ended it, if it was not told to stop."""
    # The HTTP framework takes longer to load than any other command takes to run.
    from agentpost.edges.http.server import make_gateway, serve

    raise_open_files()
    gateway = make_gateway(settings)
    loop = asyncio.get_running_loop()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(wanted, gateway.request_stop)
    await serve(gateway, on_ready=on_ready)
    return gateway.failure


def _start_detached(settings: Settings, output: Format) -> None:
    home = Home(settings.home)
    home.prepare()
    # Whoever runs there already is not what was asked for, and would answer all the same.
    home.lock()
    home.unlock()
    log = settings.home / _LOG_FILE
    command = [
        *(sys.executable, "-m", "agentpost", "up", "--home", str(settings.home), "--node", settings.node_id),
        *("--tier", settings.tier.value, "--listen", f"{settings.listen_host}:{settings.listen_port}"),
        *(() if settings.public_url is None else ("--public-url", settings.public_url)),
        *("--attempts-per-address", str(settings.attempts_per_address)),
        *("--attempts-per-token", str(settings.attempts_per_token)),
        *(() if settings.tailnet_socket is None else ("--tailnet-socket", str(settings.tailnet_socket))),
        *(() if settings.lake is None else ("--lake", settings.lake.path)),
        *(("--insecure-no-proof",) if settings.insecure_no_proof else ()),
    ]
    with log.open("ab") as file:
        log.chmod(0o600)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    client = OperatorClient(settings.home)
    for _ in _until_timeout():
        if process.poll() is not None:
            raise _not_started(log)
        try:
            found = client.get("/operator/status")
        except Refusal:
            continue
        if found["pid"] != process.pid:
            continue
        if output is Format.JSON:
            print_json(
                {"node": settings.node_id, "pid": process.pid, "home": str(settings.home), "phase": found["phase"]}
            )
        else:
            stdout.print(
                f"[bold]{escape(settings.node_id)}[/bold] is up at {escape(found['url'])}, process {process.pid}"
            )
            stdout.print(f"log: {escape(str(log))}")
        return
    raise Refusal(Code.UNAVAILABLE, f"the gateway was not ready within {_WAIT_SECONDS:.0f} s", hint=f"See {log}.")


def _not_started(log: Path) -> Refusal:
    """What the gateway said last, which is a refusal with its hint if it could still say one."""
    said = log.read_text("utf-8", "replace").rstrip().splitlines()[-2:]
    problem, hint = " ".join(said), ""
    if len(said) == 2 and said[1].startswith("  "):
        problem, hint = said[0].partition(": ")[2], f"{said[1].strip()} "
    return Refusal(Code.UNAVAILABLE, f"the gateway did not start: {problem}", hint=f"{hint}See {log}.")


def down(node: NodeOption = None, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Drain and stop the gateway. Returns when it has let go of its home."""
    path = home_of_node(node, home)
    OperatorClient(path).post("/operator/shutdown")
    with stderr.status("draining"):
        is_free = any(_is_free(path) for _ in _until_timeout())
    if not is_free:
        stderr.print("still draining")
        raise typer.Exit(5)
    if output is Format.JSON:
        print_json({"home": str(path), "phase": "stopped"})
    else:
        stdout.print("stopped")


def _is_free(path: Path) -> bool:
    """Whether no gateway has the home any more."""
    home = Home(path)
    try:
        home.lock()
    except Refusal:
        return False
    home.unlock()
    return True


def status(node: NodeOption = None, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """What the gateway of this machine is doing."""
    path = home_of_node(node, home)
    try:
        found: dict[str, Any] = OperatorClient(path).get("/operator/status")
    except Refusal as refusal:
        raise why_stopped(path) or refusal from None
    if output is Format.JSON:
        print_json(found)
        return
    stdout.print(f"[bold]{escape(found['nodeId'])}[/bold] ({found['tier']}) is {found['phase']}", highlight=False)
    stdout.print(f"  at {escape(found['url'])}", highlight=False)
    stdout.print(f"  up for {found['upSeconds']:,.0f} s, version {found['version']}", highlight=False)
    stdout.print(f"  outbox: seq {found['outboxSeq']:,}", highlight=False)
    stdout.print(f"  inbox: seq {found['inboxSeq']:,}, settled up to {found['inboxAckedSeq']:,}", highlight=False)
    stdout.print(f"  payloads: {found['payloads']:,} with {found['payloadBytes']:,} bytes", highlight=False)
    waiting: list[dict[str, Any]] = found.get("notTaken") or []
    for each in waiting:
        stdout.print(f"  {escape(not_taken(each))}", highlight=False, soft_wrap=True)
    stdout.print(f"  key: {found['signingPublicKey']}", highlight=False)
    if found.get("revokedBy"):
        seeds = escape(", ".join(found["revokedBy"]))
        stdout.print(f"[bold red]REVOKED[/bold red] by {seeds}: this gateway sends nothing", highlight=False)
        stdout.print("  next: get a new invite from a seed, then `agentpost join`", highlight=False)
    if found.get("insecureNoProof"):
        stdout.print(f"[bold red]WARNING[/bold red]: {NO_PROOF}", highlight=False)


def why_stopped(path: Path) -> Refusal | None:
    """Why the gateway of a home does not start, if a peer has shown that its database is an older one."""
    # SQLite takes longer to load than most commands take to run.
    from agentpost.store.regressed import regressed, regression_of

    try:
        found = regression_of(path)
    except Refusal:
        return None
    return None if found is None else regressed(found)


def not_taken(found: dict[str, Any]) -> str:
    """How much a gateway has not taken yet, in words."""
    presence = "online" if found["isOnline"] else "away"
    oldest = ago(time.time() * 1000 - found["oldestSentAtMs"])
    return f"{found['count']:,} not taken yet by {found['nodeId']} ({presence}), the oldest sent {oldest}"


def home_of_node(node: str | None, home: Path | None) -> Path:
    """The home of that node. One that was named in the environment, and is another's, is not what was meant."""
    path = home_of(node, home=home)
    if node is not None and (path / CONFIG_FILE).exists():
        found = load_settings(home=path, flags={}, environment={}).node_id
        if found != node:
            problem = f"the gateway of {path} is {found}, not {node}"
            hint = f"Leave out --node, or --home and AGENTPOST_HOME: without them it is ~/.agentpost/{node}."
            raise Refusal(Code.CONFLICT, problem, field="node", hint=hint)
    return path


def _until_timeout() -> Any:
    """Ticks of 50 ms until the time is up."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
