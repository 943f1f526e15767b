"""Writing a lost home anew, from what somebody else has worked out that it held. Whole or not at all.

Knows nothing of where that comes from. The file is made beside its place and moved there when it is durable, so a
restore that was interrupted is simply run again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from agentpost.protocol.delivery import Delivery
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database, Row
from agentpost.store.home import Home, sync_directory
from agentpost.store.queries import SQL
from agentpost.store.rules import options_as_json
from agentpost.store.transaction import delivery_row
from agentpost.store.values import CHAIN_START, Cursor, Head, LedgerEntry, LocalAgent, StoredEvent

__all__ = ["InboxEvent", "RestoredHome", "StreamPlace", "write_home"]

_DRAFT: Final = ".restoring"


class StreamPlace(Struct, frozen=True, kw_only=True):
    """One event in the stream of one reader."""

    consumer_node_id: str
    seq: int
    chain: bytes


class InboxEvent(Struct, frozen=True, kw_only=True):
    seq: int
    event_id: str
    source_node_id: str
    source_epoch: str
    source_seq: int
    received_at_ms: int
    raw: bytes
    corr_id: str


class RestoredHome(Struct, frozen=True, kw_only=True):
    """Everything that a home held: the outbox after `floor`, and what became of what was sent and taken."""

    node_id: str
    epoch: str
    at_ms: int
    floor: Head
    outbox: Sequence[tuple[str, StoredEvent]]
    streams: Sequence[StreamPlace]
    stream_floors: Sequence[StreamPlace]
    deliveries: Sequence[Delivery]
    inbox: Sequence[InboxEvent]
    ledger: Sequence[LedgerEntry]
    cursors: Sequence[Cursor]
    agents: Sequence[LocalAgent]


def write_home(path: Path, restored: RestoredHome) -> None:
    """Write the database of a home that has none. Its keys, if they are there, stay."""
    home = Home(path)
    home.prepare()
    home.lock()
    try:
        if home.exists():
            raise Refusal(
                Code.CONFLICT,
                f"{path} has a database already",
                hint="A restore never overwrites: name a home without one, or move it away first.",
            )
        draft = Home(path)
        draft.database = home.database.with_name(home.database.name + _DRAFT)
        _remove(draft.database)
        draft.make_database()
        database = Database.open_writer(draft.database)
        try:
            database.migrate()
            database.begin()
            _write(database, restored)
            database.commit()
            database.checkpoint()
        finally:
            database.close()
        draft.database.rename(home.database)
        sync_directory(path)
        _remove(draft.database)
    finally:
        home.unlock()


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _write(database: Database, restored: RestoredHome) -> None:
    database.run(SQL.create_gateway, (restored.node_id, restored.epoch, restored.at_ms, CHAIN_START))
    database.run(SQL.move_outbox_floor, (restored.floor.seq, restored.floor.chain))
    packed = [event_id.encode() + event.chain + event.raw for event_id, event in restored.outbox]
    if packed:
        database.run_packed(SQL.append_events, restored.floor.seq, packed)
    database.run_many(SQL.extend_streams, [_place(each) for each in restored.streams])
    database.run_many(SQL.restore_stream_floor, [_place(each) for each in restored.stream_floors])
    database.run_many(SQL.add_delivery, [delivery_row(each, each.seq) for each in restored.deliveries])
    database.run_many(
        SQL.take_event,
        [
            (
                each.seq,
                each.event_id,
                each.source_node_id,
                each.source_epoch,
                each.source_seq,
                each.received_at_ms,
                each.raw,
                each.corr_id,
            )
            for each in restored.inbox
        ],
    )
    database.run_many(SQL.restore_ledger_entry, [_entry(each) for each in restored.ledger])
    database.run_many(
        SQL.move_cursor,
        [
            (each.source_node_id, each.epoch, each.last_seq, each.last_chain, each.updated_at_ms)
            for each in restored.cursors
        ],
    )
    database.run_many(
        SQL.put_agent,
        [
            (each.agent_id, each.runtime, options_as_json(each), each.created_at_ms, int(each.is_paused))
            for each in restored.agents
        ],
    )


def _place(place: StreamPlace) -> Row:
    return place.consumer_node_id, place.seq, place.chain


def _entry(entry: LedgerEntry) -> Row:
    return (
        entry.event_id,
        entry.to_agent_id,
        entry.inbox_seq,
        entry.state.value,
        entry.attempts,
        entry.accepted_at_ms,
        entry.engaged_at_ms,
        entry.settled_at_ms,
        None if entry.outcome is None else entry.outcome.value,
    )
