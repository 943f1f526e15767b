"""Writing a lost home anew, from what somebody else has worked out that it held. Whole or not at all.

Knows nothing of where that comes from. The file is made beside its place and moved there when it is durable, so a
restore that was interrupted is simply run again.
"""

import errno
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from agentpost.protocol.codec import Unreadable, read_events
from agentpost.protocol.delivery import Delivery, is_undelivered
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import next_chain
from agentpost.protocol.timestamps import parse_ms
from agentpost.store.database import Database, Row
from agentpost.store.home import Home, sync_directory
from agentpost.store.queries import SQL
from agentpost.store.rules import is_urgent, options_as_json
from agentpost.store.streams import oldest_unread
from agentpost.store.sums import inbox_head, inbox_seed, inbox_sum
from agentpost.store.values import CHAIN_START, Cursor, Head, LedgerEntry, LocalAgent, StoredEvent

__all__ = ["InboxEvent", "RestoredHome", "StreamPlace", "addressed_to", "put_back", "stream_places", "write_home"]

_DRAFT: Final = ".restoring"
_ROWS_A_STEP: Final = 5_000


class _Payload(Struct, gc=False):
    sha256: str


class _Outline(Struct, rename="camel", gc=False):
    to_nodes: tuple[str, ...] = ()
    created_at: str = ""
    payload_ref: _Payload | None = None


_outline = msgspec.msgpack.Decoder(_Outline)


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
    """Everything that a home held: the outbox after `floor`, and what became of what was sent and taken.

    `dead_letters` are the events of dead letters up to the floor: they can be sent again (RTY-7).
    """

    node_id: str
    epoch: str
    at_ms: int
    floor: Head
    outbox: Sequence[tuple[str, StoredEvent]]
    streams: Sequence[StreamPlace]
    stream_floors: Sequence[StreamPlace]
    dead_letters: Sequence[tuple[str, StoredEvent]]
    deliveries: Sequence[Delivery]
    inbox: Sequence[InboxEvent]
    ledger: Sequence[LedgerEntry]
    cursors: Sequence[Cursor]
    agents: Sequence[LocalAgent]


def write_home(path: Path, restored: RestoredHome) -> None:
    """Write the database of a home that has none. Its keys, if they are there, stay."""
    with _new_database(path) as draft:
        Home.make_file(draft)
        database = Database.open_writer(draft)
        try:
            database.migrate()
            database.begin()
            _write(database, restored)
            database.commit()
            database.checkpoint()
        finally:
            database.close()


def put_back(path: Path, backup: Path, *, epoch: str, forgotten_before_ms: int = 0) -> None:
    """Make a home of a backup. It is older than what it was made of, so its outbox begins a new epoch (CUR-6).

    The streams begin with what is kept: their readers start over, and shall find no hole. What was said before
    `forgotten_before_ms` and is not needed any more is not kept: readers that have forgotten it would take it again.
    """
    with _new_database(path) as draft:
        Home.make_file(draft)
        _copy(backup, draft)
        database = Database.open_writer(draft)
        try:
            database.migrate()
            gateway = database.row(SQL.gateway)
            if gateway is None:
                raise Refusal(Code.STORAGE_CORRUPT, f"{backup} does not say which node it belongs to")
            database.begin()
            database.run(SQL.begin_epoch, (epoch,))
            own = database.row(SQL.cursor, (gateway[0],))
            ends = _renew_streams(database, _prune(database, gateway[0], gateway[2], forgotten_before_ms))
            if own is not None:
                chain = _chain_at(database, gateway[0], own[2], ends)
                database.run(SQL.move_cursor, (gateway[0], epoch, own[2], chain, own[4]))
            database.commit()
            database.checkpoint()
        finally:
            database.close()


@contextmanager
def _new_database(path: Path) -> Generator[Path]:
    """A draft of the database of a home that has none; it takes its place when all went well."""
    home = Home(path)
    home.prepare()
    home.lock()
    draft = home.database.with_name(home.database.name + _DRAFT)
    try:
        if home.exists():
            raise Refusal(
                Code.CONFLICT,
                f"{path} has a database already",
                hint="A restore never overwrites: name a home without one, or move it away first.",
            )
        _remove(draft)
        yield draft
        draft.rename(home.database)
        sync_directory(path)
    finally:
        # Also after a refusal: a disk that is full needs the room.
        _remove(draft)
        home.unlock()


def _copy(backup: Path, draft: Path) -> None:
    try:
        shutil.copyfile(backup, draft)
    except OSError as error:
        code = Code.STORAGE_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else Code.STORAGE_FAILED
        raise Refusal(code, f"{backup} could not be copied to {draft.parent}: {error.strerror}") from None


def _prune(database: Database, node_id: str, floor_seq: int, forgotten_before_ms: int) -> int:
    """Prune what is so old, up to what nobody has accepted (PIPE-8) or read here. Gives the new floor."""
    needed: list[int | None] = [database.value(SQL.oldest_unaccepted_seq), oldest_unread(database, node_id)]
    first_needed = min((seq for seq in needed if seq is not None), default=None)
    at, chain = floor_seq, b""
    is_old = True
    while is_old and (rows := database.rows(SQL.outbox_slice, (at, _ROWS_A_STEP))):
        for row in rows:
            is_old = row[0] != first_needed and _is_before(row[2], forgotten_before_ms)
            if not is_old:
                break
            at, chain = row[0], row[1]
    if at > floor_seq:
        database.run(SQL.move_outbox_floor, (at, chain))
        database.run(SQL.keep_dead_letter_events, (floor_seq, at))
        database.run(SQL.prune_outbox, (at,))
    return at


