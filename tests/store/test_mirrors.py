"""Mirrors of other outboxes: kept in order, handed on batch by batch with the head that the owner signed."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.errors import Code
from agentpost.protocol.heads import next_chain
from agentpost.store.interface import Store
from agentpost.store.values import CHAIN_START, MirrorBatch, MirrorEvent, MirrorPosition, MirrorSlice
from agentpost.testing import START_MS
from tests.store.building import NODE, PEER, PEER_EPOCH, from_peer, open_sqlite, refused, to_nodes, visible

C, D = "node-c", "node-d"
# Whom each event of the peer's outbox is for.
READERS = {1: (C,), 2: (C, D), 3: (), 4: (D, D), 5: (NODE,), 6: (C,), 7: ()}


def raw_at(seq: int) -> bytes:
    return encode_event(to_nodes(from_peer(seq), *READERS.get(seq, ())))


def chain_at(seq: int) -> bytes:
    chain = CHAIN_START
    for number in range(1, seq + 1):
        chain = next_chain(chain, raw_at(number))
    return chain


def a_mirror_batch(after: int, through: int, **fields: Any) -> MirrorBatch:
    events = [
        MirrorEvent(seq=seq, chain=chain_at(seq), raw=raw_at(seq), to_nodes=READERS.get(seq, ()))
        for seq in range(after + 1, through + 1)
    ]
    settings: dict[str, Any] = {"source_node_id": PEER, "epoch": PEER_EPOCH, "events": tuple(events)}
    return MirrorBatch(
        after_seq=after,
        through_seq=through,
        head=b"head %d" % through,
        signature=b"signature %d" % through,
        at_ms=START_MS,
        **settings | fields,
    )


async def keep(store: Store, *ends: int) -> None:
    """Keep the peer's outbox in batches that end at these seqs."""
    for after, through in zip((0, *ends), ends, strict=False):
        await store.keep_mirror(a_mirror_batch(after, through))


def seqs(part: MirrorSlice | None) -> list[int]:
    return [] if part is None else [event.seq for event in part.events]


def shown(part: MirrorSlice | None) -> tuple[list[int], int, bytes] | None:
    return None if part is None else (seqs(part), part.through_seq, part.head)


@pytest.mark.req("PIPE-9")
async def test_a_mirror_knows_how_far_it_is(store: Store) -> None:
    """Its position is the end of the last batch, with the chain of the whole outbox."""
    assert (store.mirrors(), store.mirror_position(PEER)) == ([], None)
    await keep(store, 3, 5)
    position = MirrorPosition(source_node_id=PEER, epoch=PEER_EPOCH, last_seq=5, last_chain=chain_at(5), floor_seq=0)
    assert store.mirror_position(PEER) == position
    await store.keep_mirror(a_mirror_batch(0, 1, source_node_id="node-a2"))
    assert [each.source_node_id for each in store.mirrors()] == ["node-a2", PEER]


@pytest.mark.req("PIPE-9")
async def test_a_reader_gets_its_events_up_to_the_head_that_covers_the_next(store: Store) -> None:
    """Byte for byte and under the same seqs, each time with one head and its signature."""
    await keep(store, 2, 4, 6, 7)
    part = store.read_mirror(PEER, C, 0)
    assert part is not None
    assert (part.source_node_id, part.epoch, part.after_seq, part.through_seq) == (PEER, PEER_EPOCH, 0, 2)
    assert (part.head, part.signature) == (b"head 2", b"signature 2")
    assert [event.raw for event in part.events] == [raw_at(1), raw_at(2)]
    assert shown(store.read_mirror(PEER, C, 1)) == ([2], 2, b"head 2")
    assert shown(store.read_mirror(PEER, C, 2)) == ([6], 6, b"head 6")
    assert shown(store.read_mirror(PEER, D, 2)) == ([4], 4, b"head 4")


@pytest.mark.req("PIPE-9")
async def test_a_reader_for_whom_nothing_is_left_gets_the_last_head_once(store: Store) -> None:
    """It can pass what was not for it; where it is at the end already, there is nothing new."""
    await keep(store, 2, 4, 6, 7)
    assert shown(store.read_mirror(PEER, C, 6)) == ([], 7, b"head 7")
    assert store.read_mirror(PEER, C, 7) is None
    assert store.read_mirror(PEER, C, 70) is None
    assert shown(store.read_mirror(PEER, "node-z", 0)) == ([], 7, b"head 7")
    assert store.read_mirror("node-z", C, 0) is None


