"""Sealing: only the gateways that content is for can open it, and nothing about it can be changed unnoticed."""

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentpost.delivery import wrapping
from agentpost.delivery.content import encode_content
from agentpost.delivery.ports import Content
from agentpost.delivery.sealing import SUITE, Sealer
from agentpost.delivery.wrapping import RENEW_AFTER_MS, KeyWrapper
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import PayloadRef, Sealed
from agentpost.store.interface import Store
from agentpost.testing import (
    START_MS,
    FakeClock,
    FixedRoom,
    MemoryStore,
    SeededChance,
    a_message,
    an_ack,
    an_identity,
)
from tests.store.building import refused

CONTENT = Content(subject="the fence", body="paint it green, please", context={"litres": 3})
LOW_ORDER = bytes(32)  # no secret can be shared with this point


class Mesh:
    """Three gateways in one room, and the sealer of each."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.room = FixedRoom(self.clock)
        for node_id in ("node-a", "node-b", "node-c"):
            self.room.add_node(node_id)
        self.a, self.b, self.c = (self.sealer(node_id) for node_id in ("node-a", "node-b", "node-c"))

    def sealer(self, node_id: str, *, seed: int | None = None, store: Store | None = None) -> Sealer:
        return Sealer(
            node_id=node_id,
            sealing=self.room.identity(node_id).sealing,
            room=self.room,
            clock=self.clock,
            chance=SeededChance(ord(node_id[-1]) if seed is None else seed),
            store=store,
        )

    def sent(
        self, content: Content = CONTENT, *, number: int = 1, to_nodes: tuple[str, ...] = ("node-b",)
    ) -> MessageEvent:
        event = a_message(number)
        sealed = self.a.seal(content, event_id=event.event_id, to_nodes=to_nodes)
        return carrying(event, sealed)


@pytest.fixture
def mesh() -> Mesh:
    return Mesh()


def carrying(event: MessageEvent, sealed: Sealed) -> MessageEvent:
    return replace(event, payload=replace(event.payload, body=None, sealed=sealed))


def sealed_of(event: MessageEvent) -> Sealed:
    assert event.payload.sealed is not None
    return event.payload.sealed


@pytest.mark.req("PIPE-4")
def test_recipient_and_sender_can_read_it_and_nobody_else(mesh: Mesh) -> None:
    """A message for node-b opens there and at its sender; node-c, which may relay it, is refused."""
    event = mesh.sent()
    assert mesh.b.open(event) == CONTENT
    assert mesh.a.open(event) == CONTENT
    with refused(Code.INVALID_FIELD) as caught:
        mesh.c.open(event)
    assert "not sealed for node-c" in caught.value.message


@pytest.mark.req("PIPE-4")
def test_nothing_that_was_said_is_in_the_bytes(mesh: Mesh) -> None:
    """The event that is stored and relayed has no word of the content in it, and still opens after the journey."""
    raw = encode_event(mesh.sent())
    assert not [word for word in (b"fence", b"green", b"litres") if word in raw]
    assert mesh.b.open(decode_event(raw)) == CONTENT


@pytest.mark.req("PIPE-4")
def test_each_event_has_a_key_of_its_own(mesh: Mesh) -> None:
    """The same words sealed twice share no bytes that would tell."""
    one, two = sealed_of(mesh.sent(number=1)), sealed_of(mesh.sent(number=2))
    assert one.ciphertext != two.ciphertext
    assert one.nonce != two.nonce
    assert one.keys["node-b"][32:] != two.keys["node-b"][32:]


@pytest.mark.req("PIPE-4")
def test_sealed_content_cannot_be_moved_to_another_event(mesh: Mesh) -> None:
    """The same seal under another id, another source or another suite does not open."""
    event = mesh.sent()
    for moved in (
        carrying(a_message(2), sealed_of(event)),
        replace(event, source_node_id="node-c"),
        carrying(event, replace(sealed_of(event), suite="rot13")),
    ):
        with refused(Code.INVALID_FIELD):
            mesh.b.open(moved)


@pytest.mark.req("PIPE-4")
@given(part=st.sampled_from(["key", "nonce", "ciphertext"]), data=st.data())
def test_not_a_bit_can_be_changed(part: str, data: st.DataObject) -> None:
    """Wherever a bit of the seal is flipped, it does not open, and the refusal says nothing of the content."""
    mesh = Mesh()
    sealed = sealed_of(mesh.sent())
    original = {"key": sealed.keys["node-b"], "nonce": sealed.nonce, "ciphertext": sealed.ciphertext}[part]
    bit = data.draw(st.integers(0, 8 * len(original) - 1))
    flipped = bytearray(original)
    flipped[bit // 8] ^= 1 << bit % 8
    altered = {
        "key": lambda: replace(sealed, keys=sealed.keys | {"node-b": bytes(flipped)}),
        "nonce": lambda: replace(sealed, nonce=bytes(flipped)),
        "ciphertext": lambda: replace(sealed, ciphertext=bytes(flipped)),
    }[part]()
    with refused(Code.INVALID_FIELD) as caught:
        mesh.b.open(carrying(a_message(1), altered))
    assert "fence" not in caught.value.message


@pytest.mark.req("PIPE-4")
@given(
    key=st.one_of(st.binary(max_size=200), st.binary(min_size=92, max_size=92), st.just(LOW_ORDER + bytes(60))),
    nonce=st.binary(max_size=40),
    ciphertext=st.binary(max_size=100),
)
def test_rubbish_from_a_peer_is_refused(key: bytes, nonce: bytes, ciphertext: bytes) -> None:
    """Whatever bytes stand in a seal, the answer is a refusal and never a crash."""
    sealed = Sealed(suite=SUITE, keys={"node-b": key}, nonce=nonce, ciphertext=ciphertext)
    with refused(Code.INVALID_FIELD):
        Mesh().b.open(carrying(a_message(1), sealed))


@pytest.mark.req("PIPE-4")
def test_content_without_the_commitment_to_its_key_is_refused(mesh: Mesh) -> None:
    """A sender that seals without the zeros, so that two recipients could read two things, is not believed."""
    event, key, nonce = a_message(1), bytes(range(32)), bytes(12)
    bound_to = f"{SUITE} {event.event_id} node-a".encode()
    wrapper = KeyWrapper(
        node_id="node-a",
        sealing=mesh.room.identity("node-a").sealing,
        room=mesh.room,
        clock=mesh.clock,
        chance=SeededChance(9),
    )
    sealed = Sealed(
        suite=SUITE,
        keys=wrapper.wrap(key, nonce, to_nodes=("node-b",), bound_to=bound_to),
        nonce=nonce,
        ciphertext=AESGCM(key).encrypt(nonce, encode_content(CONTENT), bound_to),
    )
    with refused(Code.INVALID_FIELD):
        mesh.b.open(carrying(event, sealed))


@pytest.mark.req("PIPE-4")
def test_nothing_is_sealed_for_a_gateway_that_is_unknown_or_revoked(mesh: Mesh) -> None:
    """The refusal says which gateway it is; a revocation counts from the next event on."""
    mesh.sent()
    mesh.room.revoke("node-b")
    for node_id in ("node-b", "node-x"):
        with refused(Code.NO_ROUTE) as caught:
            mesh.sent(to_nodes=(node_id,))
        assert node_id in caught.value.message


@pytest.mark.req("PIPE-4")
def test_a_key_that_no_secret_can_be_shared_with_is_refused(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway with a senseless key in its record gets nothing sealed, and breaks nothing."""
    for senseless in (LOW_ORDER, b"short"):
        monkeypatch.setattr(mesh.room, "sealing_key", lambda node_id, key=senseless: key)
        with refused(Code.NO_ROUTE):
            mesh.sent()


