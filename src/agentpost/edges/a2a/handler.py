"""What the SDK calls, once for each operation, over whichever binding. Every refusal leaves as an error of A2A."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import wraps
from typing import Any, Final, TypeVar, cast

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers import request_handler
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from agentpost.edges.a2a.cards import INPUT_MODES
from agentpost.edges.a2a.errors import as_a2a
from agentpost.edges.a2a.listing import list_tasks
from agentpost.edges.a2a.parts import Parts
from agentpost.edges.a2a.reading import Told
from agentpost.edges.a2a.states import ENDS
from agentpost.edges.a2a.visiting import VISIT, Visit
from agentpost.edges.a2a.watching import LONGEST_WAIT_SECONDS, is_settled
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, TaskId

__all__ = ["Handler"]

_log = logging.getLogger(__name__)

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Any])


def _visit(context: ServerCallContext) -> Visit:
    return cast(Visit, context.state[VISIT])


def _as_error(error: Exception, visit: Visit) -> A2AError:
    if isinstance(error, A2AError):
        visit.refusal = Refusal(Code.INVALID_FIELD, type(error).__name__)
        return error
    if isinstance(error, Refusal):
        visit.refusal = error
        return as_a2a(error)
    _log.error("a defect in A2A", exc_info=error)
    visit.refusal = Refusal(Code.INTERNAL, "the gateway failed to answer this request")
    return InternalError(visit.refusal.message)


def _checked(method: AnyMethod) -> AnyMethod:
    check = cast(Any, request_handler).validate_request_params  # untyped in the SDK
    return cast(AnyMethod, check(method))


def _answers(method: AnyMethod) -> AnyMethod:
    """Let nothing out but what A2A has a name for."""
    checked = _checked(method)

    @wraps(method)
    async def answer(self: Any, params: Any, context: ServerCallContext) -> Any:
        try:
            return await checked(self, params, context)
        except Exception as error:  # noqa: BLE001 - a defect is answered, too, and logged
            raise _as_error(error, _visit(context)) from None

    return cast(AnyMethod, answer)


def _streams(method: AnyMethod) -> AnyMethod:
    """The same for what is told bit by bit."""
    checked = _checked(method)

    @wraps(method)
    async def stream(self: Any, params: Any, context: ServerCallContext) -> AsyncGenerator[Event]:
        try:
            async with aclosing(checked(self, params, context)) as events:
                async for event in events:
                    yield event
        except Exception as error:  # noqa: BLE001 - a defect is answered, too, and logged
            raise _as_error(error, _visit(context)) from None

    return cast(AnyMethod, stream)


class Handler(RequestHandler):
    """One for all agents that are exposed: which of them is called says the visit."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @_answers
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Answered when it is the peer's turn again, or at once if it wants that; later it can ask."""
        visit = _visit(context)
        task_id = await self._send(visit, params)
        told = self._read(visit, task_id)
        if not params.configuration.return_immediately:
            async for told in self._looks(visit, task_id):
                if is_settled(told):
                    break
        return await self._shown(visit, told, params.configuration)

    @_streams
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        visit = _visit(context)
        task_id = await self._send(visit, params)
        async for event in self._told(visit, task_id, params.configuration):
            yield event

    @_streams
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        visit = _visit(context)
        record, known = self._parts.sending.expect(visit, params.id)
        if self._parts.reader.state(record, known) in ENDS:
            raise UnsupportedOperationError(f"task {record.task_id} is over: there is nothing more to hear")
        async for event in self._told(visit, record.task_id, None):
            yield event

    @_answers
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        validate_history_length(params)
        visit = _visit(context)
        return await self._shown(visit, self._read(visit, params.id), params)

    @_answers
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        return list_tasks(self._parts.store, self._parts.reader, _visit(context), params)

    @_answers
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        visit = _visit(context)
        record, _ = self._parts.sending.expect(visit, params.id)
        try:
            await self._parts.tasks.cancel(record.task_id, visit.peer_id)
        except Refusal as refusal:
            if refusal.code is not Code.INVALID_TRANSITION:
                raise
            raise as_a2a(refusal, TaskNotCancelableError) from None
        return await self._shown(visit, self._read(visit, record.task_id), None)

    @_answers
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        task_id = self._expect_to_push(_visit(context), params.task_id)
        made = await self._parts.push.create(task_id, params)
        self._parts.moved(task_id)
        return made

    @_answers
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        task_id = self._expect_to_push(_visit(context), params.task_id)
        return self._parts.push.get(task_id, params.id)

    @_answers
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """All on one page: there are few."""
        task_id = self._expect_to_push(_visit(context), params.task_id)
        return ListTaskPushNotificationConfigsResponse(configs=self._parts.push.of(task_id))

    @_answers
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        task_id = self._expect_to_push(_visit(context), params.task_id)
        await self._parts.push.delete(task_id, params.id)

    @_answers
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        raise UnsupportedOperationError("there is one card for everybody, at /.well-known/agent-card.json")

    async def _send(self, visit: Visit, params: SendMessageRequest) -> TaskId:
        validate_history_length(params.configuration)
        _check_modes(params)
        task_id = await self._parts.sending.send(visit, params)
        self._parts.moved(task_id)
        return task_id

    async def _told(self, visit: Visit, task_id: TaskId, config: Any) -> AsyncIterator[Event]:
        """The task as it stands, then every step, until it is the peer's turn."""
        seen: set[EventId] = set()
        async for told in self._looks(visit, task_id):
            if not seen:
                yield await self._shown(visit, told, config)
            else:
                for event in told.events(seen):
                    yield event
                await self._parts.settle(visit.peer_id, told)
            seen.update(step.event_id for step in told.steps)
            if is_settled(told):
                return

    async def _looks(self, visit: Visit, task_id: TaskId) -> AsyncIterator[Told]:
        """The task each time that something was said about it, for as long as the peer may wait for that."""
        clock, until_ms = self._parts.clock, visit.admitted.claims.expires_at_ms
        left_seconds = min(LONGEST_WAIT_SECONDS, (until_ms - clock.now_ms()) / 1000)
        since_ms = clock.monotonic_ms()
        with self._parts.watch.of(task_id, visit.peer_id) as woken:
            while True:
                woken.clear()
                yield self._read(visit, task_id)
                seconds = left_seconds - (clock.monotonic_ms() - since_ms) / 1000
                is_woken = await self._parts.watch.first(woken, visit.ended, seconds=seconds)
                if visit.ended.is_set():
                    raise Refusal(Code.INVALID_ACCESS_TOKEN, "the session was revoked while this call waited")
                if not is_woken:
                    return

    def _expect_to_push(self, visit: Visit, task_id: str) -> TaskId:
        """The task of the peer whose notifications it may know and change."""
        visit.expect_own_token()
        return self._parts.sending.expect(visit, task_id)[0].task_id

    def _read(self, visit: Visit, task_id: str) -> Told:
        record, known = self._parts.sending.expect(visit, task_id)
        return self._parts.reader.read(record, known)

    async def _shown(self, visit: Visit, told: Told, config: Any) -> Task:
        await self._parts.settle(visit.peer_id, told)
        return apply_history_length(told.task(), config)


_MODES: Final = frozenset(INPUT_MODES)


def _check_modes(params: SendMessageRequest) -> None:
    """Refuse what the card does not offer, and what the peer could not take as an answer."""
    strange = [part.media_type for part in params.message.parts if part.media_type not in ("", *_MODES)]
    if strange:
        raise ContentTypeNotSupportedError(f"{strange[0]!r:.80} is not among {', '.join(INPUT_MODES)}")
    accepted = set(params.configuration.accepted_output_modes)
    if accepted and not accepted & {*_MODES, "*/*"}:
        raise ContentTypeNotSupportedError(f"answers are {' or '.join(INPUT_MODES)}")