async def test_the_chains_of_a_mirror_are_those_of_the_streams(store: Store) -> None:
    """What a reader computes from its own events is what the mirror has, over all batches."""
    await keep(store, 1, 2, 6)
    chain, after = CHAIN_START, 0
    while (part := store.read_mirror(PEER, C, after)) is not None:
        for event in part.events:
            chain = next_chain(chain, event.raw)
            assert event.chain == chain
        after = part.through_seq


@pytest.mark.req("PIPE-9")
async def test_another_mirror_gets_everything_batch_by_batch(store: Store) -> None:
    """All events up to the next head, with the chain of the whole outbox."""
    await keep(store, 2, 5)
    part = store.read_whole_mirror(PEER, 0)
    assert part is not None
    assert shown(part) == ([1, 2], 2, b"head 2")
    assert [event.chain for event in part.events] == [chain_at(1), chain_at(2)]
    assert shown(store.read_whole_mirror(PEER, 1)) == ([2], 2, b"head 2")
    assert shown(store.read_whole_mirror(PEER, 2)) == ([3, 4, 5], 5, b"head 5")
    assert store.read_whole_mirror(PEER, 5) is None
    assert store.read_whole_mirror("node-z", 0) is None


async def test_a_repeated_batch_changes_nothing(store: Store) -> None:
    """Whole or in part: what is there is not kept twice, and what is new is added."""
    await keep(store, 4)
    before = store.mirrors()
    await store.keep_mirror(a_mirror_batch(0, 4))
    await store.keep_mirror(a_mirror_batch(1, 3))
    await store.keep_mirror(a_mirror_batch(4, 4))
    assert store.mirrors() == before
    await store.keep_mirror(a_mirror_batch(2, 6))
    assert shown(store.read_whole_mirror(PEER, 4)) == ([5, 6], 6, b"head 6")
    assert shown(store.read_mirror(PEER, C, 2)) == ([6], 6, b"head 6")


@pytest.mark.req("CUR-1", "CUR-6")
async def test_a_batch_that_does_not_fit_is_refused(store: Store) -> None:
    """A hole before it or in it, or another epoch: nothing of it is kept."""
    await keep(store, 2)
    before = visible(store)
    events = a_mirror_batch(2, 5).events
    for batch, code in (
        (a_mirror_batch(3, 4), Code.SEQUENCE_GAP),
        (a_mirror_batch(2, 5, events=(events[0], events[2])), Code.SEQUENCE_GAP),
        (a_mirror_batch(2, 5, events=events[:2]), Code.SEQUENCE_GAP),
        (a_mirror_batch(2, 5, events=events[::-1]), Code.SEQUENCE_GAP),
        (a_mirror_batch(5, 2, events=()), Code.SEQUENCE_GAP),
        (a_mirror_batch(-1, -1, events=()), Code.SEQUENCE_GAP),
        (a_mirror_batch(2, 3, epoch="another life"), Code.EPOCH_MISMATCH),
    ):
        with refused(code):
            await store.keep_mirror(batch)
    assert visible(store) == before


@pytest.mark.req("PIPE-9", "PIPE-7")
async def test_an_empty_mirror_begins_where_the_outbox_does(store: Store) -> None:
    """An outbox that was pruned before it was mirrored is kept from there on."""
    await store.keep_mirror(a_mirror_batch(3, 6))
    position = store.mirror_position(PEER)
    assert position is not None
    assert (position.floor_seq, position.last_seq) == (3, 6)
    part = store.read_whole_mirror(PEER, 0)
    assert part is not None
    assert (part.after_seq, seqs(part)) == (3, [4, 5, 6])
    assert shown(store.read_mirror(PEER, D, 0)) == ([4], 6, b"head 6")
    with refused(Code.SEQUENCE_GAP):
        await store.keep_mirror(a_mirror_batch(7, 7 + 1))


