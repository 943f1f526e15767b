"""What time asks for, done also while nobody calls."""

import asyncio
from typing import Final, Protocol

__all__ = ["Sweepable", "keep_swept"]

_SWEEP_EVERY_SECONDS: Final = 1.0


class Sweepable(Protocol):
    async def sweep(self) -> int: ...


async def keep_swept(mailbox: Sweepable) -> None:
    while True:
        while await mailbox.sweep():
            pass
        await asyncio.sleep(_SWEEP_EVERY_SECONDS)
