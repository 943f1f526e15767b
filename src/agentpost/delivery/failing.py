"""Agents that fail: since when their gateway knows of it, and what the senders of their mail are told (RTY-4).

Each try that fails is told to the sender's gateway by a signal: how many were made, when the next one is due, and the
error, sealed. The signals are hints. They are written together, a few a second: of several tries with one message only
the last is told, and of a message that has its outcome none. A sender hears of the end by the ACK.

An agent fails from its first try that failed until the next one that did not, whatever the message. It is an incident
once a message was given up. Both are over by themselves when the agent succeeds, or is removed.

Knows nothing of runtimes, and nothing of the words of an agent's answers.
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.ports import Content, Wakeups
from agentpost.delivery.postmaster import POSTMASTER, Seals
from agentpost.delivery.wording import as_text
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event, SignalEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.interface import Store
from agentpost.store.values import FailedAttempt, Incident, Note
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = [
    "AGENT_FAILING",
    "FORGOTTEN_MS",
    "FailedTry",
    "Failing",
    "FailingAgent",
    "Opens",
    "error_of",
    "failed_attempt_of",
    "failed_try_of",
]

_log = logging.getLogger(__name__)

AGENT_FAILING: Final = IncidentKind.AGENT_FAILING
_ATTEMPT_FAILED: Final = "attempt_failed"  # the name of the signal
_NOTES: Final = "failing_agents"
_FIRST_SECONDS: Final = 0.05
_EVERY_SECONDS: Final = 1.0
# What one write tells; the rest follows with the next one.
_MOST_SIGNALS: Final = 64
# What a peer says of one try is an error of `MAX_ERROR` characters, sealed for a gateway or two.
_MOST_BYTES: Final = 32 * 1024
# A next try so long ago was never made, or never told.
FORGOTTEN_MS: Final = 86_400_000


class FailingAgent(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An agent whose last try failed. `tries` failed in a row since `since_ms`, the last of them with `event_id`.

    `given_up` is how many messages are not tried any more. `error` is for the agent's own operator.
    """

    since_ms: int
    at_ms: int
    tries: int = 0
    given_up: int = 0
    event_id: EventId
    error: str


