"""Payloads that were too large for their events: fetched in pieces, from whoever has them, and checked."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.frames import Chunk, GetChunk, decode_frame, encode_frame
from agentpost.delivery.intake import NewBlob
from agentpost.delivery.keeping import Keeper
from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Code
from agentpost.protocol.payloads import PayloadRef
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.blobs import seal_blob
from agentpost.store.values import Blob, NamedPayload
from tests.delivery.linking import Node, Pipe, World, settle

CONTENT = bytes(range(256)) * 4096 * 3


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path if request.param == "sqlite" else None)
    yield world
    await world.close()


async def _send_large(node: Node, to: str, *, readers: tuple[str, ...] | None = None) -> Blob:
    """A message whose content is a blob of several chunks."""
    sealed = seal_blob(CONTENT, bytes(32))
    await node.store.begin_blob(replace(sealed.blob, complete=False), at_ms=0)
    for part, data in enumerate(sealed.chunks):
        await node.store.put_chunk(sealed.blob.sha256, part, data)
    await node.store.complete_blob(sealed.blob.sha256)
    event_id = await node.send(to)
    stored = node.store.find_event(event_id)
    keys = dict.fromkeys(readers or node.world.nodes, b"")
    assert stored is not None
    ref = PayloadRef(sha256=sealed.blob.sha256, size_bytes=sealed.blob.size_bytes, suite="test", keys=keys)
    another = replace(decode_event(stored.raw), event_id=node.maker.new_event_id(), seq=0, payload_ref=ref)
    await node.store.name_payloads([NamedPayload.of(ref, node.node_id)])
    await node.store.append([another])
    node.wakeups.outbox_grew()
    return sealed.blob


def _is_here(node: Node, blob: Blob) -> bool:
    kept = node.store.blob(blob.sha256)
    return kept is not None and kept.complete


@pytest.mark.req("PIPE-5")
async def test_a_payload_is_fetched_from_its_source_and_the_agent_is_woken(world: World) -> None:
    """All chunks come over the link, and the agent hears of it when the whole is there."""
    a, b = await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=NodeTier.BACKBONE)
    blob = await _send_large(a, "bob")
    await settle(Pipe(a, b))
    assert _is_here(b, blob)
    assert b.woken == ["bob", "bob"]


@pytest.mark.req("PIPE-5", "PIPE-9")
async def test_a_seed_keeps_payloads_for_those_who_come_later(world: World) -> None:
    """The source is gone when the reader comes: the seed has event and payload."""
    a = await world.add("node-a", "ada")
    seed = await world.add("seed", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")
    blob = await _send_large(a, "bob")
    pipe = Pipe(a, seed)
    await settle(pipe)
    pipe.cut()
    await settle(Pipe(b, seed))
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5")
async def test_fetching_goes_on_after_a_restart_with_what_is_missing(world: World) -> None:
    """A chunk that is here is not asked for again."""
    a, b = await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=NodeTier.BACKBONE)
    blob = await _send_large(a, "bob")
    pipe = Pipe(a, b)
    chunks: list[Chunk] = []

    def cut_after_two(frame: bytes) -> list[bytes]:
        read = decode_frame(frame)
        if isinstance(read, Chunk):
            chunks.append(read)
            return [frame] if len(chunks) <= 2 else []
        return [frame]

    pipe.right.meddle = cut_after_two
    await settle(pipe)
    assert not _is_here(b, blob)
    missing = b.store.missing_chunks(blob.sha256)
    assert 0 < len(missing) < blob.chunks
    pipe.cut()
    b.restart()
    b.hub.fetcher.want_backlog()
    pipe = Pipe(a, b)
    asked: list[int] = []

    def note(frame: bytes) -> list[bytes]:
        read = decode_frame(frame)
        if isinstance(read, GetChunk):
            asked.append(read.part)
        return [frame]

    pipe.left.meddle = note
    await settle(pipe)
    assert _is_here(b, blob)
    assert asked == missing


@pytest.mark.req("PIPE-5")
async def test_a_payload_with_other_bytes_is_dropped_and_asked_of_somebody_else(world: World) -> None:
    """A seed that hands out altered chunks cannot make them count."""
    a = await world.add("node-a", "ada")
    seed = await world.add("seed", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")
    blob = await _send_large(a, "bob")
    pipe = Pipe(a, seed)
    await settle(pipe)
    pipe.cut()
    pipe = Pipe(b, seed)

    def alter(frame: bytes) -> list[bytes]:
        read = decode_frame(frame)
        if isinstance(read, Chunk) and read.data is not None:
            return [encode_frame(replace(read, data=bytes(len(read.data))))]
        return [frame]

    pipe.left.meddle = alter
    await settle(pipe)
    assert b.store.blob(blob.sha256) is None
    assert pipe.left.refusal is None
    await settle(pipe, Pipe(b, a))
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5", "PIPE-9")
async def test_a_reader_that_asks_before_the_seed_has_the_payload_gets_it_in_the_end(world: World) -> None:
    """The seed hands events on at once; who asks for a payload that is still on its way to the seed waits for it."""
    a = await world.add("node-a", "ada")
    seed = await world.add("seed", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")
    pipes = Pipe(b, seed), Pipe(a, seed)
    await settle(*pipes)
    blob = await _send_large(a, "bob")
    await settle(*pipes)
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5")
async def test_a_payload_that_nobody_had_is_asked_for_again_after_a_while(world: World) -> None:
    """Whoever did not have it may have it later: the question is put again, and the agent is not forgotten."""
    a, b = await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=NodeTier.BACKBONE)
    blob = await _send_large(a, "bob")
    await a.store.drop_blob(blob.sha256)
    pipe = Pipe(a, b)
    await settle(pipe)
    assert not _is_here(b, blob)
    await _send_large(a, "bob")
    world.clock.advance(30_000)
    await b.hub.tick()
    await settle(pipe)
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5")
async def test_a_payload_that_does_not_come_is_asked_of_somebody_else(world: World) -> None:
    """A seed that has no word of the payload and none of its absence is not waited for."""
    a = await world.add("node-a", "ada")
    seed = await world.add("seed", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")
    blob = await _send_large(a, "bob")
    first = Pipe(a, seed)
    first.right.meddle = lambda frame: [] if isinstance(decode_frame(frame), Chunk) else [frame]
    to_b = Pipe(b, seed)
    await settle(first, to_b)
    first.cut()
    direct = Pipe(a, b)
    await settle(direct, to_b)
    assert not _is_here(b, blob)
    for _ in range(2):
        world.clock.advance(30_000)
        await b.hub.tick()
        await settle(direct, to_b)
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5")
async def test_a_payload_is_given_to_its_readers_and_to_mirrors_only(world: World) -> None:
    """A member that no event names as a reader is refused by code, whether or not the payload is there."""
    a = await world.add("node-a", "ada")
    await world.add("node-b", "bob")
    eve = await world.add("node-e", "eve")
    blob = await _send_large(a, "bob", readers=("node-a", "node-b"))
    pipe = Pipe(eve, a)
    await settle(pipe)
    answers: list[Chunk] = []

    def note(frame: bytes) -> list[bytes]:
        read = decode_frame(frame)
        if isinstance(read, Chunk):
            answers.append(read)
        return [frame]

    pipe.left.meddle = note
    for address in (blob.sha256, "0" * 64):
        pipe.left.session.ask(GetChunk(sha256=address, part=0))
    await settle(pipe)
    assert [(each.code, each.data) for each in answers] == [(Code.SCOPE_DENIED.value, None)] * 2
    assert [(each.actor, each.action) for each in a.store.audit_log()] == [("node-e", "payload.denied")]
    assert pipe.left.refusal is None


@pytest.mark.req("PIPE-5", "PIPE-9")
async def test_a_mirror_that_restarts_looks_for_the_payloads_that_it_lacks(world: World) -> None:
    """The seed has the event and was stopped before the payload came: it asks for it when it is back."""
    a = await world.add("node-a", "ada")
    seed = await world.add("seed", tier=NodeTier.BACKBONE)
    b = await world.add("node-b", "bob")
    blob = await _send_large(a, "bob")
    pipe = Pipe(a, seed)
    pipe.right.meddle = lambda frame: [] if isinstance(decode_frame(frame), Chunk) else [frame]
    await settle(pipe)
    assert not _is_here(seed, blob)
    pipe.cut()
    seed.restart()
    seed.hub.fetcher.want_backlog()
    pipe = Pipe(a, seed)
    await settle(pipe)
    assert _is_here(seed, blob)
    pipe.cut()
    await settle(Pipe(b, seed))
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5")
async def test_a_source_that_names_payloads_and_gives_none_holds_up_no_other(world: World) -> None:
    """Thousands of payloads that never come are not kept in mind all at once, and others are fetched beside them."""
    a, b = await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=NodeTier.BACKBONE)
    world.room.add_node("node-m")
    never = [NewBlob(source_node_id="node-m", sha256=f"{n:064x}", size_bytes=9) for n in range(5_000)]
    b.hub.fetcher.want(never)
    assert not b.hub.fetcher.is_awaited(never[-1].sha256)
    too_large = NewBlob(source_node_id="node-m", sha256="f" * 64, size_bytes=2**60)
    b.hub.fetcher.want([too_large])
    assert not b.hub.fetcher.is_awaited(too_large.sha256)
    blob = await _send_large(a, "bob")
    await settle(Pipe(a, b))
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5", "PIPE-7")
async def test_a_payload_that_is_pruned_while_a_piece_of_it_comes_is_fetched_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link goes on, and whoever still wants the payload gets all of it."""
    a, b = await world.add("node-a", "ada"), await world.add("node-b", "bob", tier=NodeTier.BACKBONE)
    blob = await _send_large(a, "bob")
    put_chunk, pruned = b.store.put_chunk, list[int]()

    async def put_after_pruning(sha256: str, part: int, data: bytes) -> None:
        if not pruned:
            pruned.append(part)
            await b.store.drop_blob(sha256)
        await put_chunk(sha256, part, data)

    monkeypatch.setattr(b.store, "put_chunk", put_after_pruning)
    pipe = Pipe(a, b)
    await settle(pipe)
    assert pruned
    assert pipe.right.refusal is None
    world.clock.advance(30_000)
    await b.hub.tick()
    await settle(pipe)
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5")
async def test_a_payload_that_the_disk_has_altered_is_fetched_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage that a check of the addresses finds is mended from the source, and the agents that wait hear of it."""
    a, b = await world.add("node-a", "ada"), await world.add("node-b", "bob")
    blob = await _send_large(a, "bob")
    pipe = Pipe(a, b)
    await settle(pipe)
    good, damaged = b.store.chunk(blob.sha256, 1), bytearray(b.store.chunk(blob.sha256, 1) or b"")
    damaged[1_000] ^= 4
    chunk = b.store.chunk
    is_damaged = True

    def altered(sha256: str, part: int) -> bytes | None:
        return bytes(damaged) if is_damaged and part == 1 else chunk(sha256, part)

    monkeypatch.setattr(b.store, "chunk", altered)
    keeper = Keeper(store=b.store, room=world.room, clock=world.clock, wakeups=b.wakeups, renew=b.hub.fetcher.renew)
    b.woken.clear()
    await keeper.check_payloads()
    assert not _is_here(b, blob)
    is_damaged = False
    await settle(pipe)
    assert _is_here(b, blob)
    assert b.store.chunk(blob.sha256, 1) == good
    assert b.woken == ["bob"]
    await keeper.check_payloads()
    await keeper.check_payloads()
    assert _is_here(b, blob)


@pytest.mark.req("PIPE-5")
async def test_a_damaged_payload_that_no_other_gateway_has_is_not_thrown_away(world: World) -> None:
    """What this gateway sent itself cannot be had again: it stays, and a check goes on telling of it."""
    a, _ = await world.add("node-a", "ada"), await world.add("node-b", "bob")
    blob = await _send_large(a, "bob")
    await a.hub.fetcher.renew(blob.sha256)
    assert _is_here(a, blob)
