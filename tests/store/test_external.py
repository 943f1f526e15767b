"""Agents outside the mesh in the store: what is used up together, refused together, and kept over a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentpost.protocol.errors import Code
from agentpost.protocol.ids import FamilyId, InviteId, SessionId, UlidSource
from agentpost.store.external_values import AgentInvite, AgentSession, RefreshToken
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry
from agentpost.testing import START_MS
from tests.store.building import open_sqlite, refused

DAY_MS = 86_400_000
GRACE_MS = 20_000


def an_id(kind: Any, number: int) -> Any:
    return UlidSource().make(kind, now_ms=START_MS + number, entropy=bytes(10))


def an_entry(action: str = "tested", **fields: Any) -> AuditEntry:
    return AuditEntry(at_ms=START_MS, actor="operator", action=action, **fields)


def an_invite(number: int = 1, **fields: Any) -> AgentInvite:
    settings: dict[str, Any] = {
        "invite_id": an_id(InviteId, number),
        "token_hash": number.to_bytes(32),
        "agent_id": "codex",
        "scopes": ("ansible.message.read", "ansible.message.send"),
        "origins": ("https://app.example",),
        "created_by": "operator",
        "created_at_ms": START_MS,
        "expires_at_ms": START_MS + 900_000,
    }
    return AgentInvite(**settings | fields)


def a_session(number: int = 1, **fields: Any) -> AgentSession:
    settings: dict[str, Any] = {
        "session_id": an_id(SessionId, number),
        "family_id": an_id(FamilyId, number),
        "agent_id": "codex",
        "invite_id": an_id(InviteId, number),
        "scopes": ("ansible.message.read",),
        "key_thumbprint": "thumb",
        "created_at_ms": START_MS + 10,
        "refreshed_at_ms": START_MS + 10,
        "expires_at_ms": START_MS + DAY_MS,
    }
    return AgentSession(**settings | fields)


def a_token(name: int, session: AgentSession, *, at_ms: int = START_MS + 10) -> RefreshToken:
    return RefreshToken(
        token_hash=name.to_bytes(32), session_id=session.session_id, issued_at_ms=at_ms, expires_at_ms=at_ms + DAY_MS
    )


async def opened(store: Store, number: int = 1, **fields: Any) -> AgentSession:
    session = a_session(number, **fields)
    await store.create_agent_invite(an_invite(number), audit=an_entry("invited"))
    await store.open_agent_session(session, a_token(100 * number, session), audit=an_entry("opened"))
    return session


async def rotate(store: Store, spent: int, new: int, session: AgentSession, *, at_ms: int) -> bool:
    return await store.rotate_refresh_token(
        spent.to_bytes(32),
        a_token(new, session, at_ms=at_ms),
        at_ms=at_ms,
        grace_ms=GRACE_MS,
        audit=an_entry("rotated"),
        reuse_audit=an_entry("reused"),
    )


@pytest.mark.req("EXT-2")
async def test_an_invite_is_used_up_by_the_session_it_opens(store: Store) -> None:
    """It comes back as it was given; after the session it says which that was, and opens no other."""
    invite = an_invite(max_sessions=3)
    await store.create_agent_invite(invite, audit=an_entry())
    assert store.agent_invite_by_hash(invite.token_hash) == invite == store.agent_invite(invite.invite_id)
    with refused(Code.CONFLICT):
        await store.create_agent_invite(invite, audit=an_entry())
    session = a_session()
    await store.open_agent_session(session, a_token(1, session), audit=an_entry())
    used = store.agent_invite(invite.invite_id)
    assert used is not None
    assert (used.consumed_at_ms, used.session_id) == (session.created_at_ms, session.session_id)
    again = a_session(2, invite_id=invite.invite_id)
    with refused(Code.INVITE_USED):
        await store.open_agent_session(again, a_token(2, again), audit=an_entry("never"))
    assert store.agent_session(again.session_id) is None
    assert store.refresh_token((2).to_bytes(32)) is None
    assert "never" not in [entry.action for entry in store.audit_log()]


@pytest.mark.req("EXT-2")
async def test_of_many_sessions_for_one_invite_one_is_opened(store: Store) -> None:
    """All ask at once; the store decides."""
    await store.create_agent_invite(an_invite(), audit=an_entry())
    sessions = [a_session(number, invite_id=an_invite().invite_id) for number in range(1, 9)]
    asked = [store.open_agent_session(each, a_token(9, each), audit=an_entry()) for each in sessions]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1
    assert len(store.agent_sessions(agent_id="codex")) == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"agent_id": "claude"}, Code.INVALID_INVITE),
        ({"invite_id": an_id(InviteId, 77)}, Code.INVALID_INVITE),
    ],
)
async def test_a_session_needs_its_own_invite(store: Store, fields: dict[str, Any], code: Code) -> None:
    """Neither another agent's nor one that is not there."""
    await store.create_agent_invite(an_invite(), audit=an_entry())
    session = a_session(**fields)
    with refused(code):
        await store.open_agent_session(session, a_token(1, session), audit=an_entry())
    assert store.agent_sessions() == []