class FailedTry(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The last try of a recipient that failed with a message, as the sender sees it.

    Try `attempt` of `most_attempts` failed; without `next_try_at_ms` there is no other one.
    """

    attempt: int
    most_attempts: int
    since_ms: int
    at_ms: int
    next_try_at_ms: int | None = None
    error: str | None = None


class Opens(Protocol):
    """As much of the sealer as this needs."""

    def open(self, event: Event) -> Content: ...


class _Try(Struct, frozen=True, kw_only=True):
    event: Event
    agent_id: str
    attempt: int
    most_attempts: int
    at_ms: int
    due_at_ms: int
    error: str
    holds_back: bool


class Failing:
    """One for each gateway. What is called here never waits, and raises for nothing that an agent did."""

    def __init__(self, *, store: Store, maker: EventMaker, sealer: Seals, clock: Clock, wakeups: Wakeups) -> None:
        self._store = store
        self._maker = maker
        self._sealer = sealer
        self._clock = clock
        self._outbox = OutboxWriter(store, wakeups)
        self._agents: dict[str, FailingAgent] = {}
        # By event and agent: the last try that was not told yet.
        self._untold: dict[tuple[EventId, str], _Try] = {}
        self._unwritten: set[str] = set()
        self._is_telling = False
        self._tasks = TaskOwner("failing")

    def start(self) -> None:
        """Know again what was known before the gateway stopped."""
        after_key = ""
        while page := self._store.notes(_NOTES, after_key=after_key):
            after_key = page[-1].key
            for note in page:
                self._agents[note.key] = msgspec.json.decode(note.value or b"", type=FailingAgent)

    async def close(self) -> None:
        """Stop telling, and keep what is known of the agents for the next start."""
        await self._tasks.close()
        self._untold.clear()
        with suppress(Refusal):
            if self._unwritten:
                await self._write()

    def of(self, agent_id: str) -> FailingAgent | None:
        """Since when the agent fails, and why; None if its last try went well."""
        return self._agents.get(agent_id)

    def failed(
        self,
        event: Event,
        agent_id: str,
        *,
        attempt: int,
        most_attempts: int,
        due_at_ms: int,
        error: str,
        holds_back: bool,
    ) -> None:
        """A try failed, and the next one is due then. With `holds_back` later mail of its sender waits meanwhile."""
        now_ms = self._clock.now_ms()
        self._note(event, agent_id, error, gives_up=False)
        if event.source_agent_id != POSTMASTER:
            # At the end, as the newest.
            self._untold.pop((event.event_id, agent_id), None)
            self._untold[event.event_id, agent_id] = _Try(
                event=event,
                agent_id=agent_id,
                attempt=attempt,
                most_attempts=most_attempts,
                at_ms=now_ms,
                due_at_ms=due_at_ms,
                error=error,
                holds_back=holds_back,
            )
        self._tell_soon()

    def gave_up(self, event: Event, agent_id: str, *, reason: str, attempts: int, error: str) -> None:
        """The last try failed: the message is not tried any more, and its sender was told by the ACK."""
        self._untold.pop((event.event_id, agent_id), None)
        known = self._note(event, agent_id, error, gives_up=True)
        incident = Incident(
            kind=AGENT_FAILING,
            subject=agent_id,
            at_ms=self._clock.now_ms(),
            corr_id=event.corr_id,
            detail={
                "agentId": agent_id,
                "eventId": event.event_id,
                "reason": reason,
                "attempts": attempts,
                "since": format_ms(known.since_ms),
            },
        )
        self._tasks.spawn(self._raise(incident), name="incident")
        self._tell_soon()

    def settled(self, event_id: EventId, agent_id: str) -> None:
        """The message has an outcome: nothing is told of its tries any more."""
        self._untold.pop((event_id, agent_id), None)

    def succeeded(self, agent_id: str) -> None:
        """The agent has dealt with something: it fails no more."""
        if agent_id in self._agents:
            self._forget(agent_id)

    def keep_only(self, agent_ids: Collection[str]) -> None:
        """Forget the agents that have been removed."""
        for agent_id in [each for each in self._agents if each not in agent_ids]:
            self._forget(agent_id)

    def _note(self, event: Event, agent_id: str, error: str, *, gives_up: bool) -> FailingAgent:
        now_ms = self._clock.now_ms()
        known = self._agents.get(agent_id) or FailingAgent(
            since_ms=now_ms, at_ms=now_ms, event_id=event.event_id, error=""
        )
        known = self._agents[agent_id] = replace(
            known,
            at_ms=now_ms,
            tries=known.tries + 1,
            given_up=known.given_up + gives_up,
            event_id=event.event_id,
            error=as_text(error),
        )
        self._unwritten.add(agent_id)
        return known

    def _forget(self, agent_id: str) -> None:
        del self._agents[agent_id]
        self._unwritten.add(agent_id)
        self._tasks.spawn(self._close_incident(agent_id), name="incident")
        self._tell_soon()

    async def _raise(self, incident: Incident) -> None:
        try:
            await self._store.raise_incident(incident)
        except Refusal as refusal:
            _log.error("an incident about %s could not be recorded: %s", incident.subject, refusal.message)

    async def _close_incident(self, agent_id: str) -> None:
        try:
            await self._store.close_incident(AGENT_FAILING, agent_id, at_ms=self._clock.now_ms())
        except Refusal as refusal:
            _log.error("the incident about %s could not be closed: %s", agent_id, refusal.message)

    def _tell_soon(self) -> None:
        if not self._is_telling:
            self._is_telling = True
            self._tasks.spawn(self._tell(), name="tell")

    async def _tell(self) -> None:
        """Write what is new, the first at once and the rest every second, until nothing is left."""
        pause_seconds = _FIRST_SECONDS
        try:
            while self._untold or self._unwritten:
                await asyncio.sleep(pause_seconds)
                pause_seconds = _EVERY_SECONDS
                try:
                    await self._write()
                except Refusal as refusal:
                    _log.warning("a try that failed could not be told: %s", refusal.message)
        finally:
            self._is_telling = False

    async def _write(self) -> None:
        pairs = tuple(self._untold)[:_MOST_SIGNALS]
        signals = [signal for pair in pairs if (signal := self._signal(self._untold[pair])) is not None]
        agent_ids = tuple(self._unwritten)
        at_ms = self._clock.now_ms()
        notes = [
            Note(collection=_NOTES, key=agent_id, value=self._value(agent_id), at_ms=at_ms) for agent_id in agent_ids
        ]
        for pair in pairs:
            del self._untold[pair]
        self._unwritten.difference_update(agent_ids)
        try:
            await self._outbox.append(signals, notes=notes)
        except Refusal:
            # The signals are hints. What the gateway itself knows is written with the next try.
            self._unwritten.update(agent_ids)
            raise

    def _value(self, agent_id: str) -> bytes | None:
        known = self._agents.get(agent_id)
        return None if known is None else msgspec.json.encode(known)

    def _signal(self, told: _Try) -> SignalEvent | None:
        signal = self._maker.signal(
            _ATTEMPT_FAILED,
            to_nodes=(told.event.source_node_id,),
            ref=told.event,
            details={
                "toAgentId": told.agent_id,
                "attempt": told.attempt,
                "mostAttempts": told.most_attempts,
                "failedAt": format_ms(told.at_ms),
                "nextTryAt": format_ms(told.due_at_ms),
                "holdsBack": told.holds_back,
            },
        )
        content = Content(error_summary=as_text(told.error))
        try:
            sealed = self._sealer.seal(content, event_id=signal.event_id, to_nodes=signal.to_nodes)
        except Refusal:
            # The sender's gateway has left the mesh.
            return None
        return replace(signal, payload=replace(signal.payload, sealed=sealed))


def failed_attempt_of(signal: SignalEvent, raw: bytes, *, at_ms: int) -> FailedAttempt | None:
    """What a gateway tells of a try that failed; None for other signals, and for one that does not say enough."""
    said, details = signal.payload, signal.payload.details
    if said.signal != _ATTEMPT_FAILED or said.ref_event_id is None or len(raw) > _MOST_BYTES:
        return None
    match details.get("toAgentId"), details.get("attempt"), details.get("mostAttempts"), details.get("nextTryAt"):
        case str(agent_id), int(attempt), int(most_attempts), str(next_try_at) if 0 < attempt < most_attempts < 2**31:
            pass
        case _:
            return None
    try:
        next_at_ms = parse_ms(next_try_at, field="nextTryAt")
    except Refusal:
        return None
    return FailedAttempt(
        event_id=said.ref_event_id,
        to_agent_id=agent_id,
        attempt=attempt,
        most_attempts=most_attempts,
        at_ms=at_ms,
        next_at_ms=next_at_ms,
        holds_back=details.get("holdsBack") is True,
        raw=raw,
        by_node_id=signal.source_node_id,
    )


def failed_try_of(attempt: FailedAttempt, sealer: Opens) -> FailedTry:
    """A try that failed, with the words of its error, for the sender."""
    return FailedTry(
        attempt=attempt.attempt,
        most_attempts=attempt.most_attempts,
        since_ms=attempt.first_at_ms,
        at_ms=attempt.at_ms,
        next_try_at_ms=attempt.next_at_ms,
        error=error_of(attempt, sealer),
    )


def error_of(attempt: FailedAttempt, sealer: Opens) -> str | None:
    """What the agent's gateway says of the try; None if it does not say it, or did not say it to this gateway."""
    try:
        error = sealer.open(decode_event(attempt.raw)).error_summary
    except Refusal:
        return None
    return None if error is None else as_text(error)
