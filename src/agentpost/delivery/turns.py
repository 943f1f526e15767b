"""One agent's turn with one event: what it is handed, and what follows from its answer. Used by `dispatch` and `pull`.

The attempt is written before the agent gets the event, the outcome after, each in one transaction. Knows nothing of
queues, timers and runtimes.

- The reply comes before `processed` in the outbox: the sender's delivery then ends as *Replied*.
- A reply answers a message, never a reply, a report of the postmaster, or what is said about a task. Two agents that
  answer everything would otherwise never stop; an agent that wants to go on sends a message.
- What an agent answers to a task ends the task instead (`task_turns`).
- Why a turn failed is told twice: the ACK's reason is a word in the clear, the error itself is sealed for the sender.
"""

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.briefing import ASKING, engagement_of
from agentpost.delivery.failing import Failing
from agentpost.delivery.making import EventMaker
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.ports import Content, Engagement, Result, ResultKind, Wakeups
from agentpost.delivery.postmaster import POSTMASTER
from agentpost.delivery.task_turns import Standing, TaskTurns
from agentpost.delivery.wording import as_text
from agentpost.protocol.backoff import DISPATCH_RETRY, RetryPolicy, exhausted, next_delay_seconds
from agentpost.protocol.delivery import REPEATED, TAKEN, Delivery
from agentpost.protocol.envelope import (
    Event,
    MessageEvent,
    ReplyEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
    is_expired,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.payloads import AckType, Sealed
from agentpost.store.interface import Store
from agentpost.store.values import Incident, LedgerState, Outcome, Settlement
from agentpost.world import Chance, Clock

__all__ = ["Begun", "Held", "Hold", "Opener", "Replier", "Turns"]

_log = logging.getLogger(__name__)

# A disk that is full now may have room again soon.
_FULL_DISK_MS: Final = 5_000
# Whoever fetches content wakes the agents that wait for it; this is for those who are not awake then.
_CONTENT_MS: Final = 15_000
# Whoever hears of a verdict wakes the agent that waits for it; this is for the same.
_CLAIM_MS: Final = 60_000
# How soon a repeat looks again whether the first one has its outcome.
_REPEAT_MS: Final = 5_000
_TROUBLE: Final = frozenset({Code.STORAGE_FULL, Code.STORAGE_FAILED, Code.STORAGE_CORRUPT, Code.UNAVAILABLE})
# Kinds of which no turn does more than to hand them over.
_HANDED_OVER: Final = frozenset({MessageEvent, ReplyEvent})
# What the store says of a row that has its outcome, or is not there.
_CLOSED: Final = frozenset({Code.INVALID_TRANSITION, Code.NOT_FOUND})


class Opener(Protocol):
    """The part of the sealer that a turn needs."""

    def open(self, event: Event) -> Content: ...

    def seal(self, content: Content, *, event_id: EventId, to_nodes: Sequence[str]) -> Sealed: ...


class Replier(Protocol):
    """The part of the publisher that a turn needs."""

    async def make_reply(self, event: Event, *, agent_id: str, content: Content) -> tuple[ReplyEvent, Delivery]: ...


class Begun(Struct, frozen=True, kw_only=True):
    """The attempt is recorded: the agent may have this now."""

    event: Event
    engagement: Engagement
    at_ms: int


class Hold(StrEnum):
    ENDED = "ended"  # it has its outcome, and the agent never gets it
    WAITS = "waits"  # not now; nothing was spent


class Held(Struct, frozen=True, kw_only=True):
    """Why the agent does not get this event now."""

    hold: Hold
    due_at_ms: int = 0


_ENDED: Final = Held(hold=Hold.ENDED)


class Turns:
    """Begins and ends turns. What an agent or a peer did is an outcome here, never an exception."""

    def __init__(
        self,
        *,
        store: Store,
        sealer: Opener,
        publisher: Replier,
        maker: EventMaker,
        clock: Clock,
        chance: Chance,
        wakeups: Wakeups,
        policy: RetryPolicy = DISPATCH_RETRY,
        tasks: TaskTurns | None = None,
    ) -> None:
        self._task_turns = tasks
        self.failing = Failing(store=store, maker=maker, sealer=sealer, clock=clock, wakeups=wakeups)
        # OPS-5: what an agent is to know besides; for whoever knows more of agents than their mail.
        self.inject: Callable[[str, EventId], str | None] = lambda _agent_id, _event_id: None
        # Whoever does such tasks in the agents' names hears of them by itself, and settles them.
        self.kept_task_types: frozenset[str] = frozenset()
        self._store = store
        self._sealer = sealer
        self._publisher = publisher
        self._maker = maker
        self._clock = clock
        self._chance = chance
        self._outbox = OutboxWriter(store, wakeups)
        self._policy = policy

    async def begin(
        self,
        event: Event,
        agent_id: str,
        *,
        attempts: int,
        error: str | None = None,
        is_noted: bool = True,
        is_resumed: bool = False,
        lease_ms: int = 0,
        claims: bool = False,
    ) -> Begun | Held:
        """Record the attempt and give what the agent is to get. `attempts` and `error` are those of the ledger row.

        An attempt that is not noted now has to be noted with its end: only for who may get the same event again. One
        that is resumed goes on where it was left, and is none of its own (RTY-4). For the time of a lease nobody else
        gets the event. With `claims` a task is claimed for the agent first; without, the agent does that by itself.
        """
        try:
            return await self._begin(
                event,
                agent_id,
                attempts,
                error,
                is_noted=is_noted,
                is_resumed=is_resumed,
                lease_ms=lease_ms,
                claims=claims,
            )
        except Refusal as refusal:
            if refusal.code in _CLOSED:
                # Somebody settled it meanwhile, with a reply by hand for instance.
                return _ENDED
            _log.warning("a turn of %s could not begin: %s", agent_id, refusal.message)
            return Held(hold=Hold.WAITS, due_at_ms=self._clock.now_ms() + _FULL_DISK_MS)

    async def _begin(
        self,
        event: Event,
        agent_id: str,
        attempts: int,
        error: str | None,
        *,
        is_noted: bool,
        is_resumed: bool,
        lease_ms: int,
        claims: bool,
    ) -> Begun | Held:
        now_ms = self._clock.now_ms()
        if is_expired(event, now_ms=now_ms):
            await self.expire(event, agent_id)
            return _ENDED
        if exhausted(self._policy, attempts) and not is_resumed:
            # Attempts that ended in a crash of this gateway count too, or a poisonous message would be tried for ever.
            last_error = error or "the gateway stopped during each attempt"
            await self._end_failed(event, agent_id, reason="max_attempts", error=last_error)
            return _ENDED
        if event.trace.instead_of is not None and (held := await self._end_repeat(event, agent_id)) is not None:
            return held
        if (kept := await self._keep_from_agent(event, agent_id)) is not None:
            return kept
        # Opened before the attempt is recorded: content that is still on its way spends none.
        try:
            content = self._sealer.open(event)
        except Refusal as refusal:
            return await self._without_content(event, agent_id, refusal)
        if isinstance(event, TaskCreateEvent) and (held := await self._take_task(event, agent_id, claims)) is not None:
            return held
        if is_resumed or not is_noted:
            attempt = attempts if is_resumed else attempts + 1
            return Begun(event=event, engagement=self._engagement(event, agent_id, attempt, content), at_ms=now_ms)
        try:
            until_ms = now_ms + lease_ms if lease_ms else 0
            attempt = await self._store.engage(event.event_id, agent_id, at_ms=now_ms, until_ms=until_ms)
        except Refusal as refusal:
            if refusal.code is Code.EXPIRED:
                await self.expire(event, agent_id)
                return _ENDED
            raise
        return Begun(event=event, engagement=self._engagement(event, agent_id, attempt, content), at_ms=now_ms)

    def begin_at_once(self, event: Event, agent_id: str) -> Begun | None:
        """The first attempt, which is noted with its end, with mail that needs nothing but to be handed over.

        None for everything else: `begin` says what becomes of it.
        """
        now_ms = self._clock.now_ms()
        if type(event) not in _HANDED_OVER or event.payload_ref is not None or is_expired(event, now_ms=now_ms):
            return None
        if event.trace.instead_of is not None:
            return None
        try:
            content = self._sealer.open(event)
        except Refusal:
            return None
        return Begun(event=event, engagement=self._engagement(event, agent_id, 1, content), at_ms=now_ms)

    def _engagement(self, event: Event, agent_id: str, attempt: int, content: Content) -> Engagement:
        made = engagement_of(event, agent_id, attempt=attempt, content=content)
        injected = self.inject(agent_id, event.event_id)
        return made if injected is None else replace(made, injected_context=injected)

    async def _end_repeat(self, event: Event, agent_id: str) -> Held | None:
        """RTY-3: end a dead letter that was sent again if the agent had it after all. None if the agent may have it.

        The answer of the first one goes to its sender under the first id. While that one has no outcome yet, the
        repeat waits for it. For tasks the events themselves tell.
        """
        before = event.trace.instead_of
        if before is None or not isinstance(event, MessageEvent | ReplyEvent):
            return None
        first = self._store.ledger_entry(before, agent_id)
        item = None if first is None else self._store.inbox_item(before, agent_id)
        if first is None or (item is not None and item.source_node_id != event.source_node_id):
            return None
        if first.state is not LedgerState.SETTLED:
            return Held(hold=Hold.WAITS, due_at_ms=self._clock.now_ms() + _REPEAT_MS)
        if first.outcome is not Outcome.PROCESSED:
            return None
        ack = self._maker.ack(event, AckType.PROCESSED, agent_id=agent_id, reason=REPEATED)
        await self._settle(event, agent_id, Outcome.PROCESSED, (ack,), (), f"the agent had it before, as {before}")
        return _ENDED

    async def _keep_from_agent(self, event: Event, agent_id: str) -> Held | None:
        """Tasks that the gateway does in an agent's name are not the agent's business, nor is how they ended."""
        if isinstance(event, TaskCreateEvent):
            if event.payload.task_type not in self.kept_task_types:
                return None
            entry = self._store.ledger_entry(event.event_id, agent_id)
            if entry is None or entry.state is LedgerState.SETTLED:
                return _ENDED
            return Held(hold=Hold.WAITS, due_at_ms=self._clock.now_ms() + _CLAIM_MS)
        if isinstance(event, TaskUpdateEvent | TaskCompleteEvent | TaskFailedEvent) and self.kept_task_types:
            record = self._store.task(event.payload.task_id)
            if record is not None and record.task_type in self.kept_task_types:
                ack = self._maker.ack(event, AckType.PROCESSED, agent_id=agent_id)
                await self._settle(event, agent_id, Outcome.PROCESSED, (ack,), (), None)
                return _ENDED
        return None

    async def _take_task(self, event: TaskCreateEvent, agent_id: str, claims: bool) -> Held | None:
        """TASK-2: the acceptance comes before the work. None if the agent may have the task now."""
        if self._task_turns is None:
            return None
        standing = self._task_turns.standing(event, agent_id)
        if standing is Standing.OPEN and claims:
            try:
                await self._claim(self._task_turns, event, agent_id)
            except Refusal as refusal:
                if refusal.code in _TROUBLE:
                    raise
                if refusal.code is not Code.INVALID_TRANSITION:
                    # Whoever wants it done is out of the mesh, and would hear nothing of it.
                    await self._fail(event, agent_id, reason="unclaimable", error=refusal.message)
                    return _ENDED
            standing = self._task_turns.standing(event, agent_id)
        if standing is Standing.GONE:
            await self.leave(event, agent_id)
            return _ENDED
        if standing is Standing.WAITS and claims:
            return Held(hold=Hold.WAITS, due_at_ms=self._clock.now_ms() + _CLAIM_MS)
        return None

    async def _claim(self, task_turns: TaskTurns, event: TaskCreateEvent, agent_id: str) -> None:
        claim = await task_turns.claim(event, agent_id)
        await self._outbox.append((claim.event,), deliveries=(claim.delivery,))

    def is_decided(self, event: Event, agent_id: str) -> bool:
        """Whether nothing has to be waited for any more before the agent can have this task, or not."""
        if self._task_turns is None or not isinstance(event, TaskCreateEvent):
            return False
        if event.payload.task_type in self.kept_task_types:
            return False
        return self._task_turns.standing(event, agent_id) is not Standing.WAITS

    async def leave(self, event: TaskCreateEvent, agent_id: str) -> bool:
        """Close the offer of a task that is over, or somebody else's, without engaging the agent."""
        ack = self._maker.ack(event, AckType.PROCESSED, agent_id=agent_id, reason=TAKEN)
        return await self._settle(event, agent_id, Outcome.PROCESSED, (ack,), (), "the task went to somebody else")

    async def note(self, event_id: EventId, agent_id: str, *, at_ms: int) -> None:
        """Record an attempt that began without being noted."""
        try:
            await self._store.engage(event_id, agent_id, at_ms=at_ms)
        except Refusal as refusal:
            if refusal.code not in _CLOSED:
                _log.warning("an attempt of %s could not be recorded: %s", agent_id, refusal.message)

    @property
    def longest_pause_ms(self) -> int:
        """No attempt that failed is repeated later than this."""
        return round(self._policy.max_delay_seconds * 1000)

    def retry_at_ms(self, result: Result, *, attempt: int) -> int | None:
        """When attempt number `attempt`, which ended with `result`, is to be repeated; None if that was the end."""
        if result.kind is not ResultKind.RETRY or exhausted(self._policy, attempt):
            return None
        delay_seconds = next_delay_seconds(self._policy, attempt=attempt, jitter=self._chance.fraction())
        # What the runtime asked for is a lower bound; the policy's longest wait is the upper one.
        asked_seconds = min(result.retry_after_seconds or 0, self._policy.max_delay_seconds)
        return self._clock.now_ms() + round(max(delay_seconds, asked_seconds) * 1000)

    async def postpone(
        self,
        event: Event,
        agent_id: str,
        *,
        due_at_ms: int,
        error: str | None,
        attempt: int | None = None,
        holds_back: bool = False,
    ) -> bool:
        """Note that an attempt failed and when the next one is due (RTY-4). False if the row is closed.

        Without the number of the `attempt` none was made. With `holds_back` later mail of the sender waits meanwhile.
        """
        error = as_text(error or "the runtime did not say why")
        try:
            await self._store.postpone(event.event_id, agent_id, due_at_ms=due_at_ms, error=error)
        except Refusal as refusal:
            if refusal.code in _CLOSED:
                return False
            _log.warning("a failed attempt of %s could not be recorded: %s", agent_id, refusal.message)
        if attempt is not None:
            self.failing.failed(
                event,
                agent_id,
                attempt=attempt,
                most_attempts=self._policy.max_attempts,
                due_at_ms=due_at_ms,
                error=error,
                holds_back=holds_back,
            )
        return True

    async def end(self, event: Event, agent_id: str, result: Result, *, engaged_at_ms: int | None = None) -> bool:
        """Write the outcome of a turn that is over. False if the row was closed before; raises if the disk refuses.

        `engaged_at_ms` is when an attempt began that was not noted.
        """
        if result.kind is ResultKind.PROCESSED:
            return await self._process(event, agent_id, result, engaged_at_ms)
        reason = "failed" if result.kind is ResultKind.FAILED else "max_attempts"
        return await self._end_failed(
            event, agent_id, reason=reason, error=result.error, engaged_at_ms=engaged_at_ms, result=result
        )

    async def _end_failed(
        self,
        event: Event,
        agent_id: str,
        *,
        reason: str,
        error: str | None,
        engaged_at_ms: int | None = None,
        result: Result | None = None,
    ) -> bool:
        """End what the agent could not handle, and tell the operator of an agent that fails."""
        ended = await self._fail(
            event, agent_id, reason=reason, error=error, engaged_at_ms=engaged_at_ms, result=result
        )
        if result is not None and result.kind is ResultKind.FAILED and not result.is_defect:
            self.failing.succeeded(agent_id)
        elif ended:
            entry = self._store.ledger_entry(event.event_id, agent_id)
            attempts = 0 if entry is None else entry.attempts
            self.failing.gave_up(event, agent_id, reason=reason, attempts=attempts, error=error or reason)
        return ended

    async def end_silently(self, ended: Sequence[tuple[Event, int | None]], agent_id: str) -> None:
        """Write that turns with these events are over and nothing is said to them, all in one transaction.

        Each has when its attempt began, if that was not noted. A row that was closed before stays as it is.
        """
        at_ms, processed = self._clock.now_ms(), self._maker.acks(AckType.PROCESSED)
        await self._outbox.settle_all(
            [
                Settlement(
                    event_id=event.event_id,
                    to_agent_id=agent_id,
                    outcome=Outcome.PROCESSED,
                    at_ms=at_ms,
                    engaged_at_ms=engaged_at_ms,
                    events=(processed(event, agent_id),),
                )
                for event, engaged_at_ms in ended
            ]
        )
        self.failing.succeeded(agent_id)

    async def _process(self, event: Event, agent_id: str, result: Result, engaged_at_ms: int | None) -> bool:
        self.failing.succeeded(agent_id)
        ack = self._maker.ack(event, AckType.PROCESSED, agent_id=agent_id)
        events: tuple[Event, ...] = (ack,)
        deliveries: tuple[Delivery, ...] = ()
        error: str | None = None
        try:
            said = await self._say(event, agent_id, result)
        except Refusal as refusal:
            if refusal.code is Code.INVALID_TRANSITION or refusal.code in _TROUBLE:
                # A disk without room for a large reply may have it soon: the outcome waits for that.
                raise
            # The turn is over all the same, and running the agent again would not bring the sender back.
            error = await self._reply_refused(event, agent_id, refusal)
        else:
            events, deliveries = (*(each for each, _ in said), ack), tuple(delivery for _, delivery in said)
        try:
            return await self._settle(event, agent_id, Outcome.PROCESSED, events, deliveries, error, engaged_at_ms)
        except Refusal as refusal:
            if not deliveries or not _is_about_the_reply(refusal):
                raise
            error = await self._reply_refused(event, agent_id, refusal)
            return await self._settle(event, agent_id, Outcome.PROCESSED, (ack,), (), error, engaged_at_ms)

    async def _say(self, event: Event, agent_id: str, result: Result) -> list[tuple[Event, Delivery]]:
        """What the sender hears of the outcome, besides the ACK: the reply, or what became of the task."""
        if isinstance(event, TaskCreateEvent) and self._task_turns is not None:
            moves = await self._task_turns.ending(event, agent_id, result)
            return [(move.event, move.delivery) for move in moves]
        if result.kind is ResultKind.PROCESSED and result.reply is not None and _is_answerable(event):
            return [await self._publisher.make_reply(event, agent_id=agent_id, content=result.reply)]
        return []

    async def _reply_refused(self, event: Event, agent_id: str, refusal: Refusal) -> str:
        await self.incident(IncidentKind.REPLY_REFUSED, event, agent_id, code=refusal.code.value)
        return as_text(f"its reply could not be sent: {refusal.message}")

    async def expire(self, event: Event, agent_id: str) -> bool:
        """ENV-7: end mail that the agent may not have any more. False if it had an outcome before."""
        ack = self._maker.ack(event, AckType.FAILED_TERMINAL, agent_id=agent_id, reason="expired")
        return await self._settle(event, agent_id, Outcome.EXPIRED, (ack,), (), f"expired at {event.expires_at}")

    async def give_up(self, event: Event, agent_id: str, *, reason: str, error: str) -> bool:
        """End mail that its agent will never get, because it is not here any more. False if it had an outcome before.

        The offer of a task ends with it, and the task itself can be offered to others.
        """
        ack = self._maker.ack(event, AckType.FAILED_TERMINAL, agent_id=agent_id, reason=reason)
        return await self._settle(event, agent_id, Outcome.FAILED_TERMINAL, (ack,), (), error)

    async def _fail(
        self,
        event: Event,
        agent_id: str,
        *,
        reason: str,
        error: str | None,
        engaged_at_ms: int | None = None,
        result: Result | None = None,
    ) -> bool:
        error = as_text(error or reason)
        entry = self._store.ledger_entry(event.event_id, agent_id)
        attempts = (0 if entry is None else entry.attempts) + (engaged_at_ms is not None)
        ack = self._maker.ack(event, AckType.FAILED_TERMINAL, agent_id=agent_id, reason=reason)
        try:
            sealed = self._sealer.seal(Content(error_summary=error), event_id=ack.event_id, to_nodes=ack.to_nodes)
        except Refusal:
            # A sender that is out of the mesh has no key any more; the reason has to do.
            sealed = None
        ack = replace(ack, payload=replace(ack.payload, sealed=sealed, attempts=attempts))
        result = replace(result or Result(kind=ResultKind.RETRY), error=error)
        said = await self._failed_task(event, agent_id, result)
        events, deliveries = (*(each for each, _ in said), ack), tuple(delivery for _, delivery in said)
        outcome = Outcome.FAILED_TERMINAL
        try:
            return await self._settle(event, agent_id, outcome, events, deliveries, error, engaged_at_ms)
        except Refusal as refusal:
            if not deliveries or not _is_about_the_reply(refusal):
                raise
            # The task ended in between, say. The turn is over all the same.
            await self._reply_refused(event, agent_id, refusal)
            return await self._settle(event, agent_id, outcome, (ack,), (), error, engaged_at_ms)

    async def _failed_task(self, event: Event, agent_id: str, result: Result) -> list[tuple[Event, Delivery]]:
        """TASK-7: whoever waits for a task hears that it failed. Its gateway may be out of the mesh."""
        try:
            return await self._say(event, agent_id, result)
        except Refusal as refusal:
            if refusal.code in _TROUBLE:
                raise
            await self._reply_refused(event, agent_id, refusal)
            return []

    async def _without_content(self, event: Event, agent_id: str, refusal: Refusal) -> Held:
        if refusal.code is Code.UNAVAILABLE:
            due_at_ms = self._clock.now_ms() + _CONTENT_MS
            await self.postpone(event, agent_id, due_at_ms=due_at_ms, error=refusal.message)
            return Held(hold=Hold.WAITS, due_at_ms=due_at_ms)
        await self.incident(IncidentKind.UNREADABLE, event, agent_id, code=refusal.code.value)
        await self._fail(event, agent_id, reason="unreadable", error=refusal.message)
        return _ENDED

    async def _settle(
        self,
        event: Event,
        agent_id: str,
        outcome: Outcome,
        events: tuple[Event, ...],
        deliveries: tuple[Delivery, ...],
        error: str | None,
        engaged_at_ms: int | None = None,
    ) -> bool:
        self.failing.settled(event.event_id, agent_id)
        return await self._outbox.settle(
            Settlement(
                event_id=event.event_id,
                to_agent_id=agent_id,
                outcome=outcome,
                at_ms=self._clock.now_ms(),
                engaged_at_ms=engaged_at_ms,
                events=events,
                deliveries=deliveries,
                error=error,
            )
        )

    async def incident(
        self, kind: IncidentKind, event: Event, agent_id: str, **detail: str | int | bool | None
    ) -> None:
        """Show something to a person. Neither what was said nor what an agent printed is in it."""
        await self._store.raise_incident(
            Incident(
                kind=kind,
                subject=f"{event.event_id}/{agent_id}",
                at_ms=self._clock.now_ms(),
                corr_id=event.corr_id,
                detail={"eventId": event.event_id, "agentId": agent_id, **detail},
            )
        )


def _is_answerable(event: Event) -> bool:
    return isinstance(event, ASKING) and event.source_agent_id != POSTMASTER


def _is_about_the_reply(refusal: Refusal) -> bool:
    return refusal.code in (
        Code.INVALID_FIELD,
        Code.TOO_LARGE,
        Code.TOO_DEEP,
        Code.CONFLICT,
        Code.INVALID_TRANSITION,
    )
