"""The part of `SqliteStore` that knows who is in the mesh, and its room. Joins only: see `joining` and `room_log`."""

import asyncio

from agentpost.protocol.ids import InviteId
from agentpost.store import joining, room_log
from agentpost.store.sqlite_part import SqlitePart
from agentpost.store.values import Invite, KnownNode

__all__ = ["SqliteMembers"]


class SqliteMembers(SqlitePart):
    def create_invite(self, invite: Invite) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: joining.create_invite(tx, invite))

    def invite_by_hash(self, token_hash: bytes) -> Invite | None:
        return joining.invite_by_hash(self._reader(), token_hash)

    def invite(self, invite_id: InviteId) -> Invite | None:
        return joining.invite(self._reader(), invite_id)

    def invites(self, *, limit: int = 256) -> list[Invite]:
        return joining.invites(self._reader(), limit)

    def consume_invite_and_pin(self, invite_id: InviteId, node: KnownNode) -> "asyncio.Future[KnownNode]":
        return self._writer.submit(lambda tx: joining.consume_invite_and_pin(tx, invite_id, node))

    def withdraw_invite(self, invite_id: InviteId, *, at_ms: int) -> "asyncio.Future[bool]":
        return self._writer.submit(lambda tx: joining.withdraw_invite(tx, invite_id, at_ms))

    def known_node(self, node_id: str) -> KnownNode | None:
        return joining.known_node(self._reader(), node_id)

    def known_nodes(self) -> list[KnownNode]:
        return joining.known_nodes(self._reader())

    def pin_node(self, node: KnownNode) -> "asyncio.Future[KnownNode]":
        return self._writer.submit(lambda tx: joining.pin_node(tx, node))

    def revoke_node(self, node_id: str, *, at_ms: int) -> "asyncio.Future[bool]":
        return self._writer.submit(lambda tx: joining.revoke_node(tx, node_id, at_ms))

    # The room

    def append_room_update(self, update: bytes) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: room_log.append_room_update(tx, update))

    def room_updates(self) -> list[bytes]:
        return room_log.room_updates(self._reader())

    def compact_room(self, snapshot: bytes) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: room_log.compact_room(tx, snapshot))
