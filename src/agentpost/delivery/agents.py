"""The agents of this gateway: who they are, how each is engaged, and that the mesh knows of them.

The store decides and the room follows: an agent is kept here first and published then, and `announce` publishes all of
them again at a start. Knows nothing of Yjs or of what a runtime does with its options.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from agentpost.delivery.carrying import carried_out
from agentpost.delivery.deciding import NO_ROUTE
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.delivery.secrets import AgentSecrets
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.routing import ALL_AGENTS
from agentpost.protocol.snapshot import AgentStatus, Failover
from agentpost.store.interface import Store
from agentpost.store.values import Incident, LocalAgent
from agentpost.world import Clock

__all__ = ["AgentDirectory", "LocalAgents", "expect_local_agent"]

_log = logging.getLogger(__name__)

# The form of the room's keys: nothing in it means anything to a path, a URL or a terminal.
_is_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}").fullmatch
_RESERVED: Final = frozenset({ALL_AGENTS, POSTMASTER})
CONFLICT: Final = IncidentKind.AGENT_CONFLICT


def expect_local_agent(store: Store, agent_id: str, *, field: str = "agentId") -> LocalAgent:
    """An agent of this gateway, or a refusal that says which there are."""
    agent = store.local_agent(agent_id)
    if agent is None:
        known = ", ".join(each.agent_id for each in store.local_agents()[:10]) or "none"
        raise Refusal(
            Code.NOT_FOUND,
            f"{agent_id!r:.80} is not an agent of this gateway",
            field=field,
            hint=f"Agents here: {known}. Add one with `agentpost agents add`; where others live, "
            "`agentpost agents list --mesh` says.",
        )
    return agent


class AgentDirectory(Protocol):
    """The list of agents that all gateways share."""

    def owner_of(self, agent_id: str) -> str | None:
        """The node that hosts this agent; None if nobody does."""
        ...

    def publish(self, agent_id: str, status: AgentStatus) -> None:
        """Say that this node hosts the agent. Refused if another one does."""
        ...

    def withdraw(self, agent_id: str) -> None:
        """Take the agent out of the list, if this node hosts it."""
        ...

    def stands_in(self, agent_id: str) -> bool:
        """Whether the agent's owner has named this node to stand in for it (ROUTE-2)."""
        ...

    def name_stand_ins(self, agent_id: str, node_ids: Sequence[str], failover: Failover) -> None:
        """Say who may stand in for this node, in this order; nobody, if the list is empty."""
        ...


