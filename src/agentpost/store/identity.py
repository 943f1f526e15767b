"""Who this node is: an Ed25519 key that signs for it and an X25519 key that content is sealed for.

Both are made once, live in the home's `keys` directory with mode 0600, and never leave it.
"""

import base64
import stat
from pathlib import Path
from typing import Final, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home, write_private

__all__ = ["Identity", "load_identity"]

Key = TypeVar("Key", Ed25519PrivateKey, X25519PrivateKey)

_SIGNING: Final = "signing.pem"
_SEALING: Final = "sealing.pem"


class Identity:
    """The keys of a node. Its repr shows the public halves only."""

    def __init__(self, signing: Ed25519PrivateKey, sealing: X25519PrivateKey) -> None:
        self.signing = signing
        self.sealing = sealing

    @property
    def signing_public(self) -> str:
        """The public half of the signing key: 43 characters of base64url."""
        return _text(self.signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @property
    def sealing_public(self) -> str:
        """The public half of the sealing key: 43 characters of base64url."""
        return _text(self.sealing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def __repr__(self) -> str:
        return f"Identity(signing_public={self.signing_public!r}, sealing_public={self.sealing_public!r})"


def load_identity(home: Home) -> Identity:
    """The keys of this home; made now if it has none yet."""
    signing = _load(home.keys / _SIGNING, Ed25519PrivateKey)
    sealing = _load(home.keys / _SEALING, X25519PrivateKey)
    return Identity(signing, sealing)


def _load(path: Path, kind: type[Key]) -> Key:
    if not path.exists():
        key = kind.generate()
        write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return key
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Refusal(
            Code.HOME_UNSAFE, f"{path} can be read by others (mode {stat.S_IMODE(mode):o}); run: chmod 600 {path}"
        )
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, kind):
        raise Refusal(Code.STORAGE_CORRUPT, f"{path} does not hold the key it should; restore it from a backup")
    return key


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
