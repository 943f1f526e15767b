"""What the agents of a mesh share, at one gateway: capabilities, skills, reviews, the delegation policy."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentpost.delivery.engine import Engine
from agentpost.protocol.envelope import SignalEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import CorrId, TaskId
from agentpost.protocol.routing import RouteRequest
from agentpost.room.document import Room
from agentpost.tasks import TaskOwner
from agentpost.work.capabilities.book import ManifestBook
from agentpost.work.capabilities.catalog import Catalog
from agentpost.work.capabilities.contracts import CapabilityContracts
from agentpost.work.capabilities.desk import CapabilityDesk
from agentpost.work.capabilities.records import CATALOG
from agentpost.work.contracts import ContractChecker
from agentpost.work.delegation.desk import DelegationDesk
from agentpost.work.migration.bridge import Bridge
from agentpost.work.reviews.board import ReviewBoard
from agentpost.work.reviews.reporter import ReviewReporter
from agentpost.work.reviews.triggers import ReviewTriggers
from agentpost.work.skills.distribution import SKILL_DISTRIBUTION, Distributor
from agentpost.work.skills.installer import Installer
from agentpost.work.skills.places import SkillPlaces
from agentpost.work.tasks import Tasks

__all__ = ["Commons"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0


class Commons:
    """One for each gateway. `start` it after the engine, `close` it before."""

    def __init__(
        self, *, engine: Engine, tasks: Tasks, room: Room, signing: Ed25519PrivateKey, skills: Path, archive: Path
    ) -> None:
        store, clock = engine.store, engine.clock
        self._room = room
        self._tasks = TaskOwner("commons")
        self.places = SkillPlaces(store, default=skills)
        self.book = ManifestBook(store)
        self._checker = ContractChecker(clock)
        self.desk = CapabilityDesk(
            store=store,
            room=room,
            signing=signing,
            clock=clock,
            book=self.book,
            places=self.places,
            checker=self._checker,
        )
        self.reviews = ReviewBoard(room)
        self.reporter = ReviewReporter(
            store=store, room=room, board=self.reviews, maker=engine.maker, clock=clock, wakeups=engine.wakeups
        )
        self.delegation = DelegationDesk(store=store, room=room, publisher=engine.publisher, clock=clock)
        self.distributor = Distributor(store=store, room=room, clock=clock, book=self.book, desk=self.desk, tasks=tasks)
        self.installer = Installer(engine=engine, book=self.book, places=self.places, tasks=tasks)
        self.triggers = ReviewTriggers(
            store=store, room=room, moves=engine.task_moves, reporter=self.reporter, clock=clock
        )
        self.contracts = CapabilityContracts(
            room=engine.room, book=self.book, reporter=self.reporter, checker=self._checker
        )
        self.migration = Bridge(engine=engine, tasks=tasks, archive=archive)
        self.catalog = Catalog(
            room=engine.room,
            clock=clock,
            book=self.book,
            desk=self.desk,
            own_node_id=store.node_id,
            raw=lambda capability_id: room.record(CATALOG, capability_id),
            installations=self.distributor.installations,
            reviews=lambda capability_id: [item.review_id for item in self.reviews.items(capability_id)],
        )
        engine.wakeups.listen(signals=self._signals_heard, tasks=self._tasks_moved)
        engine.dispatcher.turns.kept_task_types = frozenset({SKILL_DISTRIBUTION})
        engine.task_moves.contracts = self.contracts
        engine.publisher.route_missed = self._route_missed

    def start(self) -> None:
        """Begin with what is kept: after a crash the room may say less than the book."""
        self._tasks.spawn(self._keep_true(), name="keeper")

    async def close(self) -> None:
        await self._tasks.close()

    async def end_checks(self) -> None:
        """End the processes that check contracts. After the last turn: its output is checked, too."""
        await self._checker.close()

    async def look(self) -> None:
        """Make true what is kept here: the room, the reviews that were not heard, a policy that nobody was told of."""
        self.desk.restore()
        await self.distributor.spread()
        await self.installer.retry()
        await self.reporter.bring_all()
        await self.delegation.announce()

    async def _keep_true(self) -> None:
        await self._served(self.installer.resume())
        await self._served(self.triggers.catch_up())
        while True:
            await self._served(self.look())
            await asyncio.sleep(_LOOK_SECONDS)

    def _tasks_moved(self, task_ids: Sequence[TaskId]) -> None:
        self._tasks.spawn(self._served(self.installer.serve(task_ids)), name="installer")
        self._tasks.spawn(self._served(self.triggers.tasks_moved(task_ids)), name="reviews")

    def _route_missed(self, wanted: RouteRequest, corr_id: CorrId) -> None:
        self._tasks.spawn(self._served(self.triggers.route_missed(wanted, corr_id)), name="reviews")

    async def _served(self, serving: Awaitable[None]) -> None:
        try:
            await serving
        except Refusal as refusal:
            _log.warning("capabilities and reviews wait for the next look: %s", refusal.message)

    def _signals_heard(self, signals: Sequence[SignalEvent]) -> None:
        self._tasks.spawn(self.reporter.hear(signals), name="reviews")
