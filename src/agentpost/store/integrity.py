"""Looking after a home from outside: is it whole, and a copy of it while the gateway runs.

Both open the file for reading only and need no lock, so they work beside a running gateway.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import next_chain
from agentpost.store.blobs import is_damaged
from agentpost.store.damage import (
    all_payloads,
    dead_letter_problems,
    inbox_problems,
    ledger_problems,
    mirror_problems,
    payload_problems,
    task_problems,
)
from agentpost.store.database import Database, Row
from agentpost.store.home import Home, sync_directory
from agentpost.store.payload_names import payload_sources
from agentpost.store.queries import SQL, migrations
from agentpost.store.streams import stream_floor

__all__ = ["Report", "back_up", "check_home", "drop_damaged_payloads"]

_ROWS_A_STEP: Final = 5_000
_MOST_PROBLEMS: Final = 100
_FILE_CHECK: Final = "PRAGMA integrity_check(20)"

Progress = Callable[[int, int], None]


class Report(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a check found. `problems` is empty for a whole home; `remedies` say what can be had again, and how."""

    node_id: str
    epoch: str
    schema_version: int
    outbox_events: int
    outbox_first_seq: int
    outbox_last_seq: int
    inbox_events: int
    payloads: int
    problems: tuple[str, ...]
    remedies: tuple[str, ...]


_BACKUP: Final = "put back a backup (agentpost store restore) or what a lake has (agentpost lake restore)"
_REMEDIES: Final = {
    "file": f"File: stop the gateway, then {_BACKUP}.",
    "reference": f"References: stop the gateway, then {_BACKUP}.",
    "outbox": f"Outbox: what is mirrored or exported is not lost. Stop the gateway, then {_BACKUP}.",
    "inbox": "Inbox: ask the sender of what is not settled to send it again. What is settled is not needed any more.",
    "payload": "Payloads of other gateways are fetched again: a gateway that runs finds them by itself, one that is "
    "stopped with: agentpost store check --repair. Content that this gateway sent has to be sent again.",
    "mirror": "Mirrors: the source and the other seeds have the events. Readers refuse what is damaged and go there.",
    "task": "Tasks are made again from their events: agentpost rebuild. "
    f"If events of tasks are damaged, stop the gateway first and {_BACKUP}.",
    "dead letter": "Dead letters: agentpost deadletters purge, then send the message again.",
}


def check_home(path: Path, *, progress: Progress | None = None) -> Report:
    """Check all that is kept: the file, hash chains, sums, addresses, and references between tables."""
    database = _open(path)
    try:
        # One view of the whole file, or a compaction during the check would look like missing events.
        database.run("BEGIN")
        gateway = database.row(SQL.gateway)
        if gateway is None:
            raise Refusal(Code.STORAGE_CORRUPT, f"{path} does not say which node it belongs to")
        checks = _Checks(database, progress)
        checks.add("file", lambda: [f"file: {row[0]}" for row in database.rows(_FILE_CHECK) if row[0] != "ok"])
        checks.add("reference", lambda: ledger_problems(database))
        outbox: list[tuple[int, int, int]] = []
        checks.add("outbox", lambda: _outbox_problems(database, gateway, checks, outbox))
        checks.add("inbox", lambda: inbox_problems(database, checks.step))
        checks.add("payload", lambda: payload_problems(database, checks.step))
        checks.add("mirror", lambda: mirror_problems(database, checks.step))
        checks.add("task", lambda: task_problems(database, gateway[0]))
        checks.add("dead letter", lambda: dead_letter_problems(database))
        count, first, last = outbox[0] if outbox else (0, 0, 0)
        return Report(
            node_id=gateway[0],
            epoch=gateway[1],
            schema_version=database.schema_version(),
            outbox_events=count,
            outbox_first_seq=first,
            outbox_last_seq=last,
            inbox_events=database.value(SQL.count_inbox),
            payloads=database.value(SQL.payload_usage),
            problems=tuple(checks.problems),
            remedies=tuple(checks.remedies),
        )
    finally:
        database.close()


def drop_damaged_payloads(path: Path) -> tuple[str, ...]:
    """Drop the damaged payloads that other gateways have, from a home whose gateway is stopped; gives which.

    The gateway fetches them again when it starts.
    """
    home = Home(path)
    if not home.exists():
        raise Refusal(Code.NOT_FOUND, f"there is no agentpost home at {path}", hint="Check the path.")
    home.lock()
    try:
        database = Database.open_writer(home.database)
        try:
            _expect_schema(database, path)
            database.renew_log()
            return _drop_damaged(database)
        finally:
            database.abandon()
    finally:
        home.unlock()


def _drop_damaged(database: Database) -> tuple[str, ...]:
    dropped = [
        each.sha256
        for each in all_payloads(database)
        if is_damaged(database, each) and payload_sources(database, each.sha256)
    ]
    database.begin()
    for address in dropped:
        database.run(SQL.drop_chunks, (address,))
        database.run(SQL.drop_blob, (address,))
    database.commit()
    return tuple(dropped)


class _Checks:
    """The checks of a home, one after the other: a damaged table does not keep the others from being looked at."""

    def __init__(self, database: Database, progress: Progress | None) -> None:
        self._database = database
        self._progress = progress
        self._done = 0
        self._total: int = sum(
            self._database.value(count) for count in (SQL.count_outbox, SQL.count_inbox, SQL.payload_usage)
        )
        self.problems: list[str] = []
        self.remedies: list[str] = []

    def step(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))

    def add(self, what: str, find: Callable[[], Iterable[str]]) -> None:
        """Look for problems of one kind, a hundred at the most."""
        found: list[str] = []
        try:
            for problem in find():
                found.append(problem)
                if len(found) > _MOST_PROBLEMS:
                    found.append(f"{what}: more than {_MOST_PROBLEMS} problems; the rest was not checked")
                    break
        except Exception as error:  # noqa: BLE001 - what is damaged may be anything: a text, a number, a structure
            message = error.message if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
            found.append(f"{what}: it cannot be read to the end ({message})")
        self.problems += found
        if found:
            self.remedies += [_REMEDIES[what]]


def _outbox_problems(
    database: Database, gateway: Row, checks: _Checks, measures: list[tuple[int, int, int]]
) -> Iterable[str]:
    count, first, last, problems = _check_chain(database, gateway[0], gateway[2], gateway[3], checks)
    measures.append((count, first, last))
    return problems


def _check_chain(
    database: Database, node_id: str, floor_seq: int, chain: bytes, checks: _Checks
) -> tuple[int, int, int, list[str]]:
    """Walk the outbox from its floor: no hole, no altered byte, no event of another node, each in its streams."""
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
        checks.step(len(rows))
        if len(problems) > _MOST_PROBLEMS:
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


def _file_of(path: Path) -> Path:
    return Home(path).database if path.is_dir() else path


def _open(path: Path) -> Database:
    file = _file_of(path)
    if not file.exists():
        raise Refusal(Code.NOT_FOUND, f"there is no agentpost home at {path}", hint="Check the path.")
    database = Database.open_reader(file)
    try:
        _expect_schema(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _expect_schema(database: Database, path: Path) -> None:
    found = database.schema_version()
    if found > len(migrations()):
        raise Refusal(Code.SCHEMA_TOO_NEW, f"{path} has schema {found}; this agentpost knows {len(migrations())}")
    if found < len(migrations()):
        raise Refusal(Code.CONFLICT, f"{path} has the older schema {found}", hint="Start its gateway once.")