@pytest.mark.req("CUR-6")
async def test_a_new_epoch_drops_what_was_mirrored(store: Store) -> None:
    """The mirror is empty then, and other mirrors are as they were."""
    await keep(store, 2, 6)
    await store.keep_mirror(a_mirror_batch(0, 2, source_node_id="node-a2"))
    await store.prune_mirror(PEER, through_seq=1)
    await store.restart_mirror(PEER, epoch="its next life", at_ms=START_MS)
    assert store.mirror_position(PEER) == MirrorPosition(
        source_node_id=PEER, epoch="its next life", last_seq=0, last_chain=CHAIN_START, floor_seq=0
    )
    assert (store.read_mirror(PEER, C, 0), store.read_whole_mirror(PEER, 0)) == (None, None)
    with refused(Code.EPOCH_MISMATCH):
        await store.keep_mirror(a_mirror_batch(0, 2))
    await store.keep_mirror(a_mirror_batch(0, 2, epoch="its next life"))
    part = store.read_mirror(PEER, C, 0)
    assert part is not None
    assert (part.epoch, part.events[0].chain) == ("its next life", next_chain(CHAIN_START, raw_at(1)))
    assert seqs(store.read_mirror("node-a2", C, 0)) == [1, 2]


@pytest.mark.req("PIPE-9", "PIPE-7")
async def test_a_pruned_mirror_goes_on(store: Store) -> None:
    """What was pruned is gone from all of its streams, and what comes next is kept after it."""
    await keep(store, 2, 5)
    assert await store.prune_mirror(PEER, through_seq=4) == 4
    assert await store.prune_mirror(PEER, through_seq=4) == 0
    assert await store.prune_mirror("node-z", through_seq=4) == 0
    part = store.read_whole_mirror(PEER, 0)
    assert part is not None
    assert (part.after_seq, seqs(part)) == (4, [5])
    assert shown(store.read_mirror(PEER, C, 0)) == ([], 5, b"head 5")
    await store.keep_mirror(a_mirror_batch(5, 7))
    assert shown(store.read_mirror(PEER, C, 2)) == ([6], 7, b"head 7")


async def test_nothing_is_left_of_readers_that_only_pruned_events_name(home: Path) -> None:
    """A source can name readers that do not exist, others with every event: a mirror does not grow by that."""
    store = open_sqlite(home)

    def rows() -> int:
        tables = [name for (name,) in store._reader().rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return sum(store._reader().value(f"SELECT count(*) FROM {name}") for name in tables if "mirror" in name)  # noqa: S608

    async def name_another(seq: int) -> None:
        (event,) = a_mirror_batch(seq - 1, seq).events
        await store.keep_mirror(a_mirror_batch(seq - 1, seq, events=(replace(event, to_nodes=(f"nobody-{seq}",)),)))
        await store.prune_mirror(PEER, through_seq=seq)

    await name_another(1)
    before = rows()
    for seq in range(2, 20):
        await name_another(seq)
    assert rows() == before
    await store.close()


@pytest.mark.req("PIPE-9", "PIPE-7")
async def test_a_mirror_that_was_pruned_to_nothing_keeps_its_last_head(store: Store) -> None:
    """A reader still learns how far it may go, and no more is pruned than there is."""
    await keep(store, 2, 5)
    assert await store.prune_mirror(PEER, through_seq=1_000) == 5
    position = store.mirror_position(PEER)
    assert position is not None
    assert (position.floor_seq, position.last_seq, position.last_chain) == (5, 5, chain_at(5))
    assert shown(store.read_mirror(PEER, C, 2)) == ([], 5, b"head 5")
    assert store.read_whole_mirror(PEER, 0) is None
    await store.keep_mirror(a_mirror_batch(5, 6))
    assert shown(store.read_whole_mirror(PEER, 5)) == ([6], 6, b"head 6")


@pytest.mark.req("PIPE-9")
async def test_the_last_head_for_a_reader_covers_its_last_event(store: Store) -> None:
    """Later heads say nothing of it. There is none for whom nothing is kept, or not any more."""
    await keep(store, 2, 4, 6, 7)
    assert store.last_head_for(PEER, C) == b"head 6"
    assert store.last_head_for(PEER, D) == b"head 4"
    assert store.last_head_for(PEER, "node-z") is None
    assert store.last_head_for("node-z", C) is None
    await store.prune_mirror(PEER, through_seq=4)
    assert store.last_head_for(PEER, C) == b"head 6"
    assert store.last_head_for(PEER, D) is None


async def test_a_mirror_is_there_after_a_restart(home: Path) -> None:
    """What was kept is handed on as before."""
    store = open_sqlite(home)
    await keep(store, 2, 5)
    before = (store.mirrors(), store.read_mirror(PEER, C, 0), store.read_whole_mirror(PEER, 2))
    await store.close()
    store = open_sqlite(home)
    assert (store.mirrors(), store.read_mirror(PEER, C, 0), store.read_whole_mirror(PEER, 2)) == before
    await store.close()
