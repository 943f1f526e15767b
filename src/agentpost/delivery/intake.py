"""What a batch of events means here: `accepted` for local agents, changes of our own deliveries, one transaction.

Knows nothing of links, heads or chains: whoever calls has checked where the bytes come from. Nothing is awaited for a
single event.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from agentpost.delivery.failing import failed_attempt_of
from agentpost.delivery.lanes import Mail
from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy, earliest_due_ms, has_sla, sla_due_at_ms
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.delivery.quarantine import incidents_about
from agentpost.delivery.task_desk import TaskDesk
from agentpost.protocol.codec import Unreadable, decode_event, read_events
from agentpost.protocol.delivery import Change
from agentpost.protocol.envelope import (
    AckEvent,
    Event,
    ReplyEvent,
    SignalEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    is_engaged_by,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, mark_in, mark_of
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import AckType, Kind, PayloadRef
from agentpost.protocol.recipients import recipients_of
from agentpost.protocol.snapshot import Failover, RoomSnapshot
from agentpost.protocol.taskbook import concerns_a_task
from agentpost.protocol.tasks import TASK_EVENTS
from agentpost.store.interface import Store
from agentpost.store.values import (
    CHAIN_START,
    Acceptance,
    Accepted,
    Desk,
    FailedAttempt,
    FailureReport,
    Inbound,
    Incident,
    MirrorBatch,
    QuarantinedEvent,
    SignedEnd,
)
from agentpost.world import Clock

__all__ = ["Batch", "Intake", "NewBlob", "ReportFailure", "Taken"]

_SIGNALS: Final = {
    AckType.ACCEPTED: DeliverySignal.ACCEPTED,
    AckType.PROCESSED: DeliverySignal.PROCESSED,
    AckType.FAILED_TERMINAL: DeliverySignal.FAILED_TERMINAL,
}


class ReportFailure(Protocol):
    """Makes the report for a sender whose event was accepted and has failed; `Postmaster.report_failure`."""

    def __call__(self, ack: AckEvent, *, is_task_told: bool) -> FailureReport | None: ...


class Batch(Struct, frozen=True, kw_only=True):
    """What was read from one source, checked: `chain` is that of the stream after the last of `raws`.

    `mirror` is what of the whole outbox was read with it, to be kept for others in the same transaction.
    """

    source_node_id: str
    epoch: str
    after_seq: int
    through_seq: int
    chain: bytes
    raws: Sequence[bytes]
    mirror: MirrorBatch | None = None
    signed_end: SignedEnd | None = None


class NewBlob(Struct, frozen=True, kw_only=True):
    """Content of an accepted event that has to be fetched, and the agents that wait for it."""

    source_node_id: str
    sha256: str
    size_bytes: int
    agent_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, source_node_id: str, ref: PayloadRef, agent_ids: Iterable[str] = ()) -> "NewBlob":
        return cls(
            source_node_id=source_node_id, sha256=ref.sha256, size_bytes=ref.size_bytes, agent_ids=tuple(agent_ids)
        )


class Taken(Struct, frozen=True, kw_only=True):
    """What a batch changed here."""

    cursor_seq: int
    new: tuple[tuple[EventId, str], ...] = ()


class _Reading(Struct, kw_only=True):
    """A batch on its way to an `Acceptance`."""

    events: list[Inbound] = []
    unreadable: list[Unreadable] = []
    changes: list[Change] = []
    blobs: list[NewBlob] = []
    # With the kind of the incident.
    forged: list[tuple[IncidentKind, Event]] = []
    signals: list[SignalEvent] = []
    failed_attempts: list[FailedAttempt] = []
    reports: list[FailureReport] = []
    # Conversations and agents that said that a task failed.
    failed_tasks: set[tuple[str, str]] = set()
    settled_by_ms: int | None = None

    def forge(self, kind: IncidentKind, event: Event, raw: bytes) -> None:
        """Note what is not the source's to say: it has its place in the stream, and nobody gets it."""
        self.forged.append((kind, event))
        self.events.append(Inbound(event=event, raw=raw))


def _mail_by_agent(reading: _Reading, accepted: Accepted) -> dict[str, list[Mail]]:
    """What is new for each agent, in the order of the inbox."""
    events = {inbound.event.event_id: inbound.event for inbound in reading.events if inbound.acks}
    mail: dict[str, list[Mail]] = {}
    for (event_id, agent_id), inbox_seq in zip(accepted.new, accepted.inbox_seqs, strict=True):
        mail.setdefault(agent_id, []).append(Mail(inbox_seq=inbox_seq, event=events[event_id], is_fresh=True))
    return mail


