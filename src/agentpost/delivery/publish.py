"""An agent's words become a sealed event in the outbox, with a delivery for each recipient, in one transaction.

Who it goes to is decided in `placing`, how it is sealed in `sealing`. What happens to the event afterwards is not
known here: whoever wants to hear that there is one listens to the wake-ups.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.content import CONTENT_FIELDS, check_fits, encode_content, without_content
from agentpost.delivery.gathering import Gatherer, Posting, Waiting, check_readable, message_of
from agentpost.delivery.idempotency import Keyed
from agentpost.delivery.making import EventMaker
from agentpost.delivery.messages import Receipt, RecipientReceipt, SendRequest
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.placing import NotTaken, Placement, Placer, engaged_by
from agentpost.delivery.policy import in_time
from agentpost.delivery.ports import Content, RoomView, Wakeups
from agentpost.delivery.sealing import MAX_CONTENT_BYTES, Sealer
from agentpost.protocol.backoff import ACCEPTED_ACK_TIMEOUT_SECONDS
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event, MessageEvent, ReplyEvent, TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.payloads import Message, Reply
from agentpost.protocol.routing import RouteRequest
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.blobs import SealedBlob
from agentpost.store.interface import Store
from agentpost.store.values import Appended, Incident, KeptAnswer, KeyedAnswer, NamedPayload, Note, ResentLetter
from agentpost.world import Clock, IdMaker

__all__ = ["MAX_INLINE_BYTES", "NO_ROUTE", "Publisher", "Receipt", "RecipientReceipt", "SendRequest", "receipt_of"]

MAX_INLINE_BYTES: Final = 256 * 1024
NO_ROUTE: Final = "no_route"

_log = logging.getLogger(__name__)

# Chunks of a blob that are handed to the store at once: one commit for all of them.
_CHUNKS_AT_ONCE: Final = 16

AnyEvent = TypeVar("AnyEvent", bound=Event)


Before = Callable[[EventId, Sequence[str]], None]


class Publisher:
    def __init__(
        self,
        *,
        store: Store,
        room: RoomView,
        sealer: Sealer,
        maker: EventMaker,
        ids: IdMaker,
        clock: Clock,
        wakeups: Wakeups,
        max_inline_bytes: int = MAX_INLINE_BYTES,
        accepted_ack_timeout_seconds: float = ACCEPTED_ACK_TIMEOUT_SECONDS,
    ) -> None:
        self._store = store
        self._room = room
        self._placer = Placer(room, own_node_id=store.node_id)
        self._sealer = sealer
        self._maker = maker
        self._ids = ids
        self._clock = clock
        self._outbox = OutboxWriter(store, wakeups)
        self._max_inline_bytes = max_inline_bytes
        self._ack_timeout_ms = round(accepted_ack_timeout_seconds * 1000)
        self._not_taken = NotTaken(store, clock)
        self._gatherer = Gatherer(
            store=store,
            room=room,
            not_taken=self._not_taken,
            sealer=sealer,
            clock=clock,
            wakeups=wakeups,
            ack_timeout_ms=self._ack_timeout_ms,
        )
        # Hears of every request that no agent could be found for, and the name of the case.
        self.route_missed: Callable[[RouteRequest, CorrId], None] | None = None

    async def send(
        self,
        request: SendRequest,
        *,
        before: Before | None = None,
        event_id: EventId | None = None,
        notes: Sequence[Note] = (),
        keyed: Keyed | None = None,
    ) -> Receipt:
        """Publish a message of a local agent. Returns once it would survive a power loss (PIPE-3).

        `before` hears of the event and its recipients before anybody else can: for whoever waits for its outcome. An
        `event_id` is for whoever has to recognise the event after a crash; the outbox must not have it yet. `notes` are
        kept in the same transaction, and so is the receipt of a `keyed` call.

        An agent that no gateway has gets a dead letter at once, as ROUTE-3 has it, even if it is the only recipient:
        what its sender said stays in the outbox and can be sent again when somebody owns the agent. A request that
        names nobody who exists is refused, and nothing is written (ROUTE-4 to ROUTE-7).
        """
        if before is None and event_id is None and not notes and keyed is None:
            waiting = _ForReceipt(asyncio.get_running_loop().create_future())
            if self.hand_in(request, waiting) is not None:
                return await waiting.receipt
        placement, now_ms = self._place_message(request)
        event = message_of(
            request,
            placement,
            event_id=event_id or self._ids.make(EventId),
            source_node_id=self._store.node_id,
            created_at=format_ms(now_ms),
        )
        if before is not None:
            before(event.event_id, placement.to_agents)
        placed = [(event, placement, request.content)]
        (receipt,) = await self.post(
            placed, notes=notes, keyed=None if keyed is None else lambda receipts: keyed.answered(receipts[0])
        )
        return receipt

    def hand_in(self, request: SendRequest, waiting: Waiting) -> Posting | None:
        """Have a message sent with all others of this turn; `waiting` hears of it, later than this returns.

        None, and nothing happens, for one that needs more than a place in the outbox: it has to go by `send`.
        """
        placement, _ = self._place_message(request)
        check_fits(request.content, Message)
        encoded = encode_content(request.content)
        if placement.unroutable or len(encoded) > self._max_inline_bytes:
            return None
        posting = Posting(
            event_id=self._ids.make(EventId), request=request, placement=placement, encoded=encoded, waiting=waiting
        )
        self._gatherer.put(posting)
        return posting

    def _place_message(self, request: SendRequest) -> tuple[Placement, int]:
        wanted = RouteRequest(
            source_agent_id=request.source_agent_id,
            to_agents=request.to_agents,
            required_capabilities=request.required_capabilities,
        )
        placement, now_ms = self.place(wanted)
        _check_in_time(request.expires_at, now_ms)
        return placement, now_ms

    def place(self, wanted: RouteRequest) -> tuple[Placement, int]:
        """Who gets what a local agent wants to say, and when that was decided."""
        self._expect_local(wanted.source_agent_id)
        self._expect_member()
        now_ms = self._clock.now_ms()
        try:
            return self._placer.place(wanted, now_ms=now_ms), now_ms
        except Refusal as refusal:
            if refusal.code in (Code.NO_ROUTE, Code.CAPABILITY_UNAVAILABLE) and self.route_missed is not None:
                # CAP-6: whoever looks into repeated misses needs a name for each of them, and so does who was refused.
                refusal.corr_id = self._ids.make(CorrId)
                self.route_missed(wanted, refusal.corr_id)
            raise

    async def post(
        self,
        placed: Sequence[tuple[Event, Placement, Content]],
        *,
        also: Sequence[Event] = (),
        notes: Sequence[Note] = (),
        keyed: Callable[[Sequence[Receipt]], KeyedAnswer] | None = None,
    ) -> list[Receipt]:
        """Publish events for the agents that they were placed for, all of them, and notes, in one transaction.

        `keyed` makes the answer that is kept with them from the receipts, which have no seq yet.
        """
        now_ms = self._clock.now_ms()
        sealed = [(await self.seal_into(event, content), placement) for event, placement, content in placed]
        deliveries = [
            delivery
            for event, placement in sealed
            for delivery in placement.deliveries(event, due_at_ms=self._due_at_ms(event, now_ms), now_ms=now_ms)
        ]
        lost = [
            self._maker.dead_letter(event, to_agent_id=each.agent_id, reason=NO_ROUTE, attempts=1)
            for event, placement in sealed
            for each in placement.unroutable
        ]
        changes = [
            change for event, placement in sealed for change in placement.endings(event, reason=NO_ROUTE, now_ms=now_ms)
        ]
        events = [event for event, _ in sealed]
        receipts = [
            Receipt(
                event_id=event.event_id,
                corr_id=event.corr_id,
                seq=0,
                recipients=placement.receipts(self._room, self._not_taken.counts(), now_ms=now_ms),
                rejected=placement.rejected,
            )
            for event, placement in sealed
        ]
        answer = None if keyed is None else keyed(receipts)
        appended = await self._append((*events, *lost, *also), deliveries, changes, notes, keyed=answer)
        for event, placement in sealed:
            if placement.unroutable:
                await self._report_unroutable(placement, event, now_ms)
        return [replace(receipt, seq=appended.first_seq + at) for at, receipt in enumerate(receipts)]

    async def publish(
        self,
        event: Event,
        *,
        content: Content,
        deliveries: Sequence[Delivery] = (),
        also: Sequence[Event] = (),
        changes: Sequence[Change] = (),
        notes: Sequence[Note] = (),
        resends: Sequence[ResentLetter] = (),
        keyed: KeyedAnswer | None = None,
    ) -> Appended:
        """Seal the content for the event's `to_nodes` and append all of it at once. The event stands at `first_seq`.

        For any kind of event. `also` are events that follow it in the same transaction and are finished already.
        """
        event = await self.seal_into(event, content)
        return await self._append((event, *also), deliveries, changes, notes, resends, keyed)

    async def _append(
        self,
        events: Sequence[Event],
        deliveries: Sequence[Delivery],
        changes: Sequence[Change],
        notes: Sequence[Note],
        resends: Sequence[ResentLetter] = (),
        keyed: KeyedAnswer | None = None,
    ) -> Appended:
        try:
            return await self._outbox.append(
                events, deliveries=deliveries, changes=changes, notes=notes, resends=resends, keyed=keyed
            )
        except Refusal:
            for event in events:
                await self._drop_blob_of(event)
            raise

    async def make_reply(self, event: Event, *, agent_id: str, content: Content) -> tuple[ReplyEvent, Delivery]:
        """An agent's answer to an event, sealed for the gateway that it came from, and its delivery: for a settlement.

        Only a large answer waits here, until its blob is durable. Refused if the asking gateway has left the mesh.
        """
        reply = self._maker.reply(
            event,
            event_id=self._ids.make(EventId),
            agent_id=agent_id,
            payload=Reply(ref_event_id=event.event_id),
            to_nodes=(event.source_node_id,),
        )
        return await self.make_answer(reply, content=content)

    async def make_answer(self, answer: AnyEvent, *, content: Content) -> tuple[AnyEvent, Delivery]:
        """An event for one agent at one gateway, sealed for that, and its delivery. Nothing is appended yet."""
        now_ms = self._clock.now_ms()
        delivery = Delivery(
            event_id=answer.event_id,
            to_agent_id=answer.to_agent_id or "",
            to_node_id=answer.to_nodes[0],
            route_decision="answer",
            corr_id=answer.corr_id,
            from_agent_id=answer.source_agent_id,
            due_at_ms=now_ms + self._ack_timeout_ms,
            emitted_at_ms=now_ms,
        )
        return await self.seal_into(answer, content), delivery

    async def seal_into(self, event: AnyEvent, content: Content) -> AnyEvent:
        """The event with its content sealed for its `to_nodes`: inside it, or above the limit in a blob (PIPE-5).

        Everything that can be wrong with either is refused here, before anything is written.
        """
        check_fits(content, type(event.payload))
        if type(event.payload) not in CONTENT_FIELDS:
            check_readable(event)
            return event
        # The event may be another's words sent anew: nothing of an earlier seal must stay beside this one.
        encoded = encode_content(content)
        if len(encoded) <= self._max_inline_bytes:
            sealed = self._sealer.seal_bytes(encoded, event_id=event.event_id, to_nodes=event.to_nodes)
            payload: Any = without_content(event.payload, sealed=sealed)
            event = replace(event, payload=payload, payload_ref=None)
            check_readable(event)
            return event
        if len(encoded) > MAX_CONTENT_BYTES:
            raise Refusal(
                Code.TOO_LARGE,
                f"the content has {len(encoded)} bytes; {MAX_CONTENT_BYTES} is the most",
                field="content",
                hint="Send it in parts, or say where it can be fetched.",
            )
        ref, blob = self._sealer.seal_blob(encoded, event_id=event.event_id, to_nodes=event.to_nodes)
        bare: Any = without_content(event.payload)
        event = replace(event, payload=bare, payload_ref=ref)
        check_readable(event)
        await self._keep_blob(blob)
        await self._store.name_payloads([NamedPayload.of(ref, self._store.node_id)])
        return event

    def readdress(self, event: AnyEvent, nodes: Mapping[str, str | None]) -> AnyEvent:
        """The event for other gateways than before: `nodes` has that of each recipient that is still to get it."""
        to_nodes = tuple(dict.fromkeys(node_id for node_id in nodes.values() if node_id is not None))
        # Recipients that have it already are nobody's: the new gateway must not engage them once more.
        everybody: dict[str, str | None] = dict.fromkeys(_recipients_of(event))
        trace = replace(event.trace, engaged_by=engaged_by({**everybody, **nodes}))
        return replace(self._sealer.share(event, to_nodes=to_nodes), to_nodes=to_nodes, trace=trace)

    def _expect_member(self) -> None:
        """ROOM-6: nobody takes anything from a gateway that was revoked, so it says so at once."""
        seeds = self._room.revoked_by()
        if seeds:
            raise Refusal(
                Code.NODE_REVOKED,
                f"this gateway was revoked: {', '.join(seeds)} says so",
                hint="Let a seed invite it again (`agentpost invite --node …`), and join with that invite.",
            )

    def _expect_local(self, agent_id: str) -> None:
        if agent_id not in self._store.local_agent_ids():
            raise Refusal(
                Code.NOT_FOUND,
                f"{agent_id!r:.80} is not an agent of this gateway",
                field="sourceAgentId",
                hint="Send as one of its agents, or add this one to the gateway first.",
            )

    def _due_at_ms(self, event: Event, now_ms: int) -> int:
        return in_time(event, now_ms + self._ack_timeout_ms, now_ms=now_ms)

    async def _report_unroutable(self, placement: Placement, event: Event, now_ms: int) -> None:
        incidents = [
            Incident(
                kind=IncidentKind.NO_ROUTE,
                subject=lost.agent_id,
                at_ms=now_ms,
                corr_id=event.corr_id,
                detail={"eventId": event.event_id, "ownerNodeId": lost.owner_node_id},
            )
            for lost in placement.unroutable
        ]
        # The message is durable: whatever happens here, its sender must not be told to send it again.
        for problem in await asyncio.gather(*map(self._store.raise_incident, incidents), return_exceptions=True):
            if isinstance(problem, BaseException):
                _log.warning("an incident about %s could not be raised: %s", event.event_id, problem)

    async def _keep_blob(self, sealed: SealedBlob) -> None:
        address = sealed.blob.sha256
        try:
            await self._store.begin_blob(sealed.blob, at_ms=self._clock.now_ms())
            for first in range(0, len(sealed.chunks), _CHUNKS_AT_ONCE):
                chunks = sealed.chunks[first : first + _CHUNKS_AT_ONCE]
                await asyncio.gather(
                    *(self._store.put_chunk(address, first + at, data) for at, data in enumerate(chunks))
                )
            await self._store.complete_blob(address)
        except Refusal:
            await self._drop_blob(address)
            raise

    async def _drop_blob_of(self, event: Event) -> None:
        if event.payload_ref is not None:
            await self._drop_blob(event.payload_ref.sha256)

    async def _drop_blob(self, address: str) -> None:
        """Take back a blob that no event speaks of. Its key is new, so nobody else has the same."""
        # A store that refused the event because of its own trouble will refuse this as well.
        with suppress(Refusal):
            await self._store.drop_blob(address)


def receipt_of(kept: KeptAnswer) -> Receipt:
    """The receipt that a call with the same idempotency key was given."""
    return replace(msgspec.json.decode(kept.answer, type=Receipt), seq=kept.seq)


def _recipients_of(event: Event) -> tuple[str, ...]:
    if isinstance(event, MessageEvent | TaskCreateEvent):
        return event.payload.to_agents
    return () if event.to_agent_id is None else (event.to_agent_id,)


def _check_in_time(expires_at: str | None, now_ms: int) -> None:
    if expires_at is not None and parse_ms(expires_at, field="expiresAt") <= now_ms:
        raise Refusal(Code.EXPIRED, f"expiresAt {expires_at} has passed already", field="expiresAt")


class _ForReceipt(Struct):
    """Waits for a receipt and nothing else."""

    receipt: "asyncio.Future[Receipt]"

    def sent(self, receipt: Receipt) -> None:
        if not self.receipt.done():
            self.receipt.set_result(receipt)

    def refused(self, error: Exception) -> None:
        if not self.receipt.done():
            self.receipt.set_exception(error)
