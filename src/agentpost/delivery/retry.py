"""The timers of the sender: resends, dead letters and missed SLAs (RTY-1, RTY-2, ACK-4, ENV-7). One task.

It sleeps until the next timer of the store runs out and carries out what `deciding` says, in batches. All of its memory
is in the store: after a crash it goes on where the last transaction left off.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.deciding import (
    OWNER_SILENT,
    AskReader,
    AskStatus,
    GiveUp,
    Move,
    RaiseIncident,
    Resend,
    Wait,
    decide,
)
from agentpost.delivery.incidents import request_of, status_request
from agentpost.delivery.making import EventMaker
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.placing import engaged_by
from agentpost.delivery.policy import DeliveryPolicy, has_sla, sla_due_at_ms
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.delivery.postmaster import NonDelivery
from agentpost.delivery.whereabouts import Place, Whereabouts, locate
from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event, SignalEvent, resend_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DELIVERY, DeliveryState
from agentpost.protocol.routing import is_live
from agentpost.protocol.snapshot import RoomSnapshot
from agentpost.store.interface import Store
from agentpost.store.values import Incident, NamedPayload
from agentpost.tasks import TaskOwner
from agentpost.world import Chance, Clock

__all__ = ["Readdress", "Report", "Retrier"]

_log = logging.getLogger(__name__)

_BATCH: Final = 256
# The time of day may be set, and a machine may sleep: no wait is trusted for longer than this.
_LONGEST_SLEEP_SECONDS: Final = 60.0
_SHORTEST_SLEEP_SECONDS: Final = 0.1
_LOOK_EVERY_MS: Final = 10_000
_STEP_MS: Final = 1_000
_AFTER_A_FAILURE_SECONDS: Final = 5.0
_UNACCEPTED: Final = (DeliveryState.EMITTED, DeliveryState.RETRY_PENDING)
_AWAY: Final = (Place.AWAY, Place.IN_DOUBT)
# More than one event can have recipients.
_PASSED_A_STEP: Final = 4_096
# What the store says of a write that does not fit what it holds. Everything else is the disk's trouble.
_OVERTAKEN: Final = frozenset({Code.INVALID_TRANSITION, Code.NOT_FOUND, Code.INVALID_FIELD, Code.TOO_LARGE})

Report = Callable[[NonDelivery], tuple[Event, Delivery] | None]
# `Publisher.readdress`: the event, sealed for the gateway of each recipient that is still to get it.
Readdress = Callable[[Event, Mapping[str, str | None]], Event]


class _Plan(Struct, kw_only=True):
    """What is to be written about one event, or about many: all of it in one transaction, incidents and waits aside."""

    about: list[Delivery] = []
    events: list[Event] = []
    deliveries: list[Delivery] = []
    changes: list[Change] = []
    incidents: list[Incident] = []
    waits: list[tuple[EventId, str, int]] = []


class Retrier:
    """`read_through` says how far each gateway has read this outbox for certain, all of its answers included.

    `readdress` seals an event for other gateways; `report` tells a sender that its mail could not be delivered.
    """

    def __init__(
        self,
        store: Store,
        room: RoomView,
        maker: EventMaker,
        clock: Clock,
        chance: Chance,
        wakeups: Wakeups,
        policy: DeliveryPolicy | None = None,
        *,
        read_through: Callable[[], Mapping[str, int]],
        readdress: Readdress | None = None,
        report: Report | None = None,
    ) -> None:
        self._store = store
        self._room = room
        self._maker = maker
        self._clock = clock
        self._chance = chance
        self._wakeups = wakeups
        self._outbox = OutboxWriter(store, wakeups)
        self._policy = policy or DeliveryPolicy()
        self._read_through = read_through
        self._readdress = readdress
        self._report = report
        self._tasks = TaskOwner("retrier")
        self._wake = asyncio.Event()
        # At the start nobody is known to be there: whoever is may have come back while this gateway was down.
        self._live: set[str] = set()
        # How far gateways have read that said so in an answer, and whom an answer is awaited of, and since when.
        self._answered: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._silent_since: dict[str, int] = {}
        # Through where it is known that mail that is not accepted was passed over.
        self._seen_through: dict[str, int] = {}
        self._sleeps_until_ms = 0
        self._followed_ahead_ms = self._ahead_ms()
        wakeups.listen(timer=self._timer_set)

    def start(self) -> None:
        self._tasks.spawn(self._run(), name="timers")

    async def close(self) -> None:
        await self._tasks.close()

    async def work(self) -> int:
        """Work off one batch of the timers that have run out. Gives how many there were."""
        await self._follow_clock()
        now_ms = self._clock.now_ms()
        due = self._store.due_deliveries(now_ms, limit=_BATCH)
        if not due:
            return 0
        room = self._room.snapshot()
        passed = self._read_through()
        groups: dict[EventId, list[Delivery]] = {}
        for delivery in due:
            groups.setdefault(delivery.event_id, []).append(delivery)
        await self._carry_out([self._plan(group, room, passed, now_ms) for group in groups.values()], now_ms)
        return len(due)

    async def look_around(self) -> int:
        """Notice gateways that came back without anybody saying so. Gives how much waited for them."""
        now_ms = self._clock.now_ms()
        live = {node_id for node_id, node in self._room.snapshot().nodes.items() if is_live(node, now_ms)}
        self._live &= live
        back = live - self._live
        count = await self.node_is_back(*back) if back else 0
        # Only now: what a full disk did not take is made up for with the next look.
        self._live = live
        await self._notice_passed(live)
        return count

    def hear(self, signals: Sequence[SignalEvent]) -> None:
        """Note the answers of gateways that were asked how far they are: streams are in order, and so are answers."""
        for signal in signals:
            node_id, request_id = signal.source_node_id, request_of(signal)
            stored = None if request_id is None else self._store.find_event(request_id)
            request = None if request_id is None else self._event(request_id)
            if stored is not None and isinstance(request, SignalEvent) and node_id in request.to_nodes:
                self._answered[node_id] = max(self._answered.get(node_id, 0), stored.seq)
                self._asked.pop(node_id, None)
                self._silent_since.pop(node_id, None)

    def _passed(self) -> dict[str, int]:
        """How far each gateway has read for certain. Those that are not linked, and have not answered, are missing."""
        passed = dict(self._answered)
        for node_id, seq in self._read_through().items():
            passed[node_id] = max(seq, passed.get(node_id, 0))
        return passed

    async def _notice_passed(self, live: set[str]) -> None:
        """Look soon at mail that its gateway has passed over, and that was put off until then."""
        now_ms = self._clock.now_ms()
        soon_ms = now_ms + 2 * round(self._policy.accepted_ack_timeout_seconds * 1000)
        for node_id, through_seq in self._passed().items():
            if node_id not in live:
                continue
            after_seq = self._seen_through.get(node_id, 0)
            while page := self._store.unaccepted_by(
                node_id, after_seq=after_seq, through_seq=through_seq, limit=_PASSED_A_STEP
            ):
                waiting = [
                    (each.event_id, each.to_agent_id, now_ms)
                    for each in page
                    if each.state is DeliveryState.EMITTED and each.due_at_ms is not None and each.due_at_ms > soon_ms
                ]
                if waiting:
                    await self._store.reschedule(waiting)
                    await self._keep_sla_of(waiting)
                # Several of one event stand at one place, and a page may end between them.
                after_seq = page[-1].seq - (len(page) == _PASSED_A_STEP)
            self._seen_through[node_id] = through_seq

    async def node_is_back(self, *node_ids: str) -> int:
        """Give what waits for these gateways the usual time to be accepted, from now on. Gives how much that was.

        Nothing is sent again for that: a gateway that comes back reads its stream, and finds all of it there. No
        attempt is spent, and each batch comes due a second after the one before.
        """
        due_at_ms = self._clock.now_ms() + round(self._policy.accepted_ack_timeout_seconds * 1000)
        count = 0
        after = ("", "")
        while page := self._store.deliveries_in(_UNACCEPTED, after=after, limit=_BATCH):
            after = (page[-1].event_id, page[-1].to_agent_id)
            waiting = [
                (each.event_id, each.to_agent_id, due_at_ms + round(self._chance.fraction() * 1000))
                for each in page
                if each.to_node_id in node_ids and (each.due_at_ms is None or each.due_at_ms > due_at_ms)
            ]
            if waiting:
                await self._store.reschedule(waiting)
                await self._keep_sla_of(waiting)
                count += len(waiting)
                due_at_ms += 1000
        for node_id in node_ids:
            await self._store.close_incident(OWNER_SILENT, node_id, at_ms=self._clock.now_ms())
        self._wakeups.timer_set()
        return count

    async def _run(self) -> None:
        look_at_ms = self._clock.monotonic_ms()
        ahead_ms = self._ahead_ms()
        while True:
            self._wake.clear()
            try:
                if abs(self._ahead_ms() - ahead_ms) > _STEP_MS:
                    # The time of day was set. What was to be looked at in seconds may stand an hour away now: as at a
                    # start, all who are there get the usual time to accept what waits for them.
                    ahead_ms, look_at_ms, self._live = self._ahead_ms(), 0, set()
                if self._clock.monotonic_ms() >= look_at_ms:
                    await self.look_around()
                    look_at_ms = self._clock.monotonic_ms() + _LOOK_EVERY_MS
                worked = await self.work()
            except Refusal as refusal:
                _log.error("the timers stand still: %s", refusal.message)
                await asyncio.sleep(_AFTER_A_FAILURE_SECONDS)
                continue
            if not worked:
                await self._until_due(look_at_ms)

    def _timer_set(self, due_at_ms: int) -> None:
        # Nearly all timers run out after the one that is slept for, and most are gone by then.
        if due_at_ms < self._sleeps_until_ms or not self._sleeps_until_ms:
            self._wake.set()

    def _ahead_ms(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ms()

    async def _follow_clock(self) -> None:
        """If the time of day was set, set the timers of what was accepted by as much: they count hours, not times.

        ACK-4: a wrong clock makes no outcome late, and puts no incident off.
        """
        step_ms = self._ahead_ms() - self._followed_ahead_ms
        if abs(step_ms) <= _STEP_MS:
            return
        self._followed_ahead_ms += step_ms
        after = ("", "")
        while page := self._store.deliveries_in((DeliveryState.ACCEPTED,), after=after, limit=_BATCH):
            after = (page[-1].event_id, page[-1].to_agent_id)
            timers = [
                (each.event_id, each.to_agent_id, each.due_at_ms + step_ms)
                for each in page
                if each.due_at_ms is not None
            ]
            if timers:
                await self._store.reschedule(timers)

    async def _until_due(self, look_at_ms: int) -> None:
        now_ms, due_at_ms = self._clock.now_ms(), self._store.next_due_at_ms()
        # Nobody says that a gateway is back, so a look around must not wait for a timer.
        until_look_seconds = max((look_at_ms - self._clock.monotonic_ms()) / 1000, _SHORTEST_SLEEP_SECONDS)
        seconds = min(until_look_seconds, _LONGEST_SLEEP_SECONDS)
        if due_at_ms is not None:
            seconds = min(max((due_at_ms - now_ms) / 1000, 0), seconds)
        self._sleeps_until_ms = now_ms + round(seconds * 1000)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        finally:
            self._sleeps_until_ms = 0

    # From commands to what is written

    def _plan(self, group: list[Delivery], room: RoomSnapshot, passed: Mapping[str, int], now_ms: int) -> _Plan:
        event = self._event(group[0].event_id)
        jitter = self._chance.fraction()  # one draw for an event: what was sent together stays together
        plan = _Plan(about=group)
        resends: list[Resend] = []
        for delivery in group:
            found = self._locate(delivery, room, passed, now_ms)
            for command in decide(
                delivery, event=event, whereabouts=found, now_ms=now_ms, jitter=jitter, policy=self._policy
            ):
                match command:
                    case Wait():
                        if found.place in _AWAY:
                            # Whatever the last look around found: its return is news, however soon it comes.
                            self._live.discard(delivery.to_node_id or "")
                        plan.waits.append((delivery.event_id, delivery.to_agent_id, command.due_at_ms))
                    case Move():
                        plan.changes.append(command.change)
                    case Resend():
                        resends.append(command)
                    case GiveUp():
                        self._give_up(plan, command, event)
                    case RaiseIncident():
                        plan.incidents.append(_incident(command, now_ms))
                    case AskStatus():
                        plan.events.append(status_request(self._maker, delivery, to_node_id=command.to_node_id))
                    case AskReader() if self._may_ask(command.to_node_id):
                        plan.events.append(status_request(self._maker, delivery, to_node_id=command.to_node_id))
                    case AskReader():
                        pass
        if resends and event is not None:
            self._resend(plan, resends, event, room)
        return plan

    def _may_ask(self, node_id: str) -> bool:
        """Once for all mail of a gateway, and again only if its answer is lost, perhaps."""
        now_ms = self._clock.monotonic_ms()
        asked_ms = self._asked.get(node_id)
        if asked_ms is not None and now_ms - asked_ms < self._policy.away_check_seconds * 1000:
            return False
        self._asked[node_id] = now_ms
        self._silent_since.setdefault(node_id, now_ms)
        return True

    def _is_silent(self, node_id: str) -> bool:
        """Whether a gateway that is there has answered nothing for so long that nothing is expected of it any more."""
        since_ms = self._silent_since.get(node_id)
        return since_ms is not None and (
            self._clock.monotonic_ms() - since_ms >= self._policy.processed_sla_seconds * 1000
        )

    def _resend(self, plan: _Plan, resends: list[Resend], event: Event, room: RoomSnapshot) -> None:
        """One more send of the event, for the gateways that have not accepted it: the others have it."""
        again = resend_of(event)
        if any(resend.is_moved for resend in resends):
            try:
                again = self._follow(again, resends, room)
            except Refusal as refusal:
                _log.warning("%s cannot follow its recipient yet: %s", event.event_id, refusal.message)
                due_at_ms = self._clock.now_ms() + self._policy.away_check_seconds * 1000
                plan.waits.extend(
                    (event.event_id, resend.changes[-1].to_agent_id, due_at_ms) for resend in resends if resend.is_moved
                )
                # Those who are where they were need no other keys.
                resends = [resend for resend in resends if not resend.is_moved]
                if not resends:
                    return
        to_nodes = tuple(sorted({resend.to_node_id for resend in resends}))
        plan.events.append(replace(again, to_nodes=to_nodes))
        plan.changes.extend(change for resend in resends for change in resend.changes)

    def _follow(self, event: Event, resends: list[Resend], room: RoomSnapshot) -> Event:
        """The event for gateways that it was not sent to before, with the policy that leads there (ROUTE-9)."""
        held = self._store.deliveries_of(event.event_id)
        nodes = {each.to_agent_id: each.to_node_id for each in held}
        nodes.update((resend.changes[-1].to_agent_id, resend.to_node_id) for resend in resends)
        if self._readdress is not None:
            # The keys have to do for everyone who may still get a resend, not for those of this one alone.
            event = self._readdress(
                event, {each.to_agent_id: nodes[each.to_agent_id] for each in held if each.state in _UNACCEPTED}
            )
        return replace(
            event,
            trace=replace(
                event.trace,
                route_decision=",".join(
                    sorted({each.changes[-1].route_decision or "" for each in resends if each.is_moved})
                ),
                routing_policy_version=room.routing_policy_version,
                capability_policy_version=room.capability_policy_version,
                # ROUTE-2: whoever gets this for one agent must not engage another one that was accepted elsewhere.
                engaged_by=engaged_by(nodes),
            ),
        )

    def _give_up(self, plan: _Plan, command: GiveUp, event: Event | None) -> None:
        delivery = command.delivery
        plan.changes.extend(command.changes)
        if event is None:
            _log.error("%s is not in the outbox any more and was never accepted", delivery.event_id)
            return
        plan.events.append(
            self._maker.dead_letter(
                event, to_agent_id=delivery.to_agent_id, reason=command.reason, attempts=delivery.attempts
            )
        )
        failed = NonDelivery(
            event=event,
            to_agent_id=delivery.to_agent_id,
            to_node_id=delivery.to_node_id,
            reason=command.reason,
            attempts=delivery.attempts,
        )
        if self._report is not None and (told := self._report(failed)) is not None:
            plan.events.append(told[0])
            plan.deliveries.append(told[1])

    def _event(self, event_id: EventId) -> Event | None:
        stored = self._store.find_event(event_id)
        try:
            return None if stored is None else decode_event(stored.raw)
        except Refusal as refusal:
            _log.error("%s stands in the outbox and cannot be read: %s", event_id, refusal.message)
            return None

    def _locate(self, delivery: Delivery, room: RoomSnapshot, passed: Mapping[str, int], now_ms: int) -> Whereabouts:
        node_id = delivery.to_node_id
        found = locate(
            delivery,
            room=room,
            own_node_id=self._store.node_id,
            has_passed=None if node_id is None else self._has_passed(node_id, delivery.seq, passed),
            is_revoked=self._room.is_revoked,
            now_ms=now_ms,
        )
        if found.place is Place.UNHEARD and self._is_silent(found.node_id or ""):
            # Nothing hangs for ever: what it may have passed is sent again, and in the end its sender is told.
            return replace(found, place=Place.THERE)
        return found

    def _has_passed(self, node_id: str, seq: int, linked: Mapping[str, int]) -> bool | None:
        if max(linked.get(node_id, 0), self._answered.get(node_id, 0)) >= seq:
            return True
        return False if node_id in linked else None

    # Writing

    async def _carry_out(self, plans: Sequence[_Plan], now_ms: int) -> None:
        # Incidents first: should the process end here, the timer is still due and raises it again, to no effect.
        for incident in (incident for plan in plans for incident in plan.incidents):
            await self._store.raise_incident(incident)
        waits = [wait for plan in plans for wait in plan.waits]
        if waits:
            await self._store.reschedule(waits)
            await self._keep_sla_of(waits)
        try:
            await self._write(plans)
        except Refusal as refusal:
            if refusal.code not in _OVERTAKEN:
                raise
            # An ACK came between reading and writing. One event's news must not hold up the others.
            await asyncio.gather(*(self._write_one(plan, now_ms) for plan in plans))

    async def _write(self, plans: Iterable[_Plan]) -> None:
        events = [event for plan in plans for event in plan.events]
        changes = [change for plan in plans for change in plan.changes]
        deliveries = [delivery for plan in plans for delivery in plan.deliveries]
        if not events and not changes:
            return
        # A payload that goes to other gateways than before has other readers, too (PIPE-5).
        payloads = [NamedPayload.of(each.payload_ref, self._store.node_id) for each in events if each.payload_ref]
        if payloads:
            await self._store.name_payloads(payloads)
        await self._outbox.append(events, deliveries=deliveries, changes=changes)

    async def _write_one(self, plan: _Plan, now_ms: int) -> None:
        try:
            await self._write([plan])
        except Refusal as refusal:
            if refusal.code not in _OVERTAKEN:
                raise
            held = set(self._store.deliveries_of(plan.about[0].event_id))
            stuck = [each for each in plan.about if each in held and each.state not in DELIVERY.terminal]
            if stuck:
                # Nothing overtook it: it would be refused again and again. Out of the way for a while.
                _log.error("the timer of %s cannot be served: %s", stuck[0].event_id, refusal.message)
                due_at_ms = now_ms + self._policy.away_check_seconds * 1000
                await self._store.reschedule([(each.event_id, each.to_agent_id, due_at_ms) for each in stuck])

    async def _keep_sla_of(self, waits: Iterable[tuple[EventId, str, int]]) -> None:
        """Give its own timer back to what was accepted while it was being put off."""
        repaired: list[tuple[EventId, str, int | None]] = []
        for event_id, to_agent_id, due_at_ms in waits:
            for each in self._store.deliveries_of(event_id):
                is_overtaken = each.state is DeliveryState.ACCEPTED and each.due_at_ms == due_at_ms
                if each.to_agent_id != to_agent_id or not is_overtaken or each.accepted_at_ms is None:
                    continue
                event = self._event(event_id)
                if event is None:
                    continue
                sla_ms: int | None = None
                if has_sla(event.kind, event.source_agent_id):
                    sla_ms = sla_due_at_ms(event, accepted_at_ms=each.accepted_at_ms, policy=self._policy)
                repaired.append((event_id, to_agent_id, sla_ms))
        if repaired:
            await self._store.reschedule(repaired)


def _incident(command: RaiseIncident, now_ms: int) -> Incident:
    delivery = command.delivery
    return Incident(
        kind=command.kind,
        subject=command.subject,
        at_ms=now_ms,
        corr_id=delivery.corr_id or None,
        detail={
            "eventId": delivery.event_id,
            "toAgentId": delivery.to_agent_id,
            "toNodeId": delivery.to_node_id,
            "attempts": delivery.attempts,
        },
    )