@pytest.mark.req("PIPE-4")
def test_a_replaced_key_is_used_at_once(mesh: Mesh) -> None:
    """After a gateway got new keys, content is sealed for those, whatever was kept for the old ones."""
    mesh.sent()
    mesh.room.add_node("node-b", identity=an_identity("node-b, new disk"))
    event = mesh.sent(number=2)
    assert mesh.sealer("node-b").open(event) == CONTENT
    with refused(Code.INVALID_FIELD):
        mesh.b.open(event)


@pytest.mark.req("PIPE-4")
def test_the_senders_ephemeral_key_lives_for_an_hour(mesh: Mesh) -> None:
    """Within the hour it is the same, so nothing is derived anew; afterwards it is another, and all of it opens."""
    first = mesh.sent(number=1)
    mesh.clock.advance(RENEW_AFTER_MS - 1)
    second = mesh.sent(number=2)
    mesh.clock.advance(1)
    third = mesh.sent(number=3)
    ephemeral = [sealed_of(event).keys["node-b"][:32] for event in (first, second, third)]
    assert ephemeral[0] == ephemeral[1] != ephemeral[2]
    for event in (third, first, second):
        assert mesh.b.open(event) == CONTENT


def test_what_is_kept_of_others_keys_is_bounded(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """More senders than are remembered cost time, not memory, and everything still opens."""
    monkeypatch.setattr(wrapping, "_KEPT", 2)
    events: list[MessageEvent] = []
    for seed in range(5):
        mesh.a = mesh.sealer("node-a", seed=seed)
        events.append(mesh.sent(number=seed, to_nodes=("node-b", "node-c")))
    for event in (*events, *events):
        assert mesh.b.open(event) == CONTENT
        assert mesh.c.open(event) == CONTENT


@pytest.mark.req("PIPE-4")
def test_an_event_can_be_shared_with_another_gateway(mesh: Mesh) -> None:
    """Sent again to a stand-in, the same ciphertext opens there, and the gateway before has no key any more."""
    event = mesh.sent()
    shared = mesh.a.share(event, to_nodes=("node-c",))
    assert mesh.c.open(shared) == mesh.a.open(shared) == CONTENT
    assert sealed_of(shared).ciphertext == sealed_of(event).ciphertext
    with refused(Code.INVALID_FIELD):
        mesh.b.open(shared)
    clear = a_message(2, body="in the clear")
    assert mesh.a.share(clear, to_nodes=("node-c",)) is clear


def test_content_in_the_clear_is_read_as_it_is(mesh: Mesh) -> None:
    """What another implementation did not seal can be read; an event without content has none."""
    message = a_message(1, body="hello")
    assert mesh.b.open(message) == Content(body="hello")
    assert mesh.b.open(an_ack(message)) == Content()


class TestBlobs:
    """Content beside the event."""

    async def kept(self, mesh: Mesh, content: Content, store: MemoryStore) -> MessageEvent:
        event = a_message(1)
        ref, sealed = mesh.a.seal_blob(encode_content(content), event_id=event.event_id, to_nodes=("node-b",))
        await store.begin_blob(sealed.blob, at_ms=START_MS)
        for part, data in enumerate(sealed.chunks):
            await store.put_chunk(ref.sha256, part, data)
        await store.complete_blob(ref.sha256)
        return replace(event, payload_ref=ref, payload=replace(event.payload, body=None))

    @pytest.mark.req("PIPE-5")
    async def test_a_blob_opens_where_it_is_and_for_whom_it_is(self, mesh: Mesh) -> None:
        """The recipient opens it once it is fetched; until then it is not available; others have no key."""
        store = MemoryStore(node_id="node-b", epoch="first")
        content = Content(body="x" * 600_000)
        event = await self.kept(mesh, content, store)
        assert mesh.sealer("node-b", store=store).open(event) == content
        empty = MemoryStore(node_id="node-b", epoch="first")
        with refused(Code.UNAVAILABLE):
            mesh.sealer("node-b", store=empty).open(event)
        with refused(Code.UNAVAILABLE):
            mesh.b.open(event)
        with refused(Code.INVALID_FIELD):
            mesh.sealer("node-c", store=store).open(event)

    @pytest.mark.req("PIPE-5")
    async def test_a_reference_cannot_be_moved_or_altered(self, mesh: Mesh) -> None:
        """A reference in another event, or with another size, opens nothing."""
        store = MemoryStore(node_id="node-b", epoch="first")
        event = await self.kept(mesh, Content(body="x"), store)
        sealer = mesh.sealer("node-b", store=store)
        ref = event.payload_ref
        assert ref is not None
        for altered in (
            replace(a_message(2), payload_ref=ref),
            replace(event, payload_ref=replace(ref, size_bytes=ref.size_bytes + 1)),
            replace(event, payload_ref=replace(ref, suite="rot13")),
        ):
            with refused(Code.INVALID_FIELD):
                sealer.open(altered)

    @pytest.mark.req("PIPE-5")
    async def test_a_blob_of_another_content_is_refused(self, mesh: Mesh) -> None:
        """The key of one blob does not open another that stands in its place."""
        store = MemoryStore(node_id="node-b", epoch="first")
        one = await self.kept(mesh, Content(body="one"), store)
        two = await self.kept(mesh, Content(body="two"), store)
        assert one.payload_ref is not None
        assert two.payload_ref is not None
        mixed: PayloadRef = replace(one.payload_ref, keys=two.payload_ref.keys)
        with pytest.raises(Refusal):
            mesh.sealer("node-b", store=store).open(replace(one, payload_ref=mixed))

    @pytest.mark.req("PIPE-5")
    async def test_a_blob_can_be_shared_with_another_gateway(self, mesh: Mesh) -> None:
        """Only the reference gets other keys; the blob stays what and where it is."""
        store = MemoryStore(node_id="node-a", epoch="first")
        event = await self.kept(mesh, Content(body="large"), store)
        shared = mesh.a.share(event, to_nodes=("node-c",))
        assert mesh.sealer("node-c", store=store).open(shared) == Content(body="large")
        assert shared.payload_ref is not None
        assert sorted(shared.payload_ref.keys) == ["node-a", "node-c"]
