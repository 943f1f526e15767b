"""The agents and incidents of the store in memory."""

import json
from collections import Counter
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from agentpost.protocol.delivery import SLA_MISSED, Delivery
from agentpost.store import rules
from agentpost.store.memory_joining import MemoryJoining
from agentpost.store.values import Incident, LocalAgent

__all__ = ["MemoryAgents"]


class MemoryAgents(MemoryJoining):
    """A part of `MemoryStore`. What it gives out shares nothing with what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self._agents: dict[str, tuple[LocalAgent, str]] = {}
        self._incidents: dict[int, Incident] = {}

    async def put_agent(self, agent: LocalAgent) -> None:
        self._check_open()
        self._agents[agent.agent_id] = (agent, rules.options_as_json(agent))

    async def remove_agent(self, agent_id: str) -> bool:
        self._check_open()
        return self._agents.pop(agent_id, None) is not None

    def local_agents(self) -> list[LocalAgent]:
        self._check_open()
        return [self._agent(agent_id) for agent_id in sorted(self._agents)]

    def local_agent(self, agent_id: str) -> LocalAgent | None:
        self._check_open()
        return self._agent(agent_id) if agent_id in self._agents else None

    def local_agent_ids(self) -> Collection[str]:
        self._check_open()
        return self._agents.keys()

    def _agent(self, agent_id: str) -> LocalAgent:
        agent, options = self._agents[agent_id]
        return replace(agent, options=json.loads(options))

    async def raise_incident(self, incident: Incident) -> bool:
        self._check_open()
        return self._raise(incident)

    def _raise(self, incident: Incident) -> bool:
        if self._open_incident(incident.kind, incident.subject) is not None:
            return False
        new_id = max(self._incidents, default=0) + 1
        self._incidents[new_id] = replace(incident, id=new_id, detail=dict(incident.detail), closed_at_ms=None)
        return True

    async def close_incident(self, kind: str, subject: str, *, at_ms: int) -> bool:
        self._check_open()
        return self._close(kind, subject, at_ms)

    def _close_missed_slas(self, late: Iterable[Delivery]) -> None:
        for delivery in late:
            entry = rules.missed_sla_closed(delivery)
            if self._close(SLA_MISSED, entry.subject or "", entry.at_ms):
                self._audit.append(replace(entry, id=len(self._audit) + 1))

    def _close(self, kind: str, subject: str, at_ms: int) -> bool:
        found = self._open_incident(kind, subject)
        if found is None:
            return False
        self._incidents[found.id] = replace(found, closed_at_ms=at_ms)
        return True

    def _open_incident(self, kind: str, subject: str) -> Incident | None:
        return next(
            (
                each
                for each in self._incidents.values()
                if (each.kind, each.subject, each.closed_at_ms) == (kind, subject, None)
            ),
            None,
        )

    def incidents(self, *, open_only: bool = True, after_id: int = 0, limit: int = 256) -> list[Incident]:
        self._check_open()
        found = [
            replace(each, detail=dict(each.detail))
            for each in self._incidents.values()
            if each.id > after_id and (each.closed_at_ms is None or not open_only)
        ]
        return found[:limit]

    def open_incidents_of(self, kind: str) -> list[Incident]:
        found = [each for each in self.incidents(limit=len(self._incidents)) if each.kind == kind]
        return sorted(found, key=lambda each: each.subject)

    def count_incidents(self) -> dict[str, int]:
        counts = Counter(each.kind for each in self.incidents(limit=len(self._incidents)))
        return dict(sorted(counts.items()))

    def _prune_incidents(self, before_ms: int, limit: int) -> int:
        closed = [
            (each.closed_at_ms, each.id)
            for each in self._incidents.values()
            if each.closed_at_ms is not None and each.closed_at_ms < before_ms
        ]
        last_id = max(self._incidents, default=0)
        pruned = [incident_id for _, incident_id in sorted(closed)[:limit] if incident_id != last_id]
        for incident_id in pruned:
            del self._incidents[incident_id]
        return len(pruned)
