"""What time asks for, done also while nobody calls."""

import asyncio
import logging
from typing import Final, Protocol

from agentpost.protocol.errors import Refusal

__all__ = ["Sweepable", "keep_swept"]

_log = logging.getLogger(__name__)

_SWEEP_EVERY_SECONDS: Final = 1.0


class Sweepable(Protocol):
    async def sweep(self) -> int: ...


async def keep_swept(mailbox: Sweepable) -> None:
    while True:
        try:
            while await mailbox.sweep():
                pass
        except Refusal as refusal:
            # A full disk for example: time goes on, and so does this.
            _log.warning("the mailbox cannot be swept: %s", refusal.message)
        await asyncio.sleep(_SWEEP_EVERY_SECONDS)
