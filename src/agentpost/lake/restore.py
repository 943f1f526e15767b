"""A lost gateway, worked out again from the lake: its outbox, and what became of all it sent and took (OBS-11).

- The outbox is the one in the lake, byte for byte, as far back as a gateway would have kept it. The lake may end before
  the lost outbox did, so it begins a new epoch: its readers start over, and know by the ids what they have. What nobody
  has accepted and stands elsewhere (before that, before a hole, in a former epoch) is sent again at its end.
- What was sent: a delivery for each recipient, moved by the ACKs and replies in the outboxes of the others.
- What was taken: the gateway's own ACKs say it, and how it ended. What has an outcome is never injected again.
- What was taken and has no outcome is *in doubt*, since the end of the outbox is not known: the agent may have had it.
  It is treated like mail that was with an agent when a gateway crashed. Mail that was never accepted, its sender sends
  again; so cursors stand at the end of what the lake has of others, and nothing is taken twice.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.place import Lake
from agentpost.lake.reading import contiguous, epochs_of, facts_now, rows
from agentpost.lake.recall import UNACCEPTED, Recalled, Taken
from agentpost.lake.segments import manifests, outboxes
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change, Delivery, advance, is_undelivered
from agentpost.protocol.envelope import Event, resend_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import next_chain
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliverySignal
from agentpost.protocol.payloads import AckType
from agentpost.store.restoring import (
    InboxEvent,
    RestoredHome,
    StreamPlace,
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
    StoredEvent,
)
from agentpost.world import Chance, Clock, IdMaker, new_epoch

__all__ = ["Restored", "restore"]

_PULL: Final = "pull"


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


class _Kept(Struct, kw_only=True):
    """The outbox as a gateway would have kept it, the streams of its readers, and what dead letters said before it."""

    floor: Head
    events: list[tuple[str, StoredEvent]] = []
    streams: list[StreamPlace] = []
    stream_floors: list[StreamPlace] = []
    dead_letters: list[tuple[str, StoredEvent]] = []


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
        ids = IdMaker(clock, chance, node_id=node_id)
        self._maker = EventMaker(node_id=node_id, clock=clock, ids=ids)
        self._new_epoch = new_epoch(ids)
        self._told = Recalled(lake, node_id, now_ms=self._now_ms, policy=policy, lost_at_ms=lost_at_ms)

    def run(self, home: Path) -> Restored:
        epochs = epochs_of(self._lake, self._node_id)
        if not epochs:
            known = ", ".join(sorted({node_id for node_id, _ in outboxes(self._lake)})) or "nothing"
            raise Refusal(
                Code.NOT_FOUND, f"{self._lake.where} has no outbox of {self._node_id}", hint=f"It has: {known}."
            )
        for epoch in epochs:
            self._told.read_own(epoch)
        for other in sorted({node_id for node_id, _ in outboxes(self._lake)} - {self._node_id}):
            self._told.read_other(other)
        former = epochs[-1]
        segments = contiguous(self._lake, self._node_id, former)
        self._note_holes(former)
        epoch = former if self._is_complete else self._new_epoch
        kept = self._outbox(segments)
        inbox, ledger = self._inbox()
        answers = [] if self._is_complete else self._take_local_mail(inbox, ledger, former)
        resent = self._stranded(kept, epochs)
        self._append([*answers, *resent], kept, segments)
        self._place(resent, kept)
        deliveries = self._kept_deliveries()
        last_seq = kept.events[-1][1].seq if kept.events else kept.floor.seq
        self._told.cursors.append(self._own_cursor(epoch, [*kept.stream_floors, *kept.streams], last_seq))
        agents = self._agents()
        write_home(
            home,
            RestoredHome(
                node_id=self._node_id,
                epoch=epoch,
                at_ms=self._now_ms,
                floor=kept.floor,
                outbox=kept.events,
                streams=kept.streams,
                stream_floors=kept.stream_floors,
                dead_letters=kept.dead_letters,
                deliveries=deliveries,
                inbox=inbox,
                ledger=ledger,
                cursors=self._told.cursors,
                agents=agents,
            ),
        )
        states = [entry.state for entry in ledger]
        unsettled = sum(taken.settled_at_ms is None for taken in self._told.taken.values())
        return Restored(
            node_id=self._node_id,
            epoch=epoch,
            former_epoch=former,
            outbox_events=len(kept.events),
            first_seq=kept.floor.seq + 1,
            last_seq=last_seq,
            open_deliveries=sum(each.state not in DELIVERY.terminal for each in deliveries),
            settled=states.count(LedgerState.SETTLED),
            in_doubt=states.count(LedgerState.ENGAGED),
            queued=states.count(LedgerState.QUEUED),
            missing=unsettled + len(answers) - states.count(LedgerState.ENGAGED) - states.count(LedgerState.QUEUED),
            cursors={each.source_node_id: each.last_seq for each in self._told.cursors},
            agents=[agent.agent_id for agent in agents],
            notes=self._told.notes,
        )

    # What the home held

    def _outbox(self, segments: Sequence[SegmentManifest]) -> "_Kept":
        """The events that a gateway would have kept, with the streams of their readers.

        In a new epoch the streams begin with what is kept: their readers start over, and shall find no hole.
        """
        keep_from = self._keep_from(segments)
        kept = _Kept(floor=Head(seq=segments[0].first_seq - 1, chain=bytes.fromhex(segments[0].start_chain)))
        chain = kept.floor.chain
        ends: dict[str, StreamPlace] = {}
        dead = {event_id for (event_id, _), each in self._told.deliveries.items() if is_undelivered(each)}
        for seq, event_id, body in rows(self._lake, segments, ("event_id", "body")):
            chain = next_chain(chain, body)
            stored = StoredEvent(seq=seq, chain=chain, raw=body)
            if seq < keep_from:
                kept.floor = Head(seq=seq, chain=chain)
                if event_id in dead:
                    kept.dead_letters.append((event_id, stored))
                if self._is_complete:
                    ends |= {place.consumer_node_id: place for place in stream_places(body, seq, ends)}
                    kept.stream_floors = list(ends.values())
                continue
            kept.events.append((event_id.ljust(30), stored))
            places = stream_places(body, seq, ends)
            kept.streams += places
            ends |= {place.consumer_node_id: place for place in places}
        if chain.hex() != segments[-1].end_chain:
            raise Refusal(
                Code.STORAGE_CORRUPT,
                f"the hash chain of {self._node_id} in the lake is broken",
                hint="Run `agentpost pipeline check`, or bring the segments back from a copy.",
            )
        return kept

    def _note_holes(self, epoch: str) -> None:
        through_seq = 0
        for segment in manifests(self._lake, self._node_id, epoch):
            if 0 < through_seq < segment.first_seq - 1:
                self._told.notes.append(
                    f"the lake lacks seq {through_seq + 1:,} to {segment.first_seq - 1:,} of the outbox, which begins "
                    "after that; what these events said is not known"
                )
            through_seq = max(through_seq, segment.last_seq)

    def _keep_from(self, segments: Sequence[SegmentManifest]) -> int:
        """PIPE-7, PIPE-8: the retention window, and all that may have to be sent again.

        What is so old that its readers have forgotten it must not be offered to them again, as a new epoch would.
        """
        last_seq = segments[-1].last_seq
        oldest_open = min(
            (each.seq for each in self._told.deliveries.values() if each.state in UNACCEPTED), default=last_seq + 1
        )
        young_us = (self._now_ms - round(self._policy.offered_again_seconds * 1000)) * 1000
        first_young = last_seq + 1
        for segment in reversed(segments):
            for seq, created_us in rows(self._lake, [segment], ("created_us",)):
                if created_us >= young_us:
                    first_young = min(first_young, seq)
                    break
            else:
                break
        window = max(first_young, last_seq - self._policy.retention_events + 1)
        return max(min(oldest_open, window) if self._is_complete else window, segments[0].first_seq)

    def _inbox(self) -> tuple[list[InboxEvent], list[LedgerEntry]]:
        """The ledger, and the events of the rows that are open."""
        forget_before_ms = self._now_ms - self._policy.settled_retention_seconds * 1000
        read_on = {self._node_id, *(each.source_node_id for each in self._told.cursors)}
        inbox: dict[str, InboxEvent] = {}
        ledger: list[LedgerEntry] = []
        for (event_id, agent_id), taken in self._told.taken.items():
            body = self._told.bodies.get(event_id)
            if taken.settled_at_ms is not None:
                if taken.settled_at_ms >= forget_before_ms:
                    ledger.append(_settled_entry(event_id, agent_id, taken))
                elif body is None or body.source_node_id not in read_on:
                    # RTY-3: its source is read from the start again, and may still have it.
                    taken.settled_at_ms = self._now_ms
                    ledger.append(_settled_entry(event_id, agent_id, taken))
                continue
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
        for (event_id, agent_id), delivery in list(self._told.deliveries.items()):
            body = self._told.bodies.get(event_id)
            if delivery.to_node_id != self._node_id or delivery.state not in UNACCEPTED or body is None:
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
            self._told.deliveries[event_id, agent_id] = advance(delivery, change)
        return answers

    def _stranded(self, kept: "_Kept", epochs: Sequence[str]) -> list[Event]:
        """What nobody has accepted and the outbox does not have, for another send (PIPE-8)."""
        here = {event_id.rstrip() for event_id, _ in kept.events}
        waiting: dict[str, set[str]] = {}
        for (event_id, _), each in self._told.deliveries.items():
            if each.state in UNACCEPTED and event_id not in here:
                waiting.setdefault(event_id, set()).add(each.to_node_id or "")
        found: dict[str, bytes] = {}
        for epoch in epochs if waiting else ():
            segments = list(manifests(self._lake, self._node_id, epoch))
            sent = rows(self._lake, segments, ("event_id", "body"))
            found |= {event_id: body for _, event_id, body in sent if event_id in waiting}
        return [
            replace(resend_of(decode_event(body)), to_nodes=tuple(sorted(waiting[event_id] - {""})))
            for event_id, body in found.items()
        ]

    def _place(self, resent: Sequence[Event], kept: "_Kept") -> None:
        """Say of these deliveries where their events stand now."""
        attempts = {event.event_id: event.trace.attempt for event in resent}
        places = {event_id: event.seq for event_id, event in kept.events if event_id in attempts}
        for pair, each in self._told.deliveries.items():
            if each.state in UNACCEPTED and each.event_id in places:
                self._told.deliveries[pair] = replace(each, seq=places[each.event_id], attempts=attempts[each.event_id])

    def _append(self, events: Sequence[Event], kept: "_Kept", segments: Sequence[SegmentManifest]) -> None:
        seq, chain = segments[-1].last_seq, bytes.fromhex(segments[-1].end_chain)
        ends = {place.consumer_node_id: place for place in kept.streams}
        for event in events:
            seq += 1
            body = encode_for_outbox(replace(event, seq=seq))
            chain = next_chain(chain, body)
            kept.events.append((event.event_id, StoredEvent(seq=seq, chain=chain, raw=body)))
            places = stream_places(body, seq, ends)
            kept.streams += places
            ends |= {place.consumer_node_id: place for place in places}

    def _kept_deliveries(self) -> list[Delivery]:
        forget_before_ms = self._now_ms - self._policy.settled_retention_seconds * 1000
        return [
            each
            for each in self._told.deliveries.values()
            if each.closed_at_ms is None or is_undelivered(each) or each.closed_at_ms >= forget_before_ms
        ]

    def _own_cursor(self, epoch: str, streams: Sequence[StreamPlace], last_seq: int) -> Cursor:
        """Local mail goes on after what was accepted."""
        waiting = [
            each.seq
            for each in self._told.deliveries.values()
            if each.to_node_id == self._node_id and each.state in UNACCEPTED
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
        owned |= {agent_id for _, agent_id in self._told.taken}
        return [
            LocalAgent(agent_id=agent_id, runtime=_PULL, created_at_ms=self._now_ms, is_paused=True)
            for agent_id in sorted(owned)
        ]


def _settled_entry(event_id: str, agent_id: str, taken: Taken) -> LedgerEntry:
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
