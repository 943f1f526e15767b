"""What a batch of events means here: `accepted` for local agents, changes of our own deliveries, one transaction.

Knows nothing of links, heads or chains: whoever calls has checked where the bytes come from. Nothing is awaited for a
single event.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy, sla_due_at_ms
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.protocol.codec import Unreadable, decode_event, frame_of, read_frame
from agentpost.protocol.delivery import Change
from agentpost.protocol.envelope import (
    AckEvent,
    Event,
    ReplyEvent,
    SignalEvent,
    is_engaged_by,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import AckType, Kind, PayloadRef
from agentpost.protocol.recipients import recipients_of
from agentpost.protocol.snapshot import AgentRecord
from agentpost.store.interface import Store
from agentpost.store.values import Acceptance, Inbound, Incident
from agentpost.world import Clock

__all__ = ["Batch", "Intake", "NewBlob", "Taken", "read_event"]

_SIGNALS: Final = {
    AckType.ACCEPTED: DeliverySignal.ACCEPTED,
    AckType.PROCESSED: DeliverySignal.PROCESSED,
    AckType.FAILED_TERMINAL: DeliverySignal.FAILED_TERMINAL,
}


class Batch(Struct, frozen=True, kw_only=True):
    """What was read from one source, checked: `chain` is that of the stream after the last of `raws`."""

    source_node_id: str
    epoch: str
    after_seq: int
    through_seq: int
    chain: bytes
    raws: Sequence[bytes]


class NewBlob(Struct, frozen=True, kw_only=True):
    """Content of an accepted event that has to be fetched, and the agents that wait for it."""

    source_node_id: str
    ref: PayloadRef
    agent_ids: tuple[str, ...] = ()


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
    forged: list[Event] = []
    signals: list[SignalEvent] = []


def read_event(raw: bytes) -> Event | Unreadable:
    """The event, or why it cannot be read, with its place as far as that can be made out (ENV-6)."""
    try:
        return decode_event(raw)
    except Refusal as refusal:
        try:
            (found,) = read_frame(frame_of([raw]))
        except (Refusal, ValueError):
            return Unreadable(raw=raw, refusal=refusal, seq=None, event_id=None)
        return found


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
    ) -> None:
        self._store = store
        self._room = room
        self._maker = maker
        self._clock = clock
        self._wakeups = wakeups
        self._policy = policy or DeliveryPolicy()
        self._on_blobs = on_blobs

    async def take(self, batch: Batch) -> Taken:
        """Accept the batch, or refuse it and change nothing; then wake whoever waits for what it brought."""
        try:
            reading = self._read(batch)
        except Refusal as refusal:
            if refusal.code is Code.FOREIGN_SOURCE:
                await self.report("foreign_source", batch.source_node_id, reason=refusal.message)
            raise
        if reading.forged:
            # A flood of forged ACKs is one story, and the first of them tells it.
            first, forged = reading.forged[0], len(reading.forged)
            await self.report(
                "forged_ack", batch.source_node_id, corr_id=first.corr_id, eventId=first.event_id, forged=forged
            )
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
                at_ms=self._clock.now_ms(),
            )
        )
        self._wakeups.batch_taken(accepted)
        if accepted.new:
            # The `accepted` ACKs stand in our own outbox now (PIPE-2).
            self._wakeups.outbox_grew()
            for agent_id in sorted({agent_id for _, agent_id in accepted.new}):
                self._wakeups.inbox_grew(agent_id)
        if reading.changes:
            self._wakeups.timer_set()
            self._wakeups.deliveries_moved(reading.changes)
        if reading.signals:
            self._wakeups.signals_heard(reading.signals)
        if reading.blobs and self._on_blobs is not None:
            self._on_blobs(reading.blobs)
        return Taken(cursor_seq=accepted.cursor_seq, new=accepted.new)

    async def report(
        self, kind: str, subject: str, *, corr_id: str | None = None, **detail: str | int | bool | None
    ) -> None:
        """Raise an incident, once for as long as it is open. It never holds content."""
        at_ms = self._clock.now_ms()
        incident = Incident(kind=kind, subject=subject, at_ms=at_ms, corr_id=corr_id, detail=detail, closed_at_ms=None)
        await self._store.raise_incident(incident)

    def _read(self, batch: Batch) -> _Reading:
        source = batch.source_node_id
        local = {agent.agent_id for agent in self._store.local_agents()}
        owners = self._room.snapshot().agents
        now_ms = self._clock.now_ms()
        reading = _Reading()
        for raw in batch.raws:
            event = read_event(raw)
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
            acks: dict[str, Event] = {
                agent_id: self._maker.ack(event, AckType.ACCEPTED, agent_id=agent_id)
                for agent_id in recipients_of(event)
                if agent_id in local and is_engaged_by(event, agent_id=agent_id, node_id=self._store.node_id)
            }
            reading.events.append(Inbound(event=event, raw=raw, acks=acks))
            if acks and event.payload_ref is not None:
                reading.blobs.append(NewBlob(source_node_id=source, ref=event.payload_ref, agent_ids=tuple(acks)))
            if isinstance(event, SignalEvent):
                reading.signals.append(event)
            elif isinstance(event, AckEvent | ReplyEvent):
                if self._is_forged(event, source, owners):
                    reading.forged.append(event)
                else:
                    reading.changes.append(self._change_of(event, now_ms))
        return reading

    def _is_forged(self, event: AckEvent | ReplyEvent, source: str, agents: Mapping[str, AgentRecord]) -> bool:
        """Whether the source speaks for somebody else: only who owns the agent, or was asked, may answer (PIPE-2)."""
        if isinstance(event, AckEvent):
            if event.payload.acked_by_node_id != source:
                return True
            agent_id = event.payload.acked_by_agent_id
        else:
            agent_id = event.source_agent_id
        owned = agents.get(agent_id)
        if owned is not None and owned.owner_node_id == source:
            return False
        return any(
            delivery.to_agent_id == agent_id and delivery.to_node_id not in (None, source)
            for delivery in self._store.deliveries_of(event.payload.ref_event_id)
        )

    def _change_of(self, event: AckEvent | ReplyEvent, now_ms: int) -> Change:
        if isinstance(event, ReplyEvent):
            return Change(
                event_id=event.payload.ref_event_id,
                to_agent_id=event.source_agent_id,
                signal=DeliverySignal.REPLY,
                at_ms=now_ms,
                answered_by_event_id=event.event_id,
            )
        ack = event.payload
        is_accepted = ack.ack_type is AckType.ACCEPTED
        return Change(
            event_id=ack.ref_event_id,
            to_agent_id=ack.acked_by_agent_id,
            signal=_SIGNALS[ack.ack_type],
            at_ms=now_ms,
            due_at_ms=self._settled_by_ms(event, now_ms) if is_accepted else None,
            reason=ack.reason,
        )

    def _settled_by_ms(self, ack: AckEvent, now_ms: int) -> int:
        """Until when an outcome has to follow (ACK-4). A task says more about that than an ACK without an ETA."""
        said: Event = ack
        if ack.payload.ref_kind is Kind.TASK_CREATE and ack.payload.eta_at is None and ack.payload.eta_seconds is None:
            stored = self._store.find_event(ack.payload.ref_event_id)
            said = ack if stored is None else decode_event(stored.raw)
        return sla_due_at_ms(said, accepted_at_ms=now_ms, policy=self._policy)
