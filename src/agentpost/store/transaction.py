"""One transaction of the writer. Knows where the streams end, and gathers rows so that they are written in bulk.

Rows of the outbox, of its streams and of new deliveries wait here until the commit, or until somebody has to read
them: a hundred callers that append one event each cost one statement.
"""

from collections.abc import Sequence

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.store import tasks
from agentpost.store.database import Database
from agentpost.store.queries import SQL
from agentpost.store.rows import Append, Rows
from agentpost.store.streams import extend_streams, stream_end
from agentpost.store.tail import Grown
from agentpost.store.values import Appended

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
        self.inbox_seq: int = database.value(SQL.inbox_latest_seq) or gateway[4]
        self.tasks = tasks.open_book(database, self.node_id)
        self._rows = self._rows_after(last[0], last[1])
        self._durable = (self.seq, self._rows.chain, self.inbox_seq)
        # What was written, and what is durable, since somebody last asked.
        self._written = Grown(events=[], streams=[])
        self._grown = Grown(events=[], streams=[])

    @property
    def seq(self) -> int:
        """Where the outbox ends."""
        return self._rows.seq

    def append(self, events: Sequence[Event], deliveries: Sequence[Delivery] = ()) -> Appended:
        """Give the events the next places in the outbox (ENV-2), and their deliveries the place of their event."""
        appended = self._rows.append(events, deliveries)
        self.database.writes += 1
        return appended

    def append_each(self, appends: Sequence[Append]) -> list[Appended | Refusal]:
        """Append for many callers; a refusal for one who changed nothing."""
        answers = self._rows.append_each(appends)
        self.database.writes += 1
        return answers

    def ahead(self) -> Rows:
        """Rows that follow what is here, to be gathered ahead of their transaction."""
        return self._rows.ahead()

    def take(self, ahead: Rows) -> bool:
        """Add rows that were gathered ahead. False if they do not follow what is here: something came in between."""
        if ahead.after != (self._rows.seq, self._rows.chain):
            return False
        self._rows.join(ahead)
        self.database.writes += 1
        return True

    def flush(self) -> None:
        """Write what was gathered, so that statements can see it."""
        rows, database = self._rows, self.database
        if rows.streams or rows.deliveries or rows.payloads or self.tasks.records:
            # More than one statement: they need a transaction, if there is none yet.
            database.begin_if_none()
        if rows.packed:
            database.run_packed(SQL.append_events, (rows.seq - len(rows.packed),), rows.packed)
        extend_streams(database, rows.streams)
        for common, alone in rows.deliveries.items():
            database.run_packed(SQL.add_deliveries, common, alone)
        if rows.payloads:
            database.run_many(SQL.name_payload_event, rows.payloads)
        self._written.events.extend(rows.events)
        self._written.streams.extend(rows.streams)
        rows.clear()
        tasks.write_book(database, self.tasks)

    def begin(self, *, only_appends: bool) -> None:
        """Begin. Appends are written at the commit, and by one statement if they can: a transaction by itself."""
        if not only_appends:
            self.database.begin()

    def commit(self) -> None:
        self.flush()
        self.database.commit()
        self._durable = (self.seq, self._rows.chain, self.inbox_seq)
        self._grown.events.extend(self._written.events)
        self._grown.streams.extend(self._written.streams)
        self._written = Grown(events=[], streams=[])

    def take_grown(self) -> Grown:
        """What was committed since the last call."""
        grown, self._grown = self._grown, Grown(events=[], streams=[])
        return grown

    def rollback(self) -> None:
        seq, chain, self.inbox_seq = self._durable
        # What the file says of the streams counts again.
        self._rows = self._rows_after(seq, chain)
        self._written = Grown(events=[], streams=[])
        self.tasks.clear()
        self.database.rollback()

    def _rows_after(self, seq: int, chain: bytes) -> Rows:
        return Rows(
            self.node_id,
            seq=seq,
            chain=chain,
            stream_end=lambda node_id: stream_end(self.database, node_id).chain,
            tasks=self.tasks,
        )
