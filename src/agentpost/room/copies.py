"""Copies in the room of what the store alone decides: the invites that were made here.

They are for others to look at; nothing rests on them. Only what changed is written, and how often somebody looks for
changes is the caller's choice: every write is told to all nodes, and costs a few bytes for as long as the room lives.
"""

from collections.abc import Iterable
from typing import Any

from agentpost.room.document import Room
from agentpost.room.schema import MAPS
from agentpost.store.values import Invite

__all__ = ["invite_status", "publish_invites"]


def invite_status(invite: Invite, *, now_ms: int) -> str:
    """What became of an invite: it is `open` until it is `used`, `withdrawn` or `expired`."""
    if invite.consumed_at_ms is not None:
        return "used"
    if invite.revoked_at_ms is not None:
        return "withdrawn"
    return "open" if now_ms < invite.expires_at_ms else "expired"


def publish_invites(room: Room, invites: Iterable[Invite], *, now_ms: int) -> int:
    """Show the open invites of this node, and what became of those that were shown. Gives how many were written.

    Neither the token nor its hash is in the room (AUTH-2): nobody can join with what stands there. A node has so many
    records there and no more; an invite that finds no place is as good as any, and is not shown.
    """
    written = 0
    shown = room.records("invites")
    places = MAPS["invites"].keys_per_node - sum(record["signedBy"] == room.node_id for record in shown.values())
    for invite in invites:
        status = invite_status(invite, now_ms=now_ms)
        is_shown = invite.invite_id in shown
        if is_shown or (status == "open" and places > 0):
            written += room.write("invites", invite.invite_id, _invite_entry(room, invite, status))
            places -= not is_shown
    return written


def _invite_entry(room: Room, invite: Invite, status: str) -> dict[str, Any]:
    return {
        "tier": invite.tier.value,
        "expectedNodeId": invite.expected_node_id,
        "expiresAt": invite.expires_at_ms,
        "createdBy": room.node_id,
        "createdAt": invite.created_at_ms,
        "usedAt": invite.consumed_at_ms,
        "usedBy": invite.consumed_by,
        "revokedAt": invite.revoked_at_ms,
        "status": status,
    }
