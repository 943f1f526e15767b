"""What a home keeps beside its outbox, held against its hashes and its sources: payloads, mail, mirrors, tasks.

Each check reads its table to the end and gives a sentence for each row that is not what it was. Nothing is changed.
"""

from collections.abc import Callable, Iterator
from typing import Final

from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.heads import decode_head, next_chain
from agentpost.store.blobs import is_damaged, payloads
from agentpost.store.database import Database, Row
from agentpost.store.mirrors import mirrors
from agentpost.store.payload_names import payload_sources
from agentpost.store.queries import SQL
from agentpost.store.rebuilding import differing_tasks
from agentpost.store.sums import inbox_head, inbox_seed, inbox_sum, task_event_sum
from agentpost.store.values import CHAIN_START, Blob, MirrorPosition

__all__ = [
    "all_payloads",
    "dead_letter_problems",
    "inbox_problems",
    "ledger_problems",
    "mirror_problems",
    "payload_problems",
    "task_problems",
]

_ROWS_A_STEP: Final = 1_000
_MOST_ORPHANS: Final = 20

Step = Callable[[int], None]


def inbox_problems(database: Database, step: Step) -> Iterator[str]:
    """Mail that was taken: each row by the sum that was made of it when it came."""
    for rows in _pages(database, SQL.check_inbox, 0):
        for seq, event_id, source, epoch, source_seq, at_ms, corr_id, body, total in rows:
            if total is None:
                is_whole = _holds(body, event_id, source)
            else:
                head = inbox_head(event_id, seq, source_seq, corr_id)
                is_whole = total == inbox_sum(inbox_seed(source, epoch, at_ms), head, body)
            if not is_whole:
                waiting = [row[0] for row in database.rows(SQL.open_agents_of_event, (event_id,))]
                for_whom = f", which {', '.join(waiting)} has not settled" if waiting else ", which is settled"
                yield f"inbox: {event_id} of {source}{for_whom}, is damaged"
        step(len(rows))


def _holds(body: bytes, event_id: str, source: str) -> bool:
    try:
        event = decode_event(body)
    except Refusal:
        return False
    return (event.event_id, event.source_node_id) == (event_id, source)


def ledger_problems(database: Database) -> Iterator[str]:
    for event_id, agent_id in database.rows(SQL.ledger_without_inbox, (_MOST_ORPHANS,)):
        yield f"reference: ledger: {event_id} for {agent_id} is open and its event is gone"
    for event_id, agent_id in database.rows(SQL.ledger_of_other_event, (_MOST_ORPHANS,)):
        yield f"reference: ledger: {event_id} for {agent_id} stands at the place of another event"


def dead_letter_problems(database: Database) -> Iterator[str]:
    """Events that left the outbox and are kept to be sent again."""
    for rows in _pages(database, SQL.check_dead_letter_events, ""):
        for event_id, seq, body in rows:
            try:
                event = decode_event(body)
                is_whole = (event.event_id, event.seq) == (event_id, seq)
            except Refusal:
                is_whole = False
            if not is_whole:
                yield f"dead letter: {event_id} is damaged"


def payload_problems(database: Database, step: Step) -> Iterator[str]:
    """Payloads whose bytes are not those of their address (PIPE-5)."""
    for each in all_payloads(database):
        step(1)
        if is_damaged(database, each):
            sources = payload_sources(database, each.sha256)
            whose = f"of {', '.join(sources)}" if sources else "of this gateway"
            yield f"payload: {each.sha256} {whose} ({each.size_bytes:,} bytes) is damaged"
    for (address,) in database.rows(SQL.chunks_without_blob, (_MOST_ORPHANS,)):
        yield f"payload: {address} has chunks and no measures"


def all_payloads(database: Database) -> Iterator[Blob]:
    after = ""
    while found := payloads(database, after, _ROWS_A_STEP):
        yield from found
        after = found[-1].sha256


def mirror_problems(database: Database, step: Step) -> Iterator[str]:
    """The outboxes of others: the chain over each, the streams of its readers, and the heads that its owner signed."""
    for source, seq in database.rows(SQL.events_without_mirror, (_MOST_ORPHANS,)):
        yield f"mirror of {source}: seq {seq} belongs to no mirror"
    for mirror in mirrors(database):
        yield from _chain_problems(database, mirror, step)
        yield from _reader_problems(database, mirror)
        yield from _head_problems(database, mirror)


