"""What both stores refuse of agents outside the mesh. Pure: values in, a decision or a refusal out."""

from enum import StrEnum

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.external_values import AgentInvite, AgentSession, RefreshToken

__all__ = ["Turn", "check_new_agent_invite", "check_new_refresh_token", "check_usable", "turn_of"]


class Turn(StrEnum):
    """What a refresh token that is presented with a good proof leads to."""

    ROTATE = "rotate"
    REPLACE = "replace"  # the answer to the last rotation was lost: its successor was never used, and never will be
    REUSE = "reuse"  # somebody else has the family, too


def check_new_agent_invite(found: AgentInvite | None) -> None:
    """Refuse an invite whose id or token is there already; the token is 256 random bits, so that is a defect."""
    if found is not None:
        raise Refusal(Code.CONFLICT, f"there is an invite {found.invite_id} already")


def check_usable(invite: AgentInvite | None, session: AgentSession, *, live_sessions: int) -> AgentInvite:
    """The invite, if this session may be opened with it now."""
    if invite is None or invite.withdrawn_at_ms is not None or invite.agent_id != session.agent_id:
        raise Refusal(Code.INVALID_INVITE, "there is no such invite for this agent", field="inviteToken")
    if invite.consumed_at_ms is not None:
        raise Refusal(Code.INVITE_USED, "this invite was used already", field="inviteToken")
    if invite.max_sessions is not None and live_sessions >= invite.max_sessions:
        raise Refusal(
            Code.SCOPE_DENIED,
            f"{invite.agent_id} has {live_sessions} sessions, and this invite allows {invite.max_sessions}",
            hint="End one with `agentpost agent revoke`, or ask the operator for an invite that allows more.",
        )
    return invite


def check_new_refresh_token(found: RefreshToken | None, *, field: str = "nextRefreshToken") -> None:
    """Refuse a token that is there already: each is one for once."""
    if found is not None:
        raise Refusal(Code.INVALID_FIELD, "this token was given before: choose another", field=field)


def turn_of(
    token: RefreshToken | None,
    successor: RefreshToken | None,
    session: AgentSession | None,
    *,
    wanted_hash: bytes,
    at_ms: int,
    grace_ms: int,
) -> Turn:
    """What becomes of a family whose `token` is presented (EXT-2). `successor` is what the token was spent for.

    Who wants just that one as the next has chosen it before, and never used it: it was cut off from the answer. To be
    told so gives nothing to anybody, since whoever knows that token can use it.
    """
    if token is None or session is None or not session.is_live(at_ms) or at_ms >= token.expires_at_ms:
        raise Refusal(Code.INVALID_REFRESH_TOKEN, "this refresh token is not good, or not any more")
    if token.spent_at_ms is None:
        return Turn.ROTATE
    # abs: a clock that was just set back must not make a theft of a repeat.
    is_recent = abs(at_ms - token.spent_at_ms) <= grace_ms
    is_unused = successor is not None and successor.spent_at_ms is None
    if is_unused and token.successor_hash == wanted_hash:
        raise Refusal(
            Code.CONFLICT,
            "this refresh token was spent for that next one before",
            field="nextRefreshToken",
            hint="Refresh with that next one: it is the session's.",
        )
    return Turn.REPLACE if is_recent and is_unused else Turn.REUSE
