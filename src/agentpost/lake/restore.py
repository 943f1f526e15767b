"""A lost gateway, worked out again from the lake: its outbox, and what became of all it sent and took (OBS-11).

- The outbox is the one in the lake, byte for byte, as far back as a gateway would have kept it. The lake may end before
  the lost outbox did, so it begins a new epoch: its readers start over, and know by the ids what they have.
- What was sent: a delivery for each recipient, moved by the ACKs and replies in the outboxes of the others.
- What was taken: the gateway's own ACKs say it, and how it ended. What has an outcome is never injected again.
- What was taken and has no outcome is *in doubt*, since the end of the outbox is not known: the agent may have had it.
  It is treated like mail that was with an agent when a gateway crashed. Mail that was never accepted, its sender sends
  again; so cursors stand at the end of what the lake has of others, and nothing is taken twice.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.place import Lake
from agentpost.lake.reading import contiguous, epochs_of, facts_now, rows
from agentpost.lake.segments import manifests, outboxes
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change, Delivery, advance
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import next_chain
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal, DeliveryState
from agentpost.protocol.payloads import AckType, Kind
from agentpost.store.restoring import (
    InboxEvent,
    RestoredHome,
    StreamPlace,
    addressed_to,
    stream_places,
    write_home,
)
from agentpost.store.rules import encode_for_outbox
from agentpost.store.values import (
    CHAIN_START,
    Cursor,
    Head,
    LedgerEntry,
    LedgerState,
    LocalAgent,
    Outcome,
    StoredEvent,
)
from agentpost.world import Chance, Clock, IdMaker, new_epoch

__all__ = ["Restored", "restore"]

_DAY_MS: Final = 86_400_000
_UNACCEPTED: Final = (DeliveryState.EMITTED, DeliveryState.RETRY_PENDING)
_PULL: Final = "pull"
_MAIL: Final = frozenset(kind.value for kind in Kind) - {Kind.ACK, Kind.SIGNAL, Kind.DEAD_LETTER}
_COLUMNS: Final = (
    "event_id",
    "kind",
    "attempt",
    "corr_id",
    "source_agent",
    "created_us",
    "to_agents",
    "to_nodes",
    "route_decision",
    "ref_event_id",
    "ack_type",
    "acked_by_node",
    "acked_by_agent",
    "acked_us",
    "reason",
    "dead_for_agent",
    "dead_attempts",
    "ended_us",
    "eta_us",
    "body",
)
_SIGNALS: Final = {
    AckType.ACCEPTED.value: DeliverySignal.ACCEPTED,
    AckType.PROCESSED.value: DeliverySignal.PROCESSED,
    AckType.FAILED_TERMINAL.value: DeliverySignal.FAILED_TERMINAL,
}

Pair = tuple[str, str]  # event id, agent id


class Restored(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was brought back. `in_doubt` waits for an answer of its runtime or of an operator; `missing` was accepted
    and is not in the lake: it is taken again when its sender's outbox is read."""

    node_id: str
    epoch: str
    former_epoch: str
    outbox_events: int
    first_seq: int
    last_seq: int
    open_deliveries: int
    settled: int
    in_doubt: int
    queued: int
    missing: int
    cursors: dict[str, int]
    agents: list[str]
    notes: list[str] = []


class _Taken(Struct):
    """What the own ACKs say of one event for one agent."""

    accepted_at_ms: int
    settled_at_ms: int | None = None
    outcome: Outcome | None = None


class _Row(Struct):
    seq: int
    event_id: str
    kind: str
    attempt: int
    corr_id: str
    source_agent: str
    created_us: int
    to_agents: list[str]
    to_nodes: list[str]
    route_decision: str | None
    ref_event_id: str | None
    ack_type: str | None
    acked_by_node: str | None
    acked_by_agent: str | None
    acked_us: int | None
    reason: str | None
    dead_for_agent: str | None
    dead_attempts: int | None
    ended_us: int | None
    eta_us: int | None
    body: bytes


def restore(
    lake: Lake,
    home: Path,
    *,
    node_id: str,
    clock: Clock,
    chance: Chance,
    policy: DeliveryPolicy | None = None,
    is_complete: bool = False,
    lost_at_ms: int | None = None,
) -> Restored:
    """Write the home of a lost gateway. `is_complete`: the lake has all that was ever appended, so the epoch goes on.

    `lost_at_ms`: nothing that others sent later can have been taken; it is simply read.
    """
    return _Restoring(lake, node_id, clock, chance, policy or DeliveryPolicy(), is_complete, lost_at_ms).run(home)


