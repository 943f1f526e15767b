"""One content key for several gateways: wrapped for each of them under a key that only it and the sender can derive.

    KEK     = HKDF-SHA256(X25519(ephemeral, recipient), info = purpose, ephemeral, recipient, node)
    wrapped = ephemeral public (32) || nonce (12) || AES-256-GCM(KEK, nonce, content key, bound to the event)

The ephemeral key is the sender's and lives for an hour, so that both sides keep the KEK and a wrap is one AES call.
Knows nothing of what the content key is for.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from agentpost.delivery.ports import RoomView
from agentpost.protocol.errors import Code, Refusal
from agentpost.world import Chance, Clock

__all__ = ["KEY_BYTES", "NONCE_BYTES", "RENEW_AFTER_MS", "KeyWrapper", "WrapFor"]

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
RENEW_AFTER_MS: Final = 3_600_000

_PURPOSE: Final = b"agentpost key wrap 1\0"
_TAG_BYTES: Final = 16
_WRAPPED_BYTES: Final = KEY_BYTES + NONCE_BYTES + KEY_BYTES + _TAG_BYTES
_KEPT: Final = 4096


class WrapFor(Struct, frozen=True, kw_only=True):
    """The KEKs of some gateways. To be used in the turn of the loop in which it was made, and not kept."""

    ephemeral_public: bytes
    keks: list[tuple[str, AESGCM]]

    def wrap(self, key: bytes, nonce: bytes, bound_to: bytes) -> dict[str, bytes]:
        prefix = self.ephemeral_public + nonce
        return {node_id: prefix + kek.encrypt(nonce, key, bound_to) for node_id, kek in self.keks}


class KeyWrapper:
    """Wraps keys for other gateways, and unwraps what was wrapped for this one. Not shared between threads."""

    def __init__(
        self, *, node_id: str, sealing: X25519PrivateKey, room: RoomView, clock: Clock, chance: Chance
    ) -> None:
        self.node_id = node_id
        self._sealing = sealing
        self._public = sealing.public_key().public_bytes_raw()
        self._room = room
        self._clock = clock
        self._chance = chance
        self._renew()
        # The KEKs of other senders' ephemeral keys, the one that was used last at the end.
        self._received: OrderedDict[bytes, AESGCM] = OrderedDict()

    def wrap(self, key: bytes, nonce: bytes, *, to_nodes: Iterable[str], bound_to: bytes) -> dict[str, bytes]:
        """The key for each of the gateways, and for this one: a sender can read what it sent.

        `nonce` must be new; it serves all of them, because each has a KEK of its own.
        """
        return self.wrap_for(to_nodes).wrap(key, nonce, bound_to)

    def wrap_for(self, to_nodes: Iterable[str]) -> "WrapFor":
        """Wraps keys for these gateways and this one, for as long as the room does not change."""
        if self._clock.monotonic_ms() - self._renewed_at_ms >= RENEW_AFTER_MS:
            self._renew()
        keks = [(node_id, self._kek_for(node_id)) for node_id in dict.fromkeys((self.node_id, *to_nodes))]
        return WrapFor(ephemeral_public=self._ephemeral_public, keks=keks)

    def unwrap(self, wrapped: bytes, *, bound_to: bytes) -> bytes | None:
        """The key, or None if it was not wrapped for this gateway and this event, or was altered."""
        if len(wrapped) != _WRAPPED_BYTES:
            return None
        ephemeral = wrapped[:KEY_BYTES]
        kek = self._received.get(ephemeral)
        try:
            found = kek or _derive(self._sealing, ephemeral, ephemeral, self._public, self.node_id)
            key = found.decrypt(
                wrapped[KEY_BYTES : KEY_BYTES + NONCE_BYTES], wrapped[KEY_BYTES + NONCE_BYTES :], bound_to
            )
        except (InvalidTag, ValueError):
            return None
        # Only what has opened something is kept: rubbish does not push out the keys of others.
        self._received[ephemeral] = found
        if kek is None and len(self._received) > _KEPT:
            self._received.popitem(last=False)
        self._received.move_to_end(ephemeral)
        return key

    def _renew(self) -> None:
        self._ephemeral = X25519PrivateKey.from_private_bytes(self._chance.entropy(KEY_BYTES))
        self._ephemeral_public = self._ephemeral.public_key().public_bytes_raw()
        self._renewed_at_ms = self._clock.monotonic_ms()
        # The KEKs of this ephemeral key, with the recipient's key that each was derived for.
        self._sent: dict[str, tuple[bytes, AESGCM]] = {}

    def _kek_for(self, node_id: str) -> AESGCM:
        # The room is asked every time: a key that was replaced or revoked must not live on in here.
        public = self._public if node_id == self.node_id else self._room.sealing_key(node_id)
        if public is None:
            raise _unsealable(node_id)
        kept = self._sent.get(node_id)
        if kept is not None and kept[0] == public:
            return kept[1]
        if len(self._sent) >= _KEPT:
            self._sent.clear()
        try:
            kek = _derive(self._ephemeral, public, self._ephemeral_public, public, node_id)
        except ValueError:
            raise _unsealable(node_id) from None
        self._sent[node_id] = (public, kek)
        return kek


def _derive(own: X25519PrivateKey, other: bytes, ephemeral: bytes, recipient: bytes, node_id: str) -> AESGCM:
    """The KEK of both sides. A ValueError if `other` is not a key that a secret can be shared with."""
    shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    info = _PURPOSE + ephemeral + recipient + node_id.encode()
    return AESGCM(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(shared))


def _unsealable(node_id: str) -> Refusal:
    return Refusal(
        Code.NO_ROUTE,
        f"nothing can be sealed for {node_id}: it is not in the room with a key, or was revoked",
        field="toNodes",
        hint="Let the gateway join again, or give the agent to another one.",
    )
