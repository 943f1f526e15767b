"""What must not be used twice: nonces, challenges and tickets. The store remembers, so a restart forgets nothing."""

from typing import Final

from agentpost.store.interface import Store

__all__ = ["ReplayGuard"]

# A value is remembered for longer than it is good: a clock that ran ahead and was set back must not revive it.
_REMEMBERED_LONGER_MS: Final = 86_400_000


class ReplayGuard:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def first_use(self, scope: str, value: str, *, now_ms: int, good_until_ms: int) -> bool:
        """Whether this is the first time that the value is used in its scope; true for one caller only (AUTH-8)."""
        return await self._store.remember_once(
            scope, value, now_ms=now_ms, expires_at_ms=max(now_ms, good_until_ms) + _REMEMBERED_LONGER_MS
        )
