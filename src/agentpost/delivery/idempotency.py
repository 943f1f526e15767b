"""Idempotency keys: a call that is repeated with its key is answered as before, and nothing is said twice.

The answer is kept in the transaction of what the call writes, so a crash between the commit and the answer changes
nothing. Refused calls wrote nothing and keep no key: they may be repeated. The store decides between two calls at once
with one key: the second finds the key taken, and gets the answer of the first.
"""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from agentpost.protocol.backoff import RETRY_KEY_PREFIX
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.interface import Store
from agentpost.store.values import KeptAnswer, KeyedAnswer
from agentpost.world import Clock

__all__ = ["KEY_SECONDS", "LONGEST_KEY", "IdempotencyKeys", "Keyed"]

KEY_SECONDS: Final = 86_400
LONGEST_KEY: Final = 255
# A client makes a key with this prefix for its own retries, which take seconds. There may be one for every message, so
# they are kept for less time.
_RETRY_KEY_SECONDS: Final = 900

T = TypeVar("T")


class Keyed(Struct, frozen=True, kw_only=True):
    """A call with an idempotency key. `key` and `request` are sha256: of the key, and of all that the call says."""

    agent_id: str
    key: bytes
    request: bytes
    at_ms: int
    expires_at_ms: int

    def answered(self, answer: object) -> KeyedAnswer:
        """The answer as the store keeps it with what the call writes."""
        return KeyedAnswer(
            agent_id=self.agent_id,
            key=self.key,
            request=self.request,
            answer=msgspec.json.encode(answer),
            at_ms=self.at_ms,
            expires_at_ms=self.expires_at_ms,
        )


class IdempotencyKeys:
    def __init__(self, *, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def of(self, agent_id: str, key: str | None, verb: str, said: Any) -> Keyed | None:
        """The call of an agent with this key; None without a key. `said` is everything that makes it this call."""
        if key is None:
            return None
        if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise Refusal(
                Code.INVALID_FIELD,
                f"an idempotency key has 1 to {LONGEST_KEY} printable ASCII characters",
                field="idempotencyKey",
                hint="Use a new random value for each call, e.g. a UUID.",
            )
        now_ms = self._clock.now_ms()
        kept_seconds = _RETRY_KEY_SECONDS if key.startswith(RETRY_KEY_PREFIX) else KEY_SECONDS
        return Keyed(
            agent_id=agent_id,
            key=sha256(key.encode()).digest(),
            request=sha256(f"{verb}\0".encode() + _encoded(said)).digest(),
            at_ms=now_ms,
            expires_at_ms=now_ms + kept_seconds * 1000,
        )

    async def once(
        self, keyed: Keyed | None, call: Callable[[], Awaitable[T]], *, again: Callable[[KeptAnswer], T]
    ) -> T:
        """What the call gives; or what `again` makes of the answer that it was given before."""
        if keyed is not None and (kept := self._kept(keyed)) is not None:
            return again(kept)
        try:
            return await call()
        except Refusal:
            # The same call may have been under way: its answer is here by now.
            if keyed is None or (kept := self._kept(keyed)) is None:
                raise
            return again(kept)

    def _kept(self, keyed: Keyed) -> KeptAnswer | None:
        kept = self._store.kept_answer(keyed.agent_id, keyed.key)
        if kept is None or kept.expires_at_ms <= keyed.at_ms:
            return None
        if kept.request != keyed.request:
            raise Refusal(
                Code.IDEMPOTENCY_KEY_REUSED,
                f"{keyed.agent_id} has used this idempotency key for a call that said something else",
                field="idempotencyKey",
            )
        return kept


def _encoded(said: Any) -> bytes:
    try:
        return msgspec.json.encode(said, order="sorted")
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise Refusal(Code.INVALID_FIELD, f"the call cannot be encoded: {error}", field="body") from None
