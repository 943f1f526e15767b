"""Content sealed for the gateways of its recipients, and opened again (PIPE-4, PIPE-5).

Each event has a content key of its own. AES-256-GCM under that key, bound to the event's id, its source and the suite:
sealed content cannot be moved to another event. The key is wrapped for each gateway (`wrapping`). GCM alone would let
a sender make one ciphertext that says different things under different keys, so the plaintext starts with a block of
zeros, which under a second key it would not: all recipients read the same.

Knows nothing of routes. What comes from others and does not open is a `Refusal`, which never repeats content.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.content import content_of, decode_content, encode_content
from agentpost.delivery.ports import Content, RoomView
from agentpost.delivery.wrapping import KEY_BYTES, NONCE_BYTES, KeyWrapper, WrapFor
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.payloads import PayloadRef, Sealed
from agentpost.store.blobs import SealedBlob, open_blob, seal_blob
from agentpost.store.interface import Store
from agentpost.world import Chance, Clock

__all__ = ["MAX_CONTENT_BYTES", "MAX_PAYLOAD_BYTES", "MOST_ANSWER_BYTES", "SUITE", "SealFor", "Sealer"]

SUITE: Final = "x25519-hkdf-sha256-aes256gcm"
MAX_CONTENT_BYTES: Final = 64 * 1024 * 1024
# Of what one answer hands over from several messages: the gateway holds all of it, its caller gets it in one piece.
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024

_COMMITMENT: Final = bytes(32)
# What a blob of the largest content can have in it: the commitment, and a tag for each chunk.
MAX_PAYLOAD_BYTES: Final = MAX_CONTENT_BYTES + 1024 * 1024

AnyEvent = TypeVar("AnyEvent", bound=Event)


class SealFor(Struct, frozen=True, kw_only=True):
    """Seals content for some gateways. To be used in the turn of the loop in which it was made, and not kept."""

    node_id: str
    chance: Chance
    wrap_for: WrapFor

    def seal(self, encoded: bytes, *, event_id: EventId) -> Sealed:
        bound_to = _bound_to(event_id, self.node_id)
        drawn = self.chance.entropy(KEY_BYTES + 2 * NONCE_BYTES)
        key, nonce = drawn[:KEY_BYTES], drawn[KEY_BYTES : KEY_BYTES + NONCE_BYTES]
        return Sealed(
            suite=SUITE,
            keys=self.wrap_for.wrap(key, drawn[KEY_BYTES + NONCE_BYTES :], bound_to),
            nonce=nonce,
            ciphertext=AESGCM(key).encrypt(nonce, _COMMITMENT + encoded, bound_to),
        )


class Sealer:
    """Seals for any gateway in the room and opens what is sealed for this one. `store` is where blobs are."""

    def __init__(
        self,
        *,
        node_id: str,
        sealing: X25519PrivateKey,
        room: RoomView,
        clock: Clock,
        chance: Chance,
        store: Store | None = None,
        on_damaged: Callable[[str], None] | None = None,
    ) -> None:
        self._node_id = node_id
        self._chance = chance
        self._store = store
        self._on_damaged = on_damaged
        self._wrapper = KeyWrapper(node_id=node_id, sealing=sealing, room=room, clock=clock, chance=chance)

    def seal(self, content: Content, *, event_id: EventId, to_nodes: Sequence[str]) -> Sealed:
        """The content for these gateways and this one. Refused, with its name, for a gateway without a key."""
        return self.seal_bytes(encode_content(content), event_id=event_id, to_nodes=to_nodes)

    def seal_bytes(self, encoded: bytes, *, event_id: EventId, to_nodes: Sequence[str]) -> Sealed:
        """The same for content that is encoded already."""
        return self.seal_for(to_nodes).seal(encoded, event_id=event_id)

    def seal_for(self, to_nodes: Sequence[str]) -> "SealFor":
        """Seals for these gateways and this one, for as long as the room does not change. Refused as `seal` is."""
        return SealFor(node_id=self._node_id, chance=self._chance, wrap_for=self._wrapper.wrap_for(to_nodes))

    def seal_blob(self, encoded: bytes, *, event_id: EventId, to_nodes: Sequence[str]) -> tuple[PayloadRef, SealedBlob]:
        """Content too large for an event: the reference that goes into the event, and the chunks to store first."""
        drawn = self._chance.entropy(KEY_BYTES + NONCE_BYTES)
        key, nonce = drawn[:KEY_BYTES], drawn[KEY_BYTES:]
        keys = self._wrapper.wrap(key, nonce, to_nodes=to_nodes, bound_to=_bound_to(event_id, self._node_id))
        sealed = seal_blob(encoded, key, after=_COMMITMENT)
        blob = sealed.blob
        return PayloadRef(sha256=blob.sha256, size_bytes=blob.size_bytes, suite=SUITE, keys=keys), sealed

    def open(self, event: Event) -> Content:
        """What the event says: sealed, in the clear, or in a blob that is here. Nothing, for a kind without content.

        Refused with `unavailable` while the blob has not been fetched, and with `invalid_field` for what is not sealed
        for this gateway and this event, or was altered.
        """
        sealed = _sealed_of(event)
        if sealed is not None:
            return decode_content(self._open_sealed(event, sealed))
        if event.payload_ref is not None:
            return decode_content(self._open_blob(event, event.payload_ref))
        return content_of(event.payload)

    def share(self, event: AnyEvent, *, to_nodes: Sequence[str]) -> AnyEvent:
        """The same event with the same content, and keys for these gateways and this one instead of those before.

        For an event that is sent again to another gateway than at first; its content is not encrypted anew.
        """
        sealed = _sealed_of(event)
        place = sealed or event.payload_ref
        if place is None:
            return event
        bound_to = _bound_to(event.event_id, event.source_node_id)
        keys = self._wrapper.wrap(
            self._key(event, place.suite, place.keys, bound_to),
            self._chance.entropy(NONCE_BYTES),
            to_nodes=to_nodes,
            bound_to=bound_to,
        )
        if sealed is None:
            return replace(event, payload_ref=replace(cast(PayloadRef, place), keys=keys))
        payload: Any = event.payload
        return replace(event, payload=replace(payload, sealed=replace(sealed, keys=keys)))

    def _open_sealed(self, event: Event, sealed: Sealed) -> bytes:
        bound_to = _bound_to(event.event_id, event.source_node_id)
        key = self._key(event, sealed.suite, sealed.keys, bound_to)
        try:
            opened = AESGCM(key).decrypt(sealed.nonce, sealed.ciphertext, bound_to)
        except (InvalidTag, ValueError):
            raise _altered(event) from None
        return _committed(event, opened)

    def _open_blob(self, event: Event, ref: PayloadRef) -> bytes:
        key = self._key(event, ref.suite, ref.keys, _bound_to(event.event_id, event.source_node_id))
        blob = None if self._store is None else self._store.blob(ref.sha256)
        if self._store is None or blob is None or not blob.complete:
            raise _not_here(event)
        if blob.size_bytes != ref.size_bytes or blob.size_bytes > MAX_PAYLOAD_BYTES:
            raise _altered(event)
        chunks = [self._store.chunk(ref.sha256, part) for part in range(blob.chunks)]
        try:
            opened = open_blob([chunk for chunk in chunks if chunk is not None], key)
        except Refusal:
            if sha256(b"".join(chunk or b"" for chunk in chunks)).hexdigest() == ref.sha256:
                raise _altered(event) from None
            # The disk has altered it, not its sender.
            if self._on_damaged is not None:
                self._on_damaged(ref.sha256)
            raise _not_here(event) from None
        return _committed(event, opened)

    def _key(self, event: Event, suite: str, keys: Mapping[str, bytes], bound_to: bytes) -> bytes:
        if suite != SUITE:
            raise Refusal(
                Code.INVALID_FIELD,
                f"the content of {event.event_id} is sealed in a way that this gateway does not know: {suite!r:.60}",
                field="suite",
                corr_id=event.corr_id,
                hint=f"Upgrade agentpost on one of the two gateways; this one knows {SUITE}.",
            )
        wrapped = keys.get(self._node_id)
        if wrapped is None:
            raise Refusal(
                Code.INVALID_FIELD,
                f"the content of {event.event_id} is not sealed for {self._node_id}",
                field="keys",
                corr_id=event.corr_id,
                hint="Have it sent again: it is then sealed for the gateway that the agent has now.",
            )
        key = self._wrapper.unwrap(wrapped, bound_to=bound_to)
        if key is None:
            raise _altered(event)
        return key


def _bound_to(event_id: EventId, source_node_id: str) -> bytes:
    """What every layer is bound to. All but the last part have a fixed length, so no two events share it."""
    return f"{SUITE} {event_id} {source_node_id}".encode()


def _sealed_of(event: Event) -> Sealed | None:
    return getattr(event.payload, "sealed", None)


def _committed(event: Event, opened: bytes) -> bytes:
    if not opened.startswith(_COMMITMENT):
        raise _altered(event)
    return opened[len(_COMMITMENT) :]


def _not_here(event: Event) -> Refusal:
    return Refusal(
        Code.UNAVAILABLE,
        f"the content of {event.event_id} is not here yet",
        field="payloadRef",
        corr_id=event.corr_id,
        hint="It is fetched from the sender's gateway; try again once that can be reached.",
    )


def _altered(event: Event) -> Refusal:
    return Refusal(
        Code.INVALID_FIELD,
        f"the content of {event.event_id} does not open: it was altered, or sealed for another key or event",
        field="payload.sealed",
        corr_id=event.corr_id,
        hint="Have it sent again; if the gateway's keys were replaced, what was sealed for the old ones is lost.",
    )
