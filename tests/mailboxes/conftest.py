"""The mailboxes that the contract is held against."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.edges.mailbox.carriers import HttpCarrier, UnixCarrier, WebSocketCarrier
from agentpost.edges.mailbox.serving import serve_http
from agentpost.edges.mailbox.unix import serve_unix
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxProtocol
from agentpost.mailbox.memory import MemoryMailbox
from agentpost.mailbox.remote import Carrier, RemoteMailbox
from agentpost.testing import FakeClock

TOKEN = "-".join(["open", "sesame"])


class Served(RemoteMailbox):
    """A mailbox that is called from outside, whose sweeper the test can run."""

    def __init__(self, file: FileMailbox, carrier: Carrier) -> None:
        super().__init__(carrier)
        self.sweep = file.sweep


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def file(tmp_path: Path, clock: FakeClock) -> AsyncIterator[FileMailbox]:
    """The mailbox in a file that every transport serves."""
    async with FileMailbox.open(tmp_path / "mail.db", clock=clock) as mailbox:
        yield mailbox


@pytest.fixture(params=["memory", "file", "unix", "http", "websocket"])
async def mailbox(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[MailboxProtocol]:
    if request.param == "memory":
        yield MemoryMailbox(clock=clock)
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
