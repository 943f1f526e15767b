"""Serving a gateway: both doors on sockets that we made ourselves, until the gateway wants to stop."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from agentpost.config import Settings
from agentpost.edges.http.connections import ConnectionBudget
from agentpost.edges.http.guarded import guarded_server
from agentpost.edges.http.operator import operator_app
from agentpost.edges.http.public import PublicDoor
from agentpost.edges.http.strict import StrictRequests, names_of
from agentpost.edges.legacy_room import LegacyRoomLink
from agentpost.edges.mailbox.http import MailboxDoor
from agentpost.edges.open_files import most_connections
from agentpost.edges.runtimes import make_runtime
from agentpost.edges.seed_link import SeedLinks
from agentpost.edges.tailnet import Tailnet
from agentpost.gateway import Gateway
from agentpost.logs import make_logs_safe
from agentpost.protocol.errors import Code, Refusal
from agentpost.room.sync import MAX_FRAME_BYTES
from agentpost.store.home import Home
from agentpost.tasks import TaskOwner
from agentpost.world import SystemChance, SystemClock

__all__ = ["make_gateway", "serve"]

_DRAIN_SECONDS: Final = 10
_LONGEST_SOCKET_PATH: Final = 107

Ready = Callable[[str], None]


def make_gateway(settings: Settings) -> Gateway:
    """The gateway of this machine, with all that its settings name."""
    whois = None if settings.tailnet_socket is None else Tailnet(settings.tailnet_socket).whois
    return Gateway(settings, clock=SystemClock(), chance=SystemChance(), runtimes=make_runtime, whois=whois)


async def serve(gateway: Gateway, *, on_ready: Ready) -> None:
    """Start the gateway, serve it, and stop it when it asks for that. `on_ready` gets the public URL."""
    make_logs_safe()
    await gateway.start()
    tasks = TaskOwner("http")
    seeds = SeedLinks(gateway)
    legacy = LegacyRoomLink(gateway)
    door = PublicDoor(gateway)
    try:
        seeds.start()
        legacy.start()
        door.a2a.start()
        with (
            contextlib.closing(_listen(gateway.settings.listen_host, gateway.settings.listen_port)) as public,
            _operator_socket(gateway.settings.home) as private,
        ):
            names = names_of(gateway.settings.public_url, gateway.settings.listen_host)
            operator = StrictRequests(_with_mailbox(gateway, seeds), names=None)
            servers = [
                guarded_server(app, most_frame_bytes=MAX_FRAME_BYTES, drain_seconds=_DRAIN_SECONDS, budget=budget)
                for app, budget in (
                    (StrictRequests(door, names=names), ConnectionBudget(most_connections())),
                    # Who can open the socket owns the home: its connections have what the public port leaves free.
                    (operator, None),
                )
            ]
            runs = [
                tasks.spawn(server.serve(sockets=[at]), name=name)
                for server, at, name in zip(servers, (public, private), ("public", "operator"), strict=True)
            ]
            while not all(server.started for server in servers):
                if any(run.done() for run in runs):
                    raise Refusal(Code.UNAVAILABLE, "the HTTP server did not start; its log says why")
                await asyncio.sleep(0.005)
            gateway.announce(_url(public))
            on_ready(gateway.url)
            await gateway.stopping.wait()
            await gateway.host.say_goodbye()
            for connection in tuple(gateway.connections):
                connection.cut(Refusal(Code.UNAVAILABLE, "the gateway stops"))
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*runs)
    finally:
        await door.a2a.close()
        await legacy.close()
        await seeds.close()
        await tasks.close()
        await gateway.stop()


def _with_mailbox(gateway: Gateway, seeds: SeedLinks) -> MailboxDoor:
    # Who can open the socket owns the home, and with it the mailbox: no token.
    return MailboxDoor(operator_app(gateway, seeds), gateway.mailbox)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, proto)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise Refusal(
            Code.UNAVAILABLE,
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="Another program may use the port; choose one with --listen.",
        ) from None
    return listening


@contextlib.contextmanager
def _operator_socket(home: Path) -> Generator[socket.socket]:
    """A socket that only the owner of the home can open, and that goes away with the gateway."""
    path = Home(home).operator_socket
    if len(str(path)) > _LONGEST_SOCKET_PATH:
        raise Refusal(
            Code.HOME_UNSAFE, f"the path of the home is too long for a socket: {home}", hint="Use a shorter one."
        )
    # The home is locked, so whatever is there was left behind by a gateway that died.
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            path.unlink(missing_ok=True)
            listening.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            problem = f"the operator's socket {path} cannot be made: {error.strerror or error}"
            raise Refusal(Code.HOME_UNSAFE, problem, hint="Remove what is at this path, then start again.") from None
        yield listening
    finally:
        listening.close()
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
