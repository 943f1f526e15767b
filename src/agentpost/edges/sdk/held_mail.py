"""Mail that was fetched and belongs to its connection, until this program says that it has it."""

from collections.abc import Sequence

import msgspec

from agentpost.delivery.ports import Engagement
from agentpost.edges.async_operator_client import AsyncOperatorClient, Held
from agentpost.edges.operator_client import path_of
from agentpost.protocol.ids import EventId

__all__ = ["HeldMail"]


class HeldMail:
    """What one fetch gave. `close` hangs up: what was not taken by then is given back, and costs no attempt."""

    def __init__(self, calls: AsyncOperatorClient, agent_id: str, held: Held, messages: Sequence[Engagement]) -> None:
        self._calls = calls
        self._agent_id = agent_id
        self._held = held
        self.messages = list(messages)

    @classmethod
    async def fetch(
        cls, calls: AsyncOperatorClient, agent_id: str, *, limit: int = 1, wait_seconds: float = 0
    ) -> "HeldMail":
        """Fetch mail. Who is cancelled meanwhile is handed nothing."""
        asked = {"limit": limit, "waitSeconds": wait_seconds, "hold": True}
        held = await calls.held(path_of("ansible", "agents", agent_id, "fetch"), asked, wait_seconds=wait_seconds)
        return cls(calls, agent_id, held, msgspec.convert(held.answer, list[Engagement]))

    async def take(self, *, for_connection: bool = False) -> frozenset[EventId]:
        """Have the mail: for its lease, or `for_connection`, so that an attempt ends when the connection does.

        Gives which of it is with the agent.
        """
        said = {"eventIds": [each.event_id for each in self.messages], "hold": for_connection}
        taken = await self._calls.post(path_of("ansible", "agents", self._agent_id, "taken"), said)
        return frozenset(taken["eventIds"])

    async def close(self) -> None:
        await self._held.close()
