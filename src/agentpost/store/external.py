"""Agents outside the mesh on the disk. What is refused is in `external_rules`; who asks, and why, is not known here."""

from collections.abc import Sequence

from agentpost.protocol.ids import FamilyId, InviteId, SessionId
from agentpost.store.auditing import record_audit
from agentpost.store.database import Database, Row
from agentpost.store.external_rules import (
    Turn,
    check_new_agent_invite,
    check_new_refresh_token,
    check_usable,
    turn_of,
)
from agentpost.store.external_values import AgentInvite, AgentSession, RefreshToken, TokenKey
from agentpost.store.queries import SQL
from agentpost.store.transaction import Transaction
from agentpost.store.values import AuditEntry

__all__ = [
    "add_token_key",
    "agent_invite",
    "agent_invite_by_hash",
    "agent_session",
    "agent_session_by_family",
    "agent_sessions",
    "create_agent_invite",
    "end_agent_sessions",
    "open_agent_session",
    "refresh_token",
    "rotate_refresh_token",
    "token_keys",
]


def create_agent_invite(tx: Transaction, new: AgentInvite, audit: AuditEntry) -> None:
    found = agent_invite(tx.database, new.invite_id) or agent_invite_by_hash(tx.database, new.token_hash)
    check_new_agent_invite(found)
    tx.database.run(
        SQL.create_agent_invite,
        (
            new.invite_id,
            new.token_hash,
            new.agent_id,
            " ".join(new.scopes),
            " ".join(new.origins),
            new.max_sessions,
            new.created_by,
            new.created_at_ms,
            new.expires_at_ms,
        ),
    )
    record_audit(tx, [audit])


def open_agent_session(tx: Transaction, session: AgentSession, refresh: RefreshToken, audit: AuditEntry) -> None:
    # The invite is used up by whoever comes first, in the commit that opens the session.
    at_ms = session.created_at_ms
    live = _number(tx.database.row(SQL.count_live_sessions, (session.agent_id, at_ms)))
    invite = check_usable(agent_invite(tx.database, session.invite_id), session, live_sessions=live)
    check_new_refresh_token(refresh_token(tx.database, refresh.token_hash), field="refreshToken")
    tx.database.run(SQL.consume_agent_invite, (at_ms, session.session_id, invite.invite_id))
    tx.database.run(
        SQL.create_agent_session,
        (
            session.session_id,
            session.family_id,
            session.agent_id,
            session.invite_id,
            " ".join(session.scopes),
            " ".join(session.origins),
            session.key_thumbprint,
            at_ms,
            session.refreshed_at_ms,
            session.expires_at_ms,
        ),
    )
    tx.database.run(SQL.forget_refresh_tokens, (at_ms,))
    _add(tx, refresh)
    record_audit(tx, [audit])


def rotate_refresh_token(
    tx: Transaction,
    token_hash: bytes,
    successor: RefreshToken,
    *,
    at_ms: int,
    grace_ms: int,
    audit: AuditEntry,
    reuse_audit: AuditEntry,
) -> bool:
    token = refresh_token(tx.database, token_hash)
    last = None if token is None or token.successor_hash is None else refresh_token(tx.database, token.successor_hash)
    session = None if token is None else agent_session(tx.database, token.session_id)
    turn = turn_of(token, last, session, wanted_hash=successor.token_hash, at_ms=at_ms, grace_ms=grace_ms)
    if turn is Turn.REUSE:
        end_agent_sessions(tx, (successor.session_id,), at_ms=at_ms, by=Turn.REUSE.value, audit=(reuse_audit,))
        return False
    check_new_refresh_token(refresh_token(tx.database, successor.token_hash))
    if turn is Turn.REPLACE and last is not None:
        tx.database.run(SQL.spend_refresh_token, (at_ms, None, last.token_hash))
    spent_at_ms = at_ms if token is None or token.spent_at_ms is None else token.spent_at_ms
    tx.database.run(SQL.spend_refresh_token, (spent_at_ms, successor.token_hash, token_hash))
    _add(tx, successor)
    tx.database.run(SQL.refresh_agent_session, (at_ms, successor.expires_at_ms, successor.session_id))
    tx.database.run(SQL.forget_refresh_tokens, (at_ms,))
    record_audit(tx, [audit])
    return True


