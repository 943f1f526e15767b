"""Records that end: they are kept for a while, bounded, and then forgotten. What is open or in use stays."""

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import Unreadable
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.interface import Store
from agentpost.store.rules import MOST_QUARANTINED_BYTES, MOST_QUARANTINED_EVENTS
from agentpost.store.values import Acceptance, AuditEntry, Incident, KeyedAnswer, QuarantineSource
from agentpost.testing import START_MS, a_message
from tests.store import test_external as external
from tests.store import test_joining as joining
from tests.store.building import PEER, PEER_EPOCH, from_peer, incoming, refused

DAY_MS = 86_400_000
AUDIT = AuditEntry(at_ms=START_MS, actor="test", action="test")


async def quarantine(store: Store, *unreadable: Unreadable, source: str = PEER, at_ms: int = START_MS) -> None:
    """Read a batch of nothing but such events."""
    at = store.cursor(source)
    after = 0 if at is None else at.last_seq
    await store.accept(
        Acceptance(
            source_node_id=source,
            source_epoch=PEER_EPOCH,
            after_seq=after,
            through_seq=after + len(unreadable),
            unreadable=unreadable,
            at_ms=at_ms,
        )
    )


def bad(number: int, *, code: Code = Code.UNKNOWN_KIND, raw: bytes = b"poem") -> Unreadable:
    return Unreadable(raw=raw, refusal=Refusal(code, "what is that"), seq=number, event_id=f"evt_{number}")


def seqs(store: Store, source: str = PEER) -> list[int | None]:
    return [each.source_seq for each in store.quarantined(source_node_id=source, limit=10_000)]


@pytest.mark.req("ENV-6")
async def test_the_quarantine_of_a_source_is_bounded_in_events(store: Store) -> None:
    """A peer that sends rubbish for ever has so many events in the quarantine; the oldest go, and are counted."""
    for first in range(0, MOST_QUARANTINED_EVENTS + 300, 100):
        await quarantine(store, *(bad(first + at) for at in range(100)))
    await quarantine(store, bad(1), source="node-c")
    assert seqs(store) == list(range(300, MOST_QUARANTINED_EVENTS + 300))
    assert store.quarantine_sources() == [
        QuarantineSource(
            source_node_id=PEER,
            events=MOST_QUARANTINED_EVENTS,
            size_bytes=4 * MOST_QUARANTINED_EVENTS,
            dropped=300,
        ),
        QuarantineSource(source_node_id="node-c", events=1, size_bytes=4, dropped=0),
    ]


@pytest.mark.req("ENV-6")
async def test_the_quarantine_of_a_source_is_bounded_in_bytes(store: Store) -> None:
    """Large rubbish takes up no more room than much rubbish."""
    part = MOST_QUARANTINED_BYTES // 4
    for number in range(1, 7):
        await quarantine(store, bad(number, raw=bytes(part)))
    assert seqs(store) == [3, 4, 5, 6]
    assert store.quarantine_sources()[0].size_bytes <= MOST_QUARANTINED_BYTES


@pytest.mark.req("ENV-6")
async def test_an_event_that_is_sent_again_is_kept_once(store: Store) -> None:
    """Without an ACK its sender sends it ten times: the latest send is the one that is kept."""
    for number in (1, 2, 3):
        await quarantine(store, replace(bad(1), seq=number))
    assert seqs(store) == [3]


@pytest.mark.req("ENV-6")
async def test_incidents_are_raised_with_the_batch_that_they_are_about(store: Store) -> None:
    """One transaction: either the batch is taken and told, or neither."""
    told = Incident(kind=IncidentKind.MALFORMED_EVENTS, subject=PEER, at_ms=START_MS)
    batch = Acceptance(
        source_node_id=PEER,
        source_epoch=PEER_EPOCH,
        after_seq=0,
        through_seq=1,
        unreadable=(bad(1),),
        at_ms=START_MS,
        incidents=(told,),
    )
    with refused(Code.SEQUENCE_GAP):
        await store.accept(replace(batch, after_seq=5, through_seq=6))
    assert store.incidents() == []
    await store.accept(batch)
    assert [each.kind for each in store.incidents()] == ["malformed_events"]


@pytest.mark.req("ENV-6", "CUR-1")
async def test_what_leaves_the_quarantine_is_taken_once_and_moves_no_cursor(store: Store) -> None:
    """Inbox, ledger and ACK as for any mail; the cursor stays; one that came again meanwhile is no second mail."""
    await quarantine(store, bad(1), bad(2))
    first, second = (each.id for each in store.quarantined())
    late = from_peer(1)
    batch = Acceptance(
        source_node_id=PEER,
        source_epoch=PEER_EPOCH,
        after_seq=0,
        through_seq=0,
        events=(incoming(late),),
        at_ms=START_MS + 5,
    )
    taken = await store.accept_again(batch, quarantine_ids=(first,))
    assert taken.new == ((late.event_id, "ada"),)
    assert store.head().seq == 1
    again = await store.accept_again(batch, quarantine_ids=(second,))
    assert (again.new, again.repeated) == ((), ((late.event_id, "ada"),))
    assert [item.entry.event_id for item in store.backlog("ada")] == [late.event_id]
    cursor = store.cursor(PEER)
    assert cursor is not None
    assert cursor.last_seq == 2
    assert store.quarantined() == []


