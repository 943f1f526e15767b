"""Two gateways' stores and a hand that carries batches between them: the walk of one message, without the network."""

from pathlib import Path
from typing import Final

from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import (
    AckEvent,
    DeadLetterEvent,
    Event,
    MessageEvent,
    ReplyEvent,
    Trace,
    resend_of,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import Ack, AckType, DeadLetter, Kind, Message, Reply
from agentpost.protocol.timestamps import format_ms
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import Acceptance, Inbound, Outcome, Settlement
from agentpost.world import IdMaker, SystemChance, SystemClock

__all__ = ["RECEIVER", "SENDER", "Postman"]

SENDER: Final = "vps-jane"
RECEIVER: Final = "mbp-jane"
_AGENTS: Final = {SENDER: "architect", RECEIVER: "builder"}
_TRACE: Final = Trace(route_decision="owner", routing_policy_version="rpv_demo", capability_policy_version="cpv_demo")
_ACK_TIMEOUT_MS: Final = 20_000
_SIGNALS: Final = {
    AckType.ACCEPTED: DeliverySignal.ACCEPTED,
    AckType.PROCESSED: DeliverySignal.PROCESSED,
    AckType.FAILED_TERMINAL: DeliverySignal.FAILED_TERMINAL,
}


class Postman:
    """One gateway's store with just enough hands to send, take, answer and hear back."""

    def __init__(self, home: Path, node_id: str) -> None:
        self._clock = SystemClock()
        self._ids = IdMaker(self._clock, SystemChance())
        self.agent_id = _AGENTS[node_id]
        self.store = SqliteStore.open(home, node_id=node_id, epoch="demo", now_ms=self._clock.now_ms())

    async def send(self, subject: str, body: str) -> tuple[EventId, int]:
        """Append a message to the other agent. When this returns, a power cut cannot take it back."""
        event_id = self._ids.make(EventId)
        now_ms = self._clock.now_ms()
        message = MessageEvent(
            event_id=event_id,
            source_node_id=self.store.node_id,
            source_agent_id=self.agent_id,
            corr_id=corr_id_of(event_id),
            created_at=format_ms(now_ms),
            trace=_TRACE,
            payload=Message(to_agents=(_AGENTS[RECEIVER],), subject=subject, body=body, expects_reply=True),
        )
        delivery = Delivery(
            event_id=event_id,
            to_agent_id=_AGENTS[RECEIVER],
            to_node_id=RECEIVER,
            route_decision="owner",
            due_at_ms=now_ms + _ACK_TIMEOUT_MS,
            emitted_at_ms=now_ms,
        )
        appended = await self.store.append((message,), deliveries=(delivery,))
        return event_id, appended.last_seq

    async def take_from(self, other: "Postman") -> list[Event]:
        """Read the other's outbox from our cursor on, and make durable what is for us, with an ACK for each."""
        cursor = self.store.cursor(other.store.node_id)
        after_seq = cursor.last_seq if cursor else 0
        rows = other.store.read_outbox(after_seq, limit=10_000).events
        events = [decode_event(row.raw) for row in rows]
        if not rows:
            return []
        await self.store.accept(
            Acceptance(
                source_node_id=other.store.node_id,
                source_epoch=other.store.epoch,
                after_seq=after_seq,
                through_seq=rows[-1].seq,
                through_chain=rows[-1].chain,
                events=tuple(
                    Inbound(event=event, raw=row.raw, acks=self._acks_for(event))
                    for event, row in zip(events, rows, strict=True)
                ),
                changes=tuple(change for event in events for change in self._changes_of(event)),
                at_ms=self._clock.now_ms(),
            )
        )
        return events

    async def answer(self, message: MessageEvent, text: str) -> None:
        """Engage the agent, then settle: the reply, the ACK and the closed ledger row are one transaction."""
        await self.store.engage(message.event_id, self.agent_id, at_ms=self._clock.now_ms())
        reply_id = self._ids.make(EventId)
        reply = ReplyEvent(
            event_id=reply_id,
            source_node_id=self.store.node_id,
            source_agent_id=self.agent_id,
            to_agent_id=message.source_agent_id,
            corr_id=message.corr_id,
            created_at=format_ms(self._clock.now_ms()),
            trace=_TRACE,
            payload=Reply(ref_event_id=message.event_id, body=text),
        )
        await self.store.settle(
            Settlement(
                event_id=message.event_id,
                to_agent_id=self.agent_id,
                outcome=Outcome.PROCESSED,
                at_ms=self._clock.now_ms(),
                events=(reply, self._ack(message, AckType.PROCESSED)),
            )
        )

    async def time_out(self, event_id: EventId) -> None:
        """What the retry timer does when no ACK came in time."""
        await self.store.append((), changes=(self._change(event_id, DeliverySignal.ACK_TIMEOUT),))

    async def send_again(self, event_id: EventId) -> int:
        """Append the same event anew: same id, next attempt, next seq (ENV-5)."""
        stored = self.store.find_event(event_id)
        if stored is None:
            raise Refusal(Code.NOT_FOUND, f"{event_id} is not in the outbox")
        event = resend_of(decode_event(stored.raw))
        appended = await self.store.append((event,), changes=(self._change(event_id, DeliverySignal.RESENT),))
        return appended.last_seq

    async def give_up(self, event_id: EventId) -> None:
        """Close the delivery and say so in the outbox, in one transaction (RTY-2)."""
        delivery = self.store.deliveries_of(event_id)[0]
        now = format_ms(self._clock.now_ms())
        dead_letter = DeadLetterEvent(
            event_id=self._ids.make(EventId),
            source_node_id=self.store.node_id,
            source_agent_id=self.agent_id,
            corr_id=corr_id_of(event_id),
            created_at=now,
            trace=_TRACE,
            payload=DeadLetter(
                ref_event_id=event_id,
                ref_kind=Kind.MESSAGE,
                to_agent_id=delivery.to_agent_id,
                reason="max_attempts",
                attempts=delivery.attempts,
                dead_lettered_at=now,
            ),
        )
        change = self._change(event_id, DeliverySignal.EXHAUSTED, reason="max_attempts")
        await self.store.append((dead_letter,), changes=(change,))

    def _change(self, event_id: EventId, signal: DeliverySignal, reason: str | None = None) -> Change:
        return Change(
            event_id=event_id,
            to_agent_id=_AGENTS[RECEIVER],
            signal=signal,
            at_ms=self._clock.now_ms(),
            reason=reason,
        )

    def _acks_for(self, event: Event) -> dict[str, Event]:
        if isinstance(event, MessageEvent) and self.agent_id in event.payload.to_agents:
            return {self.agent_id: self._ack(event, AckType.ACCEPTED)}
        return {}

    def _changes_of(self, event: Event) -> list[Change]:
        match event:
            case AckEvent(payload=ack):
                signal, about, agent_id = _SIGNALS[ack.ack_type], ack.ref_event_id, ack.acked_by_agent_id
            case ReplyEvent(payload=reply):
                signal, about, agent_id = DeliverySignal.REPLY, reply.ref_event_id, event.source_agent_id
            case _:
                return []
        answered_by = event.event_id if signal is DeliverySignal.REPLY else None
        now_ms = self._clock.now_ms()
        return [
            Change(event_id=about, to_agent_id=agent_id, signal=signal, at_ms=now_ms, answered_by_event_id=answered_by)
        ]

    def _ack(self, message: MessageEvent, ack_type: AckType) -> AckEvent:
        now = format_ms(self._clock.now_ms())
        return AckEvent(
            event_id=self._ids.make(EventId),
            source_node_id=self.store.node_id,
            source_agent_id=self.agent_id,
            to_agent_id=message.source_agent_id,
            corr_id=message.corr_id,
            created_at=now,
            trace=_TRACE,
            payload=Ack(
                ref_event_id=message.event_id,
                ref_kind=message.kind,
                ack_type=ack_type,
                acked_by_node_id=self.store.node_id,
                acked_by_agent_id=self.agent_id,
                acked_at=now,
            ),
        )