class _Restoring:
    def __init__(
        self,
        lake: Lake,
        node_id: str,
        clock: Clock,
        chance: Chance,
        policy: DeliveryPolicy,
        is_complete: bool,
        lost_at_ms: int | None,
    ) -> None:
        self._lake = lake
        self._node_id = node_id
        self._now_ms = clock.now_ms()
        self._policy = policy
        self._is_complete = is_complete
        self._lost_at_us = None if lost_at_ms is None else lost_at_ms * 1000
        ids = IdMaker(clock, chance)
        self._maker = EventMaker(node_id=node_id, clock=clock, ids=ids)
        self._new_epoch = new_epoch(ids)
        self._deliveries: dict[Pair, Delivery] = {}
        self._taken: dict[Pair, _Taken] = {}
        self._bodies: dict[str, InboxEvent] = {}
        self._cursors: list[Cursor] = []
        self._notes: list[str] = []

    def run(self, home: Path) -> Restored:
        epochs = epochs_of(self._lake, self._node_id)
        if not epochs:
            known = ", ".join(sorted({node_id for node_id, _ in outboxes(self._lake)})) or "nothing"
            raise Refusal(
                Code.NOT_FOUND, f"{self._lake.where} has no outbox of {self._node_id}", hint=f"It has: {known}."
            )
        for epoch in epochs:
            self._read_own(list(manifests(self._lake, self._node_id, epoch)), epoch)
        for other in sorted({node_id for node_id, _ in outboxes(self._lake)} - {self._node_id}):
            self._read_other(other)
        former = epochs[-1]
        segments = contiguous(self._lake, self._node_id, former)
        epoch = former if self._is_complete else self._new_epoch
        outbox, streams, floors, floor = self._outbox(segments)
        inbox, ledger = self._inbox()
        answers = [] if self._is_complete else self._take_local_mail(inbox, ledger, former)
        self._append(answers, outbox, streams, segments)
        deliveries = self._kept_deliveries()
        last_seq = outbox[-1][1].seq if outbox else floor.seq
        self._cursors.append(self._own_cursor(epoch, [*floors, *streams], last_seq))
        agents = self._agents()
        write_home(
            home,
            RestoredHome(
                node_id=self._node_id,
                epoch=epoch,
                at_ms=self._now_ms,
                floor=floor,
                outbox=outbox,
                streams=streams,
                stream_floors=floors,
                deliveries=deliveries,
                inbox=inbox,
                ledger=ledger,
                cursors=self._cursors,
                agents=agents,
            ),
        )
        states = [entry.state for entry in ledger]
        unsettled = sum(taken.settled_at_ms is None for taken in self._taken.values())
        return Restored(
            node_id=self._node_id,
            epoch=epoch,
            former_epoch=former,
            outbox_events=len(outbox),
            first_seq=floor.seq + 1,
            last_seq=last_seq,
            open_deliveries=sum(each.state not in DELIVERY.terminal for each in deliveries),
            settled=states.count(LedgerState.SETTLED),
            in_doubt=states.count(LedgerState.ENGAGED),
            queued=states.count(LedgerState.QUEUED),
            missing=unsettled + len(answers) - states.count(LedgerState.ENGAGED) - states.count(LedgerState.QUEUED),
            cursors={each.source_node_id: each.last_seq for each in self._cursors},
            agents=[agent.agent_id for agent in agents],
            notes=self._notes,
        )

    def _rows(self, segments: Sequence[SegmentManifest]) -> Iterator[_Row]:
        for row in rows(self._lake, segments, _COLUMNS):
            yield _Row(*row)

    # What the gateway itself said

    def _read_own(self, segments: Sequence[SegmentManifest], epoch: str) -> None:
        for row in self._rows(segments):
            if row.kind in _MAIL:
                self._sent(row)
                if self._node_id in row.to_nodes:
                    self._bodies[row.event_id] = self._inbox_event(row, self._node_id, epoch)
            if row.kind == Kind.REPLY and row.ref_event_id is not None:
                self._settled((row.ref_event_id, row.source_agent), Outcome.PROCESSED, row.created_us)
                self._heard(row, self._node_id)
            elif row.kind == Kind.ACK and row.ref_event_id is not None and row.acked_by_agent is not None:
                self._acked(row, (row.ref_event_id, row.acked_by_agent))
                self._heard(row, self._node_id)
            elif row.kind == Kind.DEAD_LETTER and row.ref_event_id is not None:
                self._dead(row, (row.ref_event_id, row.dead_for_agent or ""))

    def _sent(self, row: _Row) -> None:
        for agent_id, node_id in zip(row.to_agents, row.to_nodes, strict=True):
            before = self._deliveries.get((row.event_id, agent_id))
            if before is None:
                self._deliveries[row.event_id, agent_id] = Delivery(
                    event_id=EventId(row.event_id),
                    to_agent_id=agent_id,
                    corr_id=row.corr_id,
                    from_agent_id=row.source_agent,
                    to_node_id=node_id or None,
                    route_decision=row.route_decision or "",
                    seq=row.seq,
                    attempts=row.attempt,
                    due_at_ms=self._now_ms + round(self._policy.accepted_ack_timeout_seconds * 1000),
                    emitted_at_ms=row.created_us // 1000,
                )
            else:
                self._deliveries[row.event_id, agent_id] = replace(
                    before, seq=row.seq, attempts=row.attempt, to_node_id=node_id or before.to_node_id
                )

    def _acked(self, row: _Row, pair: Pair) -> None:
        at_us = row.acked_us or row.created_us
        if row.ack_type == AckType.ACCEPTED:
            self._taken.setdefault(pair, _Taken(at_us // 1000))
        elif row.ack_type == AckType.PROCESSED:
            self._settled(pair, Outcome.PROCESSED, at_us)
        else:
            self._settled(pair, Outcome.EXPIRED if row.reason == "expired" else Outcome.FAILED_TERMINAL, at_us)

    def _settled(self, pair: Pair, outcome: Outcome, at_us: int) -> None:
        taken = self._taken.setdefault(pair, _Taken(at_us // 1000))
        taken.settled_at_ms, taken.outcome = at_us // 1000, outcome

    def _dead(self, row: _Row, pair: Pair) -> None:
        delivery = self._deliveries.get(pair)
        if delivery is not None and delivery.state in _UNACCEPTED:
            self._deliveries[pair] = replace(
                delivery,
                state=DeliveryState.DEAD_LETTER,
                attempts=row.dead_attempts or delivery.attempts,
                due_at_ms=None,
                closed_at_ms=(row.ended_us or row.created_us) // 1000,
                reason=row.reason,
            )

    # What others said

    def _read_other(self, other: str) -> None:
        for epoch in epochs_of(self._lake, other):
            segments = list(manifests(self._lake, other, epoch))
            chain, read_through = CHAIN_START, 0
            is_reading = True
            try:
                for row in self._rows(segments):
                    self._heard(row, other)
                    if self._node_id in row.to_nodes and row.kind in _MAIL:
                        self._bodies[row.event_id] = self._inbox_event(row, other, epoch)
                    is_for_us = self._node_id in addressed_to(row.body)
                    if is_for_us and self._lost_at_us is not None and row.created_us > self._lost_at_us:
                        is_reading = False
                    if is_reading:
                        chain = next_chain(chain, row.body) if is_for_us else chain
                        read_through = row.seq
            except Refusal as refusal:
                self._notes.append(f"the outbox of {other} was read up to {read_through}: {refusal.message}")
            is_whole = contiguous(self._lake, other, epoch)[0].first_seq == 1
            if not is_whole:
                self._notes.append(f"the lake has not all of the outbox of {other}: it is read from its start again")
            elif read_through and epoch == epochs_of(self._lake, other)[-1]:
                self._cursors.append(
                    Cursor(
                        source_node_id=other,
                        epoch=epoch,
                        last_seq=read_through,
                        last_chain=chain,
                        updated_at_ms=self._now_ms,
                    )
                )

    def _heard(self, row: _Row, source: str) -> None:
        """Move a delivery by what the gateway of its recipient says."""
        if row.kind == Kind.ACK and row.acked_by_node == source and row.ack_type in _SIGNALS:
            pair, signal = (row.ref_event_id or "", row.acked_by_agent or ""), _SIGNALS[row.ack_type]
        elif row.kind == Kind.REPLY:
            pair, signal = (row.ref_event_id or "", row.source_agent), DeliverySignal.REPLY
        else:
            return
        delivery = self._deliveries.get(pair)
        if delivery is None or delivery.to_node_id not in (None, source):
            return
        at_ms = (row.acked_us or row.created_us) // 1000
        due_at_ms = at_ms + self._policy.processed_sla_seconds * 1000 if row.eta_us is None else row.eta_us // 1000
        self._deliveries[pair] = advance(
            delivery,
            Change(
                event_id=delivery.event_id,
                to_agent_id=delivery.to_agent_id,
                signal=signal,
                at_ms=at_ms,
                due_at_ms=due_at_ms + self._policy.processed_sla_grace_seconds * 1000,
                answered_by_event_id=EventId(row.event_id) if row.kind == Kind.REPLY else None,
                reason=row.reason if row.kind == Kind.ACK else None,
            ),
        )

    def _inbox_event(self, row: _Row, source: str, epoch: str) -> InboxEvent:
        return InboxEvent(
            seq=0,
            event_id=row.event_id,
            source_node_id=source,
            source_epoch=epoch,
            source_seq=row.seq,
            received_at_ms=self._now_ms,
            raw=row.body,
            corr_id=row.corr_id,
        )

    # What the home held

    def _outbox(
        self, segments: Sequence[SegmentManifest]
    ) -> tuple[list[tuple[str, StoredEvent]], list[StreamPlace], list[StreamPlace], Head]:
        """The events that a gateway would have kept, with the streams of their readers.

        In a new epoch the streams begin with what is kept: their readers start over, and shall find no hole.
        """
        keep_from = self._keep_from(segments)
        floor = Head(seq=segments[0].first_seq - 1, chain=bytes.fromhex(segments[0].start_chain))
        chain = floor.chain
        outbox: list[tuple[str, StoredEvent]] = []
        streams: list[StreamPlace] = []
        ends: dict[str, StreamPlace] = {}
        floors: list[StreamPlace] = []
        for seq, event_id, body in rows(self._lake, segments, ("event_id", "body")):
            chain = next_chain(chain, body)
            if seq < keep_from:
                floor = Head(seq=seq, chain=chain)
                if self._is_complete:
                    ends |= {place.consumer_node_id: place for place in stream_places(body, seq, ends)}
                    floors = list(ends.values())
                continue
            outbox.append((event_id.ljust(30), StoredEvent(seq=seq, chain=chain, raw=body)))
            places = stream_places(body, seq, ends)
            streams += places
            ends |= {place.consumer_node_id: place for place in places}
        if chain.hex() != segments[-1].end_chain:
            raise Refusal(
                Code.STORAGE_CORRUPT,
                f"the hash chain of {self._node_id} in the lake is broken",
                hint="Run `agentpost pipeline check`, or bring the segments back from a copy.",
            )
        return outbox, streams, floors, floor

    def _keep_from(self, segments: Sequence[SegmentManifest]) -> int:
        """PIPE-7, PIPE-8: the retention window, and all that may have to be sent again.

        What is so old that its readers have forgotten it must not be offered to them again.
        """
        last_seq = segments[-1].last_seq
        oldest_open = min(
            (each.seq for each in self._deliveries.values() if each.state in _UNACCEPTED), default=last_seq + 1
        )
        young_us = (self._now_ms - self._policy.settled_retention_seconds * 1000 + _DAY_MS) * 1000
        first_young = last_seq + 1
        for segment in reversed(segments):
            for seq, created_us in rows(self._lake, [segment], ("created_us",)):
                if created_us >= young_us:
                    first_young = min(first_young, seq)
                    break
            else:
                break
        window = max(first_young, last_seq - self._policy.retention_events + 1)
        return max(min(oldest_open, window), segments[0].first_seq)

    def _inbox(self) -> tuple[list[InboxEvent], list[LedgerEntry]]:
        """The ledger, and the events of the rows that are open."""
        forget_before_ms = self._now_ms - self._policy.settled_retention_seconds * 1000
        inbox: dict[str, InboxEvent] = {}
        ledger: list[LedgerEntry] = []
        for (event_id, agent_id), taken in self._taken.items():
            if taken.settled_at_ms is not None:
                if taken.settled_at_ms >= forget_before_ms:
                    ledger.append(_settled_entry(event_id, agent_id, taken))
                continue
            body = self._bodies.get(event_id)
            if body is None:
                continue  # whoever sent it still has it: its stream is read again from before it
            kept = inbox.setdefault(event_id, replace(body, seq=len(inbox) + 1))
            state = LedgerState.QUEUED if self._is_complete else LedgerState.ENGAGED
            ledger.append(_open_entry(event_id, agent_id, kept.seq, state, taken.accepted_at_ms))
        return list(inbox.values()), ledger

    def _take_local_mail(self, inbox: list[InboxEvent], ledger: list[LedgerEntry], former_epoch: str) -> list[Event]:
        """Mail between agents of this gateway that nobody is known to have accepted: in doubt like the rest.

        No other gateway would send it again. Gives the ACKs that say so.
        """
        answers: list[Event] = []
        for (event_id, agent_id), delivery in list(self._deliveries.items()):
            body = self._bodies.get(event_id)
            if delivery.to_node_id != self._node_id or delivery.state not in _UNACCEPTED or body is None:
                continue
            kept = next((each for each in inbox if each.event_id == event_id), None)
            if kept is None:
                kept = replace(body, seq=len(inbox) + 1, source_epoch=former_epoch)
                inbox.append(kept)
            ledger.append(_open_entry(event_id, agent_id, kept.seq, LedgerState.ENGAGED, self._now_ms))
            answer = self._maker.ack(decode_event(body.raw), AckType.ACCEPTED, agent_id=agent_id)
            answers.append(answer)
            change = Change(
                event_id=delivery.event_id,
                to_agent_id=agent_id,
                signal=DeliverySignal.ACCEPTED,
                at_ms=self._now_ms,
                due_at_ms=self._now_ms + self._policy.processed_sla_seconds * 1000,
            )
            self._deliveries[event_id, agent_id] = advance(delivery, change)
        return answers

    def _append(
        self,
        events: Sequence[Event],
        outbox: list[tuple[str, StoredEvent]],
        streams: list[StreamPlace],
        segments: Sequence[SegmentManifest],
    ) -> None:
        seq, chain = segments[-1].last_seq, bytes.fromhex(segments[-1].end_chain)
        ends = {place.consumer_node_id: place for place in streams}
        for event in events:
            seq += 1
            body = encode_for_outbox(replace(event, seq=seq))
            chain = next_chain(chain, body)
            outbox.append((event.event_id, StoredEvent(seq=seq, chain=chain, raw=body)))
            places = stream_places(body, seq, ends)
            streams += places
            ends |= {place.consumer_node_id: place for place in places}

    def _kept_deliveries(self) -> list[Delivery]:
        forget_before_ms = self._now_ms - self._policy.settled_retention_seconds * 1000
        return [
            each
            for each in self._deliveries.values()
            if each.closed_at_ms is None
            or each.state is DeliveryState.DEAD_LETTER
            or each.closed_at_ms >= forget_before_ms
        ]

    def _own_cursor(self, epoch: str, streams: Sequence[StreamPlace], last_seq: int) -> Cursor:
        """Local mail goes on after what was accepted."""
        waiting = [
            each.seq
            for each in self._deliveries.values()
            if each.to_node_id == self._node_id and each.state in _UNACCEPTED
        ]
        read_through = min(waiting, default=last_seq + 1) - 1
        own = [place for place in streams if place.consumer_node_id == self._node_id and place.seq <= read_through]
        return Cursor(
            source_node_id=self._node_id,
            epoch=epoch,
            last_seq=read_through,
            last_chain=own[-1].chain if own else CHAIN_START,
            updated_at_ms=self._now_ms,
        )

    def _agents(self) -> list[LocalAgent]:
        """The agents that the node owned: their mail is kept, and nobody is engaged until somebody says how."""
        owned = {
            key
            for (topic, key), value in facts_now(self._lake).items()
            if topic == "agent" and value.get("ownerNodeId") == self._node_id
        }
        owned |= {agent_id for _, agent_id in self._taken}
        return [
            LocalAgent(agent_id=agent_id, runtime=_PULL, created_at_ms=self._now_ms, is_paused=True)
            for agent_id in sorted(owned)
        ]


def _settled_entry(event_id: str, agent_id: str, taken: _Taken) -> LedgerEntry:
    return LedgerEntry(
        event_id=EventId(event_id),
        to_agent_id=agent_id,
        inbox_seq=0,  # the ledger outlives the inbox
        state=LedgerState.SETTLED,
        attempts=1,
        accepted_at_ms=taken.accepted_at_ms,
        settled_at_ms=taken.settled_at_ms,
        outcome=taken.outcome,
    )


def _open_entry(event_id: str, agent_id: str, inbox_seq: int, state: LedgerState, accepted_at_ms: int) -> LedgerEntry:
    is_in_doubt = state is LedgerState.ENGAGED
    return LedgerEntry(
        event_id=EventId(event_id),
        to_agent_id=agent_id,
        inbox_seq=inbox_seq,
        state=state,
        attempts=1 if is_in_doubt else 0,
        accepted_at_ms=accepted_at_ms,
        engaged_at_ms=accepted_at_ms if is_in_doubt else None,
    )
