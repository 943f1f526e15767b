"""Appends as rows: each event gets its place, its bytes and its link in every chain that it extends. Knows no SQL.

Rows are gathered in the transaction that writes them, or ahead of it, while the one before is still being written:
they say what they follow, and whoever writes them looks whether that is how it came.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256

from msgspec.structs import replace

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.heads import next_chain
from agentpost.protocol.tasks import SAID_OF_TASKS
from agentpost.store.rules import encode_for_outbox, foreign_source, unplaced
from agentpost.store.taskbook import Mark, TaskBook
from agentpost.store.values import Appended, StoredEvent

__all__ = ["Append", "Rows", "UnknownAhead"]

Append = tuple[Sequence[Event], Sequence[Delivery]]


class UnknownAhead(Exception):  # noqa: N818 - reads as what happened
    """What an event makes of the streams or the tasks can only be told in the transaction that writes it."""


class Rows:
    """What appends add up to, in their order, and where the outbox and its streams end then."""

    def __init__(
        self,
        node_id: str,
        *,
        seq: int,
        chain: bytes,
        stream_end: Callable[[str], bytes],
        stream_chains: dict[str, bytes] | None = None,
        tasks: TaskBook | None = None,
    ) -> None:
        self._node_id = node_id
        # What they follow.
        self.after = (seq, chain)
        self.seq = seq
        self.chain = chain
        # Asked for the end of a stream, once for each.
        self._stream_end = stream_end
        self._stream_chains = stream_chains or {}
        self._tasks = tasks
        self.packed: list[bytes] = []
        self.events: list[StoredEvent] = []
        self.streams: list[tuple[str, int, bytes]] = []
        # What new deliveries have in common, and what each has alone, in one piece.
        self.deliveries: dict[tuple[object, ...], list[str]] = {}
        # PIPE-5: payloads, each with an event that names it.
        self.payloads: list[tuple[str, str]] = []

    def ahead(self) -> "Rows":
        """Rows that follow these, for whoever cannot ask the store."""
        return Rows(
            self._node_id,
            seq=self.seq,
            chain=self.chain,
            stream_end=_unknown,
            stream_chains=dict(self._stream_chains),
        )

    def append(self, events: Sequence[Event], deliveries: Sequence[Delivery]) -> Appended:
        """Give the events the next places in the outbox (ENV-2), and their deliveries the place of their event."""
        (answer,) = self.append_each([(events, deliveries)])
        if isinstance(answer, Refusal):
            raise answer
        return answer

    def append_each(self, appends: Sequence[Append]) -> list[Appended | Refusal]:
        """Where each of them ended up; a refusal for one that cannot be written, which leaves no trace."""
        node_id, packed, stored, payloads, tasks = self._node_id, self.packed, self.events, self.payloads, self._tasks
        answers: list[Appended | Refusal] = []
        for events, deliveries in appends:
            seq, chain = self.seq, self.chain
            # Most events concern no task: the mark is set before the first that does.
            mark: Mark | None = None
            try:
                for event in events:
                    if event.source_node_id != node_id:
                        raise foreign_source(event, node_id)
                    body = encode_for_outbox(replace(event, seq=seq + 1))
                    seq += 1
                    chain = sha256(chain + body).digest()  # next_chain, without a call for every event
                    # One row in one piece, which the statement takes apart again: SQLite then reads the whole batch
                    # without asking Python for every value.
                    packed.append(event.event_id.encode() + chain + body)
                    stored.append(StoredEvent(seq=seq, chain=chain, raw=body))
                    if event.to_nodes:
                        self._extend_streams(event.to_nodes, seq, body)
                    if event.payload_ref is not None:
                        payloads.append((event.payload_ref.sha256, event.event_id))
                    if type(event) in SAID_OF_TASKS:
                        if tasks is None:
                            raise UnknownAhead
                        mark = mark or tasks.mark()
                        tasks.say(event, body)
                if deliveries:
                    for common, alone in _placed(deliveries, events, self.seq):
                        self.deliveries.setdefault(common, []).append(alone)
            except Refusal as refusal:
                self._take_back(events, seq - self.seq)
                if tasks is not None and mark is not None:
                    tasks.go_back(mark)
                answers.append(refusal)
            else:
                answers.append(Appended(first_seq=self.seq + 1, last_seq=seq))
                self.seq, self.chain = seq, chain
        return answers

    def join(self, others: "Rows") -> None:
        """Add rows that follow these."""
        self.packed += others.packed
        self.events += others.events
        self.streams += others.streams
        for common, alone in others.deliveries.items():
            self.deliveries.setdefault(common, []).extend(alone)
        self.payloads += others.payloads
        self.seq, self.chain = others.seq, others.chain
        self._stream_chains = others._stream_chains

    def clear(self) -> None:
        """They are written; what comes next follows them."""
        self.packed, self.events, self.streams, self.deliveries, self.payloads = [], [], [], {}, []
        self.after = (self.seq, self.chain)

    def _extend_streams(self, to_nodes: Sequence[str], seq: int, body: bytes) -> None:
        """Make the event the next one of each of these streams, once, however often it names one."""
        for node_id in to_nodes if len(to_nodes) == 1 else dict.fromkeys(to_nodes):
            chain = self._stream_chains.get(node_id) or self._stream_end(node_id)
            self._stream_chains[node_id] = chain = next_chain(chain, body)
            self.streams.append((node_id, seq, chain))

    def _take_back(self, events: Sequence[Event], count: int) -> None:
        """Forget the last `count` events, which are the first of these."""
        if not count:
            return
        del self.packed[-count:], self.events[-count:]
        del self.payloads[len(self.payloads) - sum(event.payload_ref is not None for event in events[:count]) :]
        while self.streams and self.streams[-1][1] > self.seq:
            self._stream_chains.pop(self.streams.pop()[0], None)
        self._stream_chains |= {node_id: chain for node_id, _, chain in self.streams}


def _unknown(_node_id: str) -> bytes:
    raise UnknownAhead


def _placed(
    deliveries: Sequence[Delivery], events: Sequence[Event], before_seq: int
) -> list[tuple[tuple[object, ...], str]]:
    """New deliveries, each at the place of its event: what many have in common, and what only this one has."""
    places = {event.event_id: before_seq + place for place, event in enumerate(events, start=1)}
    try:
        return [(_common(each), f"{each.event_id}{places[each.event_id]:020d}{each.corr_id}") for each in deliveries]
    except KeyError as missing:
        raise unplaced(missing.args[0]) from None


def _common(delivery: Delivery) -> tuple[object, ...]:
    return (
        delivery.to_agent_id,
        delivery.to_node_id,
        delivery.route_decision,
        delivery.state.value,
        delivery.attempts,
        delivery.due_at_ms,
        delivery.emitted_at_ms,
        delivery.accepted_at_ms,
        delivery.closed_at_ms,
        delivery.answered_by_event_id,
        delivery.reason,
        delivery.from_agent_id,
    )
