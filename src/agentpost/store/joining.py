"""Invites and known nodes on the disk. What is refused is in `rules`; who asks, and why, is not known here."""

from agentpost.protocol.ids import InviteId
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.rules import check_new_invite, consumed, pinned
from agentpost.store.transaction import Transaction
from agentpost.store.values import Invite, KnownNode

__all__ = [
    "consume_invite_and_pin",
    "create_invite",
    "invite",
    "invite_by_hash",
    "invites",
    "known_node",
    "known_nodes",
    "pin_node",
    "revoke_node",
    "withdraw_invite",
]


def create_invite(tx: Transaction, new: Invite) -> None:
    check_new_invite(invite(tx.database, new.invite_id) or invite_by_hash(tx.database, new.token_hash))
    tx.database.run(
        SQL.create_invite,
        (
            new.invite_id,
            new.token_hash,
            new.tier.value,
            new.expected_node_id,
            new.public_key,
            new.created_by,
            new.created_at_ms,
            new.expires_at_ms,
            new.consumed_at_ms,
            new.consumed_by,
            new.revoked_at_ms,
            new.tailnet_name,
        ),
    )


def consume_invite_and_pin(tx: Transaction, invite_id: InviteId, node: KnownNode) -> KnownNode:
    # AUTH-5: the invite is used up by whoever comes first, and its key is pinned by the same commit.
    used = consumed(invite(tx.database, invite_id), node)
    kept = pinned(known_node(tx.database, node.node_id), node, invited=True)
    tx.database.run(SQL.consume_invite, (used.consumed_at_ms, used.consumed_by, invite_id))
    _write(tx, kept)
    return kept


def pin_node(tx: Transaction, node: KnownNode) -> KnownNode:
    kept = pinned(known_node(tx.database, node.node_id), node, invited=False)
    _write(tx, kept)
    return kept


def revoke_node(tx: Transaction, node_id: str, at_ms: int) -> bool:
    before = tx.database.changed_rows()
    tx.database.run(SQL.revoke_node, (at_ms, node_id))
    tx.database.run(SQL.withdraw_invites, (at_ms, node_id))
    return tx.database.changed_rows() != before


def withdraw_invite(tx: Transaction, invite_id: InviteId, at_ms: int) -> bool:
    before = tx.database.changed_rows()
    tx.database.run(SQL.withdraw_invite, (at_ms, invite_id))
    return tx.database.changed_rows() != before


def invite_by_hash(database: Database, token_hash: bytes) -> Invite | None:
    row = database.row(SQL.invite_by_hash, (token_hash,))
    return None if row is None else _invite(row)


def invite(database: Database, invite_id: InviteId) -> Invite | None:
    row = database.row(SQL.invite_by_id, (invite_id,))
    return None if row is None else _invite(row)


def invites(database: Database, limit: int) -> list[Invite]:
    return [_invite(row) for row in database.rows(SQL.latest_invites, (limit,))]


def known_node(database: Database, node_id: str) -> KnownNode | None:
    row = database.row(SQL.known_node, (node_id,))
    return None if row is None else _node(row)


def known_nodes(database: Database) -> list[KnownNode]:
    return [_node(row) for row in database.rows(SQL.known_nodes)]


def _write(tx: Transaction, node: KnownNode) -> None:
    tx.database.run(
        SQL.pin_node,
        (
            node.node_id,
            node.signing_public,
            node.sealing_public,
            node.tier.value,
            node.admitted_by,
            node.invite_id,
            node.pinned_at_ms,
            node.revoked_at_ms,
        ),
    )


def _invite(row: Row) -> Invite:
    return Invite(
        invite_id=row[0],
        token_hash=row[1],
        tier=NodeTier(row[2]),
        expected_node_id=row[3],
        public_key=row[4],
        created_by=row[5],
        created_at_ms=row[6],
        expires_at_ms=row[7],
        consumed_at_ms=row[8],
        consumed_by=row[9],
        revoked_at_ms=row[10],
        tailnet_name=row[11],
    )


def _node(row: Row) -> KnownNode:
    return KnownNode(
        node_id=row[0],
        signing_public=row[1],
        sealing_public=row[2],
        tier=NodeTier(row[3]),
        admitted_by=row[4],
        invite_id=row[5],
        pinned_at_ms=row[6],
        revoked_at_ms=row[7],
    )
