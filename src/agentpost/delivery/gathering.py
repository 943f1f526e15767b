"""Messages that are sent in one turn of the loop: sealed one after the other, and appended together.

A hundred agents that speak at the same moment cost one job of the store, one wake-up of the links and one look at the
room. Nobody waits for company: alone, a message goes with the next turn. Who gets a message, and what only its sender
can be refused for, was decided before it gets here.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from agentpost.delivery.messages import Receipt, SendRequest
from agentpost.delivery.placing import NotTaken, Placement, RecipientReceipt
from agentpost.delivery.policy import earliest_due_ms, in_time
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.delivery.sealing import Sealer, SealFor
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event, MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.payloads import Message, Sealed
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.tasks import TaskOwner
from agentpost.world import Clock

__all__ = ["Gatherer", "Posting", "Waiting", "check_readable", "message_of"]


class Waiting(Protocol):
    """Whoever wants to hear what became of a posting; one of the two is called, once."""

    def sent(self, receipt: Receipt) -> None: ...

    def refused(self, error: Exception) -> None: ...


class Posting(Struct, frozen=True, kw_only=True):
    """A message on its way into the outbox; `encoded` is its content, checked."""

    event_id: EventId
    request: SendRequest
    placement: Placement
    encoded: bytes
    waiting: Waiting


class _Made(Struct, frozen=True, kw_only=True):
    posting: Posting
    event: MessageEvent
    deliveries: list[Delivery]


class _Turn:
    """What the messages of one turn share: the time, and for those that are alike the keys and the check."""

    def __init__(self, *, now_ms: int) -> None:
        self.now_ms = now_ms
        self.created_at = format_ms(now_ms)
        self.seals: dict[tuple[str, ...], SealFor] = {}
        self.readable: set[tuple[object, ...]] = set()


class Gatherer:
    def __init__(
        self,
        *,
        store: Store,
        room: RoomView,
        not_taken: NotTaken,
        sealer: Sealer,
        clock: Clock,
        wakeups: Wakeups,
        ack_timeout_ms: int,
    ) -> None:
        self._store = store
        self._room = room
        self._not_taken = not_taken
        self._sealer = sealer
        self._clock = clock
        self._wakeups = wakeups
        self._ack_timeout_ms = ack_timeout_ms
        self._tasks = TaskOwner("messages")
        self._asked_for: list[Posting] = []

    def put(self, posting: Posting) -> None:
        """Send it with all that is put in before the loop comes round."""
        self._asked_for.append(posting)
        if len(self._asked_for) == 1:
            self._tasks.spawn(self._post_all(), name="post")

    async def _post_all(self) -> None:
        asked_for, self._asked_for = self._asked_for, []
        turn = _Turn(now_ms=self._clock.now_ms())
        made: list[_Made] = []
        for posting in asked_for:
            try:
                made.append(self._make(posting, turn))
            except Exception as error:  # noqa: BLE001 - its caller is told; the others must not wait for ever
                posting.waiting.refused(error)
        if made:
            await self._append(made, turn.now_ms)

    async def _append(self, made: Sequence[_Made], now_ms: int) -> None:
        """Append all of them at once. If that is refused nothing is written, and each of them is appended by itself."""
        try:
            appended = await self._store.append(
                [each.event for each in made], deliveries=[delivery for each in made for delivery in each.deliveries]
            )
        except Exception as error:  # noqa: BLE001 - as above
            outcomes: list[int | BaseException] = [error] if len(made) == 1 else await self._append_each(made)
        else:
            outcomes = list(range(appended.first_seq, appended.first_seq + len(made)))
        sent = [(each, seq) for each, seq in zip(made, outcomes, strict=True) if isinstance(seq, int)]
        if sent:
            self._wakeups.outbox_grew()
            self._wakeups.timer_set(earliest_due_ms([delivery for each, _ in sent for delivery in each.deliveries]))
        receipts: dict[int, tuple[RecipientReceipt, ...]] = {}
        for each, seq in sent:
            placement = each.posting.placement
            recipients = receipts.get(id(placement))
            if recipients is None:
                recipients = receipts[id(placement)] = placement.receipts(
                    self._room, self._not_taken.counts(), now_ms=now_ms
                )
            event = each.event
            each.posting.waiting.sent(
                Receipt(
                    event_id=event.event_id,
                    corr_id=event.corr_id,
                    seq=seq,
                    recipients=recipients,
                    rejected=placement.rejected,
                )
            )
        for each, outcome in zip(made, outcomes, strict=True):
            if isinstance(outcome, Exception):
                each.posting.waiting.refused(outcome)

    async def _append_each(self, made: Sequence[_Made]) -> list[int | BaseException]:
        """The place of each in the outbox, or why it was refused. The store writes them in one commit all the same."""
        appended = await asyncio.gather(
            *(self._store.append([each.event], deliveries=each.deliveries) for each in made), return_exceptions=True
        )
        return [each if isinstance(each, BaseException) else each.first_seq for each in appended]

    def _make(self, posting: Posting, turn: _Turn) -> _Made:
        request, placement = posting.request, posting.placement
        seal = turn.seals.get(placement.to_nodes)
        if seal is None:
            seal = turn.seals[placement.to_nodes] = self._sealer.seal_for(placement.to_nodes)
        event = message_of(
            request,
            placement,
            event_id=posting.event_id,
            source_node_id=self._store.node_id,
            created_at=turn.created_at,
            sealed=seal.seal(posting.encoded, event_id=posting.event_id),
        )
        # What is like a message that could be read can be read: ids, times and ciphertext were made here.
        # To Python 1 is the same as True, and to a reader it is not.
        expects_reply = (request.expects_reply, type(request.expects_reply))
        alike = (id(placement), request.source_agent_id, request.required_capabilities, request.priority, expects_reply)
        if alike not in turn.readable or request.corr_id is not None or request.expires_at is not None:
            check_readable(event)
            turn.readable.add(alike)
        due_at_ms = in_time(event, turn.now_ms + self._ack_timeout_ms, now_ms=turn.now_ms)
        return _Made(
            posting=posting,
            event=event,
            deliveries=placement.deliveries(event, due_at_ms=due_at_ms, now_ms=turn.now_ms),
        )


def message_of(
    request: SendRequest,
    placement: Placement,
    *,
    event_id: EventId,
    source_node_id: str,
    created_at: str,
    sealed: Sealed | None = None,
) -> MessageEvent:
    return MessageEvent(
        event_id=event_id,
        source_node_id=source_node_id,
        source_agent_id=request.source_agent_id,
        to_nodes=placement.to_nodes,
        corr_id=corr_id_of(event_id) if request.corr_id is None else request.corr_id,
        created_at=created_at,
        expires_at=request.expires_at,
        trace=placement.trace,
        payload=Message(
            to_agents=placement.to_agents,  # ROUTE-8: the actual recipients
            required_capabilities=request.required_capabilities,
            priority=request.priority,
            expects_reply=request.expects_reply,
            sealed=sealed,
        ),
    )


def check_readable(event: Event) -> None:
    """Refuse an event that its readers would refuse: once in the outbox, it could not be taken back."""
    try:
        raw = encode_event(event)
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise Refusal(Code.INVALID_FIELD, f"the event cannot be encoded: {error}", field="event") from None
    decode_event(raw)
