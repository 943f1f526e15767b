"""One transaction of the writer. Knows where the streams end, and gathers rows so that they are written in bulk.

Rows of the outbox, of its streams and of new deliveries wait here until the commit, or until somebody has to read
them: a hundred callers that append one event each cost one statement.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.tasks import SAID_OF_TASKS
from agentpost.store import tasks
from agentpost.store.database import Database
from agentpost.store.queries import SQL
from agentpost.store.rules import chain_after, encode_for_outbox, foreign_source, unplaced
from agentpost.store.streams import GrowingStreams
from agentpost.store.tail import Grown
from agentpost.store.values import Appended, StoredEvent

__all__ = ["Transaction"]


class Transaction:
    """Used by the writer only. `begin` and `commit` are the writer's; the rest is for its jobs."""

    def __init__(self, database: Database) -> None:
        self.database = database
        gateway = database.row(SQL.gateway)
        if gateway is None:
            raise Refusal(Code.STORAGE_CORRUPT, "the database does not say which node it belongs to")
        self.node_id: str = gateway[0]
        self.epoch: str = gateway[1]
        last = database.row(SQL.outbox_head) or gateway[2:4]
        self.seq: int = last[0]
        self._chain: bytes = last[1]
        self.inbox_seq: int = database.value(SQL.inbox_latest_seq) or gateway[4]
        self._packed: list[bytes] = []
        self._events: list[StoredEvent] = []
        self._grown = Grown(events=[], streams=[])
        self._streams = GrowingStreams(database)
        # What new deliveries have in common, and what each has alone, in one piece.
        self._deliveries: dict[tuple[object, ...], list[str]] = {}
        # PIPE-5: payloads, each with an event that names it.
        self._payloads: list[tuple[str, str]] = []
        self.tasks = tasks.open_book(database, self.node_id)
        self._durable = (self.seq, self._chain, self.inbox_seq)

    def append(self, events: Sequence[Event], deliveries: Sequence[Delivery] = ()) -> Appended:
        """Give the events the next places in the outbox (ENV-2), and their deliveries the place of their event."""
        seq, chain, node_id, packed, streams = self.seq, self._chain, self.node_id, self._packed, self._streams
        stored, payloads = self._events, self._payloads
        # Most events concern no task: the mark is set before the first that does.
        mark = None
        gathered, in_streams, known, named = len(packed), len(streams), len(stored), len(payloads)
        try:
            for event in events:
                if event.source_node_id != node_id:
                    raise foreign_source(event, node_id)
                seq += 1
                body = encode_for_outbox(replace(event, seq=seq))
                chain = chain_after(chain, body)
                # One row in one piece, which the statement takes apart again: SQLite then reads the whole batch
                # without asking Python for every value.
                packed.append(event.event_id.encode() + chain + body)
                stored.append(StoredEvent(seq=seq, chain=chain, raw=body))
                if event.to_nodes:
                    streams.extend(event.to_nodes, seq, body)
                if event.payload_ref is not None:
                    payloads.append((event.payload_ref.sha256, event.event_id))
                if type(event) in SAID_OF_TASKS:
                    mark = mark or self.tasks.mark()
                    self.tasks.say(event, body)
            if deliveries:
                for common, alone in _placed(deliveries, events, self.seq):
                    self._deliveries.setdefault(common, []).append(alone)
        except Refusal:
            # What cannot be written leaves no trace, nor do those before it.
            del packed[gathered:], stored[known:], payloads[named:]
            streams.shorten(in_streams)
            if mark is not None:
                self.tasks.go_back(mark)
            raise
        self.database.writes += 1
        appended = Appended(first_seq=self.seq + 1, last_seq=seq)
        self.seq, self._chain = seq, chain
        return appended

    def flush(self) -> None:
        """Write what was gathered, so that statements can see it."""
        if self._streams or self._deliveries or self._payloads or self.tasks.records:
            # More than one statement: they need a transaction, if there is none yet.
            self.database.begin_if_none()
        if self._packed:
            self.database.run_packed(SQL.append_events, (self.seq - len(self._packed),), self._packed)
            self._packed = []
        self._streams.flush()
        if self._deliveries:
            for common, alone in self._deliveries.items():
                self.database.run_packed(SQL.add_deliveries, common, alone)
            self._deliveries = {}
        if self._payloads:
            self.database.run_many(SQL.name_payload_event, self._payloads)
            self._payloads = []
        tasks.write_book(self.database, self.tasks)

    def begin(self, *, only_appends: bool) -> None:
        """Begin. Appends are written at the commit, and by one statement if they can: a transaction by itself."""
        if not only_appends:
            self.database.begin()

    def commit(self) -> None:
        self.flush()
        self.database.commit()
        self._durable = (self.seq, self._chain, self.inbox_seq)
        self._grown.events.extend(self._events)
        self._grown.streams.extend(self._streams.take_written())
        self._events = []

    def take_grown(self) -> Grown:
        """What was committed since the last call."""
        grown, self._grown = self._grown, Grown(events=[], streams=[])
        return grown

    def rollback(self) -> None:
        self._packed, self._deliveries, self._events, self._payloads = [], {}, [], []
        self._streams.forget()
        self.tasks.clear()
        self.seq, self._chain, self.inbox_seq = self._durable
        self.database.rollback()


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
