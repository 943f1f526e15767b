"""The runtime of agents that fetch their mail by themselves: options, and nothing else. See `delivery.pull`."""

from typing import Annotated, ClassVar

from msgspec import Meta

from agentpost.delivery.ports import Engagement, Result
from agentpost.delivery.pull import LEASE_SECONDS
from agentpost.edges.runtimes import answers
from agentpost.edges.runtimes.options import Options
from agentpost.protocol.ids import EventId

__all__ = ["PullOptions", "PullRuntime"]


class PullOptions(Options, frozen=True, kw_only=True, rename="camel"):
    """How long what is fetched stays with the agent before somebody else may fetch it."""

    SECRETS: ClassVar[frozenset[str]] = frozenset()

    lease_seconds: Annotated[float, Meta(ge=1, le=86_400)] = LEASE_SECONDS


class PullRuntime:
    """Nobody engages an agent that pulls; mail that is handed to it all the same stays where it is."""

    is_idempotent = True
    max_concurrent = 1

    async def engage(self, engagement: Engagement) -> Result:
        return answers.retry("the agent fetches its mail by itself")

    async def ask(self, event_id: EventId) -> Result | None:
        return None

    async def close(self) -> None:
        pass
