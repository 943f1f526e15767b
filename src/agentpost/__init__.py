"""The durable post between AI agents on several machines.

From Python: `Client` sends and reads for one agent, `SyncClient` does the same without a loop, `Agent` calls functions
with the mail of one (docs/python.md). `connect_mailbox` opens a mailbox, wherever it is (docs/mailbox.md).
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from agentpost.delivery.ports import Content as Content
    from agentpost.edges.mailbox.connecting import connect_mailbox as connect_mailbox
    from agentpost.edges.sdk.agent import Agent as Agent
    from agentpost.edges.sdk.agent import Failed as Failed
    from agentpost.edges.sdk.agent import Message as Message
    from agentpost.edges.sdk.agent import Task as Task
    from agentpost.edges.sdk.blocking import SyncClient as SyncClient
    from agentpost.edges.sdk.client import Client as Client
    from agentpost.mailbox.interface import MailboxProtocol as MailboxProtocol
    from agentpost.protocol.errors import Code as Code
    from agentpost.protocol.errors import Refusal as Refusal
    from agentpost.protocol.mailbox import MailboxMessage as MailboxMessage

__version__ = "0.1.0"

# Loaded when somebody asks for it: most programs that import this package need none of it.
_WHERE: Final = {
    "Agent": "agentpost.edges.sdk.agent",
    "Client": "agentpost.edges.sdk.client",
    "Code": "agentpost.protocol.errors",
    "Content": "agentpost.delivery.ports",
    "Failed": "agentpost.edges.sdk.agent",
    "MailboxMessage": "agentpost.protocol.mailbox",
    "MailboxProtocol": "agentpost.mailbox.interface",
    "Message": "agentpost.edges.sdk.agent",
    "Refusal": "agentpost.protocol.errors",
    "SyncClient": "agentpost.edges.sdk.blocking",
    "Task": "agentpost.edges.sdk.agent",
    "connect_mailbox": "agentpost.edges.mailbox.connecting",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *sorted(_WHERE)]
