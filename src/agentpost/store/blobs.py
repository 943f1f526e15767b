"""Blobs: large content in chunks, encrypted before it gets here, addressed by the sha256 of what is stored (PIPE-5).

The store never sees a key. `seal_blob` and `open_blob` are for whoever holds one: each blob has a key of its own, so
the number of a chunk is a safe nonce, and a chunk that was moved, cut off or altered does not open.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.rules import check_address, check_blob, check_chunk, expect_blob
from agentpost.store.transaction import Transaction
from agentpost.store.values import Blob

__all__ = [
    "CHUNK_BYTES",
    "SealedBlob",
    "begin_blob",
    "blob",
    "chunk",
    "complete_blob",
    "drop_blob",
    "is_damaged",
    "missing_chunks",
    "open_blob",
    "payloads",
    "put_chunk",
    "seal_blob",
]

CHUNK_BYTES: Final = 256 * 1024
_TAG_BYTES: Final = 16


class SealedBlob(Struct, frozen=True, kw_only=True):
    """Encrypted content, ready to be stored and sent."""

    blob: Blob
    chunks: tuple[bytes, ...]


def seal_blob(content: bytes, key: bytes, *, after: bytes = b"") -> SealedBlob:
    """Encrypt `content`, with the few bytes of `after` before it, with a key that is used for nothing else."""
    cipher = AESGCM(key)
    # Content is large: it is looked at where it is, and not copied to be cut.
    begun = CHUNK_BYTES - len(after)
    rest = memoryview(content)[begun:]
    pieces = [after + content[:begun], *(rest[at : at + CHUNK_BYTES] for at in range(0, len(rest), CHUNK_BYTES))]
    chunks = tuple(cipher.encrypt(_nonce(part), piece, _place(part, len(pieces))) for part, piece in enumerate(pieces))
    digest = hashlib.sha256()
    for data in chunks:
        digest.update(data)
    described = Blob(
        sha256=digest.hexdigest(),
        size_bytes=sum(len(data) for data in chunks),
        chunk_bytes=CHUNK_BYTES + _TAG_BYTES,
        chunks=len(chunks),
        complete=True,
    )
    return SealedBlob(blob=described, chunks=chunks)


def open_blob(chunks: Sequence[bytes], key: bytes) -> bytes:
    """The content, or a refusal if a single bit of it, or the order or number of its chunks, is not what was sealed."""
    cipher = AESGCM(key)
    try:
        if not chunks:
            raise InvalidTag  # even empty content is sealed as one chunk
        return b"".join(
            cipher.decrypt(_nonce(part), data, _place(part, len(chunks))) for part, data in enumerate(chunks)
        )
    except InvalidTag:
        raise Refusal(Code.INVALID_FIELD, "the content does not open with this key, or was altered") from None


def _nonce(part: int) -> bytes:
    return part.to_bytes(12, "big")


def _place(part: int, parts: int) -> bytes:
    return f"agentpost blob {part} of {parts}".encode()


def begin_blob(tx: Transaction, described: Blob, at_ms: int) -> None:
    check_blob(described)
    tx.database.run(
        SQL.begin_blob, (described.sha256, described.size_bytes, described.chunk_bytes, described.chunks, at_ms)
    )


def put_chunk(tx: Transaction, sha256: str, part: int, data: bytes) -> None:
    check_chunk(_expect(tx.database, sha256), part, data)
    tx.database.run(SQL.put_chunk, (sha256, part, data))


def complete_blob(tx: Transaction, sha256: str) -> None:
    """Count the blob as there if its bytes are those of its address. If they are not, `drop_blob` and fetch anew."""
    described = _expect(tx.database, sha256)
    if described.complete:
        return
    check_address(described, _held(tx.database, sha256), _chunks(tx.database, described))
    tx.database.run(SQL.complete_blob, (sha256,))


def drop_blob(tx: Transaction, sha256: str) -> None:
    tx.database.run(SQL.drop_chunks, (sha256,))
    tx.database.run(SQL.drop_blob, (sha256,))


def blob(database: Database, sha256: str) -> Blob | None:
    row = database.row(SQL.blob, (sha256,))
    return None if row is None else _blob(row)


def _blob(row: Row) -> Blob:
    return Blob(sha256=row[0], size_bytes=row[1], chunk_bytes=row[2], chunks=row[3], complete=bool(row[4]))


def chunk(database: Database, sha256: str, part: int) -> bytes | None:
    return database.value(SQL.chunk, (sha256, part))


def payloads(database: Database, after_sha256: str, limit: int) -> list[Blob]:
    return [_blob(row) for row in database.rows(SQL.blobs_in_order, (after_sha256, limit))]


def is_damaged(database: Database, described: Blob) -> bool:
    """Whether a payload that is all there has other bytes than those of its address (PIPE-5)."""
    if not described.complete:
        return False
    digest, size = hashlib.sha256(), 0
    for data in _chunks(database, described):
        digest.update(data)
        size += len(data)
    return (digest.hexdigest(), size) != (described.sha256, described.size_bytes)


def missing_chunks(database: Database, sha256: str) -> list[int]:
    described = _expect(database, sha256)
    held = set(_held(database, sha256))
    return [part for part in range(described.chunks) if part not in held]


def _held(database: Database, sha256: str) -> list[int]:
    return [row[0] for row in database.rows(SQL.held_chunks, (sha256,))]


def _expect(database: Database, sha256: str) -> Blob:
    return expect_blob(blob(database, sha256), sha256)


def _chunks(database: Database, described: Blob) -> Iterator[bytes]:
    for part in range(described.chunks):
        data = chunk(database, described.sha256, part)
        if data is not None:
            yield data
