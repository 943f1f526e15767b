"""Blobs: sealed content in chunks that can be fetched one by one, and counts only when its bytes are right."""

import hashlib
import tracemalloc
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Code
from agentpost.store.blobs import CHUNK_BYTES, SealedBlob, open_blob, seal_blob
from agentpost.store.interface import Store
from agentpost.store.values import Blob
from agentpost.testing import START_MS, SeededChance, a_message
from tests.store.building import open_sqlite, refused

KEY, OTHER_KEY = SeededChance(1).entropy(32), SeededChance(2).entropy(32)
CONTENT = SeededChance(3).entropy(2 * CHUNK_BYTES + 1_000)
SEALED = seal_blob(CONTENT, KEY)
ADDRESS = SEALED.blob.sha256
ALTERED = SEALED.chunks[0][:-1] + bytes([SEALED.chunks[0][-1] ^ 1])


async def keep(store: Store, sealed: SealedBlob = SEALED) -> None:
    await store.begin_blob(sealed.blob, at_ms=START_MS)
    for part, data in enumerate(sealed.chunks):
        await store.put_chunk(sealed.blob.sha256, part, data)
    await store.complete_blob(sealed.blob.sha256)


@pytest.mark.req("PIPE-5")
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_what_was_sealed_opens_with_its_key(size: int) -> None:
    """Content of any size comes back, and its address is the hash of what is stored."""
    content = SeededChance(size).entropy(size)
    sealed = seal_blob(content, KEY)
    assert open_blob(sealed.chunks, KEY) == content
    assert hashlib.sha256(b"".join(sealed.chunks)).hexdigest() == sealed.blob.sha256
    assert sealed.blob.size_bytes == sum(map(len, sealed.chunks))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 5, CHUNK_BYTES - 4, CHUNK_BYTES, 2 * CHUNK_BYTES - 5])
def test_what_goes_before_the_content_is_sealed_with_it(size: int) -> None:
    """The same chunks as if both had been one from the start."""
    content = SeededChance(size).entropy(size)
    assert seal_blob(content, KEY, after=b"first") == seal_blob(b"first" + content, KEY)


def test_sealing_takes_no_more_memory_than_what_it_makes() -> None:
    """Large content is encrypted piece by piece from where it is, and not copied to be cut."""
    content = bytes(64 * CHUNK_BYTES)
    tracemalloc.start()
    try:
        sealed = seal_blob(content, KEY, after=bytes(32))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(content) < sealed.blob.size_bytes < peak_bytes < 1.1 * len(content)


@pytest.mark.req("PIPE-5")
@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param((ALTERED, *SEALED.chunks[1:]), id="altered"),
        pytest.param((SEALED.chunks[1], SEALED.chunks[0], SEALED.chunks[2]), id="moved"),
        pytest.param(SEALED.chunks[:2], id="cut off"),
        pytest.param((*SEALED.chunks, SEALED.chunks[2]), id="one too many"),
        pytest.param((*SEALED.chunks[:2], SEALED.chunks[2][:-1]), id="last chunk shorter"),
        pytest.param((*SEALED.chunks[:2], b""), id="last chunk empty"),
        pytest.param((), id="nothing"),
    ],
)
def test_what_was_altered_moved_or_cut_off_does_not_open(chunks: tuple[bytes, ...]) -> None:
    """Not a bit, not the order and not the number of the chunks can be changed unnoticed."""
    with refused(Code.INVALID_FIELD):
        open_blob(chunks, KEY)


@pytest.mark.req("PIPE-5")
def test_another_key_does_not_open_it() -> None:
    """Content opens with the key it was sealed with, and with no other."""
    with refused(Code.INVALID_FIELD):
        open_blob(SEALED.chunks, OTHER_KEY)


@pytest.mark.req("PIPE-5")
async def test_a_blob_is_there_once_all_its_chunks_are(store: Store) -> None:
    """Begun, filled and completed, a blob reads back chunk by chunk."""
    await keep(store)
    assert store.blob(ADDRESS) == SEALED.blob
    chunks = [store.chunk(ADDRESS, part) for part in range(SEALED.blob.chunks)]
    assert open_blob([chunk for chunk in chunks if chunk is not None], KEY) == CONTENT
    assert store.missing_chunks(ADDRESS) == []
    assert store.chunk(ADDRESS, 3) is None