async def test_sessions_that_have_ended_do_not_count_against_the_limit(store: Store) -> None:
    """Two at most: the third has to wait until one was ended, or has expired."""
    first = await opened(store, 1)
    await opened(store, 2)
    await store.create_agent_invite(an_invite(3, max_sessions=2), audit=an_entry())
    third = a_session(3)
    with refused(Code.SCOPE_DENIED):
        await store.open_agent_session(third, a_token(3, third), audit=an_entry())
    await store.end_agent_sessions((first.session_id,), at_ms=START_MS, by="operator", audit=())
    await store.open_agent_session(third, a_token(3, third), audit=an_entry())


@pytest.mark.req("EXT-2")
async def test_a_refresh_token_is_spent_for_its_successor(store: Store) -> None:
    """The session lives for as long as the new one; the old one, later, ends it for everybody."""
    session = await opened(store)
    at_ms = START_MS + 3_600_000
    assert await rotate(store, 100, 101, session, at_ms=at_ms)
    found = store.agent_session(session.session_id)
    assert found is not None
    assert (found.refreshed_at_ms, found.expires_at_ms) == (at_ms, at_ms + DAY_MS)
    assert await rotate(store, 101, 102, session, at_ms=at_ms + 1)
    assert not await rotate(store, 100, 103, session, at_ms=at_ms + 2)
    ended = store.agent_session(session.session_id)
    assert ended is not None
    assert (ended.ended_at_ms, ended.ended_by) == (at_ms + 2, "reuse")
    assert store.refresh_token((103).to_bytes(32)) is None
    with refused(Code.INVALID_REFRESH_TOKEN):
        await rotate(store, 102, 104, session, at_ms=at_ms + 3)
    assert [entry.action for entry in store.audit_log()][-3:] == ["rotated", "rotated", "reused"]


@pytest.mark.req("EXT-2")
async def test_a_successor_that_is_asked_for_again_is_not_given_twice(store: Store) -> None:
    """Who spends a token for the same unused one again is told so and gets nothing; once that is used it is theft."""
    session = await opened(store)
    other = await opened(store, 2)
    assert await rotate(store, 100, 101, session, at_ms=START_MS + 1_000)
    before = store.agent_session(session.session_id), store.refresh_token((101).to_bytes(32)), store.audit_log()
    for at_ms in (START_MS + 1_001, START_MS + 1_000 + 100 * GRACE_MS):
        with refused(Code.CONFLICT):
            await rotate(store, 100, 101, session, at_ms=at_ms)
        # Nor is one that is somebody's already.
        with refused(Code.INVALID_FIELD):
            await rotate(store, 200, 101, other, at_ms=at_ms)
    assert before == (
        store.agent_session(session.session_id),
        store.refresh_token((101).to_bytes(32)),
        store.audit_log(),
    )
    at_ms = START_MS + 1_000 + 200 * GRACE_MS
    assert await rotate(store, 101, 102, session, at_ms=at_ms)
    assert not await rotate(store, 100, 101, session, at_ms=at_ms + 1)


@pytest.mark.req("EXT-2")
async def test_a_lost_answer_is_made_up_for_within_the_grace(store: Store) -> None:
    """Again and again, as long as nobody used what got lost; that is void, and whoever uses it ends the session."""
    session = await opened(store)
    at_ms = START_MS + 1_000
    assert await rotate(store, 100, 101, session, at_ms=at_ms)
    assert await rotate(store, 100, 102, session, at_ms=at_ms + GRACE_MS)
    # A clock that was set back makes no thief of anybody.
    assert await rotate(store, 100, 103, session, at_ms=at_ms - 5)
    assert await rotate(store, 103, 104, session, at_ms=at_ms + 5)
    assert not await rotate(store, 101, 105, session, at_ms=at_ms + 6)
    with refused(Code.INVALID_REFRESH_TOKEN):
        await rotate(store, 104, 106, session, at_ms=at_ms + 7)


@pytest.mark.parametrize("late_ms", [GRACE_MS + 1, 3_600_000])
async def test_after_the_grace_a_repeat_is_a_reuse(store: Store, late_ms: int) -> None:
    """Also if nobody used the successor: a client that works does not wait that long."""
    session = await opened(store)
    assert await rotate(store, 100, 101, session, at_ms=START_MS + 1_000)
    assert not await rotate(store, 100, 102, session, at_ms=START_MS + 1_000 + late_ms)


async def test_what_has_expired_or_is_unknown_is_not_rotated(store: Store) -> None:
    """An unknown token, one that is too old, one of a session that has ended."""
    session = await opened(store)
    with refused(Code.INVALID_REFRESH_TOKEN):
        await rotate(store, 999, 101, session, at_ms=START_MS + 1_000)
    with refused(Code.INVALID_REFRESH_TOKEN):
        await rotate(store, 100, 101, session, at_ms=START_MS + 2 * DAY_MS)
    await store.end_agent_sessions((session.session_id,), at_ms=START_MS, by="operator", audit=())
    with refused(Code.INVALID_REFRESH_TOKEN):
        await rotate(store, 100, 101, session, at_ms=START_MS + 1_000)


