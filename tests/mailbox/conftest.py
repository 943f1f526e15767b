"""The mailboxes that the contract is held against."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxProtocol
from agentpost.mailbox.memory import MemoryMailbox
from agentpost.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "file"])
async def mailbox(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[MailboxProtocol]:
    match request.param:
        case "memory":
            yield MemoryMailbox(clock=clock)
        case "file":
            async with FileMailbox.open(tmp_path / "mail.db", clock=clock) as mailbox:
                yield mailbox
