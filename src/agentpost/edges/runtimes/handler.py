"""Engages an agent that is a Python function in this process: `async def (engagement) -> str | Content | None`."""

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias

from agentpost.delivery.ports import Content, Engagement, Result
from agentpost.delivery.wording import told
from agentpost.edges.runtimes import answers
from agentpost.edges.runtimes.options import Options, Timeout
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId

__all__ = ["Handler", "HandlerOptions", "HandlerRuntime", "load_handler"]

Handler: TypeAlias = Callable[[Engagement], Awaitable[str | Content | None]]


class HandlerOptions(Options, frozen=True, kw_only=True, rename="camel"):
    """`function` is module:function. Without `timeout_seconds` a turn may last as long as it likes."""

    SECRETS: ClassVar[frozenset[str]] = frozenset()

    function: str
    idempotent: bool = False
    timeout_seconds: Timeout | None = None


class HandlerRuntime:
    def __init__(
        self,
        handler: Handler,
        *,
        max_concurrent: int = 1,
        is_idempotent: bool = False,
        timeout_seconds: float | None = None,
    ) -> None:
        self._handler = handler
        self._timeout_seconds = timeout_seconds
        self.max_concurrent = max_concurrent
        self.is_idempotent = is_idempotent

    async def engage(self, engagement: Engagement) -> Result:
        limit = None if self._timeout_seconds is None else asyncio.timeout(self._timeout_seconds)
        try:
            if limit is None:
                return _as_result(await self._handler(engagement))
            async with limit:
                return _as_result(await self._handler(engagement))
        except asyncio.CancelledError:
            if (turn := asyncio.current_task()) is None or turn.cancelling():
                raise
            # Nobody ended this turn: something that the function waited for was cancelled.
            return answers.retry("CancelledError: what it waited for was cancelled")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever somebody's function raises is an attempt that failed
            if isinstance(error, TimeoutError) and limit is not None and limit.expired():
                return answers.retry(f"it took longer than {self._timeout_seconds:g} s")
            return answers.retry(told(error))

    async def ask(self, event_id: EventId) -> Result | None:
        return None

    async def close(self) -> None:
        pass


def _as_result(reply: object) -> Result:
    if reply is None or isinstance(reply, str | Content):
        return answers.processed(reply)
    return answers.failed(f"the handler gave a {type(reply).__name__}; a reply is text, Content or None")


def load_handler(path: str) -> Handler:
    """The function that `module:function` names; a refusal if there is none."""
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise _refused("must be module:function")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        hint = (
            "The gateway's own Python has to find the module: install it there, or start the gateway with PYTHONPATH."
        )
        raise _refused(f"cannot be loaded: {error}", hint=hint) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs somebody's code
        raise _refused(f"cannot be imported: {type(error).__name__}") from None
    if not (inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(found, "__call__", None))):  # noqa: B004 - an object with an async __call__ is a handler too
        raise _refused("must be an async function")
    return found


def _refused(problem: str, *, hint: str | None = None) -> Refusal:
    return Refusal(Code.INVALID_FIELD, f"options.function {problem}", field="options.function", hint=hint)
