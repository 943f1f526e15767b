"""Where the calls of a model go. Each post is that of one agent."""

from collections.abc import Sequence
from typing import Any, Protocol

from agentpost.edges.async_operator_client import AsyncOperatorClient
from agentpost.edges.operations import OPERATIONS
from agentpost.edges.operator_client import new_retry_key, path_of

__all__ = ["LocalPost", "Post"]


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

    async def call(self, operation: str, args: dict[str, Any]) -> dict[str, Any]:
        wait_seconds = args.get("waitSeconds")
        found = OPERATIONS.get(operation)
        done = await self._gateway.post(
            path_of("ansible", "agents", self.agent, "operations"),
            {"operation": operation, "args": args},
            # Whatever else it may be is the gateway's to refuse.
            wait_seconds=wait_seconds if isinstance(wait_seconds, int | float) else 0,
            # A key that the model gives among the arguments counts instead of this one.
            key=new_retry_key() if found is not None and found.is_keyed else None,
        )
        return done["result"]