def end_agent_sessions(
    tx: Transaction,
    session_ids: Sequence[SessionId],
    *,
    at_ms: int,
    by: str,
    audit: Sequence[AuditEntry],
    withdraw_invites_of: str | None = None,
) -> None:
    for session_id in session_ids:
        tx.database.run(SQL.end_agent_session, (at_ms, by, session_id))
    if withdraw_invites_of is not None:
        tx.database.run(SQL.withdraw_agent_invites, (at_ms, withdraw_invites_of))
    record_audit(tx, audit)


def add_token_key(tx: Transaction, *, at_ms: int, drop_others: bool, audit: AuditEntry) -> TokenKey:
    known = token_keys(tx.database)
    number = known[-1].number + 1 if known else 1
    tx.database.run(SQL.retire_token_keys, (at_ms,))
    if drop_others:
        tx.database.run(SQL.drop_token_keys, (number,))
    tx.database.run(SQL.add_token_key, (number, at_ms))
    record_audit(tx, [audit])
    return TokenKey(number=number, made_at_ms=at_ms)


def agent_invite_by_hash(database: Database, token_hash: bytes) -> AgentInvite | None:
    row = database.row(SQL.agent_invite_by_hash, (token_hash,))
    return None if row is None else _invite(row)


def agent_invite(database: Database, invite_id: InviteId) -> AgentInvite | None:
    row = database.row(SQL.agent_invite, (invite_id,))
    return None if row is None else _invite(row)


def agent_session(database: Database, session_id: SessionId) -> AgentSession | None:
    row = database.row(SQL.agent_session, (session_id,))
    return None if row is None else _session(row)


def agent_session_by_family(database: Database, family_id: FamilyId) -> AgentSession | None:
    row = database.row(SQL.agent_session_by_family, (family_id,))
    return None if row is None else _session(row)


def agent_sessions(database: Database, agent_id: str | None, limit: int) -> list[AgentSession]:
    if agent_id is None:
        return [_session(row) for row in database.rows(SQL.agent_sessions, (limit,))]
    return [_session(row) for row in database.rows(SQL.agent_sessions_of, (agent_id, limit))]


def refresh_token(database: Database, token_hash: bytes) -> RefreshToken | None:
    row = database.row(SQL.refresh_token, (token_hash,))
    if row is None:
        return None
    return RefreshToken(
        token_hash=row[0],
        session_id=row[1],
        issued_at_ms=row[2],
        expires_at_ms=row[3],
        spent_at_ms=row[4],
        successor_hash=row[5],
    )


def token_keys(database: Database) -> list[TokenKey]:
    rows = database.rows(SQL.token_keys)
    return [TokenKey(number=row[0], made_at_ms=row[1], retired_at_ms=row[2]) for row in rows]


def _add(tx: Transaction, token: RefreshToken) -> None:
    values = (token.token_hash, token.session_id, token.issued_at_ms, token.expires_at_ms)
    tx.database.run(SQL.create_refresh_token, values)


def _number(row: Row | None) -> int:
    return 0 if row is None else row[0]


def _invite(row: Row) -> AgentInvite:
    return AgentInvite(
        invite_id=row[0],
        token_hash=row[1],
        agent_id=row[2],
        scopes=tuple(row[3].split()),
        origins=tuple(row[4].split()),
        max_sessions=row[5],
        created_by=row[6],
        created_at_ms=row[7],
        expires_at_ms=row[8],
        consumed_at_ms=row[9],
        session_id=row[10],
        withdrawn_at_ms=row[11],
    )


def _session(row: Row) -> AgentSession:
    return AgentSession(
        session_id=row[0],
        family_id=row[1],
        agent_id=row[2],
        invite_id=row[3],
        scopes=tuple(row[4].split()),
        origins=tuple(row[5].split()),
        key_thumbprint=row[6],
        created_at_ms=row[7],
        refreshed_at_ms=row[8],
        expires_at_ms=row[9],
        ended_at_ms=row[10],
        ended_by=row[11],
    )
