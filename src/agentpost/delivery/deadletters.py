"""Dead letters: to list, to look into, to send again and to purge, and all of it in the audit (RTY-7).

Among them is what was accepted and then failed or expired: its agent has not dealt with it either. A message that has
arrived after all is not sent again. If nobody here knows that it has, the new event names the one that it replaces, and
the receiver gives it to its agent only if the agent did not have the first one (RTY-3).

A dead letter is an end (RTY-6), so sending it again makes a new event in the same conversation; the old one notes as
what it was sent again. The offer of a task that is sent again is the next round of the task (TASK-6), so whoever else
may still claim it is offered it, too.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.failing import Opens, failed_try_of
from agentpost.delivery.making import EventMaker
from agentpost.delivery.placing import Placement, place
from agentpost.delivery.policy import DeliveryPolicy, ack_due_at_ms
from agentpost.delivery.ports import Content, RoomView
from agentpost.delivery.trace import TraceStep, trace_event
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Delivery, has_arrived_late, has_failed, is_undelivered
from agentpost.protocol.envelope import Event, MessageEvent, TaskAcceptEvent, TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.routing import RouteRequest
from agentpost.protocol.tasks import TASK_EVENTS
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.interface import Store
from agentpost.store.values import Appended, AuditEntry, ResentLetter
from agentpost.world import Clock

__all__ = [
    "DeadLetterLine",
    "DeadLetterView",
    "DeadLetters",
    "Filter",
    "NotResent",
    "Publishes",
    "Resent",
    "ResentLine",
]

_PAGE: Final = 256


class Publishes(Protocol):
    """As much of the publisher as this needs."""

    async def publish(
        self,
        event: Event,
        *,
        content: Content,
        deliveries: Sequence[Delivery] = (),
        resends: Sequence[ResentLetter] = (),
    ) -> Appended: ...


class Filter(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Which dead letters are meant. Nothing given means all of them; hence a misspelt field is refused."""

    event_id: EventId | None = None
    to_agent_id: str | None = None
    reason: str | None = None
    since_ms: int | None = None

    def takes(self, delivery: Delivery) -> bool:
        return (
            (self.event_id is None or delivery.event_id == self.event_id)
            and (self.to_agent_id is None or delivery.to_agent_id == self.to_agent_id)
            and (self.reason is None or delivery.reason == self.reason)
            and (self.since_ms is None or (delivery.closed_at_ms or 0) >= self.since_ms)
        )


