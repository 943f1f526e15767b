"""What is written down of agents outside the mesh: actor, scope, operation, session, conversation. Never a secret.

A call leaves two entries: `agent.invoked` before anything happens, `agent.answered` with what came of it.
"""

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentpost.auth.external.refusals import Unproven
from agentpost.auth.signing import TOKEN_PREFIX
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import SessionId
from agentpost.store.external_values import AgentInvite, AgentSession
from agentpost.store.values import AuditEntry

__all__ = ["Attempt", "answered", "exchanged", "invited", "invoked", "key_rotated", "refreshed", "refused", "revoked"]

# What somebody says of himself before he has proven anything is no actor.
_ANONYMOUS: Final = "anonymous"
# Forms that no token has, and that cannot break a line: what fits neither is left out.
_is_operation = re.compile(r"[a-z][a-z_-]{0,63}|a2a\.[A-Za-z]{1,40}").fullmatch
_is_agent_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}").fullmatch


class Attempt(Struct, kw_only=True):
    """A call while it is judged: what is known of it so far. `is_proven` once the caller has shown the key."""

    operation: str
    address: str
    agent_id: str | None = None
    session_id: SessionId | None = None
    scope: str | None = None
    corr_id: str | None = None
    is_proven: bool = False


def invited(invite: AgentInvite, *, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=invite.created_by,
        action="agent.invited",
        subject=invite.agent_id,
        detail={"inviteId": invite.invite_id, "scope": " ".join(invite.scopes), "expiresAtMs": invite.expires_at_ms},
    )


def exchanged(session: AgentSession, *, address: str) -> AuditEntry:
    return AuditEntry(
        at_ms=session.created_at_ms,
        actor=session.agent_id,
        action="agent.exchanged",
        session_id=session.session_id,
        detail={
            "operation": "exchange",
            "scope": " ".join(session.scopes),
            "inviteId": session.invite_id,
            "familyId": session.family_id,
            "address": address,
        },
    )


def refreshed(session: AgentSession, *, address: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=session.agent_id,
        action="agent.refreshed",
        session_id=session.session_id,
        detail={"operation": "refresh", "scope": " ".join(session.scopes), "address": address},
    )


def invoked(attempt: Attempt, *, at_ms: int) -> AuditEntry:
    """Written before the operation begins, so that none can happen unseen."""
    return _entry(attempt, "agent.invoked", {}, at_ms=at_ms)


def answered(attempt: Attempt, *, refusal: Refusal | None = None, corr_id: str | None = None, at_ms: int) -> AuditEntry:
    code = "ok" if refusal is None else refusal.code.value
    entry = _entry(attempt, "agent.answered", {"code": code}, at_ms=at_ms)
    return entry if corr_id is None else replace(entry, corr_id=corr_id)


def refused(attempt: Attempt, refusal: Refusal, *, at_ms: int) -> AuditEntry:
    # The sentence of another refusal may quote what was sent, which may be anything.
    reason = refusal.message if isinstance(refusal, Unproven) else None
    return _entry(attempt, "agent.refused", {"code": refusal.code.value, "reason": reason}, at_ms=at_ms)


def revoked(session: AgentSession, *, by: str, reason: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=by,
        action="agent.revoked",
        subject=session.agent_id,
        session_id=session.session_id,
        detail={"reason": reason, "familyId": session.family_id},
    )


def key_rotated(*, by: str, dropped: bool, at_ms: int) -> AuditEntry:
    return AuditEntry(at_ms=at_ms, actor=by, action="agent.key_rotated", detail={"dropped": dropped})


def _entry(attempt: Attempt, action: str, detail: dict[str, str | int | bool | None], *, at_ms: int) -> AuditEntry:
    agent_id = attempt.agent_id
    return AuditEntry(
        at_ms=at_ms,
        actor=agent_id if attempt.is_proven and agent_id is not None else _ANONYMOUS,
        action=action,
        subject=None if attempt.is_proven or agent_id is None or not _can_show(agent_id) else agent_id,
        corr_id=attempt.corr_id,
        session_id=attempt.session_id,
        detail={
            "operation": attempt.operation if _is_operation(attempt.operation) else None,
            "scope": attempt.scope,
            "address": attempt.address,
            **detail,
        },
    )


def _can_show(agent_id: str) -> bool:
    return _is_agent_id(agent_id) is not None and not agent_id.startswith(TOKEN_PREFIX)