def _is_before(body: bytes, at_ms: int) -> bool:
    try:
        return parse_ms(_read(body).created_at) < at_ms
    except Refusal:
        return False


def _renew_streams(database: Database, floor_seq: int) -> dict[str, StreamPlace]:
    """Chain the streams anew over what the outbox has. Gives their ends."""
    database.run(SQL.clear_streams)
    database.run(SQL.clear_stream_floors)
    ends: dict[str, StreamPlace] = {}
    at = floor_seq
    while rows := database.rows(SQL.outbox_slice, (at, _ROWS_A_STEP)):
        places: list[StreamPlace] = []
        for seq, _, body in rows:
            new = stream_places(body, seq, ends)
            ends |= {place.consumer_node_id: place for place in new}
            places += new
        database.run_many(SQL.restore_stream, [_place(each) for each in places])
        at = rows[-1][0]
    return ends


def _chain_at(database: Database, consumer: str, through_seq: int, ends: dict[str, StreamPlace]) -> bytes:
    """The chain of a stream at its last event up to there."""
    end = ends.get(consumer)
    if end is None or end.seq <= through_seq:
        return CHAIN_START if end is None else end.chain
    row = database.row(SQL.stream_end_before, (consumer, through_seq))
    return CHAIN_START if row is None else row[0]


def stream_places(body: bytes, seq: int, ends: dict[str, StreamPlace]) -> list[StreamPlace]:
    """The event as the next one of the stream of each gateway that it names; `ends` are those of the streams so far."""
    return [
        StreamPlace(
            consumer_node_id=node_id,
            seq=seq,
            chain=next_chain(ends[node_id].chain if node_id in ends else CHAIN_START, body),
        )
        for node_id in dict.fromkeys(addressed_to(body))
    ]


def addressed_to(body: bytes) -> tuple[str, ...]:
    """The gateways that an event names; none for one that cannot be read."""
    return _read(body).to_nodes


def _read(body: bytes) -> _Outline:
    try:
        return _outline.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _Outline()


def _remove(database: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _write(database: Database, restored: RestoredHome) -> None:
    database.run(SQL.create_gateway, (restored.node_id, restored.epoch, restored.at_ms, CHAIN_START))
    database.run(SQL.move_outbox_floor, (restored.floor.seq, restored.floor.chain))
    packed = [event_id.encode() + event.chain + event.raw for event_id, event in restored.outbox]
    if packed:
        database.run_packed(SQL.append_events, (restored.floor.seq,), packed)
    database.run_many(SQL.restore_stream, [_place(each) for each in restored.streams])
    database.run_many(SQL.restore_stream_floor, [_place(each) for each in restored.stream_floors])
    database.run_many(SQL.restore_delivery, [_delivery(each) for each in restored.deliveries])
    database.run_many(
        SQL.restore_inbox_event,
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
                inbox_sum(
                    inbox_seed(each.source_node_id, each.source_epoch, each.received_at_ms),
                    inbox_head(each.event_id, each.seq, each.source_seq, each.corr_id),
                    each.raw,
                ),
            )
            for each in restored.inbox
        ],
    )
    dead = [(event_id, event.seq, event.chain, event.raw) for event_id, event in restored.dead_letters]
    database.run_many(SQL.restore_dead_letter_event, dead)
    kept = [(event_id, event.raw) for event_id, event in (*restored.outbox, *restored.dead_letters)]
    kept += [(each.event_id, each.raw) for each in restored.inbox]
    named = ((_read(raw).payload_ref, event_id) for event_id, raw in kept)
    database.run_many(
        SQL.name_payload_event, [(payload.sha256, event_id) for payload, event_id in named if payload is not None]
    )
    database.run_many(SQL.restore_ledger_entry, [_entry(each) for each in restored.ledger])
    _mark(database, restored.inbox)
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


def _mark(database: Database, inbox: Sequence[InboxEvent]) -> None:
    """What the ledger notes of some mail only: until when its agent may have it (ENV-7), and that it is urgent."""
    read = read_events([each.raw for each in inbox])
    events = [event for event in read if not isinstance(event, Unreadable)]
    until = [(parse_ms(event.expires_at), event.event_id) for event in events if event.expires_at is not None]
    database.run_many(SQL.set_expiry, until)
    database.run_many(SQL.mark_urgent, [(event.event_id,) for event in events if is_urgent(event)])


def _place(place: StreamPlace) -> Row:
    return place.consumer_node_id, place.seq, place.chain


def _delivery(delivery: Delivery) -> Row:
    return (
        delivery.event_id,
        delivery.to_agent_id,
        delivery.to_node_id,
        delivery.route_decision,
        delivery.seq,
        delivery.state.value,
        delivery.attempts,
        delivery.due_at_ms,
        delivery.emitted_at_ms,
        delivery.accepted_at_ms,
        delivery.closed_at_ms,
        delivery.answered_by_event_id,
        delivery.reason,
        delivery.corr_id,
        delivery.from_agent_id,
        1 if is_undelivered(delivery) else None,
    )


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
