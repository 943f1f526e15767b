"""The keys that sign access tokens. They rotate, a token names its key (`kid`), and what a key signed outlives it.

Each is derived from the node's own key and a number, so none of them stands anywhere: the store has the numbers only.
"""

from functools import lru_cache, partial
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from agentpost.auth.external import audit
from agentpost.auth.external.lifetimes import ACCESS_SECONDS
from agentpost.auth.signing import to_text
from agentpost.store.external_values import TokenKey
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.world import Clock

__all__ = ["ROTATE_AFTER_MS", "KeyRing", "SigningKey", "derived_secret"]

ROTATE_AFTER_MS: Final = 30 * 86_400_000
# What a retired key signed is good until the last of it has expired.
_KEPT_MS: Final = (ACCESS_SECONDS.stop - 1) * 1000
_SECRET_BYTES: Final = 32


class SigningKey(Struct, frozen=True, kw_only=True):
    kid: str
    private: Ed25519PrivateKey


class KeyRing:
    def __init__(self, store: Store, identity: Identity, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._derive = lru_cache(maxsize=64)(partial(_derived, identity, store.epoch))

    async def signing(self) -> SigningKey:
        """The key to sign with; a new one if there is none yet, or if the last has served for long enough."""
        known = self._store.token_keys()
        if not known or self._clock.now_ms() - known[-1].made_at_ms >= ROTATE_AFTER_MS:
            return await self.rotate(by="gateway")
        return self._derive(known[-1].number)

    def find(self, kid: object) -> SigningKey | None:
        """The key of this name, if what it signed may still be good."""
        now_ms = self._clock.now_ms()
        for each in self._store.token_keys():
            key = self._derive(each.number)
            if key.kid == kid and _is_trusted(each, now_ms):
                return key
        return None

    async def rotate(self, *, by: str, drop_others: bool = False) -> SigningKey:
        """Sign with a new key from now on; with `drop_others`, also trust nothing that was signed before."""
        at_ms = self._clock.now_ms()
        entry = audit.key_rotated(by=by, dropped=drop_others, at_ms=at_ms)
        return self._derive((await self._store.add_token_key(at_ms=at_ms, drop_others=drop_others, audit=entry)).number)


def derived_secret(identity: Identity, purpose: str) -> bytes:
    """A secret for one purpose that comes back after a restart and is kept nowhere."""
    derivation = HKDF(algorithm=SHA256(), length=_SECRET_BYTES, salt=None, info=purpose.encode())
    return derivation.derive(identity.signing.private_bytes_raw())


def _derived(identity: Identity, epoch: str, number: int) -> SigningKey:
    # The epoch is in it because a home that is restored counts from one again.
    secret = derived_secret(identity, f"agentpost access tokens 1 {epoch} {number}")
    private = Ed25519PrivateKey.from_private_bytes(secret)
    return SigningKey(kid=to_text(sha256(private.public_key().public_bytes_raw()).digest()[:12]), private=private)


def _is_trusted(key: TokenKey, now_ms: int) -> bool:
    return key.retired_at_ms is None or now_ms < key.retired_at_ms + _KEPT_MS
