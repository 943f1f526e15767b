"""A message of a peer becomes a task, or a word about one that it has. The same message twice is one (RTY-3).

The note that knows a message is written in the transaction of what it became: after a crash it is either both or none.
"""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from a2a.types import Message, SendMessageRequest

from agentpost.delivery.engine import Engine
from agentpost.delivery.ports import Content
from agentpost.delivery.publish import SendRequest
from agentpost.edges.a2a.exposing import Exposures
from agentpost.edges.a2a.noting import KnownTask, Notebook, begun, followed, message_key, taken
from agentpost.edges.a2a.push import PushConfigs
from agentpost.edges.a2a.visiting import Visit
from agentpost.edges.a2a.wording import Said, about_task, said, skill_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId, TaskId, corr_id_of, derived_event_id, parse_id
from agentpost.protocol.taskbook import TaskRecord
from agentpost.store.values import Note
from agentpost.work.offering import NewTask
from agentpost.work.tasks import Tasks

__all__ = ["Sending"]

TASK_TYPE: Final = "a2a"


class Sending:
    def __init__(self, engine: Engine, tasks: Tasks, exposures: Exposures, push: PushConfigs) -> None:
        self._engine = engine
        self._tasks = tasks
        self._exposures = exposures
        self._push = push
        self._notebook = Notebook(engine.store)
        # Only one gateway has this store, so whoever asks twice at once waits here.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def send(self, visit: Visit, request: SendMessageRequest) -> TaskId:
        """The task that this message is about: a new one, one of the peer's, or the one that it became before."""
        message, what = request.message, said(request.message)
        key = message_key(visit.peer_id, visit.agent_id, message.message_id)
        digest = sha256(message.SerializeToString(deterministic=True)).hexdigest()
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._notebook.message(key)
            if known is not None:
                _expect_same(known.digest, digest)
                return known.task_id
            if message.task_id:
                return await self._follow_up(visit, message, what, key, digest)
            return await self._begin(visit, request, what, key, digest)

    async def _begin(self, visit: Visit, request: SendMessageRequest, what: Said, key: str, digest: str) -> TaskId:
        message = request.message
        corr_id = self._conversation(visit, message.context_id)
        skill_id = self._skill(visit, message)
        config = request.configuration
        has_push = config.HasField("task_push_notification_config")
        if has_push:
            visit.expect_own_token()
            await self._push.check(config.task_push_notification_config)

        def notes(by_agent: Mapping[str, TaskId]) -> Sequence[Note]:
            (task_id,) = set(by_agent.values())
            at_ms = self._engine.clock.now_ms()
            known = KnownTask(
                peer_id=visit.peer_id,
                agent_id=visit.agent_id,
                context_id=message.context_id or corr_id,
                message_id=message.message_id,
            )
            made = [taken(key, task_id=task_id, digest=digest, at_ms=at_ms), begun(task_id, known, at_ms=at_ms)]
            return [*made, self._push.note(task_id, config.task_push_notification_config)] if has_push else made

        offered = await self._tasks.offering.create(
            NewTask(
                requester_agent_id=visit.peer_id,
                title=what.title,
                description=what.text,
                to_agents=(visit.agent_id,),
                required_capabilities=() if skill_id is None else (skill_id,),
                input=what.input,
                task_type=TASK_TYPE,
                corr_id=corr_id,
            ),
            notes=notes,
        )
        return offered.task_id

    async def _follow_up(self, visit: Visit, message: Message, what: Said, key: str, digest: str) -> TaskId:
        record, known = self.expect(visit, message.task_id)
        if message.context_id and message.context_id != known.context_id:
            raise Refusal(Code.INVALID_FIELD, f"task {record.task_id} is in another context", field="message.contextId")
        if not record.is_open:
            raise Refusal(
                Code.INVALID_TRANSITION,
                f"task {record.task_id} is over",
                hint="Send a message without a taskId, in the same context, to ask for something new.",
            )
        event_id, at_ms = self._engine.ids.make(EventId), self._engine.clock.now_ms()
        await self._engine.publisher.send(
            SendRequest(
                source_agent_id=visit.peer_id,
                to_agents=(record.accepted_by_agent_id or visit.agent_id,),
                content=Content(
                    subject=f"About task {record.task_id}",
                    body=what.text,
                    context=about_task(record.task_id, what),
                ),
                corr_id=record.corr_id,
            ),
            event_id=event_id,
            notes=(
                taken(key, task_id=record.task_id, digest=digest, at_ms=at_ms),
                followed(record.task_id, event_id, message.message_id, at_ms=at_ms),
            ),
        )
        return record.task_id

    def expect(self, visit: Visit, task_id: str) -> tuple[TaskRecord, KnownTask]:
        """A task of the peer with this agent. Whether others have one of that name is not told."""
        known, record = self._notebook.task(task_id), self._engine.store.task(TaskId(task_id))
        context = visit.admitted.context
        if (
            known is None
            or record is None
            or (known.peer_id, known.agent_id) != (visit.peer_id, visit.agent_id)
            or context not in (None, record.corr_id)
        ):
            raise Refusal(Code.NOT_FOUND, f"there is no task {task_id!r:.40}", field="taskId")
        visit.corr_id = record.corr_id
        return record, known

    def _conversation(self, visit: Visit, context_id: str) -> CorrId:
        """The conversation that a context is: the one that it names, or one that follows from the peer's own name."""
        wanted = None if not context_id else _corr_id(visit.peer_id, context_id)
        bound = visit.admitted.context
        if bound is not None and wanted not in (None, bound):
            raise Refusal(Code.SCOPE_DENIED, "this token is for another context", field="message.contextId")
        return bound or wanted or corr_id_of(self._engine.ids.make(EventId))

    def _skill(self, visit: Visit, message: Message) -> str | None:
        wanted = skill_of(message)
        known = [each.capability_id for each in self._exposures.skills_of(visit.exposed)]
        if wanted is not None and wanted not in known:
            raise Refusal(
                Code.INVALID_FIELD,
                f"{visit.agent_id} has no skill {wanted!r:.80}",
                field="message.metadata.skillId",
                hint=f"Its card has: {', '.join(known) or 'none'}.",
            )
        return wanted


def _corr_id(peer_id: str, context_id: str) -> CorrId:
    try:
        return parse_id(CorrId, context_id, field="contextId")
    except Refusal:
        seed = msgspec.json.encode(("a2a context", peer_id, context_id))
        return corr_id_of(derived_event_id(seed, time_ms=0))


def _expect_same(known: str, digest: str) -> None:
    if known != digest:
        raise Refusal(
            Code.CONFLICT,
            "this messageId was used for another message",
            field="message.messageId",
            hint="Choose a new messageId for each message; use it again only to send the same one again.",
        )
