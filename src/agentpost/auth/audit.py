"""What is written down of every decision: who, what, when, from where. Never a token, a ticket, a nonce or a key."""

from agentpost.auth.invites import NewInvite
from agentpost.auth.signing import check_node_id
from agentpost.auth.tickets import Claims
from agentpost.auth.wire import Entry, Grant
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import InviteId
from agentpost.store.values import AuditEntry, Invite

__all__ = ["grant_refused", "granted", "invited", "key_taken", "redeem_refused", "redeemed", "revoked", "withdrawn"]

# What somebody says of himself before he has proven anything is no actor.
_ANONYMOUS = "anonymous"


def invited(invite: NewInvite, *, created_by: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=created_by,
        action="invite.made",
        subject=invite.expected_node_id,
        detail={"inviteId": invite.invite_id, "tier": invite.tier.value, "expiresAt": invite.expires_at},
    )


def granted(grant: Grant, *, node_id: str, invite_id: InviteId | None, address: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=node_id,
        action="exchange.granted",
        session_id=grant.session_id,
        detail={"inviteId": invite_id, "rooms": " ".join(grant.rooms), "address": address},
    )


def grant_refused(refusal: Refusal, *, node_id: str, address: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=_ANONYMOUS,
        action="exchange.refused",
        subject=_readable(node_id),
        detail={"code": refusal.code.value, "address": address},
    )


def redeemed(entry: Entry, *, room: str, address: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=entry.node_id,
        action="ticket.redeemed",
        subject=room,
        session_id=entry.session_id,
        detail={"inviteId": entry.invite_id, "firstJoin": entry.first_join, "address": address},
    )


def redeem_refused(refusal: Refusal, claims: Claims | None, *, address: str, at_ms: int) -> AuditEntry:
    """`claims` are those of a ticket that was really this gateway's, or None."""
    return AuditEntry(
        at_ms=at_ms,
        actor=_ANONYMOUS,
        action="ticket.refused",
        subject=None if claims is None else claims.sub,
        session_id=None if claims is None else claims.session_id,
        detail={"code": refusal.code.value, "address": address},
    )


def revoked(node_id: str, *, by: str, at_ms: int) -> AuditEntry:
    return AuditEntry(at_ms=at_ms, actor=by, action="node.revoked", subject=node_id)


def key_taken(node_id: str, *, by: str, at_ms: int) -> AuditEntry:
    """An operator said that the node's key is lost, and that an invite may bring another."""
    return AuditEntry(at_ms=at_ms, actor=by, action="node.key_replaced", subject=node_id)


def withdrawn(invite: Invite, *, by: str, at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor=by,
        action="invite.withdrawn",
        subject=invite.expected_node_id,
        detail={"inviteId": invite.invite_id},
    )


def _readable(node_id: str) -> str | None:
    """A node id that is one. Anything else could be a secret in the wrong field."""
    try:
        return check_node_id(node_id)
    except Refusal:
        return None
