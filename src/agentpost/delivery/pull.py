"""Agents that come for their mail: they fetch, work, and settle by themselves. The dispatcher leaves them alone.

What is fetched is the agent's for the time of a lease. If it has neither settled nor extended by then, the mail can be
fetched again, as the next attempt: a pulling agent that crashes is thereby made up for, and `event_id` is its key to
notice a repeat. Whoever settles first has settled; a later word changes nothing.

Leases are kept in memory, by a clock that nobody sets. After a restart of the gateway a lease counts from the fetch
again, by the time of day.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from agentpost.delivery.ports import Engagement, Result
from agentpost.delivery.turns import Begun, Held, Turns
from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.store.interface import Store
from agentpost.store.values import BacklogItem, LedgerEntry, LedgerState, LocalAgent
from agentpost.world import Clock

__all__ = ["LEASE_SECONDS", "PULL", "Pull"]

PULL: Final = "pull"
LEASE_SECONDS: Final = 300.0
_MOST_AT_ONCE: Final = 256
_PAGE: Final = 256
_LONGEST_LEASE_SECONDS: Final = 86_400.0


class Pull:
    """The mail of all agents of this gateway that pull."""

    def __init__(self, *, store: Store, turns: Turns, clock: Clock) -> None:
        self._store = store
        self._turns = turns
        self._clock = clock
        # When each lease is over, in monotonic milliseconds.
        self._leases: dict[tuple[EventId, str], int] = {}
        self._taking: set[tuple[EventId, str]] = set()

    async def fetch(self, agent_id: str, limit: int = 1) -> list[Engagement]:
        """The oldest mail that is nobody's, at most `limit` of it; it is the caller's until the lease is over."""
        agent = self._expect_agent(agent_id)
        if not 1 <= limit <= _MOST_AT_ONCE:
            raise Refusal(Code.INVALID_FIELD, f"limit must be from 1 to {_MOST_AT_ONCE}", field="limit")
        if agent.is_paused:
            return []
        fetched: list[Engagement] = []
        read_through = 0
        while len(fetched) < limit:
            page = self._store.backlog(agent_id, after_inbox_seq=read_through, limit=_PAGE)
            free = [item for item in page if self._is_free(item.entry, agent)][: limit - len(fetched)]
            fetched += await self._take(free, agent)
            if len(page) < _PAGE:
                break
            # What could not be handed over leaves room; the search goes on behind the last one that was looked at.
            read_through = (free[-1] if free else page[-1]).entry.inbox_seq
        return fetched

    async def settle(self, event_id: EventId, agent_id: str, result: Result) -> bool:
        """Say what became of mail that was fetched. False if it had its outcome before; that one counts."""
        item = self._expect_fetched(event_id, agent_id)
        if item.entry.state is LedgerState.SETTLED:
            return False
        event = decode_event(item.raw)
        self._leases.pop((event_id, agent_id), None)
        due_at_ms = self._turns.retry_at_ms(result, attempt=item.entry.attempts)
        if due_at_ms is None:
            return await self._turns.end(event, agent_id, result)
        return await self._turns.postpone(event, agent_id, due_at_ms=due_at_ms, error=result.error)

    def extend(self, event_id: EventId, agent_id: str, *, seconds: float) -> int:
        """Keep mail that was fetched for this much longer, from now on; gives the time when the lease is over."""
        agent = self._expect_agent(agent_id)
        item = self._expect_fetched(event_id, agent_id)
        if not 0 < seconds <= _LONGEST_LEASE_SECONDS:
            raise Refusal(
                Code.INVALID_FIELD, f"seconds must be above 0, {_LONGEST_LEASE_SECONDS:.0f} at most", field="seconds"
            )
        if item.entry.state is LedgerState.SETTLED or self._is_lease_over(item.entry, agent):
            raise Refusal(
                Code.INVALID_TRANSITION,
                f"{event_id} is not with {agent_id} any more",
                hint="Fetch again; if the work is done, settle it: the first outcome counts.",
            )
        lease_ms = round(seconds * 1000)
        self._leases[event_id, agent_id] = self._clock.monotonic_ms() + lease_ms
        return self._clock.now_ms() + lease_ms

    async def _take(self, items: list[BacklogItem], agent: LocalAgent) -> list[Engagement]:
        """Record the attempts, all in one commit. Nobody else who fetches meanwhile gets the same."""
        pairs = [(item.entry.event_id, item.entry.to_agent_id) for item in items]
        self._taking.update(pairs)
        try:
            begun = await asyncio.gather(*(self._begin(item) for item in items))
        finally:
            self._taking.difference_update(pairs)
        fetched = [turn.engagement for turn in begun if isinstance(turn, Begun)]
        over_at_ms = self._clock.monotonic_ms() + _lease_ms(agent)
        self._leases.update(((each.event_id, each.to_agent_id), over_at_ms) for each in fetched)
        return fetched

    def _begin(self, item: BacklogItem) -> Awaitable[Begun | Held]:
        entry = item.entry
        error = entry.error
        if entry.state is LedgerState.ENGAGED:
            error = "the agent fetched it and did not settle it in time"
        return self._turns.begin(decode_event(item.raw), entry.to_agent_id, attempts=entry.attempts, error=error)

    def _is_free(self, entry: LedgerEntry, agent: LocalAgent) -> bool:
        if (entry.event_id, entry.to_agent_id) in self._taking:
            return False
        if entry.state is LedgerState.ENGAGED:
            return self._is_lease_over(entry, agent)
        return entry.due_at_ms <= self._clock.now_ms()

    def _is_lease_over(self, entry: LedgerEntry, agent: LocalAgent) -> bool:
        over_at_ms = self._leases.get((entry.event_id, entry.to_agent_id))
        if over_at_ms is not None:
            return over_at_ms <= self._clock.monotonic_ms()
        return (entry.engaged_at_ms or 0) + _lease_ms(agent) <= self._clock.now_ms()

    def _expect_agent(self, agent_id: str) -> LocalAgent:
        agent = self._store.local_agent(agent_id)
        if agent is None:
            raise Refusal(Code.NOT_FOUND, f"{agent_id!r:.80} is not an agent of this gateway", field="agentId")
        if agent.runtime != PULL:
            raise Refusal(
                Code.CONFLICT,
                f"{agent_id} is engaged by its runtime ({agent.runtime}), it does not fetch",
                field="agentId",
                hint="Add it again with the runtime pull, if it is to fetch its mail.",
            )
        return agent

    def _expect_fetched(self, event_id: EventId, agent_id: str) -> BacklogItem:
        item = self._store.inbox_item(event_id, agent_id)
        if item is None:
            raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} is not in the inbox of {agent_id}", field="eventId")
        if item.entry.state is LedgerState.QUEUED:
            raise Refusal(
                Code.INVALID_TRANSITION, f"{event_id} is not with {agent_id}: it was not fetched, or was given back"
            )
        return item


def _lease_ms(agent: LocalAgent) -> int:
    # As people write options: in either spelling, and perhaps as text. They were checked when the agent was added.
    seconds: Any = agent.options.get("leaseSeconds", agent.options.get("lease_seconds", LEASE_SECONDS))
    return round(float(seconds) * 1000)
