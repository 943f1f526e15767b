"""The mailboxes that the contract is held against."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from agentpost.config import Settings
from agentpost.edges.http.server import serve
from agentpost.edges.mailbox.carriers import HttpCarrier, UnixCarrier, WebSocketCarrier
from agentpost.edges.mailbox.serving import serve_http
from agentpost.edges.mailbox.unix import serve_unix
from agentpost.edges.runtimes.registry import make_runtime
from agentpost.gateway import Gateway
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxProtocol
from agentpost.mailbox.memory import MemoryMailbox
from agentpost.mailbox.remote import Carrier, RemoteMailbox
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.home import Home
from agentpost.tasks import TaskOwner
from agentpost.testing import FakeClock, SeededChance

TOKEN = "-".join(["open", "sesame"])


class Served(RemoteMailbox):
    """A mailbox that is called from outside, whose sweeper the test can run."""

    def __init__(self, file: FileMailbox, carrier: Carrier) -> None:
        super().__init__(carrier)
        self.sweep = file.sweep


@asynccontextmanager
async def a_gateway(home: Path, clock: FakeClock) -> AsyncGenerator[Served]:
    """The mailbox of a gateway that runs in the test's own loop and by its clock, over the operator's socket."""
    settings = Settings(home=home, node_id="vps-jane", tier=NodeTier.BACKBONE, listen_port=0)
    gateway = Gateway(settings, clock=clock, chance=SeededChance(1), runtimes=make_runtime)
    tasks = TaskOwner("gateway of a test")
    is_ready = asyncio.Event()
    serving = tasks.spawn(serve(gateway, on_ready=lambda _: is_ready.set()), name="serve")
    try:
        await asyncio.wait_for(is_ready.wait(), 60)
        transport = httpx.AsyncHTTPTransport(uds=str(Home(home).operator_socket))
        async with Served(gateway.mailbox, HttpCarrier("http://gateway", transport=transport)) as mailbox:
            yield mailbox
        gateway.request_stop()
        await asyncio.wait_for(serving, 60)
    finally:
        await tasks.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def file(tmp_path: Path, clock: FakeClock) -> AsyncIterator[FileMailbox]:
    """The mailbox in a file that every transport serves."""
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock) as mailbox:
        yield mailbox


# A gateway takes a moment to start, and its mailbox is the one over HTTP.
A_GATEWAY = pytest.param("gateway", marks=pytest.mark.long)


@pytest.fixture(params=["memory", "file", "blocking", "unix", "http", "websocket", A_GATEWAY])
async def mailbox(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[MailboxProtocol]:
    if request.param == "memory":
        yield MemoryMailbox(clock=clock)
        return
    if request.param == "blocking":
        async with FileMailbox.open(tmp_path / "mail.db", clock=clock, blocking=True) as blocking:
            yield blocking
        return
    if request.param == "gateway":
        async with a_gateway(tmp_path / "vps-jane", clock) as gateway:
            yield gateway
        return
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock) as file:
        match request.param:
            case "unix":
                path = tmp_path / "mail.sock"
                async with serve_unix(file, path), Served(file, await UnixCarrier.connect(str(path))) as remote:
                    yield remote
            case "http":
                async with (
                    serve_http(file, host="127.0.0.1", port=0, token=TOKEN) as url,
                    Served(file, HttpCarrier(url, token=TOKEN)) as remote,
                ):
                    yield remote
            case "websocket":
                async with serve_http(file, host="127.0.0.1", port=0, token=TOKEN) as url:
                    carrier = await WebSocketCarrier.connect(
                        url.replace("http", "ws") + "/ansible/mailbox", token=TOKEN
                    )
                    async with Served(file, carrier) as remote:
                        yield remote
            case _:
                yield file
