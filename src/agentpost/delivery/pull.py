"""Agents that come for their mail: they fetch, work, and settle by themselves. The dispatcher leaves them alone.

What is fetched is the agent's for the time of a lease. If it has neither settled nor extended by then, the mail can be
fetched again, as the next attempt: a pulling agent that crashes is thereby made up for, and `event_id` is its key to
notice a repeat. Whoever settles first has settled; a later word changes nothing.

Until its caller has it, mail belongs to the caller's connection (`hand_over`): a caller that dies takes none along.

A lease is measured by a clock that nobody sets. It outlives a restart of the gateway and a change of the agent's
runtime, also one that was extended; then the time of day says what is left of it, once: the ledger has nothing else.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from agentpost.delivery.agents import expect_local_agent
from agentpost.delivery.carrying import carried_out
from agentpost.delivery.hand_over import Attempt, HandOver
from agentpost.delivery.ports import Engagement, Result, ResultKind, Wakeups
from agentpost.delivery.sealing import MOST_ANSWER_BYTES
from agentpost.delivery.turns import Begun, Held, Hold, Turns
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.store.interface import Store
from agentpost.store.values import BacklogItem, LedgerEntry, LedgerState, LocalAgent
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["LEASE_SECONDS", "LONGEST_WAIT_SECONDS", "PULL", "Pull"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

PULL: Final = "pull"
LEASE_SECONDS: Final = 300.0
_MOST_AT_ONCE: Final = 256
_PAGE: Final = 256
_LONGEST_LEASE_SECONDS: Final = 86_400.0
LONGEST_WAIT_SECONDS: Final = 300.0
_FAR_OFF_MS: Final = 1 << 50
# So many leases are kept before anybody looks which of them are of use.
_FEW_LEASES: Final = 1024


# What an attempt ends as whose agent went away while it held the mail.
_GONE: Final = Result(kind=ResultKind.RETRY, error="the agent's connection ended before it settled the message")


class _Fetched(Struct, frozen=True, kw_only=True):
    engagement: Engagement
    attempt: Attempt


class Pull:
    """The mail of all agents of this gateway that pull."""

    def __init__(
        self,
        *,
        store: Store,
        turns: Turns,
        clock: Clock,
        wakeups: Wakeups,
        is_busy_with: Callable[[EventId, str], bool] = lambda _event_id, _agent_id: False,
    ) -> None:
        self._store = store
        # Whether a turn under the runtime that the agent had before still runs with this.
        self._is_busy_with = is_busy_with
        self._turns = turns
        self._clock = clock
        # When each lease is over, in monotonic milliseconds.
        self._leases: dict[tuple[EventId, str], int] = {}
        self._tidy_above = _FEW_LEASES
        # The same for mail that was given back: its time of day in the ledger, and when that is.
        self._retries: dict[tuple[EventId, str], tuple[int, int]] = {}
        # Mail whose content had not come when somebody wanted to fetch it, and where that is kept.
        self._without_content: dict[tuple[EventId, str], str] = {}
        self._taking: set[tuple[EventId, str]] = set()
        # Those who wait for mail, by agent; nobody, once the gateway stops.
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._is_released = False
        # Mail on its way to a caller, or held by one: by which hand-over.
        self._handed: dict[tuple[EventId, str], HandOver] = {}
        # Hand-overs that are being undone, by agent: who fetches waits for them, so that mail keeps its order.
        self._returning: dict[str, set[asyncio.Task[None]]] = {}
        self._tasks = TaskOwner("pull")
        wakeups.listen(inbox=self._wake)

    async def fetch(self, agent_id: str, limit: int = 1, *, wait_seconds: float = 0) -> list[Engagement]:
        """As `hand_over`, for a caller in this process: it has what is returned."""
        handed = await self.hand_over(agent_id, limit, wait_seconds=wait_seconds)
        handed.took_all()
        return handed.engagements

    async def hand_over(self, agent_id: str, limit: int = 1, *, wait_seconds: float = 0) -> HandOver:
        """The oldest mail that is nobody's, at most `limit` of it; it is the caller's until the lease is over.

        Fewer come where they are large: one, and then as many as an answer has room for. The others stay nobody's.
        Where there is none, some is waited for; none after that time is an answer, too. Cancelling hands over nothing.
        """
        if not 1 <= limit <= _MOST_AT_ONCE:
            raise Refusal(Code.INVALID_FIELD, f"limit must be from 1 to {_MOST_AT_ONCE}", field="limit")
        if not 0 <= wait_seconds <= LONGEST_WAIT_SECONDS:
            raise Refusal(
                Code.INVALID_FIELD, f"waitSeconds must be from 0 to {LONGEST_WAIT_SECONDS:.0f}", field="waitSeconds"
            )
        # A lease that ends wakes nobody, so it is looked at when it does.
        fetched = await self._until_some(
            agent_id,
            lambda: self._fetch_or_undo(agent_id, limit),
            lambda: self._free_in_ms(agent_id) / 1000,
            wait_seconds,
        )
        handed = self._hand_over_of(fetched)
        for engagement in handed.engagements:
            self._handed[engagement.event_id, agent_id] = handed
        return handed

    def took(self, agent_id: str, event_ids: Sequence[EventId], *, hold: bool = False) -> list[EventId]:
        """Say that mail which was handed over has arrived; gives what of it is with the agent.

        It is the agent's for the lease, or with `hold` until the connection that it came over ends.
        """
        self._expect_agent(agent_id)
        for event_id in event_ids:
            handed = self._handed.get((event_id, agent_id))
            if handed is not None:
                handed.took(event_id, hold=hold)
                if not hold:
                    del self._handed[event_id, agent_id]
        entries = [self._store.ledger_entry(event_id, agent_id) for event_id in event_ids]
        return [each.event_id for each in entries if each is not None and each.state is LedgerState.ENGAGED]

    async def look(self, agent_id: str, seen: Callable[[], list[T]], *, wait_seconds: float) -> list[T]:
        """What `seen` gives as soon as it gives something, or after that time. Nothing is taken."""

        async def take() -> list[T]:
            return seen()

        return await self._until_some(agent_id, take, lambda: wait_seconds, wait_seconds)

    async def _until_some(
        self,
        agent_id: str,
        take: Callable[[], Awaitable[list[T]]],
        look_again_in_seconds: Callable[[], float],
        wait_seconds: float,
    ) -> list[T]:
        """What `take` gives: at once, when the inbox has grown, after a while, and at the end of the time."""
        # The loop's own time, by which it also waits.
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        grew = asyncio.Event()
        self._waiting.setdefault(agent_id, set()).add(grew)
        try:
            while True:
                grew.clear()
                found = await take()
                left_seconds = until - loop.time()
                if found or left_seconds <= 0 or self._is_released:
                    return found
                await _wait(grew, min(left_seconds, look_again_in_seconds()))
        finally:
            self._waiting[agent_id].discard(grew)
            if not self._waiting[agent_id]:
                del self._waiting[agent_id]

    def release(self) -> None:
        """Let everybody go who waits: the gateway stops."""
        self._is_released = True
        for handed in set(self._handed.values()):
            handed.gateway_stops()
        for agent_id in tuple(self._waiting):
            self._wake(agent_id)

    async def close(self) -> None:
        """Wait until every hand-over that is being undone is undone."""
        while returning := [task for tasks in self._returning.values() for task in tasks]:
            await asyncio.wait(returning)
        await self._tasks.close()

    def _wake(self, agent_id: str) -> None:
        for grew in self._waiting.get(agent_id, ()):
            grew.set()

    def _free_in_ms(self, agent_id: str) -> int:
        """How long until mail is free that is with somebody, or waits for another try."""
        agent = self._expect_agent(agent_id)
        page = self._store.backlog(agent_id, limit=_PAGE)
        # Mail that is free and was not handed over has to wait for something else: its payload, say.
        free_in_ms = [in_ms for each in page if (in_ms := self._free_in_ms_of(each.entry, agent)) > 0]
        return min(free_in_ms, default=_FAR_OFF_MS)

    async def _fetch_or_undo(self, agent_id: str, limit: int) -> list[_Fetched]:
        """Begin the attempts. A caller that is cancelled meanwhile cannot know which, so all of them are undone."""
        while returning := self._returning.get(agent_id):
            await asyncio.wait(returning)
        fetching = self._tasks.spawn(self._fetch(agent_id, limit), name=f"fetch {agent_id}")
        try:
            # Awaited so, it goes on when the caller is cancelled.
            await asyncio.wait((fetching,))
        except asyncio.CancelledError:
            fetching.add_done_callback(self._undo)
            raise
        return fetching.result()

    def _undo(self, fetching: "asyncio.Task[list[_Fetched]]") -> None:
        if not fetching.cancelled() and fetching.exception() is None:
            self._hand_over_of(fetching.result()).connection_lost()

    def _hand_over_of(self, fetched: Sequence[_Fetched]) -> HandOver:
        return HandOver(
            [each.engagement for each in fetched],
            [each.attempt for each in fetched],
            give_back=lambda attempt: self._return(attempt, self._give_back(attempt)),
            fail=lambda attempt: self._return(attempt, self._fail(attempt)),
        )

    def _return(self, attempt: Attempt, work: Coroutine[Any, Any, None]) -> None:
        """Have a hand-over undone beside everything else."""
        pair = (attempt.event_id, attempt.agent_id)
        # By now it may be with somebody else.
        if (handed := self._handed.get(pair)) is not None and handed.done.is_set():
            del self._handed[pair]
        returning = self._returning.setdefault(attempt.agent_id, set())
        task = self._tasks.spawn(work, name=f"return to {attempt.agent_id}")
        returning.add(task)
        task.add_done_callback(lambda done: self._returned(attempt.agent_id, done))

    def _returned(self, agent_id: str, task: "asyncio.Task[None]") -> None:
        self._returning[agent_id].discard(task)
        if not self._returning[agent_id]:
            del self._returning[agent_id]
        self._wake(agent_id)

    async def _give_back(self, attempt: Attempt) -> None:
        """Undo an attempt that never reached the agent."""
        try:
            is_back = await self._store.give_back(
                attempt.event_id, attempt.agent_id, attempt=attempt.number, engaged_at_ms=attempt.engaged_before_ms
            )
        except Refusal as refusal:
            # It stays leased, and comes again as the next attempt.
            _log.warning("a hand-over to %s could not be undone: %s", attempt.agent_id, refusal.message)
        else:
            if is_back:
                self._leases.pop((attempt.event_id, attempt.agent_id), None)

    async def _fail(self, attempt: Attempt) -> None:
        """End an attempt whose agent went away while it had the mail; it may come back for it at once (RTY-4)."""
        entry = self._store.ledger_entry(attempt.event_id, attempt.agent_id)
        if entry is None or entry.state is not LedgerState.ENGAGED or entry.attempts != attempt.number:
            return
        try:
            await self.settle(attempt.event_id, attempt.agent_id, _GONE)
        except Refusal as refusal:
            _log.warning("an attempt of %s could not be ended: %s", attempt.agent_id, refusal.message)

    async def _fetch(self, agent_id: str, limit: int) -> list[_Fetched]:
        agent = self._expect_agent(agent_id)
        if agent.is_paused:
            return []
        fetched: list[_Fetched] = []
        read_through, room_bytes = 0, MOST_ANSWER_BYTES
        while len(fetched) < limit:
            page = self._store.backlog(agent_id, after_inbox_seq=read_through, limit=_PAGE)
            free = [item for item in page if self._is_free(item.entry, agent)]
            sizes = _fitting(free[: limit - len(fetched)], room_bytes, needs_one=not fetched)
            if free and not sizes:
                break
            taken = await self._take(free[: len(sizes)], agent)
            fetched += taken
            room_bytes -= sum(sizes[each.attempt.event_id] for each in taken)
            # What could not be handed over leaves room; the search goes on behind the last one that was looked at.
            is_through = len(sizes) == len(free)
            if is_through and len(page) < _PAGE:
                break
            read_through = (page if is_through else free[: len(sizes)])[-1].entry.inbox_seq
        return fetched

    async def settle(self, event_id: EventId, agent_id: str, result: Result) -> bool:
        """Say what became of mail that was fetched. False if it had its outcome before; that one counts."""
        item = self._expect_fetched(event_id, agent_id)
        if item.entry.state is LedgerState.SETTLED:
            return False
        event = decode_event(item.raw)
        self._leases.pop((event_id, agent_id), None)
        if (handed := self._handed.pop((event_id, agent_id), None)) is not None:
            handed.took(event_id)
        due_at_ms = self._turns.retry_at_ms(result, attempt=item.entry.attempts)
        if due_at_ms is None:
            return await carried_out(self._turns.end(event, agent_id, result))
        in_ms = due_at_ms - self._clock.now_ms()
        self._retries[event_id, agent_id] = due_at_ms, self._clock.monotonic_ms() + in_ms
        attempt = item.entry.attempts
        return await self._turns.postpone(event, agent_id, due_at_ms=due_at_ms, error=result.error, attempt=attempt)

    async def extend(self, event_id: EventId, agent_id: str, *, seconds: float) -> int:
        """Keep mail that was fetched for so long from now on, or for as long as before if that is longer.

        Gives the time when the lease is over.
        """
        # Also one that has another runtime by now: the mail that it fetched is still with it.
        agent = expect_local_agent(self._store, agent_id)
        item = self._expect_fetched(event_id, agent_id)
        if not 0 < seconds <= _LONGEST_LEASE_SECONDS:
            raise Refusal(
                Code.INVALID_FIELD, f"seconds must be above 0, {_LONGEST_LEASE_SECONDS:.0f} at most", field="seconds"
            )
        left_ms = self._free_in_ms_of(item.entry, agent)
        lease_ms = max(round(seconds * 1000), left_ms)
        is_with_it = item.entry.state is LedgerState.ENGAGED and left_ms > 0
        over_at_ms = self._clock.now_ms() + lease_ms
        if not is_with_it or not await self._store.extend_lease(event_id, agent_id, until_ms=over_at_ms):
            raise Refusal(
                Code.INVALID_TRANSITION,
                f"{event_id} is not with {agent_id} any more",
                hint="Fetch again; if the work is done, settle it: the first outcome counts.",
            )
        self._leases[event_id, agent_id] = self._clock.monotonic_ms() + lease_ms
        return over_at_ms

    async def _take(self, items: list[BacklogItem], agent: LocalAgent) -> list[_Fetched]:
        """Record the attempts, all in one commit. Nobody else who fetches meanwhile gets the same."""
        pairs = [(item.entry.event_id, item.entry.to_agent_id) for item in items]
        self._taking.update(pairs)
        try:
            events = [decode_event(item.raw) for item in items]
            begun = await asyncio.gather(
                *(self._begin(event, item.entry, agent) for event, item in zip(events, items, strict=True))
            )
        finally:
            self._taking.difference_update(pairs)
            for pair in pairs:
                self._retries.pop(pair, None)
                self._without_content.pop(pair, None)
        for pair, event, turn in zip(pairs, events, begun, strict=True):
            if isinstance(turn, Held) and turn.hold is Hold.WAITS and event.payload_ref is not None:
                self._without_content[pair] = event.payload_ref.sha256
        over_at_ms = self._clock.monotonic_ms() + _lease_ms(agent)
        fetched: list[_Fetched] = []
        for pair, item, turn in zip(pairs, items, begun, strict=True):
            if isinstance(turn, Begun):
                self._leases[pair] = over_at_ms
                attempt = Attempt(
                    event_id=pair[0],
                    agent_id=pair[1],
                    number=turn.engagement.attempt,
                    engaged_before_ms=item.entry.engaged_at_ms,
                )
                fetched.append(_Fetched(engagement=turn.engagement, attempt=attempt))
        self._tidy()
        return fetched

    @property
    def lease_count(self) -> int:
        return len(self._leases) + len(self._retries) + len(self._without_content)

    def _tidy(self) -> None:
        """Forget mail that was settled past this, by a reply by hand, say. Now and then: it costs a look at each."""
        if self.lease_count <= self._tidy_above:
            return
        for kept in (self._leases, self._retries, self._without_content):
            for pair in tuple(kept):
                entry = self._store.ledger_entry(*pair)
                if entry is None or entry.state is LedgerState.SETTLED:
                    del kept[pair]
        self._handed = {pair: handed for pair, handed in self._handed.items() if not handed.done.is_set()}
        self._tidy_above = max(_FEW_LEASES, 2 * self.lease_count)

    def _begin(self, event: Event, entry: LedgerEntry, agent: LocalAgent) -> Awaitable[Begun | Held]:
        error = entry.error
        if entry.state is LedgerState.ENGAGED:
            error = "the agent fetched it and did not settle it in time"
        return self._turns.begin(event, agent.agent_id, attempts=entry.attempts, error=error, lease_ms=_lease_ms(agent))

    def _is_free(self, entry: LedgerEntry, agent: LocalAgent) -> bool:
        pair = (entry.event_id, entry.to_agent_id)
        # An attempt that has only just begun may not be in the ledger yet.
        if pair in self._taking or self._is_busy_with(*pair):
            return False
        return self._free_in_ms_of(entry, agent) <= 0

    def _free_in_ms_of(self, entry: LedgerEntry, agent: LocalAgent) -> int:
        """How long until mail can be fetched: until it is due, or until the lease of who has it is over."""
        if entry.state is not LedgerState.ENGAGED:
            if self._has_content_come(entry):
                return 0
            said_ms, at_ms = self._retries.get((entry.event_id, entry.to_agent_id), (None, 0))
            if said_ms == entry.due_at_ms:
                return at_ms - self._clock.monotonic_ms()
            in_ms = min(entry.due_at_ms - self._clock.now_ms(), self._turns.longest_pause_ms)
            if in_ms > 0:
                # From before the start, or from another runtime. From now on the clock may be set.
                pair = (entry.event_id, entry.to_agent_id)
                self._retries[pair] = entry.due_at_ms, self._clock.monotonic_ms() + in_ms
            return in_ms
        over_at_ms = self._leases.get((entry.event_id, entry.to_agent_id))
        if over_at_ms is not None:
            return over_at_ms - self._clock.monotonic_ms()
        # Leases of before stand in no ledger, nor do turns of other runtimes that an agent had before it fetched.
        begun_ms = (entry.engaged_at_ms or 0) + _lease_ms(agent) if agent.runtime == PULL else 0
        left_ms = max(begun_ms, entry.due_at_ms) - self._clock.now_ms()
        if left_ms > 0 and agent.runtime == PULL:
            self._leases[entry.event_id, entry.to_agent_id] = self._clock.monotonic_ms() + left_ms
        return left_ms

    def _has_content_come(self, entry: LedgerEntry) -> bool:
        """Whether what the mail waited for is here: then it need not wait for the time that was set for that."""
        sha256 = self._without_content.get((entry.event_id, entry.to_agent_id))
        blob = None if sha256 is None else self._store.blob(sha256)
        return blob is not None and blob.complete

    def _expect_agent(self, agent_id: str) -> LocalAgent:
        agent = expect_local_agent(self._store, agent_id)
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


def _fitting(items: list[BacklogItem], room_bytes: int, *, needs_one: bool) -> dict[EventId, int]:
    """The first of these that have room together, and how large each is."""
    sizes: dict[EventId, int] = {}
    for item in items:
        ref = decode_event(item.raw).payload_ref
        size_bytes = len(item.raw) + (0 if ref is None else ref.size_bytes)
        room_bytes -= size_bytes
        if room_bytes < 0 and (sizes or not needs_one):
            break
        sizes[item.entry.event_id] = size_bytes
    return sizes


async def _wait(grew: asyncio.Event, most_seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_seconds):
            await grew.wait()


def _lease_ms(agent: LocalAgent) -> int:
    # As people write options: in either spelling, and perhaps as text. They were checked when the agent was added.
    seconds: Any = agent.options.get("leaseSeconds", agent.options.get("lease_seconds", LEASE_SECONDS))
    return round(float(seconds) * 1000)