@pytest.mark.req("EXT-2")
async def test_sessions_end_together_with_the_open_invites(store: Store) -> None:
    """The first word about the end of a session stays; used invites and those of others stay as they are."""
    session, other = await opened(store, 1), await opened(store, 2, session_id=an_id(SessionId, 2))
    await store.create_agent_invite(an_invite(3), audit=an_entry())
    await store.create_agent_invite(an_invite(4, agent_id="claude"), audit=an_entry())
    for at_ms, by in ((START_MS + 1, "operator"), (START_MS + 2, "somebody")):
        await store.end_agent_sessions(
            (session.session_id,), at_ms=at_ms, by=by, audit=(an_entry("ended"),), withdraw_invites_of="codex"
        )
    ended = store.agent_session(session.session_id)
    assert ended is not None
    assert (ended.ended_at_ms, ended.ended_by) == (START_MS + 1, "operator")
    assert store.agent_session(other.session_id) == other == store.agent_session_by_family(other.family_id)
    withdrawn = [store.agent_invite(an_id(InviteId, number)) for number in (1, 3, 4)]
    assert [invite and invite.withdrawn_at_ms for invite in withdrawn] == [None, START_MS + 1, None]
    late = a_session(3)
    with refused(Code.INVALID_INVITE):
        await store.open_agent_session(late, a_token(9, late), audit=an_entry())


async def test_sessions_are_listed_from_the_newest(store: Store) -> None:
    """Of one agent or of all, as many as one asks for."""
    made = [await opened(store, number) for number in range(1, 4)]
    assert store.agent_sessions() == made[::-1]
    assert store.agent_sessions(agent_id="codex", limit=1) == [made[2]]
    assert store.agent_sessions(agent_id="claude") == []


@pytest.mark.req("EXT-2")
async def test_a_new_key_retires_the_one_before(store: Store) -> None:
    """Numbers only grow, also after the others were dropped."""
    numbers = [
        (await store.add_token_key(at_ms=START_MS + n, drop_others=False, audit=an_entry())).number for n in (1, 2)
    ]
    assert numbers == [1, 2]
    assert [key.retired_at_ms for key in store.token_keys()] == [START_MS + 2, None]
    assert (await store.add_token_key(at_ms=START_MS + 3, drop_others=True, audit=an_entry())).number == 3
    assert [key.number for key in store.token_keys()] == [3]


@pytest.mark.req("OBS-10")
async def test_the_audit_of_a_session_and_of_a_conversation(store: Store) -> None:
    """All of it, in its order, page by page."""
    for number in range(6):
        entry = an_entry(f"step {number}", session_id=f"ses_{number % 2}", corr_id="corr_1" if number > 2 else None)
        await store.record_audit([entry])
    assert [entry.action for entry in store.audit_of(session_id="ses_1")] == ["step 1", "step 3", "step 5"]
    assert [entry.action for entry in store.audit_of(corr_id="corr_1")] == ["step 3", "step 4", "step 5"]
    both = store.audit_of(session_id="ses_1", corr_id="corr_1")
    assert [entry.action for entry in both] == ["step 3", "step 5"]
    (first,) = store.audit_of(session_id="ses_1", limit=1)
    assert [entry.action for entry in store.audit_of(session_id="ses_1", after_id=first.id)] == ["step 3", "step 5"]
    assert store.audit_of(session_id="ses_9") == []


@pytest.mark.req("OBS-10")
async def test_a_page_of_a_conversation_within_a_session_is_full(store: Store) -> None:
    """A limit counts what was asked for, not what else happened in the session; pages follow each other."""
    entries = [an_entry(f"step {n}", session_id="ses_1", corr_id=f"corr_{n % 50}") for n in range(150)]
    await store.record_audit([*entries, an_entry("elsewhere", session_id="ses_2", corr_id="corr_49")])
    page = store.audit_of(session_id="ses_1", corr_id="corr_49", limit=2)
    assert [entry.action for entry in page] == ["step 49", "step 99"]
    rest = store.audit_of(session_id="ses_1", corr_id="corr_49", limit=2, after_id=page[-1].id)
    assert [entry.action for entry in rest] == ["step 149"]


@pytest.mark.req("EXT-4")
async def test_it_is_all_there_after_a_restart(home: Path) -> None:
    """Sessions, spent tokens and keys: what was answered is on the disk."""
    store = open_sqlite(home)
    session = await opened(store)
    assert await rotate(store, 100, 101, session, at_ms=START_MS + 1_000)
    await store.add_token_key(at_ms=START_MS, drop_others=False, audit=an_entry())
    before = (store.agent_sessions(), store.refresh_token((100).to_bytes(32)), store.token_keys(), store.audit_log())
    await store.close()
    store = open_sqlite(home)
    found = (store.agent_sessions(), store.refresh_token((100).to_bytes(32)), store.token_keys(), store.audit_log())
    assert found == before
    await store.close()