def _sent_again(reading: _Reading, accepted: Accepted) -> list[tuple[Event, str]]:
    """What was here already and its sender is still waiting to hear of, with the agent that it is for."""
    resent = {inbound.event.event_id: inbound.event for inbound in reading.events if inbound.event.trace.attempt > 1}
    return [(resent[event_id], agent_id) for event_id, agent_id in accepted.repeated if event_id in resent]


class Intake:
    """One for each gateway. Two readers of the same source must not be in `take` at once."""

    def __init__(
        self,
        store: Store,
        room: RoomView,
        *,
        maker: EventMaker,
        clock: Clock,
        wakeups: Wakeups,
        policy: DeliveryPolicy | None = None,
        on_blobs: Callable[[Sequence[NewBlob]], None] | None = None,
        report_failure: ReportFailure | None = None,
    ) -> None:
        self._store = store
        self._room = room
        self._maker = maker
        self._clock = clock
        self._wakeups = wakeups
        self._policy = policy or DeliveryPolicy()
        self._on_blobs = on_blobs
        self._report_failure = report_failure
        self._task_desk = TaskDesk(store, maker=maker)
        # Whose ids can be told from those of others: the marks of all nodes, as of one look at the room.
        self._marked: tuple[RoomSnapshot | None, frozenset[str]] = (None, frozenset())

    async def take(self, batch: Batch) -> Taken:
        """Accept the batch, or refuse it and change nothing; then wake whoever waits for what it brought."""
        try:
            reading = self._read(batch)
        except Refusal as refusal:
            if refusal.code is Code.FOREIGN_SOURCE:
                await self.report(IncidentKind.FOREIGN_SOURCE, batch.source_node_id, reason=refusal.message)
            raise
        if reading.forged:
            # A flood of forged events is one story, and the first of them tells it.
            (kind, first), forged = reading.forged[0], len(reading.forged)
            await self.report(kind, batch.source_node_id, corr_id=first.corr_id, eventId=first.event_id, forged=forged)
        kept = 0 if batch.mirror is None else len(batch.mirror.events)
        if reading.changes and self._store.promises(len(reading.events) + kept):
            # It is durable where it was said, and is read again from there if it is lost here.
            self._wakeups.deliveries_heard(reading.changes)
        accepted = await self._store.accept(
            Acceptance(
                source_node_id=batch.source_node_id,
                source_epoch=batch.epoch,
                after_seq=batch.after_seq,
                through_seq=batch.through_seq,
                through_chain=batch.chain,
                events=tuple(reading.events),
                unreadable=tuple(reading.unreadable),
                changes=tuple(reading.changes),
                failed_attempts=tuple(reading.failed_attempts),
                reports=tuple(reading.reports),
                at_ms=self._clock.now_ms(),
                mirror=batch.mirror,
                signed_end=batch.signed_end,
                # ENV-6: told in the transaction that keeps them, so that no crash hides them.
                incidents=incidents_about(batch.source_node_id, reading.unreadable, at_ms=self._clock.now_ms()),
            )
        )
        self._wakeups.batch_taken(accepted)
        if accepted.repeated and (resent := _sent_again(reading, accepted)):
            self._wakeups.repeats_heard(resent)
        await self._report_strangers(batch.source_node_id, accepted.orphans)
        if accepted.taken_ids:
            # An id that does not tell whose it is may be used first by whoever knows it. The sender gets no ACK.
            await self.report(IncidentKind.EVENT_ID_TAKEN, batch.source_node_id, eventId=accepted.taken_ids[0])
        self._wake(reading, accepted)
        return Taken(cursor_seq=accepted.cursor_seq, new=accepted.new)

    async def take_again(self, event: QuarantinedEvent, raw: bytes) -> bool:
        """Take an event out of the quarantine, if it can be read now. The cursor has passed it."""
        batch = Batch(
            source_node_id=event.source_node_id,
            epoch=event.source_epoch,
            after_seq=0,
            through_seq=0,
            chain=CHAIN_START,
            raws=(raw,),
        )
        reading = self._read(batch)
        if reading.unreadable:
            return False
        if reading.forged:
            kind, forged = reading.forged[0]
            await self.report(kind, batch.source_node_id, corr_id=forged.corr_id, eventId=forged.event_id, forged=1)
        accepted = await self._store.accept_again(
            Acceptance(
                source_node_id=batch.source_node_id,
                source_epoch=batch.epoch,
                after_seq=0,
                through_seq=0,
                events=tuple(reading.events),
                changes=tuple(reading.changes),
                failed_attempts=tuple(reading.failed_attempts),
                reports=tuple(reading.reports),
                at_ms=self._clock.now_ms(),
            ),
            quarantine_ids=(event.id,),
        )
        self._wakeups.batch_taken(accepted)
        self._wake(reading, accepted)
        return True

    def _wake(self, reading: _Reading, accepted: Accepted) -> None:
        """Tell of what a batch brought."""
        if accepted.new or accepted.closed:
            # The ACKs stand in our own outbox now (PIPE-2). Agents that are quick have more to say in a moment.
            self._wakeups.outbox_grew(in_hurry=False)
            for agent_id, mail in _mail_by_agent(reading, accepted).items():
                self._wakeups.inbox_grew(agent_id, mail)
        if accepted.reported:
            self._wakeups.outbox_grew()
            self._wakeups.timer_set(earliest_due_ms(accepted.reported))
        if reading.changes:
            self._wakeups.timer_set(earliest_due_ms(reading.changes))
            self._wakeups.deliveries_moved(reading.changes)
        if accepted.tasks:
            self._wakeups.tasks_moved(accepted.tasks)
        if reading.signals:
            self._wakeups.signals_heard(reading.signals)
        if reading.blobs and self._on_blobs is not None:
            self._on_blobs(reading.blobs)

    async def report(
        self, kind: IncidentKind, subject: str, *, corr_id: str | None = None, **detail: str | int | bool | None
    ) -> None:
        """Raise an incident, once for as long as it is open. It never holds content."""
        at_ms = self._clock.now_ms()
        incident = Incident(kind=kind, subject=subject, at_ms=at_ms, corr_id=corr_id, detail=detail, closed_at_ms=None)
        await self._store.raise_incident(incident)

    async def _report_strangers(self, source: str, orphans: Sequence[Change]) -> None:
        """Tell of ACKs by somebody who was not among the recipients. What is forgotten here has no recipients."""
        strange = next((each for each in orphans if self._store.deliveries_of(each.event_id)), None)
        if strange is not None:
            await self.report(IncidentKind.FORGED_ACK, source, eventId=strange.event_id, toAgentId=strange.to_agent_id)

    def _read(self, batch: Batch) -> _Reading:
        source, node_id = batch.source_node_id, self._store.node_id
        local = self._store.local_agent_ids()
        accepted = self._maker.acks(AckType.ACCEPTED)
        room = self._room.snapshot()
        now_ms = self._clock.now_ms()
        reading = _Reading()
        mark = mark_of(source)
        for raw, event in zip(batch.raws, read_events(batch.raws), strict=True):
            if isinstance(event, Unreadable):
                reading.unreadable.append(event)
                continue
            if event.source_node_id != source:
                raise Refusal(  # ENV-8
                    Code.FOREIGN_SOURCE,
                    f"an event of {event.source_node_id} stands in the outbox of {source}",
                    field="sourceNodeId",
                    corr_id=event.corr_id,
                )
            if (mark_in(event.event_id) != mark or type(event) is TaskCreateEvent) and self._is_misnamed(event, room):
                # Taken, it would stand in the way of what the other says under that id.
                reading.forge(IncidentKind.FORGED_ID, event, raw)
                continue
            if type(event) is AckEvent:
                self._hear(event, raw, reading, room, now_ms)
                continue
            acks: dict[str, Event] = {
                agent_id: accepted(event, agent_id)
                for agent_id in recipients_of(event)
                # Mail for an agent that was removed here is accepted, too: it ends at once, and its sender is told.
                if (agent_id in local or self._room.withdrawn_by(agent_id) == node_id)
                and is_engaged_by(event, agent_id=agent_id, node_id=node_id)
            }
            if (acks or isinstance(event, ReplyEvent)) and self._is_forged(event, source, room):
                # An honest one is sent again, and taken then.
                kind = IncidentKind.FORGED_ACK if isinstance(event, ReplyEvent) else IncidentKind.FORGED_SENDER
                reading.forge(kind, event, raw)
                continue
            desk: Desk | None = None
            if acks and type(event) in TASK_EVENTS:
                acks, desk = self._task_desk.answers(event, acks)
            elif concerns_a_task(event):
                desk = Desk()
            reading.events.append(Inbound(event=event, raw=raw, acks=acks, desk=desk))
            if acks and event.payload_ref is not None:
                reading.blobs.append(NewBlob.of(source, event.payload_ref, acks))
            if isinstance(event, SignalEvent):
                reading.signals.append(event)
                if (failed := failed_attempt_of(event, raw, at_ms=now_ms)) is not None:
                    reading.failed_attempts.append(failed)
            elif isinstance(event, TaskFailedEvent):
                reading.failed_tasks.add((event.corr_id, event.source_agent_id))
            elif isinstance(event, ReplyEvent):
                reading.changes.append(_reply_change(event, now_ms))
        return reading

    def _hear(self, ack: AckEvent, raw: bytes, reading: _Reading, room: RoomSnapshot, now_ms: int) -> None:
        """Take what a receiver says of an event that was sent from here."""
        said, source = ack.payload, ack.source_node_id
        known = room.agents.get(said.acked_by_agent_id)
        is_of_owner = known is not None and known.owner_node_id == source == said.acked_by_node_id
        if not is_of_owner and self._is_forged(ack, source, room):
            reading.forge(IncidentKind.FORGED_ACK, ack, raw)
            return
        is_answer = said.ref_kind is Kind.TASK_ACCEPT and concerns_a_task(ack)
        reading.events.append(Inbound(event=ack, raw=raw, desk=Desk() if is_answer else None))
        due_at_ms: int | None = None
        if said.ack_type is AckType.FAILED_TERMINAL:
            self._hear_of_failure(ack, raw, reading, now_ms)
        elif said.ack_type is AckType.ACCEPTED and has_sla(said.ref_kind, ack.to_agent_id):
            if said.ref_kind is Kind.TASK_CREATE or said.eta_at is not None or said.eta_seconds is not None:
                due_at_ms = self._settled_by_ms(ack, now_ms)
            else:
                # The same for all that promise nothing.
                due_at_ms = reading.settled_by_ms = reading.settled_by_ms or self._settled_by_ms(ack, now_ms)
        reading.changes.append(
            Change(
                event_id=said.ref_event_id,
                to_agent_id=said.acked_by_agent_id,
                signal=_SIGNALS[said.ack_type],
                at_ms=now_ms,
                due_at_ms=due_at_ms,
                reason=said.reason,
            )
        )

    def _hear_of_failure(self, ack: AckEvent, raw: bytes, reading: _Reading, now_ms: int) -> None:
        """Keep the error of an agent that gave up, sealed as it came, and have the sender told."""
        said = ack.payload
        attempts = said.attempts or 0
        if attempts:
            reading.failed_attempts.append(
                FailedAttempt(
                    event_id=said.ref_event_id,
                    to_agent_id=said.acked_by_agent_id,
                    attempt=attempts,
                    most_attempts=attempts,
                    at_ms=now_ms,
                    raw=raw,
                    by_node_id=ack.source_node_id,
                )
            )
        if self._report_failure is not None:
            is_task_told = (ack.corr_id, said.acked_by_agent_id) in reading.failed_tasks
            if (report := self._report_failure(ack, is_task_told=is_task_told)) is not None:
                reading.reports.append(report)

    def _is_misnamed(self, event: Event, room: RoomSnapshot) -> bool:
        """Whether the event, or the task that it starts, has an id that another node made (ENV-1)."""
        names = (event.event_id, event.payload.task_id) if isinstance(event, TaskCreateEvent) else (event.event_id,)
        strange = {mark_in(name) for name in names} - {mark_of(event.source_node_id)}
        if strange and room is not self._marked[0]:
            self._marked = room, frozenset(map(mark_of, (self._store.node_id, *room.nodes)))
        return not strange.isdisjoint(self._marked[1])

    def _is_forged(self, event: Event, source: str, room: RoomSnapshot) -> bool:
        """Whether the source speaks for an agent of somebody else (ENV-8, PIPE-2).

        Who owns the agent may, who stands in for it, and who was asked in its place.
        """
        agent_id = event.source_agent_id
        if isinstance(event, AckEvent):
            if event.payload.acked_by_node_id != source:
                return True
            agent_id = event.payload.acked_by_agent_id
        known = room.agents.get(agent_id)
        if source == self._store.node_id or (known is not None and known.owner_node_id == source):
            return False
        rule = room.routing.get(agent_id)
        if isinstance(event, AckEvent | ReplyEvent):
            deliveries = self._store.deliveries_of(event.payload.ref_event_id)
            asked = [each.to_node_id for each in deliveries if each.to_agent_id == agent_id]
            if any(node_id in (None, source) for node_id in asked):
                return False
            if asked and (rule is None or rule.failover is not Failover.AT_LEAST_ONCE):
                # Elsewhere mail leaves a gateway only if that cannot have taken it (ROUTE-2).
                return True
        if known is None or known.owner_node_id is None:
            return False
        return rule is None or source not in rule.fallback_node_ids

    def _settled_by_ms(self, ack: AckEvent, now_ms: int) -> int:
        """Until when an outcome has to follow (ACK-4). A task says more about that than an ACK without an ETA."""
        said: Event = ack
        if ack.payload.ref_kind is Kind.TASK_CREATE and ack.payload.eta_at is None and ack.payload.eta_seconds is None:
            stored = self._store.find_event(ack.payload.ref_event_id)
            said = ack if stored is None else decode_event(stored.raw)
        return sla_due_at_ms(said, accepted_at_ms=now_ms, policy=self._policy)


def _reply_change(reply: ReplyEvent, now_ms: int) -> Change:
    return Change(
        event_id=reply.payload.ref_event_id,
        to_agent_id=reply.source_agent_id,
        signal=DeliverySignal.REPLY,
        at_ms=now_ms,
        answered_by_event_id=reply.event_id,
    )
