"""The owner's side of a distribution (CAP-4): each active agent but the owner gets a task with the bundle in it.

Which agent got which task is noted in the transaction that creates the task. An agent that comes later gets one at the
next look. How far each has come is read from the tasks: nothing is kept twice.
"""

import asyncio
import base64
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import TaskCompleteEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import TaskId
from agentpost.protocol.payloads import Priority, SkillRef
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.room.document import Room
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.work.capabilities.book import ManifestBook, Page
from agentpost.work.capabilities.catalog import Installation
from agentpost.work.capabilities.desk import CapabilityDesk
from agentpost.work.offering import NewTask
from agentpost.work.tasks import Tasks
from agentpost.world import Clock

__all__ = ["DECLINED", "SKILL_DISTRIBUTION", "Distributor"]

_log = logging.getLogger(__name__)

SKILL_DISTRIBUTION: Final = "skill_distribution"
# The failure class of an agent that takes no skills of others.
DECLINED: Final = "declined"
_COLLECTION: Final = "distributions"
_PAGE: Final = 256
# Each task carries the bundle for itself; so many of them are made at once.
_AT_ONCE: Final = 16


class Distributor:
    def __init__(
        self, *, store: Store, room: Room, clock: Clock, book: ManifestBook, desk: CapabilityDesk, tasks: Tasks
    ) -> None:
        self._store = store
        self._room = room
        self._clock = clock
        self._book = book
        self._desk = desk
        self._tasks = tasks
        self._one_at_a_time = asyncio.Lock()

    async def spread(self) -> int:
        """Give every agent that has none yet the task to install what is published here. Gives how many got one."""
        made = 0
        async with self._one_at_a_time:
            for page in self._book.own():
                known = self._tasks_of(page.capability_id, page.version)
                made += await self._give(page, [each for each in self._agents(page) if each not in known])
        return made

    async def again(self, capability_id: str) -> int:
        """Give a new task to those whose installation failed or was declined."""
        page = self._book.active(capability_id)
        if page is None:
            raise Refusal(
                Code.NOT_FOUND,
                f"{capability_id!r:.80} is not published by this gateway",
                field="capabilityId",
                hint="Its owner's gateway distributes it: agentpost capability show.",
            )
        async with self._one_at_a_time:
            failed = {
                each.agent_id for each in self.installations(capability_id, page.version) if each.problem is not None
            }
            return await self._give(page, [each for each in self._agents(page) if each in failed])

    def installations(self, capability_id: str, version: str) -> list[Installation]:
        """How far each agent has come, as far as this gateway gave the tasks."""
        found = sorted(self._tasks_of(capability_id, version).items())
        return [_installation(self._store, agent_id, task_id) for agent_id, task_id in found]

    async def _give(self, page: Page, agent_ids: Sequence[str]) -> int:
        if not agent_ids:
            return 0
        try:
            given = await asyncio.to_thread(self._content, page)
        except Refusal as refusal:
            _log.warning("the skill of %s cannot be distributed: %s", page.capability_id, refusal.message)
            return 0
        ref = page.manifest.declaration.delegation_skill_ref
        for first in range(0, len(agent_ids), _AT_ONCE):
            task = NewTask(
                requester_agent_id=page.manifest.declaration.owner_agent_id,
                title=f"Install the skill {ref.name} {ref.version}",
                description=f"It is how to delegate {page.capability_id} {page.version}. Your gateway installs it.",
                to_agents=tuple(agent_ids[first : first + _AT_ONCE]),
                input=given,
                priority=Priority.LOW,
                task_type=SKILL_DISTRIBUTION,
                delegation_skill_ref=SkillRef(name=ref.name, version=ref.version),
            )
            await self._tasks.create_each(task, notes=lambda tasks: self._notes(page, tasks))
        return len(agent_ids)

    def _content(self, page: Page) -> dict[str, Any]:
        bundle = self._desk.bundle_of(page)
        return {
            "manifest": msgspec.to_builtins(page.signed),
            "sha256": bundle.sha256,
            "bundle": base64.b64encode(bundle.raw).decode(),
        }

    def _agents(self, page: Page) -> list[str]:
        owner = page.manifest.declaration.owner_agent_id
        agents = self._room.snapshot().agents
        return sorted(agent_id for agent_id, agent in agents.items() if agent.is_active and agent_id != owner)

    def _notes(self, page: Page, tasks: Mapping[str, TaskId]) -> list[Note]:
        now_ms = self._clock.now_ms()
        return [
            Note(
                collection=_COLLECTION,
                key=f"{page.capability_id}/{page.version}/{agent_id}",
                value=task_id.encode(),
                at_ms=now_ms,
            )
            for agent_id, task_id in tasks.items()
        ]

    def _tasks_of(self, capability_id: str, version: str) -> dict[str, TaskId]:
        prefix = f"{capability_id}/{version}/"
        found: dict[str, TaskId] = {}
        after = prefix
        while notes := self._store.notes(_COLLECTION, after_key=after, limit=_PAGE):
            after = notes[-1].key
            found |= {
                note.key.removeprefix(prefix): TaskId((note.value or b"").decode())
                for note in notes
                if note.key.startswith(prefix)
            }
            if not after.startswith(prefix):
                break
        return found


def _installation(store: Store, agent_id: str, task_id: TaskId) -> Installation:
    record = store.task(task_id)
    if record is None:
        return Installation(agent_id=agent_id, state="unknown", task_id=task_id, problem="its task was pruned")
    if record.state is TaskState.COMPLETED:
        version, at = _installed(store, record)
        return Installation(
            agent_id=agent_id, state="installed", task_id=task_id, installed_version=version, installed_at=at
        )
    if record.state is TaskState.FAILED:
        problem = record.failure_class or "failed"
        state = DECLINED if problem == DECLINED else "failed"
        return Installation(agent_id=agent_id, state=state, task_id=task_id, problem=problem)
    state = "offered" if record.accepted_by_agent_id is None else "installing"
    return Installation(agent_id=agent_id, state=state, task_id=task_id)


def _installed(store: Store, record: TaskRecord) -> tuple[str | None, str | None]:
    for entry in reversed(store.task_events(record.task_id)):
        event = decode_event(entry.raw)
        if isinstance(event, TaskCompleteEvent):
            return event.payload.installed_version, event.payload.installed_at
    return None, None
