"""The part of `SqliteStore` that keeps large content. Joins only: see `blobs` and `payload_names`."""

import asyncio
from collections.abc import Sequence

from agentpost.store import blobs, payload_names
from agentpost.store.sqlite_part import SqlitePart
from agentpost.store.values import Blob, NamedPayload, PayloadUsage, PrunedPayloads

__all__ = ["SqlitePayloads"]


class SqlitePayloads(SqlitePart):
    def begin_blob(self, blob: Blob, *, at_ms: int) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: blobs.begin_blob(tx, blob, at_ms))

    def put_chunk(self, sha256: str, part: int, data: bytes) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: blobs.put_chunk(tx, sha256, part, data))

    def complete_blob(self, sha256: str) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: blobs.complete_blob(tx, sha256))

    def drop_blob(self, sha256: str) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: blobs.drop_blob(tx, sha256))

    def name_payloads(self, payloads: Sequence[NamedPayload]) -> "asyncio.Future[None]":
        return self._writer.submit(lambda tx: payload_names.name_payloads(tx, payloads))

    def may_read_payload(self, sha256: str, node_id: str) -> bool:
        return payload_names.may_read_payload(self._reader(), sha256, node_id)

    def missing_payloads(self, *, limit: int = 256) -> list[NamedPayload]:
        return payload_names.missing_payloads(self._reader(), limit)

    def prune_payloads(
        self, *, now_ms: int, grace_ms: int, after_sha256: str = "", limit: int = 1_000
    ) -> "asyncio.Future[PrunedPayloads]":
        return self._writer.submit(lambda tx: payload_names.prune_payloads(tx, now_ms, grace_ms, after_sha256, limit))

    def payloads(self, *, after_sha256: str = "", limit: int = 256) -> list[Blob]:
        return blobs.payloads(self._reader(), after_sha256, limit)

    def payload_sources(self, sha256: str) -> list[str]:
        return payload_names.payload_sources(self._reader(), sha256)

    def payload_usage(self) -> PayloadUsage:
        return payload_names.payload_usage(self._reader())

    def blob(self, sha256: str) -> Blob | None:
        return blobs.blob(self._reader(), sha256)

    def chunk(self, sha256: str, part: int) -> bytes | None:
        return blobs.chunk(self._reader(), sha256, part)

    def missing_chunks(self, sha256: str) -> list[int]:
        return blobs.missing_chunks(self._reader(), sha256)