def _chain_problems(database: Database, mirror: MirrorPosition, step: Step) -> Iterator[str]:
    whose, expected, chain = f"mirror of {mirror.source_node_id}", mirror.floor_seq, mirror.floor_chain
    while rows := database.rows(SQL.mirror_slice, (mirror.source_node_id, expected, expected + _ROWS_A_STEP)):
        for seq, stored, body in rows:
            if seq != expected + 1:
                yield f"{whose}: seq {expected + 1} to {seq - 1} are missing"
            elif next_chain(chain, body) != stored:
                yield f"{whose}: the hash chain breaks at seq {seq}"
            expected, chain = seq, stored
        step(len(rows))
    if (expected, chain) != (mirror.last_seq, mirror.last_chain):
        yield f"{whose}: it ends at seq {expected}, not at seq {mirror.last_seq} as it should"


def _reader_problems(database: Database, mirror: MirrorPosition) -> Iterator[str]:
    whose, source = f"mirror of {mirror.source_node_id}", mirror.source_node_id
    reader, seq = "", 0
    # Of a stream that was pruned the chain before its first event is not kept.
    chain: bytes | None = None
    while rows := database.rows(SQL.check_mirror_streams, (source, reader, seq, _ROWS_A_STEP)):
        for next_reader, seq, stored, body in rows:
            if next_reader != reader:
                reader, chain = next_reader, None if mirror.floor_seq else CHAIN_START
            if body is None:
                yield f"{whose}: seq {seq} of the stream of {reader} has no event"
            elif chain is not None and next_chain(chain, body) != stored:
                yield f"{whose}: the hash chain of the stream of {reader} breaks at seq {seq}"
            chain = stored


def _head_problems(database: Database, mirror: MirrorPosition) -> Iterator[str]:
    source, at = mirror.source_node_id, 0
    while rows := database.rows(SQL.check_mirror_heads, (source, at, _ROWS_A_STEP)):
        for seq, raw in rows:
            at = seq
            try:
                head = decode_head(raw)
            except Refusal:
                yield f"mirror of {source}: the head at seq {seq} cannot be read"
                continue
            chain = database.value(SQL.mirror_chain_at, (source, seq))
            is_of_mirror = (head.node_id, head.epoch, head.seq) == (source, mirror.epoch, seq)
            # The signature over it is for its readers to check: the keys of others are not kept here.
            if not is_of_mirror or chain not in (None, head.chain):
                yield f"mirror of {source}: the head at seq {seq} is not that of its events"


def task_problems(database: Database, node_id: str) -> Iterator[str]:
    """The events of tasks by their sums, and against outbox and inbox where these still have them; then the tasks."""
    is_damaged = False
    for rows in _pages(database, SQL.check_task_events, 0):
        for _place, task_id, event_id, is_own, at_ms, body, total in rows:
            expected = task_event_sum(task_id, event_id, is_own=bool(is_own), at_ms=at_ms, body=body)
            if total not in (None, expected) or not _is_that_of_source(database, event_id, bool(is_own), body):
                is_damaged = True
                yield f"task event: {event_id} of {task_id} is damaged"
    if not is_damaged:
        # From damaged events no task can be made to compare with.
        for task_id in differing_tasks(database, node_id):
            yield f"task: {task_id} is not what its events make of it"


def _is_that_of_source(database: Database, event_id: str, is_own: bool, body: bytes) -> bool:
    """Whether outbox or inbox has the same bytes, or has forgotten the event."""
    if not is_own:
        found: bytes | None = database.value(SQL.body_in_inbox, (event_id,))
        return found in (None, body)
    bodies = [row[1] for row in database.rows(SQL.bodies_in_outbox, (event_id,))]
    # What was sent again stands in the outbox with another seq: only the first send is kept for its task.
    return body in bodies or decode_event(body).seq not in [decode_event(each).seq for each in bodies]


def _pages(database: Database, statement: str, after: object) -> Iterator[list[Row]]:
    while rows := database.rows(statement, (after, _ROWS_A_STEP)):
        yield rows
        after = rows[-1][0]
