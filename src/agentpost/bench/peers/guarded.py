"""A *safe* round trip by hand: the records of `bare` with what our protocol promises, and nothing else.

The same two loops and tables. The events are those of the protocol: encoded, read back and checked as a gateway does
it, with content that is sealed for the receiver and opened there, two hash chains, and a signed head for each frame.
What a gateway has besides (routes, agents and their order, timers, indexes for those who ask, mirrors, a loop that
serves everybody) is left out: the difference is what all of that costs. It is a plain way to do it, and not tuned.
"""

import contextlib
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from agentpost.bench.peers.bare import BarePair, Mail, receive, trip_pair
from agentpost.bench.peers.tables import RECEIVER_NODE, SENDER_NODE, PlainTables, Row
from agentpost.bench.peers.trip import BODY
from agentpost.delivery.content import encode_content
from agentpost.delivery.heads import sign_head, verify_head
from agentpost.delivery.making import EventMaker
from agentpost.delivery.ports import Content
from agentpost.delivery.sealing import Sealer
from agentpost.protocol.codec import Unreadable, encode_event, read_events
from agentpost.protocol.envelope import AckEvent, Event, MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import OutboxHead, StreamMark, chain_over, next_chain
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.payloads import AckType, Message
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import CHAIN_START
from agentpost.testing import FixedRoom
from agentpost.world import IdMaker, SystemChance, SystemClock

__all__ = ["guarded_pair"]

_SENDER: Final = "bench-sender"
_RECEIVER: Final = "bench-receiver"
_PEERS: Final = {SENDER_NODE: RECEIVER_NODE, RECEIVER_NODE: SENDER_NODE}


class _GuardedHand:
    """Events of the protocol. Both sides know the keys of both, which are no secret here."""

    def __init__(self, node_id: str) -> None:
        self._node_id, self._peer = node_id, _PEERS[node_id]
        self._clock, chance = SystemClock(), SystemChance()
        self._ids = IdMaker(self._clock, chance)
        self._maker = EventMaker(node_id=node_id, clock=self._clock, ids=self._ids)
        room = FixedRoom(self._clock)
        self._identity = room.add_node(node_id)
        peers = room.add_node(self._peer)
        self._peers_key = peers.signing.public_key().public_bytes_raw()
        self._sealer = Sealer(
            node_id=node_id, sealing=self._identity.sealing, room=room, clock=self._clock, chance=chance
        )
        self._seq = 0
        # Of all that was written, of what the peer gets of it, and of what was read from the peer.
        self._chain = self._stream_chain = self._read_chain = CHAIN_START

    def messages(self, count: int) -> list[Row]:
        created_at, seal_for = format_ms(self._clock.now_ms()), self._sealer.seal_for((self._peer,))
        events: list[MessageEvent] = []
        for _ in range(count):
            event_id = self._ids.make(EventId)
            sealed = seal_for.seal(encode_content(Content(body=BODY)), event_id=event_id)
            events.append(
                MessageEvent(
                    event_id=event_id,
                    source_node_id=self._node_id,
                    source_agent_id=_SENDER,
                    to_nodes=(self._peer,),
                    corr_id=corr_id_of(event_id),
                    created_at=created_at,
                    payload=Message(to_agents=(_RECEIVER,), sealed=sealed),
                )
            )
        return self._rows(events)

    def acks(self, mail: Sequence[Mail], ack_type: str) -> list[Row]:
        ack = self._maker.acks(AckType(ack_type))
        return self._rows([ack(event, _RECEIVER) for _, _, event in mail])

    def pack(self, rows: Sequence[Row]) -> Any:
        mark = StreamMark(seq=self._seq, chain=self._stream_chain)
        head = OutboxHead(
            node_id=self._node_id, epoch="epoch", seq=self._seq, chain=self._chain, streams={self._peer: mark}
        )
        return (*sign_head(head, self._identity.signing), [body for _, _, body in rows])

    def mail(self, frame: Any) -> list[Mail]:
        events = self._read(frame)
        return [(event.event_id, body, event) for event, body in zip(events, frame[2], strict=True)]

    def run(self, mail: Sequence[Mail]) -> None:
        for _, _, event in mail:
            self._sealer.open(event)

    def heard(self, frame: Any) -> list[tuple[str, str, bytes]]:
        acks = zip(self._read(frame), frame[2], strict=True)
        return [
            (event.payload.ack_type.value, event.payload.ref_event_id, body)
            for event, body in acks
            if isinstance(event, AckEvent)
        ]

    def _rows(self, events: Sequence[Event]) -> list[Row]:
        rows: list[Row] = []
        for event in events:
            self._seq += 1
            body = encode_event(replace(event, seq=self._seq))
            self._chain = next_chain(self._chain, body)
            self._stream_chain = next_chain(self._stream_chain, body)
            rows.append((self._seq, event.event_id, body))
        return rows

    def _read(self, frame: Any) -> list[Event]:
        head, signature, bodies = frame
        mark = verify_head(head, signature, self._peers_key).streams[self._node_id]
        self._read_chain = chain_over(self._read_chain, bodies)
        events = [event for event in read_events(bodies) if not isinstance(event, Unreadable)]
        if mark.chain != self._read_chain or len(events) != len(bodies):
            raise Refusal(Code.CONFLICT, "what came is not what was sent")
        return events


@contextlib.contextmanager
def guarded_pair(folder: Path) -> Generator[BarePair]:
    """Sender and receiver of sealed, chained and signed events, with their databases in `folder`."""
    with trip_pair(__name__, _GuardedHand(SENDER_NODE), PlainTables, folder) as pair:
        yield pair


if __name__ == "__main__":
    receive(_GuardedHand(RECEIVER_NODE), PlainTables, port=int(sys.argv[1]), folder=Path(sys.argv[2]))
