"""Incidents as an operator sees them, and the question that a missed SLA asks: "what became of it?" (ACK-4).

A `status_request` names one (event, agent); the gateway that accepted it answers with a `status`: how far it is there,
never what it says. Both are hints: one that gets lost is lost, and the incident stays open.

A `status` comes unasked for what was sent again and had been accepted: its ACK was in a part of the outbox that nobody
has any more. The ACK itself is said once, since another one would look as if the event had been injected twice.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.deciding import subject_of
from agentpost.delivery.making import EventMaker
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.policy import DeliveryPolicy, has_sla, sla_due_at_ms
from agentpost.delivery.ports import Wakeups
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event, SignalEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId, parse_id
from agentpost.protocol.lifecycle import DeliverySignal, DeliveryState
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry, Incident, LedgerEntry, LedgerState, Outcome
from agentpost.world import Clock

__all__ = [
    "STATUS",
    "STATUS_REQUEST",
    "UNKNOWN",
    "IncidentView",
    "Incidents",
    "StatusDesk",
    "request_of",
    "status_request",
]

STATUS_REQUEST: Final = "status_request"
STATUS: Final = "status"
UNKNOWN: Final = "unknown"  # never accepted here, or so long ago that it is forgotten

# The same answer again within this time is not written down again.
_REMEMBERED_MS: Final = 30 * 86_400_000
_LONGEST_STATE: Final = 32
_UNACCEPTED: Final = (DeliveryState.EMITTED, DeliveryState.RETRY_PENDING)
_SIGNALS: Final = {
    None: DeliverySignal.ACCEPTED,
    Outcome.PROCESSED.value: DeliverySignal.PROCESSED,
    Outcome.FAILED_TERMINAL.value: DeliverySignal.FAILED_TERMINAL,
    Outcome.EXPIRED.value: DeliverySignal.FAILED_TERMINAL,
}


class IncidentView(Struct, frozen=True, kw_only=True):
    """One incident, and the deliveries that it speaks of as they are now."""

    incident: Incident
    deliveries: tuple[Delivery, ...] = ()


class Incidents:
    def __init__(self, *, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def list(self, *, open_only: bool = True, after_id: int = 0, limit: int = 256) -> "list[Incident]":
        """In the order in which they were raised."""
        return self._store.incidents(open_only=open_only, after_id=after_id, limit=limit)

    def show(self, incident_id: int) -> IncidentView:
        """One incident, open or closed."""
        found = self._store.incidents(open_only=False, after_id=incident_id - 1, limit=1)
        if not found or found[0].id != incident_id:
            raise Refusal(Code.NOT_FOUND, f"there is no incident {incident_id}", field="id")
        incident = found[0]
        event_id = incident.detail.get("eventId")
        deliveries = self._store.deliveries_of(EventId(event_id)) if isinstance(event_id, str) else []
        return IncidentView(incident=incident, deliveries=tuple(deliveries))

    async def close(self, incident_id: int, *, actor: str) -> bool:
        """Close it. False if it was closed already. A cause that lasts raises a new one."""
        incident = self.show(incident_id).incident
        now_ms = self._clock.now_ms()
        if incident.closed_at_ms is not None:
            return False
        closed = await self._store.close_incident(incident.kind, incident.subject, at_ms=now_ms)
        if closed:
            await self._store.record_audit([_closed(incident.kind, incident.subject, incident.corr_id, actor, now_ms)])
        return closed


def status_request(maker: EventMaker, delivery: Delivery, *, to_node_id: str) -> SignalEvent:
    """The question to a gateway that accepted an event and has been silent about it since."""
    signal = maker.signal(STATUS_REQUEST, to_nodes=(to_node_id,), details={"toAgentId": delivery.to_agent_id})
    return replace(
        signal,
        corr_id=CorrId(delivery.corr_id) if delivery.corr_id else signal.corr_id,
        payload=replace(signal.payload, ref_event_id=delivery.event_id),
    )


def request_of(status: SignalEvent) -> EventId | None:
    """The question that a status answers; None for one that answers none, and for other signals."""
    said = status.payload.details.get("requestEventId")
    if status.payload.signal != STATUS or not isinstance(said, str):
        return None
    try:
        return parse_id(EventId, said, field="requestEventId")
    except Refusal:
        return None


class StatusDesk:
    """Answers the questions of other gateways, and takes their answers down."""

    def __init__(
        self,
        *,
        store: Store,
        maker: EventMaker,
        clock: Clock,
        wakeups: Wakeups,
        policy: DeliveryPolicy | None = None,
    ) -> None:
        self._store = store
        self._maker = maker
        self._clock = clock
        self._outbox = OutboxWriter(store, wakeups)
        self._policy = policy or DeliveryPolicy()

    async def hear(self, signals: Sequence[SignalEvent]) -> int:
        """Take in what was read from other outboxes, after it was accepted. Gives how many answers were appended.

        Signals of other names, and those that lack what they need, are passed over.
        """
        answers = [answer for signal in signals if (answer := self._answer(signal)) is not None]
        if answers:
            await self._outbox.append(answers)
        for signal in signals:
            await self._take_down(signal)
        return len(answers)

    async def tell(self, resent: Sequence[tuple[Event, str]]) -> int:
        """Say how far those are that were sent again and are here; gives how many. An ACK of just now will do."""
        now_ms, timeout_ms = self._clock.now_ms(), round(self._policy.accepted_ack_timeout_seconds * 1000)
        said: list[Event] = []
        for event, agent_id in resent:
            entry = self._store.ledger_entry(event.event_id, agent_id)
            # What lies ahead of now was written before the clock was set back: nobody knows how long ago.
            if entry is not None and not 0 <= now_ms - max(entry.accepted_at_ms, entry.settled_at_ms or 0) < timeout_ms:
                said.append(self._status(event, event.event_id, agent_id, entry))
        if said:
            await self._outbox.append(said)
        return len(said)

    def _answer(self, request: SignalEvent) -> SignalEvent | None:
        event_id, agent_id = request.payload.ref_event_id, request.payload.details.get("toAgentId")
        if request.payload.signal != STATUS_REQUEST or event_id is None or not isinstance(agent_id, str):
            return None
        item = self._store.inbox_item(event_id, agent_id)
        # Only the gateway that an event came from hears how it is doing.
        is_theirs = item is None or item.source_node_id == request.source_node_id
        entry = self._store.ledger_entry(event_id, agent_id) if is_theirs else None
        return self._status(request, event_id, agent_id, entry)

    def _status(self, to: Event, event_id: EventId, agent_id: str, entry: LedgerEntry | None) -> SignalEvent:
        status = self._maker.signal(
            STATUS,
            to_nodes=(to.source_node_id,),
            ref=to,
            details={"toAgentId": agent_id, "requestEventId": to.event_id, **_details(entry)},
        )
        return replace(status, payload=replace(status.payload, ref_event_id=event_id))

    async def _take_down(self, said: SignalEvent) -> None:
        details = said.payload.details
        event_id, agent_id, state = said.payload.ref_event_id, details.get("toAgentId"), details.get("state")
        if said.payload.signal != STATUS or event_id is None or not isinstance(state, str):
            return
        for delivery in self._store.deliveries_of(event_id):
            is_asked = delivery.to_agent_id == agent_id and delivery.to_node_id == said.source_node_id
            if is_asked and delivery.state is DeliveryState.INCIDENT:
                await self._note(delivery, said, state[:_LONGEST_STATE])
            elif is_asked and delivery.state in _UNACCEPTED and state in set(LedgerState):
                await self._close_up(delivery, details.get("outcome"))

    async def _close_up(self, delivery: Delivery, outcome: object) -> None:
        """It was accepted, and the ACKs that said so are lost."""
        now_ms = self._clock.now_ms()
        stored = self._store.find_event(delivery.event_id)
        if stored is None or not isinstance(outcome, str | None) or outcome not in _SIGNALS:
            return
        signal, event = _SIGNALS[outcome], decode_event(stored.raw)
        due_at_ms: int | None = None
        if has_sla(event.kind, event.source_agent_id):
            due_at_ms = sla_due_at_ms(event, accepted_at_ms=now_ms, policy=self._policy)
        change = Change(
            event_id=delivery.event_id,
            to_agent_id=delivery.to_agent_id,
            signal=signal,
            at_ms=now_ms,
            due_at_ms=due_at_ms,
            reason=outcome if signal is DeliverySignal.FAILED_TERMINAL else None,
        )
        await self._outbox.append([], changes=[change])

    async def _hear_late(self, delivery: Delivery, signal: DeliverySignal, now_ms: int) -> None:
        change = Change(event_id=delivery.event_id, to_agent_id=delivery.to_agent_id, signal=signal, at_ms=now_ms)
        await self._outbox.append([], changes=[change])

    async def _note(self, delivery: Delivery, said: SignalEvent, state: str) -> None:
        now_ms = self._clock.now_ms()
        subject = subject_of(delivery)
        attempts = said.payload.details.get("attempts")
        attempts = attempts if isinstance(attempts, int) else None
        is_news = await self._store.remember_once(
            "delivery-status", f"{subject} {state} {attempts}", now_ms=now_ms, expires_at_ms=now_ms + _REMEMBERED_MS
        )
        if is_news:
            entry = AuditEntry(
                at_ms=now_ms,
                actor=said.source_node_id,
                action="delivery.status",
                subject=subject,
                corr_id=delivery.corr_id or None,
                detail={"state": state, "attempts": attempts},
            )
            await self._store.record_audit([entry])
        outcome = said.payload.details.get("outcome")
        if state == LedgerState.SETTLED and isinstance(outcome, str) and outcome in _SIGNALS:
            # The outcome is there after all, only late: that closes the incident.
            await self._hear_late(delivery, _SIGNALS[outcome], now_ms)


def _details(entry: LedgerEntry | None) -> dict[str, str | int | float | bool | None]:
    if entry is None:
        return {"state": UNKNOWN}
    return {
        "state": entry.state.value,
        "attempts": entry.attempts,
        "acceptedAt": format_ms(entry.accepted_at_ms),
        "engagedAt": None if entry.engaged_at_ms is None else format_ms(entry.engaged_at_ms),
        "settledAt": None if entry.settled_at_ms is None else format_ms(entry.settled_at_ms),
        "outcome": None if entry.outcome is None else entry.outcome.value,
    }


def _closed(kind: str, subject: str, corr_id: str | None, actor: str, now_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=now_ms, actor=actor, action="incident.close", subject=subject, corr_id=corr_id, detail={"kind": kind}
    )
