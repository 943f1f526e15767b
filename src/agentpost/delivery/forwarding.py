"""Mail that programs put into the gateway's mailbox for agents of the mesh, under `agent@node`: sent on, then acked.

The id of the event follows from the message. After a crash between the two, the message comes again, its event is in
the outbox already, and only the ack is made up for (MBX-9). What cannot be sent is nacked with the refusal's code, so
the mailbox tries again by itself and ends it as a dead letter (MBX-5).
"""

import asyncio
import logging
from typing import Any, Final

import msgspec

from agentpost.delivery.ports import Content, RoomView
from agentpost.delivery.publish import Publisher, SendRequest
from agentpost.mailbox.file import FileMailbox
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import CorrId, EventId, derived_event_id, parse_id
from agentpost.protocol.mailbox import MailboxMessage, spelled
from agentpost.store.interface import Store

__all__ = ["Forwarder"]

_log = logging.getLogger(__name__)

# Other processes may write the file without a word to us.
_LOOK_EVERY_SECONDS: Final = 0.5
_AFTER_TROUBLE_SECONDS: Final = 5.0
# What one address may have of a turn, so that a long queue for one does not keep the others waiting.
_A_TURN: Final = 64


class _Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What a message may say beside its payload, in the names that an agent is handed mail with."""

    subject: str | None = None
    context: Any = None
    corr_id: str | None = None
    expects_reply: bool = False


class Forwarder:
    """Runs alone: nobody else makes events with the ids that it derives."""

    def __init__(self, mailbox: FileMailbox, *, store: Store, room: RoomView, publisher: Publisher) -> None:
        self._mailbox = mailbox
        self._store = store
        self._room = room
        self._publisher = publisher

    async def run(self) -> None:
        while True:
            try:
                if not await self.forward():
                    await self._mailbox.wait_for_news(_LOOK_EVERY_SECONDS)
            except Refusal as refusal:
                # Of the mailbox file itself, a full disk for example; what is said of a message is its nack.
                _log.warning("mail for the mesh waits: %s", refusal.message)
                await asyncio.sleep(_AFTER_TROUBLE_SECONDS)

    async def forward(self) -> int:
        """Send on what may be sent now, a turn for each address; gives how many messages that were."""
        own_agents = self._store.local_agent_ids()
        # An agent may have an @ in its name: what waits under that is its own mail.
        addresses = [name for name in await self._mailbox.waiting_abroad() if name not in own_agents]
        return sum([await self._turn(address) for address in addresses])

    async def _turn(self, address: str) -> int:
        # One at a time: while a message waits for another try, the mailbox holds back what follows it (MBX-8).
        for count in range(_A_TURN):
            message = await self._mailbox.dequeue(address)
            if message is None:
                return count
            try:
                await self._send(message)
            except Refusal as refusal:
                _log.info("%r for %r cannot be sent: %s", message.msg_id, address, refusal.message)
                await self._settle(message, problem=refusal)
            else:
                await self._settle(message, problem=None)
        return _A_TURN

    async def _send(self, message: MailboxMessage) -> None:
        event_id = _event_id(self._store.node_id, message)
        if self._store.find_event(event_id) is None:
            await self._publisher.send(self._request(message), event_id=event_id)

    async def _settle(self, message: MailboxMessage, *, problem: Refusal | None) -> None:
        try:
            if problem is None:
                await self._mailbox.ack(message.to, message.msg_id)
            else:
                await self._mailbox.nack(message.to, message.msg_id, f"{problem.code.value}: {problem.message}")
        except Refusal as refusal:
            if refusal.code not in (Code.INVALID_TRANSITION, Code.NOT_FOUND):
                raise
            # It took longer than a message may be in flight, or was purged meanwhile. If it comes again, its event is
            # known.

    def _request(self, message: MailboxMessage) -> SendRequest:
        agent_id, _, node_id = message.to.rpartition("@")
        self._check_route(agent_id, node_id)
        beside = _beside(message)
        return SendRequest(
            source_agent_id=message.sender.removesuffix(f"@{self._store.node_id}"),
            to_agents=(agent_id,),
            content=Content(subject=beside.subject, body=message.payload, context=beside.context),
            expects_reply=beside.expects_reply,
            corr_id=None if beside.corr_id is None else parse_id(CorrId, beside.corr_id, field="corr_id"),
        )

    def _check_route(self, agent_id: str, node_id: str) -> None:
        agent = self._room.snapshot().agents.get(agent_id)
        if agent is None or agent.owner_node_id != node_id:
            raise Refusal(Code.NO_ROUTE, f"{node_id!r:.80} has no agent {agent_id!r:.80}", field="to")
        if node_id != self._store.node_id and self._room.sealing_key(node_id) is None:
            raise Refusal(Code.NO_ROUTE, f"{node_id!r:.80} is not in the mesh any more", field="to")


def _event_id(node_id: str, message: MailboxMessage) -> EventId:
    seed = msgspec.json.encode((node_id, message.to, message.sender, message.msg_id, message.created_at))
    return derived_event_id(seed, time_ms=message.created_at * 1000, node_id=node_id)


def _beside(message: MailboxMessage) -> _Beside:
    try:
        return msgspec.convert(spelled(message.extra, _Beside.__struct_fields__), _Beside)
    except msgspec.ValidationError as error:
        raise Refusal(Code.INVALID_FIELD, f"the message cannot be sent to the mesh: {error}") from None
