"""Looking after a home from outside: is it whole, and a copy of it while the gateway runs.

Both open the file for reading only and need no lock, so they work beside a running gateway.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import next_chain
from agentpost.store.database import Database
from agentpost.store.home import Home, sync_directory
from agentpost.store.queries import SQL, migrations
from agentpost.store.streams import stream_floor

__all__ = ["Report", "back_up", "check_home"]

_ROWS_A_STEP: Final = 5_000

Progress = Callable[[int, int], None]


class Report(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a check found. `problems` is empty for a whole home."""

    node_id: str
    epoch: str
    schema_version: int
    outbox_events: int
    outbox_first_seq: int
    outbox_last_seq: int
    inbox_events: int
    problems: tuple[str, ...]


def check_home(path: Path, *, progress: Progress | None = None) -> Report:
    """Check the file, the hash chains, the sequence and the references between the tables."""
    database = _open(path)
    try:
        # One view of the whole file, or a compaction during the check would look like missing events.
        database.run("BEGIN")
        gateway = database.row(SQL.gateway)
        if gateway is None:
            raise Refusal(Code.STORAGE_CORRUPT, f"{path} does not say which node it belongs to")
        problems = [f"file: {row[0]}" for row in database.rows("PRAGMA integrity_check(20)") if row[0] != "ok"]
        problems += [f"reference: {text}" for text in _broken_references(database)]
        count, first, last, broken = _check_chain(database, gateway[0], gateway[2], gateway[3], progress)
        return Report(
            node_id=gateway[0],
            epoch=gateway[1],
            schema_version=database.schema_version(),
            outbox_events=count,
            outbox_first_seq=first,
            outbox_last_seq=last,
            inbox_events=database.value(SQL.count_inbox),
            problems=tuple(problems + broken),
        )
    finally:
        database.close()


def _check_chain(
    database: Database, node_id: str, floor_seq: int, chain: bytes, progress: Progress | None
) -> tuple[int, int, int, list[str]]:
    """Walk the outbox from its floor: no hole, no altered byte, no event of another node, each in its streams."""
    total: int = database.value(SQL.count_outbox)
    expected, count = floor_seq, 0
    problems: list[str] = []
    streams = _StreamsCheck(database)
    while rows := database.rows(SQL.outbox_slice, (expected, _ROWS_A_STEP)):
        for seq, stored, body in rows:
            expected += 1
            if seq != expected:
                problems.append(f"outbox: seq {expected} to {seq - 1} are missing")
                expected = seq
            chain = next_chain(chain, body)
            if chain != stored:
                problems.append(f"outbox: the hash chain breaks at seq {seq}")
                chain = stored
            problems += _event_problems(body, seq, node_id, streams)
        count += len(rows)
        if progress is not None:
            progress(count, total)
        if len(problems) > 100:
            problems.append("outbox: more than 100 problems; the rest was not checked")
            break
    else:
        problems += streams.leftovers()
    return count, (floor_seq + 1 if count else 0), expected, problems


def _event_problems(body: bytes, seq: int, node_id: str, streams: "_StreamsCheck") -> list[str]:
    try:
        event = decode_event(body)
    except Refusal as refusal:
        return [f"outbox: seq {seq} cannot be read: {refusal.message}"]
    if event.seq != seq or event.source_node_id != node_id:
        return [f"outbox: seq {seq} holds event {event.seq} of {event.source_node_id}"]
    return streams.problems_of(event, body)


class _StreamsCheck:
    """The streams, held against the events of the outbox as these are walked in order."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._chains: dict[str, bytes] = {}
        self._rows = 0

    def problems_of(self, event: Event, body: bytes) -> list[str]:
        problems: list[str] = []
        for node_id in dict.fromkeys(event.to_nodes):
            chain = next_chain(self._chains.get(node_id) or stream_floor(self._database, node_id).chain, body)
            stored: bytes | None = self._database.value(SQL.stream_chain_at, (node_id, event.seq))
            if stored is None:
                problems.append(f"stream of {node_id}: seq {event.seq} is missing")
            elif stored != chain:
                problems.append(f"stream of {node_id}: the hash chain breaks at seq {event.seq}")
            self._chains[node_id] = stored or chain
            self._rows += stored is not None
        return problems

    def leftovers(self) -> list[str]:
        """What the streams have beside the events of the outbox, once all of these were seen."""
        more = self._database.value(SQL.count_streams) - self._rows
        return [f"streams: {more} rows have no event in the outbox"] if more else []


def _broken_references(database: Database) -> list[str]:
    orphans = database.rows(SQL.ledger_without_inbox, (20,))
    return [f"ledger: {event_id} for {agent_id} is open and its event is gone" for event_id, agent_id in orphans]


def back_up(path: Path, target: Path) -> int:
    """Write a consistent copy of the home's database to `target`, while the gateway runs. Gives its size.

    The keys are not part of it: keep a copy of `keys/` where secrets are kept.
    """
    if target.exists():
        raise Refusal(Code.CONFLICT, f"{target} exists already", hint="A backup never overwrites: name a new file.")
    if not target.parent.is_dir():
        raise Refusal(Code.NOT_FOUND, f"the directory {target.parent} does not exist", hint="Make it first.")
    database = _open(path)
    draft = target.with_name(target.name + ".part")
    draft.unlink(missing_ok=True)
    try:
        database.copy_to(draft)
        draft.rename(target)
        sync_directory(target.parent)
    finally:
        draft.unlink(missing_ok=True)
        database.close()
    return target.stat().st_size


def _open(path: Path) -> Database:
    home = Home(path)
    file = home.database if path.is_dir() else path
    if not file.exists():
        raise Refusal(Code.NOT_FOUND, f"there is no agentpost home at {path}", hint="Check the path.")
    database = Database.open_reader(file)
    found = database.schema_version()
    if found > len(migrations()):
        database.close()
        raise Refusal(Code.SCHEMA_TOO_NEW, f"{path} has schema {found}; this agentpost knows {len(migrations())}")
    if found < len(migrations()):
        database.close()
        raise Refusal(Code.CONFLICT, f"{path} has the older schema {found}", hint="Start its gateway once.")
    return database
