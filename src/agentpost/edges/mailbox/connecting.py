"""A mailbox by its address: a file, a Unix socket, HTTP or WebSocket, all with the same interface.

async with await connect_mailbox("mail.db") as mailbox: …
async with await connect_mailbox("unix:/run/user/1000/mail.sock") as mailbox: …
async with await connect_mailbox("http://127.0.0.1:8700", token=token) as mailbox: …
async with await connect_mailbox("ws://127.0.0.1:8700", token=token) as mailbox: …
async with await connect_mailbox("gateway:~/.agentpost/mbp-jane") as mailbox: …
"""

from pathlib import Path
from urllib.parse import urlsplit

import httpx

from agentpost.config import home_of
from agentpost.edges.mailbox.carriers import HttpCarrier, UnixCarrier, WebSocketCarrier
from agentpost.edges.mailbox.http import MAILBOX_PATH
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxPolicy
from agentpost.mailbox.remote import PushingMailbox, RemoteMailbox
from agentpost.store.home import Home

__all__ = ["connect_mailbox", "gateway_mailbox"]


async def connect_mailbox(
    address: str, *, token: str | None = None, policy: MailboxPolicy | None = None
) -> FileMailbox | RemoteMailbox:
    """Open the mailbox at `address`. `policy` is for a file; a server has its own."""
    scheme, _, rest = address.partition(":")
    match scheme:
        case "unix":
            return PushingMailbox(await UnixCarrier.connect(rest))
        case "http" | "https":
            return RemoteMailbox(HttpCarrier(address, token=token))
        case "ws" | "wss":
            path = MAILBOX_PATH if urlsplit(address).path in ("", "/") else ""
            return PushingMailbox(await WebSocketCarrier.connect(address.rstrip("/") + path, token=token))
        case "gateway":
            return gateway_mailbox(home_of(None, home=Path(rest) if rest else None))
        case "file":
            return FileMailbox.open(rest.removeprefix("//"), policy=policy)
        case _:
            return FileMailbox.open(address, policy=policy)


def gateway_mailbox(home: Path) -> RemoteMailbox:
    """The mailbox of the gateway of a home, through the socket that only the home's owner can open."""
    transport = httpx.AsyncHTTPTransport(uds=str(Home(home).operator_socket), verify=False)
    return RemoteMailbox(HttpCarrier("http://gateway", transport=transport))