@pytest.mark.req("ENV-6")
async def test_closed_incidents_and_quarantined_events_are_forgotten_after_their_time(store: Store) -> None:
    """Open ones stay however old they are, and an id is never given twice."""
    for subject in ("a", "b", "c"):
        await store.raise_incident(Incident(kind="gap", subject=subject, at_ms=1))
    await store.close_incident("gap", "a", at_ms=10)
    await store.close_incident("gap", "c", at_ms=20)
    await quarantine(store, bad(1), at_ms=10)
    await quarantine(store, bad(2), at_ms=20)
    assert await store.prune_records(now_ms=0, before_ms=10) == 0
    assert await store.prune_records(now_ms=0, before_ms=11) == 2
    assert [each.subject for each in store.incidents(open_only=False)] == ["b", "c"]
    assert seqs(store) == [2]
    # The last incident stays for its id.
    await store.prune_records(now_ms=0, before_ms=DAY_MS)
    await store.raise_incident(Incident(kind="gap", subject="d", at_ms=1))
    assert [(each.id, each.subject) for each in store.incidents(open_only=False)] == [(2, "b"), (3, "c"), (4, "d")]
    await store.prune_records(now_ms=0, before_ms=DAY_MS)
    assert [each.id for each in store.incidents(open_only=False)] == [2, 4]


@pytest.mark.req("AUTH-2")
async def test_invites_that_were_used_withdrawn_or_not_taken_up_are_forgotten(store: Store) -> None:
    """One that is still open, or ended just now, stays; the node that joined stays in any case."""
    used, withdrawn, expired, open_ = (joining.an_invite(number) for number in (1, 2, 3, 4))
    for invite in (used, withdrawn, expired, replace(open_, expires_at_ms=START_MS + 10 * DAY_MS)):
        await store.create_invite(invite)
    await store.consume_invite_and_pin(used.invite_id, joining.a_node(invite_id=used.invite_id))
    await store.withdraw_invite(withdrawn.invite_id, at_ms=START_MS + 7)
    assert await store.prune_records(now_ms=0, before_ms=START_MS + 6) == 1
    assert await store.prune_records(now_ms=0, before_ms=START_MS + 8) == 1
    assert await store.prune_records(now_ms=0, before_ms=START_MS + DAY_MS) == 1
    assert [invite.invite_id for invite in store.invites()] == [open_.invite_id]
    assert store.known_node(PEER) is not None


@pytest.mark.req("EXT-2")
async def test_sessions_that_have_ended_are_forgotten_with_their_tokens(store: Store) -> None:
    """A live session stays, and so does the invite of it that ended just now; a token of the other is unknown then."""
    for number in (1, 2):
        session = external.a_session(number)
        await store.create_agent_invite(external.an_invite(number), audit=AUDIT)
        await store.open_agent_session(session, external.a_token(number, session), audit=AUDIT)
    ended = external.a_session(1).session_id
    await store.end_agent_sessions((ended,), at_ms=START_MS + 100, by="operator", audit=(AUDIT,))
    before_ms = START_MS + 101
    # Two invites, a session and its token.
    assert await store.prune_records(now_ms=0, before_ms=before_ms) == 4
    assert [session.session_id for session in store.agent_sessions()] == [external.a_session(2).session_id]
    assert store.refresh_token((1).to_bytes(32)) is None
    assert store.refresh_token((2).to_bytes(32)) is not None
    assert await store.prune_records(now_ms=0, before_ms=before_ms) == 0


@pytest.mark.req("RTY-3")
async def test_idempotency_keys_are_forgotten_when_they_expire(store: Store) -> None:
    """By their own time, whatever the retention of other records."""
    keyed = KeyedAnswer(agent_id="ada", key=b"k" * 32, request=b"r", answer=b"a", at_ms=0, expires_at_ms=100)
    await store.append([a_message(1)], keyed=keyed)
    assert await store.prune_records(now_ms=99, before_ms=0) == 0
    assert await store.prune_records(now_ms=100, before_ms=0) == 1
    assert store.kept_answer("ada", keyed.key) is None


@pytest.mark.req("ENV-6")
async def test_pruning_goes_in_steps(store: Store) -> None:
    """So many of each at a time, the oldest first."""
    for number in range(1, 6):
        await quarantine(store, bad(number), at_ms=number)
    assert await store.prune_records(now_ms=0, before_ms=DAY_MS, limit=2) == 2
    assert seqs(store) == [3, 4, 5]
