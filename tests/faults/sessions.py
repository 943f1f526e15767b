"""Sessions of agents outside the mesh, as a scenario: an invite, its exchange, refreshes, a reuse, a revocation."""

from agentpost.store.sqlite import SqliteStore
from agentpost.testing import START_MS
from tests.faults.playing import Operation, Scenario
from tests.store.test_external import GRACE_MS, a_session, a_token, an_entry, an_invite

__all__ = ["SESSIONS"]

_SESSION = a_session()
_OTHER = a_session(2)


def _invite(number: int) -> Operation:
    invite = an_invite(number)

    def check(store: SqliteStore) -> None:
        assert store.agent_invite(invite.invite_id) is not None

    return Operation(
        name=f"invite {number}",
        submit=lambda store: store.create_agent_invite(invite, audit=an_entry(f"invite {number}")),
        answer=None,
        leaves=check,
    )


def _open(number: int) -> Operation:
    session = a_session(number)

    def check(store: SqliteStore) -> None:
        used = store.agent_invite(session.invite_id)
        assert used is not None
        assert used.session_id == session.session_id
        assert store.agent_session(session.session_id) is not None
        assert store.refresh_token((100 * number).to_bytes(32)) is not None

    return Operation(
        name=f"open {number}",
        submit=lambda store: store.open_agent_session(
            session, a_token(100 * number, session), audit=an_entry(f"open {number}")
        ),
        answer=None,
        leaves=check,
    )


def _rotate(spent: int, new: int, *, at_ms: int, is_reuse: bool = False) -> Operation:
    def check(store: SqliteStore) -> None:
        if is_reuse:
            ended = store.agent_session(_SESSION.session_id)
            assert ended is not None
            assert ended.ended_by == "reuse"
        else:
            before = store.refresh_token(spent.to_bytes(32))
            assert before is not None
            assert before.successor_hash == new.to_bytes(32)
            assert store.refresh_token(new.to_bytes(32)) is not None

    return Operation(
        name=f"spend {spent} for {new}",
        submit=lambda store: store.rotate_refresh_token(
            spent.to_bytes(32),
            a_token(new, _SESSION, at_ms=at_ms),
            at_ms=at_ms,
            grace_ms=GRACE_MS,
            audit=an_entry(f"spend {spent}"),
            reuse_audit=an_entry(f"reuse {spent}"),
        ),
        answer=not is_reuse,
        leaves=check,
    )


def _revoke() -> Operation:
    def check(store: SqliteStore) -> None:
        ended = store.agent_session(_OTHER.session_id)
        assert ended is not None
        assert ended.ended_by == "operator"

    return Operation(
        name="revoke",
        submit=lambda store: store.end_agent_sessions(
            (_OTHER.session_id,),
            at_ms=START_MS + 5_000_000,
            by="operator",
            audit=(an_entry("revoke"),),
            withdraw_invites_of="codex",
        ),
        answer=None,
        leaves=check,
    )


SESSIONS = Scenario(
    name="sessions",
    before=(_invite(1),),
    groups=(
        (_open(1), _invite(2)),
        (_open(2), _rotate(100, 101, at_ms=START_MS + 1_000)),
        (_rotate(100, 102, at_ms=START_MS + 2_000),),
        (_rotate(102, 103, at_ms=START_MS + 3_600_000),),
        (_rotate(102, 104, at_ms=START_MS + 4_000_000, is_reuse=True), _revoke()),
    ),
    checkpoint_at_pages=25,
)
