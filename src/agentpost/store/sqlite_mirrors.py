"""The part of `SqliteStore` that keeps the outboxes of others. Joins only: what each call does is in `mirrors`."""

import asyncio

from agentpost.store import mirrors
from agentpost.store.sqlite_part import SqlitePart
from agentpost.store.values import MirrorBatch, MirrorPosition, MirrorSlice

__all__ = ["SqliteMirrors"]


class SqliteMirrors(SqlitePart):
    def mirrors(self) -> list[MirrorPosition]:
        return mirrors.mirrors(self._reader())

    def mirror_position(self, source_node_id: str) -> MirrorPosition | None:
        return mirrors.mirror_position(self._reader(), source_node_id)

    def keep_mirror(self, batch: MirrorBatch) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: mirrors.keep_mirror(tx, batch), size=len(batch.events))

    def restart_mirror(self, source_node_id: str, *, epoch: str, at_ms: int) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: mirrors.restart_mirror(tx, source_node_id, epoch=epoch, at_ms=at_ms))

    def read_mirror(self, source_node_id: str, consumer_node_id: str, after_seq: int) -> MirrorSlice | None:
        return mirrors.read_mirror(self._reader(), source_node_id, consumer_node_id, after_seq)

    def read_whole_mirror(self, source_node_id: str, after_seq: int) -> MirrorSlice | None:
        return mirrors.read_whole_mirror(self._reader(), source_node_id, after_seq)

    def last_head_for(self, source_node_id: str, consumer_node_id: str) -> bytes | None:
        return mirrors.last_head_for(self._reader(), source_node_id, consumer_node_id)

    def prune_mirror(self, source_node_id: str, *, through_seq: int) -> "asyncio.Future[int]":
        return self._writer.submit(lambda tx: mirrors.prune_mirror(tx, source_node_id, through_seq))
