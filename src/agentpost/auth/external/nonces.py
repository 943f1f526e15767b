"""Nonces of the server: a proof that names one was made within the last minutes, not in advance. Pure.

Nothing is kept of them. Each stands for a period of time and is known again by its making, after a restart, too.
"""

import hmac
from hashlib import sha256
from typing import Final

from agentpost.auth.signing import to_text

__all__ = ["PERIOD_MS", "ServerNonces"]

PERIOD_MS: Final = 120_000
_BYTES: Final = 18


class ServerNonces:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def current(self, now_ms: int) -> str:
        return self._of(now_ms // PERIOD_MS)

    def is_good(self, nonce: str, *, now_ms: int) -> bool:
        """Whether it is that of this period or of the one before."""
        period = now_ms // PERIOD_MS
        said = nonce.encode("utf-8", "surrogatepass")
        return any(hmac.compare_digest(said, self._of(each).encode()) for each in (period, period - 1))

    def _of(self, period: int) -> str:
        return to_text(hmac.digest(self._secret, b"%d" % period, sha256)[:_BYTES])
