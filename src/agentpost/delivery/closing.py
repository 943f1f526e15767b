"""Closes incidents whose cause has gone, so that what is listed as open is what needs a look.

Whoever raises an incident closes it where it hears of the end. This looks after those that nobody would hear of: an
agent that was removed, an unclear outcome that was settled by hand, a gateway that is back or was revoked. Kinds that
are about one event in the past have no cause that could go; they stay open until an operator closes them.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from agentpost.delivery.failing import Failing
from agentpost.delivery.ports import RoomView
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.routing import is_live
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry, LedgerState
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["Closer"]

_log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS: Final = 2.0


class Closer:
    """One for each gateway."""

    def __init__(self, *, store: Store, room: RoomView, clock: Clock, failing: Failing) -> None:
        self._store = store
        self._room = room
        self._clock = clock
        self._failing = failing
        self._tasks = TaskOwner("closing")
        self._has_gone: Mapping[IncidentKind, Callable[[str], bool]] = {
            IncidentKind.AGENT_FAILING: lambda agent_id: self._failing.of(agent_id) is None,
            IncidentKind.AGENT_CONFLICT: self._is_undisputed,
            IncidentKind.NO_ROUTE: self._has_route,
            IncidentKind.OWNER_SILENT: self._is_heard_or_out,
            IncidentKind.INDETERMINATE: self._is_settled,
            IncidentKind.RUNTIME_UNUSABLE: lambda agent_id: self._store.local_agent(agent_id) is None,
        }

    def start(self) -> None:
        self._tasks.spawn(self._look_on(), name="incidents")

    async def close(self) -> None:
        await self._tasks.close()

    async def look(self) -> int:
        """Close what is over; gives how much."""
        closed = 0
        for kind, has_gone in self._has_gone.items():
            for subject in [each.subject for each in self._store.open_incidents_of(kind)]:
                if has_gone(subject) and await self._store.close_incident(kind, subject, at_ms=self._clock.now_ms()):
                    await self._store.record_audit([self._entry(kind, subject)])
                    closed += 1
        return closed

    def _is_undisputed(self, agent_id: str) -> bool:
        """Whether the agent is this gateway's alone again, or was removed here."""
        known = self._room.snapshot().agents.get(agent_id)
        is_own = known is not None and known.owner_node_id == self._store.node_id
        return is_own or self._store.local_agent(agent_id) is None

    def _has_route(self, agent_id: str) -> bool:
        known = self._room.snapshot().agents.get(agent_id)
        if known is None or not known.is_active or known.owner_node_id is None:
            return False
        return not self._room.is_revoked(known.owner_node_id)

    def _is_heard_or_out(self, node_id: str) -> bool:
        return is_live(self._room.snapshot().nodes.get(node_id), self._clock.now_ms()) or self._room.is_revoked(node_id)

    def _is_settled(self, subject: str) -> bool:
        event_id, _, agent_id = subject.partition("/")
        entry = self._store.ledger_entry(EventId(event_id), agent_id)
        return entry is None or entry.state is LedgerState.SETTLED

    def _entry(self, kind: IncidentKind, subject: str) -> AuditEntry:
        return AuditEntry(
            at_ms=self._clock.now_ms(),
            actor=self._store.node_id,
            action="incident.close",
            subject=subject,
            detail={"kind": kind.value},
        )

    async def _look_on(self) -> None:
        while True:
            try:
                await self.look()
            except Refusal as refusal:
                _log.warning("incidents that are over could not be closed: %s", refusal.message)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