@pytest.mark.req("PIPE-5")
async def test_a_fetch_that_was_interrupted_goes_on_where_it_was(store: Store) -> None:
    """The store tells which chunks are missing; those that are there need not come again."""
    await store.begin_blob(SEALED.blob, at_ms=START_MS)
    await store.put_chunk(ADDRESS, 1, SEALED.chunks[1])
    assert store.missing_chunks(ADDRESS) == [0, 2]
    assert store.blob(ADDRESS) == replace(SEALED.blob, complete=False)
    with refused(Code.CONFLICT):
        await store.complete_blob(ADDRESS)

    await store.begin_blob(SEALED.blob, at_ms=START_MS + 1)
    assert store.missing_chunks(ADDRESS) == [0, 2]
    for part in (2, 0, 1):
        await store.put_chunk(ADDRESS, part, SEALED.chunks[part])
    await store.complete_blob(ADDRESS)
    await store.complete_blob(ADDRESS)
    assert store.blob(ADDRESS) == SEALED.blob


@pytest.mark.req("PIPE-5")
async def test_half_a_blob_survives_a_restart(home: Path) -> None:
    """The chunks that were fetched before a restart are still there after it."""
    store = open_sqlite(home)
    await store.begin_blob(SEALED.blob, at_ms=START_MS)
    await store.put_chunk(ADDRESS, 0, SEALED.chunks[0])
    await store.close()
    store = open_sqlite(home)
    assert store.missing_chunks(ADDRESS) == [1, 2]
    await store.close()


@pytest.mark.req("PIPE-5")
async def test_bytes_that_are_not_those_of_the_address_are_refused(store: Store) -> None:
    """A peer that sends something else is found out, the blob never counts as there, and the store goes on."""
    await store.begin_blob(SEALED.blob, at_ms=START_MS)
    for part, data in enumerate((ALTERED, *SEALED.chunks[1:])):
        await store.put_chunk(ADDRESS, part, data)
    with refused(Code.INVALID_FIELD) as caught:
        await store.complete_blob(ADDRESS)
    assert caught.value.field == "sha256"
    assert store.blob(ADDRESS) == replace(SEALED.blob, complete=False)

    await store.append([a_message(1)])
    await store.drop_blob(ADDRESS)
    await keep(store)
    assert store.blob(ADDRESS) == SEALED.blob


@pytest.mark.parametrize(
    ("part", "data"),
    [(-1, SEALED.chunks[0]), (3, SEALED.chunks[0]), (0, SEALED.chunks[0][:-1]), (2, SEALED.chunks[0]), (2, b"")],
)
async def test_a_chunk_that_does_not_fit_is_refused(store: Store, part: int, data: bytes) -> None:
    """A chunk has a place and the length of that place."""
    await store.begin_blob(SEALED.blob, at_ms=START_MS)
    with refused(Code.INVALID_FIELD):
        await store.put_chunk(ADDRESS, part, data)
    assert store.missing_chunks(ADDRESS) == [0, 1, 2]


@pytest.mark.parametrize(
    ("size_bytes", "chunk_bytes", "chunks", "code"),
    [
        (10, 4, 2, Code.INVALID_FIELD),
        (10, 4, 4, Code.INVALID_FIELD),
        (0, 4, 0, Code.INVALID_FIELD),
        (10, 0, 1, Code.INVALID_FIELD),
        (10, -4, -2, Code.INVALID_FIELD),
        (1 << 40, 1 << 20, 1 << 20, Code.TOO_LARGE),
    ],
)
async def test_a_description_that_no_blob_can_have_is_refused(
    store: Store, size_bytes: int, chunk_bytes: int, chunks: int, code: Code
) -> None:
    """Sizes that do not fit each other, or that are too much, are refused before a byte is taken."""
    described = Blob(sha256="0" * 64, size_bytes=size_bytes, chunk_bytes=chunk_bytes, chunks=chunks, complete=True)
    with refused(code):
        await store.begin_blob(described, at_ms=START_MS)
    assert store.blob("0" * 64) is None


async def test_a_dropped_blob_is_gone(store: Store) -> None:
    """Nothing of it is left, and dropping what is not there is no error."""
    await keep(store)
    await store.drop_blob(ADDRESS)
    await store.drop_blob(ADDRESS)
    assert store.blob(ADDRESS) is None
    assert store.chunk(ADDRESS, 0) is None


async def test_an_unknown_blob_is_not_found(store: Store) -> None:
    """Chunks belong to a blob that was begun."""
    with refused(Code.NOT_FOUND):
        await store.put_chunk(ADDRESS, 0, SEALED.chunks[0])
    with refused(Code.NOT_FOUND):
        await store.complete_blob(ADDRESS)
    with refused(Code.NOT_FOUND):
        store.missing_chunks(ADDRESS)
    assert store.blob(ADDRESS) is None
