"""Where the calls of a model go. Each post is that of one agent."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from agentpost.edges.async_operator_client import AsyncOperatorClient, Held
from agentpost.edges.operations import OPERATIONS
from agentpost.edges.operator_client import new_retry_key, path_of
from agentpost.protocol.errors import Refusal
from agentpost.tasks import TaskOwner

__all__ = ["LocalPost", "Post"]

_log = logging.getLogger(__name__)

_HEARD_SECONDS: Final = 0.5


class Post(Protocol):
    """`operations` are those that the agent may call; the rest is refused wherever it is asked for.

    `is_local`: the agent is one of this machine, and may know who is in the mesh.
    """

    is_local: bool

    @property
    def agent(self) -> str: ...

    @property
    def operations(self) -> Sequence[str]: ...

    async def call(self, operation: str, args: dict[str, Any]) -> dict[str, Any]:
        """What an operation gives. What is refused is raised as `Refusal`."""
        ...


class LocalPost:
    """The post of an agent of the gateway of this machine, over its operator's socket."""

    is_local = True
    operations = tuple(OPERATIONS)

    def __init__(self, gateway: AsyncOperatorClient, agent: str) -> None:
        self._gateway = gateway
        self.agent = agent
        self._tasks = TaskOwner("mcp")

    async def call(self, operation: str, args: dict[str, Any]) -> dict[str, Any]:
        wait_seconds = args.get("waitSeconds")
        # Whatever else it may be is the gateway's to refuse.
        wait_seconds = wait_seconds if isinstance(wait_seconds, int | float) else 0
        path = path_of("ansible", "agents", self.agent, "operations")
        called = {"operation": operation, "args": args}
        if not args.get("claim"):
            found = OPERATIONS.get(operation)
            # A key that the model gives among the arguments counts instead of this one.
            key = new_retry_key() if found is not None and found.is_keyed else None
            return (await self._gateway.post(path, called, wait_seconds=wait_seconds, key=key))["result"]
        held = await self._gateway.held(path, {**called, "hold": True}, wait_seconds=wait_seconds)
        result: dict[str, Any] = held.answer["result"]
        self._tasks.spawn(self._confirm(held, [each["eventId"] for each in result["claimed"]]), name="confirm")
        return result

    async def _confirm(self, held: Held, event_ids: Sequence[str]) -> None:
        """Confirm what was claimed, if the client is still there a moment after it was told.

        A client that has gone ends its stdin, and with it this process: its mail is given back.
        """
        try:
            if event_ids:
                await asyncio.sleep(_HEARD_SECONDS)
                await self._gateway.post(path_of("ansible", "agents", self.agent, "taken"), {"eventIds": event_ids})
        except Refusal as refusal:
            _log.warning("mail that was claimed may come again: %s", refusal.message)
        finally:
            await held.close()

    async def close(self) -> None:
        """Hang up: what the client was not told for certain is not its."""
        await self._tasks.close()
