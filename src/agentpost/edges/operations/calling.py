"""What every operation has: who calls, what it works on, what it gives."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import Struct

from agentpost.delivery.engine import Engine
from agentpost.delivery.pull import LONGEST_WAIT_SECONDS
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId
from agentpost.work.tasks import Tasks

__all__ = ["Caller", "Desk", "Done", "Operation"]


class Caller(Struct, frozen=True, kw_only=True):
    """On whose behalf. `ended` is set when the caller may not be here any more; `wait_seconds` is the longest wait.

    `scopes` are for what an operation shows besides: whether it may be called at all was decided before.
    """

    agent_id: str
    scopes: frozenset[str]
    context: CorrId | None = None
    ended: asyncio.Event
    wait_seconds: float = LONGEST_WAIT_SECONDS

    def conversation(self, wanted: str | None) -> CorrId | None:
        """The conversation to speak in: the one that is wanted, which has to be that of the context if there is one."""
        if self.context is not None and wanted not in (None, self.context):
            raise Refusal(Code.SCOPE_DENIED, "this call is bound to another conversation", field="args.corrId")
        chosen = wanted or self.context
        return None if chosen is None else CorrId(chosen)


class Desk(NamedTuple):
    """The parts of a gateway that operations call."""

    engine: Engine
    tasks: Tasks


class Done(NamedTuple):
    """What an operation gives, and the conversation that it was in, if in one."""

    result: dict[str, Any]
    corr_id: str | None = None


class Operation(NamedTuple):
    args: type[Struct]
    run: Callable[[Desk, Caller, Any], Awaitable[Done]]
