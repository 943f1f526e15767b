"""The parts of `work` for one gateway, put together. Starts them and stops them; decides nothing by itself."""

from agentpost.delivery.engine import Engine
from agentpost.protocol.ids import EventId
from agentpost.work.context import Contexts
from agentpost.work.coordination import Board, Coordination
from agentpost.work.settings import WorkSettings
from agentpost.work.sweep import Sweeper
from agentpost.work.tasks import Tasks
from agentpost.world import Chance

__all__ = ["Office"]


class Office:
    """What agents do for each other through this gateway. The edges call its parts by their names."""

    def __init__(self, engine: Engine, *, board: Board, chance: Chance, settings: WorkSettings | None = None) -> None:
        self.settings = settings or WorkSettings()
        self.tasks = Tasks(engine)
        self.contexts = Contexts(engine, self.tasks, chance=chance, max_bytes=self.settings.context_bytes)
        self.sweeper = Sweeper(engine, self.tasks, self.settings)
        self.coordination = Coordination(engine, board, self.sweeper)
        engine.dispatcher.dispatch_incoming = self.settings.dispatch_incoming
        engine.dispatcher.turns.inject = self._injected

    def start(self) -> None:
        """Begin to lead the sweeps, whenever it is this gateway's turn."""
        self.coordination.start()

    async def close(self) -> None:
        await self.coordination.close()

    def _injected(self, agent_id: str, event_id: EventId) -> str | None:
        """OPS-5: what an agent gets along with an event, if it is one of those that want it."""
        if agent_id not in self.settings.inject_context_agents:
            return None
        return self.contexts.block(agent_id, besides=event_id).text
