"""New events of this gateway: ids, times and the fields that all of them share. Appends nothing by itself."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from agentpost.protocol.envelope import (
    AckEvent,
    DeadLetterEvent,
    Event,
    ReplyEvent,
    SignalEvent,
    Trace,
)
from agentpost.protocol.ids import CorrId, EventId, corr_id_of
from agentpost.protocol.payloads import Ack, AckType, DeadLetter, Kind, PayloadRef, Reply, Signal
from agentpost.protocol.timestamps import format_ms
from agentpost.world import Clock, IdMaker

__all__ = ["EventMaker"]


class EventMaker:
    """Makes the events with which a gateway answers others. One for each gateway."""

    def __init__(self, *, node_id: str, clock: Clock, ids: IdMaker) -> None:
        self.node_id = node_id
        self._clock = clock
        self._ids = ids
        self._now_ms, self._now_text = -1, ""

    def ack(
        self,
        event: Event,
        ack_type: AckType,
        *,
        agent_id: str,
        eta_at: str | None = None,
        reason: str | None = None,
    ) -> AckEvent:
        """What became of `event` for `agent_id`, told to the gateway that it came from (ACK-1, PIPE-2)."""
        return self._ack(event, ack_type, agent_id, self._ids.make(EventId), self._now(), eta_at, reason)

    def acks(self, ack_type: AckType) -> Callable[[Event, str], AckEvent]:
        """Makes the ACKs to many events, each for an agent, that are all said now. Not to be kept."""
        now, ids = self._now(), self._ids.of_one_moment(EventId)
        return lambda event, agent_id: self._ack(event, ack_type, agent_id, next(ids), now)

    def _ack(
        self,
        event: Event,
        ack_type: AckType,
        agent_id: str,
        event_id: EventId,
        now: str,
        eta_at: str | None = None,
        reason: str | None = None,
    ) -> AckEvent:
        return AckEvent(
            event_id=event_id,
            source_node_id=self.node_id,
            source_agent_id=agent_id,
            to_agent_id=event.source_agent_id,
            to_nodes=(event.source_node_id,),
            corr_id=event.corr_id,
            created_at=now,
            trace=_answering(event),
            payload=Ack(
                ref_event_id=event.event_id,
                ref_kind=event.kind,
                ack_type=ack_type,
                acked_by_node_id=self.node_id,
                acked_by_agent_id=agent_id,
                acked_at=now,
                eta_at=eta_at,
                reason=reason,
            ),
        )

    def reply(
        self,
        event: Event,
        *,
        event_id: EventId,
        agent_id: str,
        payload: Reply,
        payload_ref: PayloadRef | None = None,
        to_nodes: tuple[str, ...],
    ) -> ReplyEvent:
        """The agent's answer to `event`; its content is sealed already."""
        return ReplyEvent(
            event_id=event_id,
            source_node_id=self.node_id,
            source_agent_id=agent_id,
            to_agent_id=event.source_agent_id,
            to_nodes=to_nodes,
            corr_id=event.corr_id,
            created_at=format_ms(self._clock.now_ms()),
            trace=_answering(event),
            payload_ref=payload_ref,
            payload=payload,
        )

    def dead_letter(
        self, event: Event, *, to_agent_id: str, reason: str, attempts: int, last_error: str | None = None
    ) -> DeadLetterEvent:
        """Says in this outbox that an event of it could not be delivered to one recipient (RTY-2)."""
        now = format_ms(self._clock.now_ms())
        return DeadLetterEvent(
            event_id=self._ids.make(EventId),
            source_node_id=self.node_id,
            source_agent_id=event.source_agent_id,
            to_agent_id=event.source_agent_id,
            corr_id=event.corr_id,
            created_at=now,
            trace=_answering(event),
            payload=DeadLetter(
                ref_event_id=event.event_id,
                ref_kind=Kind(event.kind),
                to_agent_id=to_agent_id,
                reason=reason,
                attempts=attempts,
                dead_lettered_at=now,
                last_error=last_error,
            ),
        )

    def signal(
        self,
        name: str,
        *,
        to_nodes: tuple[str, ...],
        ref: Event | None = None,
        details: dict[str, str | int | float | bool | None] | None = None,
    ) -> SignalEvent:
        """A hint for other gateways, never content."""
        event_id = self._ids.make(EventId)
        return SignalEvent(
            event_id=event_id,
            source_node_id=self.node_id,
            source_agent_id=self.node_id,
            to_nodes=to_nodes,
            corr_id=_corr_id(event_id, ref),
            created_at=format_ms(self._clock.now_ms()),
            payload=Signal(signal=name, ref_event_id=None if ref is None else ref.event_id, details=details or {}),
        )

    def _now(self) -> str:
        # Many answers are made within a millisecond.
        now_ms = self._clock.now_ms()
        if now_ms != self._now_ms:
            self._now_ms, self._now_text = now_ms, format_ms(now_ms)
        return self._now_text

    def head_of_answer(self, event: Event, *, agent_id: str, to_agent_id: str) -> dict[str, Any]:
        """The fields that an agent's answer to `event` has, whatever its kind."""
        return {
            "event_id": self._ids.make(EventId),
            "source_node_id": self.node_id,
            "source_agent_id": agent_id,
            "to_agent_id": to_agent_id,
            "to_nodes": (event.source_node_id,),
            "corr_id": event.corr_id,
            "created_at": self._now(),
            "trace": _answering(event),
        }

    def new_event_id(self) -> EventId:
        return self._ids.make(EventId)


def _answering(event: Event) -> Trace:
    """The trace of an answer: decided under the policy that the event itself names (ROUTE-9)."""
    return _answering_under(event.trace.routing_policy_version, event.trace.capability_policy_version)


@lru_cache(maxsize=256)
def _answering_under(routing_policy_version: str, capability_policy_version: str) -> Trace:
    return Trace(
        route_decision="answer",
        routing_policy_version=routing_policy_version,
        capability_policy_version=capability_policy_version,
    )


def _corr_id(event_id: EventId, ref: Event | None) -> CorrId:

    return corr_id_of(event_id) if ref is None else ref.corr_id
