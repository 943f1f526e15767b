"""A stream from one place on, event by event: the own outbox, one that is mirrored here, or what an agent got."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from agentpost.delivery.agents import expect_local_agent
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.interface import Store

__all__ = ["OUTBOX", "Tailed", "tail"]

OUTBOX: Final = "outbox"
_INBOX: Final = "inbox:"
_PAGE: Final = 256


class Tailed(Struct, frozen=True, kw_only=True):
    """An event at its place in a stream."""

    stream: str
    epoch: str
    seq: int
    event: Event


def tail(store: Store, stream: str, *, after_seq: int) -> Iterator[Tailed]:
    """Everything that is in a stream after `after_seq` now: `outbox`, `inbox:<agent>`, or the id of another node.

    A stream that is not here is refused at once, not when somebody looks at the first event.
    """
    if stream == OUTBOX:
        return _outbox(store, after_seq)
    if stream.startswith(_INBOX):
        agent_id = stream.removeprefix(_INBOX)
        expect_local_agent(store, agent_id, field="stream")
        return _inbox(store, agent_id, after_seq)
    known = [each.source_node_id for each in store.mirrors()]
    if stream not in known:
        raise Refusal(
            Code.NOT_FOUND,
            f"{stream!r:.80} is no stream that is here",
            field="stream",
            hint=f"Use outbox, inbox:<agent>, or a node whose outbox is mirrored: {', '.join(known) or 'none is'}.",
        )
    return _mirror(store, stream, after_seq)


def _outbox(store: Store, after_seq: int) -> Iterator[Tailed]:
    while events := store.read_outbox(after_seq).events:
        for each in events:
            yield Tailed(stream=OUTBOX, epoch=store.epoch, seq=each.seq, event=decode_event(each.raw))
        after_seq = events[-1].seq


def _inbox(store: Store, agent_id: str, after_seq: int) -> Iterator[Tailed]:
    while items := store.inbox_items(agent_id, after_inbox_seq=after_seq, limit=_PAGE, include_settled=True):
        for each in items:
            seq = each.entry.inbox_seq
            yield Tailed(stream=f"{_INBOX}{agent_id}", epoch=store.epoch, seq=seq, event=decode_event(each.raw))
        after_seq = items[-1].entry.inbox_seq


def _mirror(store: Store, node_id: str, after_seq: int) -> Iterator[Tailed]:
    while (part := store.read_whole_mirror(node_id, after_seq)) is not None and part.events:
        for each in part.events:
            yield Tailed(stream=node_id, epoch=part.epoch, seq=each.seq, event=decode_event(each.raw))
        after_seq = part.events[-1].seq