class LocalAgents:
    """`check` refuses an agent whose runtime or options make no sense; `on_change` hears of every change. With
    `secrets` the store never sees those of an agent in the clear. `end_mail` ends what a removed agent has left."""

    def __init__(
        self,
        *,
        store: Store,
        directory: AgentDirectory,
        clock: Clock,
        check: Callable[[LocalAgent], None] | None = None,
        on_change: Callable[[], None] | None = None,
        secrets: AgentSecrets | None = None,
        end_mail: Callable[[str], Awaitable[int]] | None = None,
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._check = check
        self._on_change = on_change
        self._secrets = secrets
        self._end_mail = end_mail

    async def add(self, agent_id: str, runtime: str, options: dict[str, Any] | None = None) -> LocalAgent:
        """Add an agent, or change how one that is here is engaged. Mail for it can be sent once this returns.

        One of another gateway can be added where its owner has named this node as a stand-in: it stays the owner's, and
        gets here only what is sent here while the owner is silent.
        """
        _check_id(agent_id)
        present = self._store.local_agent(agent_id)
        agent = LocalAgent(
            agent_id=agent_id,
            runtime=runtime,
            options=options or {},
            created_at_ms=self._clock.now_ms() if present is None else present.created_at_ms,
            is_paused=present is not None and present.is_paused,
        )
        if self._check is not None:
            self._check(agent)
        owner = self._directory.owner_of(agent_id)
        is_ours = owner in (None, self._store.node_id)
        if owner is not None and not is_ours and not self._directory.stands_in(agent_id):
            raise _owned(agent_id, owner)
        agent = self._sealed(agent)
        await carried_out(self._keep(agent, present, is_ours=is_ours))
        return agent

    async def _keep(self, agent: LocalAgent, present: LocalAgent | None, *, is_ours: bool) -> None:
        """Keep the agent and publish it. If the room refuses it, it is kept as it was before, or not at all."""
        await self._store.put_agent(agent)
        if is_ours:
            try:
                self._directory.publish(agent.agent_id, AgentStatus.ACTIVE)
            except Refusal:
                if present is None:
                    await self._store.remove_agent(agent.agent_id)
                else:
                    await self._store.put_agent(present)
                raise
            await self._close_conflict(agent.agent_id)
            await self._store.close_incident(NO_ROUTE, agent.agent_id, at_ms=self._clock.now_ms())
        self._changed()

    def name_stand_ins(
        self, agent_id: str, node_ids: Sequence[str], *, failover: Failover = Failover.WAIT
    ) -> tuple[str, ...]:
        """Say which gateways may stand in for this one, in this order (ROUTE-2). Only an agent's owner may."""
        self.get(agent_id)
        named = tuple(dict.fromkeys(node_ids))
        if self._store.node_id in named:
            raise Refusal(Code.INVALID_FIELD, f"{self._store.node_id} cannot stand in for itself", field="nodeIds")
        owner = self._directory.owner_of(agent_id)
        if owner is not None and owner != self._store.node_id:
            raise Refusal(Code.CONFLICT, f"{agent_id} belongs to {owner}", field="agentId", hint=f"Say it at {owner}.")
        self._directory.name_stand_ins(agent_id, named, failover)
        return named

    async def remove(self, agent_id: str) -> int:
        """Take an agent away. What it has not settled ends as `no_route`, and its senders are told (ROUTE-3).

        Gives how much that was. What it is busy with at this moment ends with its turn.
        """
        self.get(agent_id)
        return await carried_out(self._drop(agent_id))

    async def _drop(self, agent_id: str) -> int:
        # Withdrawn first: what is sent meanwhile is refused where it is sent, instead of waiting for nobody here.
        is_ours = self._directory.owner_of(agent_id) == self._store.node_id
        self._directory.withdraw(agent_id)
        try:
            await self._store.remove_agent(agent_id)
        except Refusal:
            if is_ours:
                self._directory.publish(agent_id, AgentStatus.ACTIVE)
            raise
        await self._close_conflict(agent_id)
        self._changed()
        return 0 if self._end_mail is None else await self._end_mail(agent_id)

    async def pause(self, agent_id: str) -> LocalAgent:
        """Stop engaging an agent. Its mail is still accepted, and waits; for the mesh it is as before."""
        return await self._set_paused(agent_id, is_paused=True)

    async def resume(self, agent_id: str) -> LocalAgent:
        """Engage an agent again, with what waits first."""
        return await self._set_paused(agent_id, is_paused=False)

    def get(self, agent_id: str) -> LocalAgent:
        return expect_local_agent(self._store, agent_id)

    def list(self) -> "list[LocalAgent]":
        """All of them, by id. `shown_options` is what may be shown of their options."""
        return sorted(self._store.local_agents(), key=lambda agent: agent.agent_id)

    def shown_options(self, agent: LocalAgent) -> dict[str, Any]:
        """The options of an agent without its secrets; without `secrets`, their names alone."""
        return dict.fromkeys(agent.options, "***") if self._secrets is None else self._secrets.shown(agent)

    async def announce(self) -> None:
        """Publish all agents, at a start and whenever the room was taken anew. One that moved away is an incident."""
        for agent in self._store.local_agents():
            if (sealed := self._sealed(agent)) != agent:
                # It was kept by a version that did not seal.
                await self._store.put_agent(sealed)
            if self._directory.stands_in(agent.agent_id):
                continue
            try:
                self._directory.publish(agent.agent_id, AgentStatus.ACTIVE)
            except Refusal as refusal:
                owner = self._directory.owner_of(agent.agent_id)
                _log.warning("%s could not be published: %s", agent.agent_id, refusal.message)
                await self._store.raise_incident(
                    Incident(
                        kind=CONFLICT,
                        subject=agent.agent_id,
                        at_ms=self._clock.now_ms(),
                        detail={"agentId": agent.agent_id, "ownerNodeId": owner, "code": refusal.code.value},
                    )
                )
            else:
                await self._close_conflict(agent.agent_id)

    async def _close_conflict(self, agent_id: str) -> None:
        await self._store.close_incident(CONFLICT, agent_id, at_ms=self._clock.now_ms())

    async def _set_paused(self, agent_id: str, *, is_paused: bool) -> LocalAgent:
        agent = self.get(agent_id)
        if agent.is_paused != is_paused:
            agent = replace(agent, is_paused=is_paused)
            await self._store.put_agent(agent)
            self._changed()
        return agent

    def _sealed(self, agent: LocalAgent) -> LocalAgent:
        return agent if self._secrets is None else self._secrets.seal(agent)

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()


def _check_id(agent_id: str) -> None:
    if not _is_id(agent_id):
        raise Refusal(
            Code.INVALID_FIELD,
            "agentId must be 1 to 128 of A-Z a-z 0-9 _ . @ -, a letter or digit first",
            field="agentId",
        )
    if agent_id in _RESERVED:
        raise Refusal(Code.INVALID_FIELD, f"agentId {agent_id!r} means something else in addresses", field="agentId")


def _owned(agent_id: str, owner: str) -> Refusal:
    return Refusal(
        Code.CONFLICT,
        f"{agent_id} belongs to {owner}",
        field="agentId",
        hint=f"Take another id, remove it at {owner} first, or name this node as a stand-in there: agents stand-ins.",
    )
