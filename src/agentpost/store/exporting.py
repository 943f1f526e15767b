"""Reading outboxes whole, the own one and those that are mirrored, for whoever copies them elsewhere.

Opens the file for reading only and needs no lock, so it works beside a running gateway, from any thread.
"""

from pathlib import Path

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database, Row
from agentpost.store.home import Home
from agentpost.store.mirrors import mirrors
from agentpost.store.outbox import head
from agentpost.store.queries import SQL
from agentpost.store.values import Head

__all__ = ["OutboxReader", "WholeOutbox"]


class WholeOutbox(Struct, frozen=True, kw_only=True):
    """An outbox as it is here: events after `floor` through `last_seq`.

    `floor` has no chain for a mirror that began in the middle: nobody here ever knew it.
    """

    node_id: str
    epoch: str
    floor_seq: int
    floor_chain: bytes | None
    last_seq: int
    is_mirror: bool = False


class OutboxReader:
    """Used by one thread at a time; `close` it."""

    def __init__(self, home: Path) -> None:
        file = Home(home).database
        if not file.exists():
            raise Refusal(Code.NOT_FOUND, f"there is no agentpost home at {home}", hint="Check the path.")
        self._database = Database.open_reader(file)

    def close(self) -> None:
        self._database.close()

    def own(self) -> WholeOutbox:
        with self._database.one_view():
            node_id, epoch, floor = self._gateway()
            return WholeOutbox(
                node_id=node_id,
                epoch=epoch,
                floor_seq=floor.seq,
                floor_chain=floor.chain,
                last_seq=head(self._database).seq,
            )

    def mirrored(self) -> list[WholeOutbox]:
        return [
            WholeOutbox(
                node_id=each.source_node_id,
                epoch=each.epoch,
                floor_seq=each.floor_seq,
                floor_chain=bytes(32) if each.floor_seq == 0 else None,
                last_seq=each.last_seq,
                is_mirror=True,
            )
            for each in mirrors(self._database)
        ]

    def rows(self, outbox: WholeOutbox, after_seq: int, *, limit: int) -> list[Row]:
        """The next (seq, chain, body), without a hole; none if they were pruned, or the epoch is over."""
        through_seq = min(after_seq + limit, outbox.last_seq)
        with self._database.one_view():
            if outbox.is_mirror:
                position = self._database.row(SQL.mirror, (outbox.node_id,))
                if position is None or position[1] != outbox.epoch:
                    return []
                rows = self._database.rows(SQL.mirror_slice, (outbox.node_id, after_seq, through_seq))
            else:
                rows = self._database.rows(SQL.outbox_slice, (after_seq, through_seq - after_seq))
        is_whole = len(rows) == through_seq - after_seq and (not rows or rows[0][0] == after_seq + 1)
        return rows if is_whole else []

    def _gateway(self) -> tuple[str, str, Head]:
        row = self._database.row(SQL.gateway)
        if row is None:
            raise Refusal(Code.STORAGE_CORRUPT, "the database does not say which node it belongs to")
        return row[0], row[1], Head(seq=row[2], chain=row[3])
