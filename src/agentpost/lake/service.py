"""The lake of a running gateway: exports in a thread of its own, so that mail never waits for it.

What is not exported yet is not pruned. A lake that cannot be reached is an incident, and is tried again.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from msgspec import Struct

from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.export import Exporter, ExportProgress
from agentpost.lake.facts import FactLog, Facts, gather_facts
from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.place import open_lake
from agentpost.lake.settings import LakeSettings
from agentpost.protocol.errors import Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.document import Room
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import Incident
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["Exported", "LakeService", "LakeStatus", "to_prometheus"]

_log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS: Final = 1.0
# Facts change all the time: between two change logs lies at least this much.
_FACTS_EVERY_SECONDS: Final = 60.0
_PROBLEM: Final = IncidentKind.LAKE_EXPORT


class Exported(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one round brought into the lake."""

    segments: list[SegmentManifest]
    facts: int


class LakeStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where the lake is and how far each outbox is in it; `problem` is why nothing can be exported."""

    path: str
    outboxes: list[ExportProgress]
    problem: str | None = None


class LakeService:
    """`room` is None for a gateway that does not run: then less is known, and the rest stays as it was."""

    def __init__(
        self,
        settings: LakeSettings,
        *,
        home: Path,
        store: Store,
        room: Room | None,
        identity: Identity,
        tier: NodeTier,
        policy: DeliveryPolicy,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._room = room
        self._identity = identity
        self._tier = tier
        self._policy = policy
        self._clock = clock
        self._lake = open_lake(settings.path)
        self._stopping = False
        self._exporter = Exporter(
            self._lake,
            home=home,
            signing=identity.signing,
            settings=settings,
            clock=clock,
            keep_going=lambda: not self._stopping,
        )
        self._facts = FactLog(self._lake, store.node_id)
        self._facts_due_at_ms = clock.monotonic_ms()
        self._problem: str | None = None
        self._tasks = TaskOwner("lake")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lake")
        self._rounds = asyncio.Lock()

    def start(self) -> None:
        self._tasks.spawn(self._run(), name="export")

    async def close(self) -> None:
        """Finish the segment that is being written, and stop."""
        self._stopping = True
        async with self._rounds:
            await self._tasks.close()
        self._thread.shutdown(wait=False)

    def status(self) -> LakeStatus:
        return LakeStatus(path=self._lake.where, outboxes=self._exporter.progress(), problem=self._problem)

    def held_after(self, node_id: str, epoch: str) -> int | None:
        """The last seq of an outbox that is in the lake: what follows must not be pruned. None holds nothing."""
        if node_id != self._store.node_id and not self._settings.mirrors:
            return None
        return self._exporter.exported_seq(node_id, epoch)

    async def export(self, *, now: bool) -> Exported:
        """One round: the segments that are due, or with `now` all there is, and the facts that changed."""
        async with self._rounds:
            facts = self._due_facts(now=now)
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._export, facts, now)

    def _due_facts(self, *, now: bool) -> Facts | None:
        if not now and self._clock.monotonic_ms() < self._facts_due_at_ms:
            return None
        every_seconds = max(self._settings.seal_every_seconds, _FACTS_EVERY_SECONDS)
        self._facts_due_at_ms = self._clock.monotonic_ms() + round(every_seconds * 1000)
        return gather_facts(
            room=self._room,
            store=self._store,
            identity=self._identity,
            tier=self._tier,
            policy=self._policy,
            now_ms=self._clock.now_ms(),
        )

    def _export(self, facts: Facts | None, now: bool) -> Exported:
        # Facts first: a segment is never there before the key that vouches for it.
        count = 0
        if facts is not None:
            at_us = self._clock.now_ms() * 1000
            count = self._facts.append(facts, self._store, at_us=at_us, is_complete=self._room is not None)
        return Exported(segments=self._exporter.export(now=now), facts=count)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self.export(now=False)
            except Refusal as refusal:
                await self._note(refusal.message)
            else:
                problems = [each.problem for each in self._exporter.progress() if each.problem is not None]
                await self._note(problems[0] if problems else None)
            await asyncio.sleep(min(_LOOK_EVERY_SECONDS, self._settings.seal_every_seconds))

    async def _note(self, problem: str | None) -> None:
        """Tell somebody of a new problem, and that it is over."""
        if problem == self._problem:
            return
        before, self._problem = self._problem, problem
        now_ms = self._clock.now_ms()
        try:
            if problem is None:
                await self._store.close_incident(_PROBLEM, self._lake.where, at_ms=now_ms)
            elif before is None:
                _log.error("the lake is behind: %s", problem)
                incident = Incident(kind=_PROBLEM, subject=self._lake.where, at_ms=now_ms, detail={"reason": problem})
                await self._store.raise_incident(incident)
        except Refusal as refusal:
            _log.error("an incident about the lake could not be noted: %s", refusal.message)


def to_prometheus(status: LakeStatus) -> str:
    """How far the lake is, in the text format that Prometheus scrapes."""
    lines: list[str] = []
    for name, text, value in (
        ("agentpost_lake_exported_seq", "Last seq of an outbox that is in the lake.", "exported_seq"),
        ("agentpost_lake_lag_events", "Events of an outbox that are not in the lake yet.", "lag_events"),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f'{name}{{node="{each.node_id}"}} {getattr(each, value)}' for each in status.outboxes]
    lines += [
        "# HELP agentpost_lake_up Whether the last export reached the lake.",
        "# TYPE agentpost_lake_up gauge",
        f"agentpost_lake_up {int(status.problem is None)}",
    ]
    return "\n".join(lines) + "\n"
