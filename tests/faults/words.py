"""What is said in the scenarios. An id is made of its number, so that every run has the same ones."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import AckEvent, Event, MessageEvent, ReplyEvent
from agentpost.protocol.ids import ENTROPY_BYTES, EventId, UlidSource, corr_id_of
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import Ack, AckType, Message, PayloadRef, Reply
from agentpost.protocol.timestamps import format_ms
from agentpost.store.blobs import SealedBlob
from agentpost.store.values import Inbound

__all__ = [
    "EPOCH",
    "LATER_MS",
    "NODE",
    "NOW_MS",
    "OTHER_PEER",
    "PEER",
    "ack",
    "change",
    "deliveries",
    "event_id",
    "inbound",
    "message",
    "message_naming",
    "reply",
]

NODE: Final = "node-a"
PEER: Final = "node-b"
OTHER_PEER: Final = "node-c"
EPOCH: Final = "epoch-1"
NOW_MS: Final = 1_772_036_530_000
LATER_MS: Final = NOW_MS + 60_000


def event_id(number: int) -> EventId:
    return UlidSource().make(EventId, now_ms=NOW_MS + number, entropy=bytes(ENTROPY_BYTES))


def message(number: int, *, node: str = NODE, seq: int = 0, size: int = 40) -> MessageEvent:
    made_id = event_id(number)
    return MessageEvent(
        event_id=made_id,
        seq=seq,
        source_node_id=node,
        source_agent_id=f"{node}.asker",
        to_nodes=(PEER, OTHER_PEER) if node == NODE else (NODE,),
        corr_id=corr_id_of(made_id),
        created_at=format_ms(NOW_MS),
        payload=Message(to_agents=("worker", "helper"), body=f"{number:04}".ljust(size, ".")),
    )


def message_naming(sealed: SealedBlob, number: int, *, node: str = NODE, seq: int = 0) -> MessageEvent:
    """A message that says what it says in a payload."""
    ref = PayloadRef(sha256=sealed.blob.sha256, size_bytes=sealed.blob.size_bytes, suite="test", keys={PEER: b"key"})
    return replace(message(number, node=node, seq=seq), payload_ref=ref)


def reply(number: int, to: Event, *, node: str = NODE, seq: int = 0) -> ReplyEvent:
    return ReplyEvent(
        event_id=event_id(number),
        seq=seq,
        source_node_id=node,
        source_agent_id="worker",
        to_agent_id=to.source_agent_id,
        to_nodes=(to.source_node_id,),
        corr_id=to.corr_id,
        created_at=format_ms(NOW_MS),
        payload=Reply(ref_event_id=to.event_id, body="done"),
    )


def ack(
    number: int, of: Event, agent: str, kind: AckType = AckType.ACCEPTED, *, node: str = NODE, seq: int = 0
) -> AckEvent:
    return AckEvent(
        event_id=event_id(number),
        seq=seq,
        source_node_id=node,
        source_agent_id=agent,
        to_agent_id=of.source_agent_id,
        to_nodes=(of.source_node_id,),
        corr_id=of.corr_id,
        created_at=format_ms(NOW_MS),
        payload=Ack(
            ref_event_id=of.event_id,
            ref_kind=of.kind,
            ack_type=kind,
            acked_by_node_id=node,
            acked_by_agent_id=agent,
            acked_at=format_ms(NOW_MS),
        ),
    )


def deliveries(*events: Event, agents: Sequence[str] = ("worker",)) -> list[Delivery]:
    return [
        Delivery(
            event_id=event.event_id,
            to_agent_id=agent,
            to_node_id=PEER,
            route_decision="explicit",
            due_at_ms=LATER_MS,
            emitted_at_ms=NOW_MS,
        )
        for event in events
        for agent in agents
    ]


def change(event: Event, agent: str, signal: DeliverySignal) -> Change:
    return Change(event_id=event.event_id, to_agent_id=agent, signal=signal, at_ms=NOW_MS, due_at_ms=LATER_MS)


def inbound(event: Event, **acks: Event) -> Inbound:
    return Inbound(event=event, raw=encode_event(event), acks=acks)