class DeadLetterLine(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One dead letter as a list shows it; (`event_id`, `to_agent_id`) is where the next page starts.

    `was_accepted` says that its gateway had it, and its agent failed with it or did not get it in time; `attempts` are
    those of the agent then, and `error` is the last one. `late` is what was heard of it after its end.
    """

    event_id: EventId
    to_agent_id: str
    from_agent_id: str
    corr_id: str
    to_node_id: str | None = None
    reason: str | None = None
    attempts: int
    emitted_at_ms: int
    dead_lettered_at_ms: int
    resent_as: EventId | None = None
    was_accepted: bool = False
    error: str | None = None
    late: DeliverySignal | None = None


class DeadLetterView(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Everything about one event that did not arrive. `problem` says why it has no content here."""

    event_id: EventId
    letters: tuple[DeadLetterLine, ...]
    history: tuple[TraceStep, ...]
    kind: str | None = None
    content: Content | None = None
    problem: str | None = None


class ResentLine(Struct, frozen=True, kw_only=True, rename="camel"):
    event_id: EventId
    to_agents: tuple[str, ...]
    resent_as: EventId


class NotResent(Struct, frozen=True, kw_only=True, rename="camel"):
    event_id: EventId
    to_agents: tuple[str, ...]
    reason: str


class Resent(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was sent again, and what could not be: that one stays a dead letter."""

    resent: tuple[ResentLine, ...]
    refused: tuple[NotResent, ...] = ()


class DeadLetters:
    def __init__(
        self,
        *,
        store: Store,
        room: RoomView,
        publisher: Publishes,
        sealer: Opens,
        maker: EventMaker,
        clock: Clock,
        policy: DeliveryPolicy | None = None,
    ) -> None:
        self._store = store
        self._room = room
        self._publisher = publisher
        self._sealer = sealer
        self._maker = maker
        self._clock = clock
        self._policy = policy or DeliveryPolicy()

    async def list(
        self, which: Filter | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 50, actor: str
    ) -> "list[DeadLetterLine]":
        """A page of dead letters, oldest first."""
        which = which or Filter()
        lines: list[DeadLetterLine] = []
        for delivery in self._dead(which, after=after):
            lines.append(self._line(delivery))
            if len(lines) >= limit:
                break
        await self._record([self._entry("deadletters.list", actor, detail={**_named(which), "count": len(lines)})])
        return lines

    async def show(self, event_id: EventId, *, actor: str) -> DeadLetterView:
        """One event that did not reach everybody: to whom, why, what was tried, and what it says."""
        letters = list(self._dead(Filter(event_id=event_id)))
        if not letters:
            raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} is not a dead letter", field="eventId")
        event = self._event(event_id)
        content: Content | None = None
        problem = "the outbox has it no more"
        if event is not None:
            try:
                content, problem = self._sealer.open(event), ""
            except Refusal as refusal:
                problem = refusal.message
        await self._record([self._entry("deadletters.show", actor, letters[0])])
        return DeadLetterView(
            event_id=event_id,
            letters=tuple(self._line(letter) for letter in letters),
            history=tuple(trace_event(self._store, event_id, sealer=self._sealer)),
            kind=None if event is None else event.kind.value,
            content=content,
            problem=problem or None,
        )

    async def resend(self, which: Filter, *, actor: str) -> Resent:
        """Send again, as new events of the same conversation, what this names and was not sent again yet."""
        by_event: dict[EventId, list[Delivery]] = {}
        for letter in self._dead(which):
            if letter.resent_as is None:
                by_event.setdefault(letter.event_id, []).append(letter)
        resent: list[ResentLine] = []
        refused: list[NotResent] = []
        for event_id, found in by_event.items():
            letters = [letter for letter in found if not self._has_arrived(letter)]
            if arrived := [letter for letter in found if letter not in letters]:
                refused.append(_arrived(event_id, arrived))
            if not letters:
                continue
            to_agents = tuple(letter.to_agent_id for letter in letters)
            try:
                new_id, reached = await self._send_again(event_id, letters)
            except Refusal as refusal:
                refused.append(NotResent(event_id=event_id, to_agents=to_agents, reason=refusal.message))
                continue
            sent = [letter for letter in letters if letter.to_agent_id in reached]
            await self._record(
                [self._entry("deadletters.resend", actor, letter, detail={"resentAs": new_id}) for letter in sent]
            )
            sent_to = tuple(letter.to_agent_id for letter in sent)
            resent.append(ResentLine(event_id=event_id, to_agents=sent_to, resent_as=new_id))
            if missed := tuple(agent_id for agent_id in to_agents if agent_id not in reached):
                refused.append(NotResent(event_id=event_id, to_agents=missed, reason="no gateway hosts the agent"))
        return Resent(resent=tuple(resent), refused=tuple(refused))

    def _has_arrived(self, letter: Delivery) -> bool:
        """Whether its receiver has said since that it has it. Of a task the receiver tells a repeat by itself."""
        if not has_arrived_late(letter):
            return False
        event = self._event(letter.event_id)
        return event is None or type(event) not in TASK_EVENTS

    async def purge(self, which: Filter, *, actor: str) -> int:
        """Forget these dead letters. The audit keeps which they were, not what they said."""
        purged = 0
        letters = list(self._dead(which))
        for first in range(0, len(letters), _PAGE):
            page = letters[first : first + _PAGE]
            # The audit first: should the process end here, it tells of a purge that is done again, never of none.
            await self._record([self._entry("deadletters.purge", actor, letter) for letter in page])
            purged += await self._store.purge_deliveries([(each.event_id, each.to_agent_id) for each in page])
        return purged

    async def _send_again(self, event_id: EventId, letters: Sequence[Delivery]) -> tuple[EventId, frozenset[str]]:
        to_agents = tuple(letter.to_agent_id for letter in letters)
        event = self._event(event_id)
        if event is None:
            raise Refusal(Code.NOT_FOUND, f"the outbox has {event_id} no more", field="eventId")
        if isinstance(event, TaskAcceptEvent):
            self._check_wanted(event, given_up_at_ms=letters[0].closed_at_ms or 0)
        content = self._sealer.open(event)
        now_ms = self._clock.now_ms()
        reached = self._placed(event, to_agents, now_ms)
        if not reached.recipients:
            raise Refusal(Code.NO_ROUTE, f"no gateway hosts {', '.join(to_agents)[:200]}", field="toAgents")
        others = self._other_takers(event)
        everyone = self._placed(event, (*reached.to_agents, *others), now_ms) if others else reached
        again = self._renewed(event, everyone, now_ms)
        deliveries = everyone.deliveries(
            again, due_at_ms=ack_due_at_ms(again, now_ms=now_ms, policy=self._policy), now_ms=now_ms
        )
        # Noted in the same transaction: whatever happens, and whoever else has the same idea, it is sent again once.
        resends = [
            ResentLetter(event_id=event_id, to_agent_id=to_agent_id, resent_as=again.event_id)
            for to_agent_id in reached.to_agents
        ]
        await self._publisher.publish(again, content=content, deliveries=deliveries, resends=resends)
        return again.event_id, frozenset(reached.to_agents)

    def _placed(self, event: Event, to_agents: Sequence[str], now_ms: int) -> Placement:
        """Those of the agents that some gateway hosts."""
        request = RouteRequest(source_agent_id=event.source_agent_id, to_agents=tuple(to_agents))
        placed = place(request, self._room, own_node_id=self._store.node_id, now_ms=now_ms)
        hosted = tuple(each for each in placed.recipients if each.node_id is not None)
        return Placement.of(hosted, rejected=placed.rejected, room=placed.room)

    def _check_wanted(self, claim: TaskAcceptEvent, *, given_up_at_ms: int) -> None:
        """Refuse a claim that was given up with its dead letter: nobody would do the work if it won now."""
        agent_id, record = claim.source_agent_id, self._store.task(claim.payload.task_id)
        if record is None or record.accepted_by_agent_id is not None:
            return
        offer = self._store.ledger_entry(record.create_event_id, agent_id)
        # Whoever claims by himself has dealt with the offer then, and waits for the verdict.
        if offer is not None and (offer.settled_at_ms or 0) >= given_up_at_ms:
            raise Refusal(
                Code.INVALID_TRANSITION,
                f"task {record.task_id}: {agent_id} is not offered it any more",
                field="eventId",
            )

    def _other_takers(self, event: Event) -> tuple[str, ...]:
        """The agents whose offer of the same task is good. That nobody has it is for the store to say, as it writes."""
        if not isinstance(event, TaskCreateEvent) or self._store.task(event.payload.task_id) is None:
            return ()
        return tuple(each.to_agent_id for each in self._store.deliveries_of(event.event_id) if not has_failed(each))

    def _renewed(self, event: Event, placement: Placement, now_ms: int) -> Event:
        """The same words in a new event: its first attempt, its own time, and as long to live as the old one had."""
        expires_at: str | None = None
        if event.expires_at is not None:
            lives_ms = parse_ms(event.expires_at, field="expiresAt") - parse_ms(event.created_at, field="createdAt")
            expires_at = format_ms(now_ms + max(lives_ms, 1))
        payload: Any = replace(event.payload, sealed=None) if hasattr(event.payload, "sealed") else event.payload
        if isinstance(event, MessageEvent | TaskCreateEvent):
            payload = replace(payload, to_agents=placement.to_agents)
        # A task must tell what is said again from a second move, and a receiver what its agent has had.
        trace = replace(placement.trace, instead_of=event.event_id)
        return replace(
            event,
            event_id=self._maker.new_event_id(),
            seq=0,
            to_nodes=placement.to_nodes,
            created_at=format_ms(now_ms),
            expires_at=expires_at,
            trace=trace,
            payload=payload,
            payload_ref=None,
        )

    def _line(self, delivery: Delivery) -> DeadLetterLine:
        failed = next(
            (
                failed_try_of(each, self._sealer)
                for each in self._store.failed_attempts_of(delivery.event_id)
                if each.to_agent_id == delivery.to_agent_id
            ),
            None,
        )
        was_accepted = delivery.state is not DeliveryState.DEAD_LETTER
        return DeadLetterLine(
            event_id=delivery.event_id,
            to_agent_id=delivery.to_agent_id,
            from_agent_id=delivery.from_agent_id,
            corr_id=delivery.corr_id,
            to_node_id=delivery.to_node_id,
            reason=delivery.reason,
            attempts=failed.attempt if was_accepted and failed is not None else delivery.attempts,
            emitted_at_ms=delivery.emitted_at_ms,
            dead_lettered_at_ms=delivery.closed_at_ms or 0,
            resent_as=delivery.resent_as,
            was_accepted=was_accepted,
            error=None if failed is None else failed.error,
            late=delivery.late,
        )

    def _dead(self, which: Filter, *, after: tuple[str, str] = ("", "")) -> Iterator[Delivery]:
        if which.event_id is not None:
            found = self._store.deliveries_of(which.event_id)
            yield from (each for each in found if is_undelivered(each) and which.takes(each))
            return
        while page := self._store.undelivered(after=after, limit=_PAGE):
            yield from (each for each in page if which.takes(each))
            after = (page[-1].event_id, page[-1].to_agent_id)

    def _event(self, event_id: EventId) -> Event | None:
        stored = self._store.find_event(event_id)
        return None if stored is None else decode_event(stored.raw)

    async def _record(self, entries: Sequence[AuditEntry]) -> None:
        await self._store.record_audit(entries)

    def _entry(
        self,
        action: str,
        actor: str,
        letter: Delivery | None = None,
        *,
        detail: dict[str, str | int | bool | None] | None = None,
    ) -> AuditEntry:
        about: dict[str, str | int | bool | None] = {}
        if letter is not None:
            about = {"toAgentId": letter.to_agent_id, "reason": letter.reason}
        return AuditEntry(
            at_ms=self._clock.now_ms(),
            actor=actor,
            action=action,
            subject=None if letter is None else letter.event_id,
            corr_id=None if letter is None else letter.corr_id or None,
            detail=about | (detail or {}),
        )


def _arrived(event_id: EventId, letters: Sequence[Delivery]) -> NotResent:
    said = ", ".join(f"{each.to_agent_id}: {each.late} at {format_ms(each.late_at_ms or 0)}" for each in letters)
    return NotResent(
        event_id=event_id,
        to_agents=tuple(each.to_agent_id for each in letters),
        reason=f"it arrived after all ({said})",
    )


def _named(which: Filter) -> dict[str, str | int | bool | None]:
    fields: dict[str, str | int | None] = {
        "eventId": which.event_id,
        "toAgentId": which.to_agent_id,
        "reason": which.reason,
        "sinceMs": which.since_ms,
    }
    return {name: value for name, value in fields.items() if value is not None}
