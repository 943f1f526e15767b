"""The tasks of one agent, as `client.tasks`: asked of others, and done for others."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agentpost.edges.async_operator_client import AsyncOperatorClient
from agentpost.edges.operator_client import new_retry_key, path_of
from agentpost.protocol.payloads import Priority
from agentpost.work.offering import Offered
from agentpost.work.tasks import Moved, Role, TaskLine, TaskView

__all__ = ["TaskCalls"]

_FIRST_LOOK_SECONDS: Final = 0.05
_LOOK_EVERY_SECONDS: Final = 2.0


class TaskCalls:
    def __init__(self, gateway: AsyncOperatorClient, agent: str) -> None:
        self._gateway = gateway
        self._agent = agent

    async def create(
        self,
        title: str,
        *,
        to: str | Sequence[str] = (),
        capabilities: str | Sequence[str] = (),
        description: str = "",
        input: Any = None,  # noqa: A002 - the word that the contract of a capability uses
        priority: Priority = Priority.NORMAL,
        deadline_at: str | None = None,
        task_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> Offered:
        """Ask for work: from agents by name, or from whoever has the capabilities. The first claim has it."""
        said = {
            "requesterAgentId": self._agent,
            "title": title,
            "description": description,
            "toAgents": _listed(to),
            "requiredCapabilities": _listed(capabilities),
            "input": input,
            "priority": priority,
            "deadlineAt": deadline_at,
            "taskType": task_type,
        }
        key = idempotency_key or new_retry_key()
        return msgspec.convert(await self._gateway.post("/ansible/tasks", said, key=key), Offered)

    async def list(self, *, role: Role | None = None, only_open: bool = False, limit: int = 50) -> list[TaskLine]:
        """The tasks that concern the agent, the newest first."""
        query: dict[str, str | int] = {"agent": self._agent, "limit": limit, "only_open": str(only_open).lower()}
        if role is not None:
            query["role"] = role.value
        return msgspec.convert(await self._gateway.get("/ansible/tasks", query), list[TaskLine])

    async def show(self, task_id: str) -> TaskView:
        return msgspec.convert(await self._gateway.get(path_of("ansible", "tasks", task_id)), TaskView)

    async def ended(self, task_id: str, *, timeout_seconds: float) -> TaskView:
        """The task once it is over, or as it is when the time is."""
        loop = asyncio.get_running_loop()
        until, look_seconds = loop.time() + timeout_seconds, _FIRST_LOOK_SECONDS
        while True:
            view = await self.show(task_id)
            left_seconds = until - loop.time()
            if not view.is_open or left_seconds <= 0:
                return view
            await asyncio.sleep(min(look_seconds, left_seconds))
            look_seconds = min(2 * look_seconds, _LOOK_EVERY_SECONDS)

    async def claim(
        self,
        task_id: str,
        *,
        eta_seconds: int,
        plan_summary: str | None = None,
        idempotency_key: str | None = None,
    ) -> Moved:
        """Accept a task. While the verdict is `pending` the work must not begin."""
        said = {"etaSeconds": eta_seconds, "planSummary": plan_summary}
        return await self._move(task_id, "claim", said, idempotency_key)

    async def update(
        self,
        task_id: str,
        *,
        progress: int | None = None,
        note: str | None = None,
        revised_eta_seconds: int | None = None,
        notify: bool = False,
        idempotency_key: str | None = None,
    ) -> Moved:
        """Say how it goes, in per cent, and when it will be done if that has changed."""
        said = {"progress": progress, "note": note, "revisedEtaSeconds": revised_eta_seconds, "notify": notify}
        return await self._move(task_id, "update", said, idempotency_key)

    async def complete(
        self,
        task_id: str,
        result_summary: str,
        *,
        output: Any = None,
        result_ref: str | None = None,
        idempotency_key: str | None = None,
    ) -> Moved:
        """The work is done. The requester always hears of it."""
        said = {"resultSummary": result_summary, "output": output, "resultRef": result_ref}
        return await self._move(task_id, "complete", said, idempotency_key)

    async def fail(
        self,
        task_id: str,
        error_summary: str,
        *,
        failure_class: str = "failed",
        idempotency_key: str | None = None,
    ) -> Moved:
        """The work cannot be done. The requester always hears of it."""
        said = {"errorSummary": error_summary, "failureClass": failure_class}
        return await self._move(task_id, "fail", said, idempotency_key)

    async def _move(self, task_id: str, how: str, said: dict[str, Any], idempotency_key: str | None) -> Moved:
        body = {"agentId": self._agent} | {name: value for name, value in said.items() if value is not None}
        path, key = path_of("ansible", "tasks", task_id, how), idempotency_key or new_retry_key()
        return msgspec.convert(await self._gateway.post(path, body, key=key), Moved)


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
