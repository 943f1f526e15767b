"""Notes of tasks that are gone: forgotten with them, which is when mail that was settled long ago is."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from agentpost.edges.a2a.noting import FOLLOW_UPS, MESSAGES, TASKS, KnownMessage
from agentpost.edges.a2a.push import CONFIGS
from agentpost.edges.a2a.pushing import PUSHED
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import TaskId
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.world import Clock

__all__ = ["forget", "keep_forgetting"]

_LOOK_SECONDS: Final = 3_600.0
_PAGE: Final = 256

_log = logging.getLogger(__name__)


async def keep_forgetting(store: Store, clock: Clock) -> None:
    while True:
        try:
            await forget(store, now_ms=clock.now_ms())
        except Refusal as refusal:
            _log.warning("old notes of A2A stay for now: %s", refusal.message)
        await asyncio.sleep(_LOOK_SECONDS)


async def forget(store: Store, *, now_ms: int) -> int:
    """Gives how many notes were forgotten. Between pages others get their turn."""
    places: dict[str, Callable[[Note], str]] = {
        MESSAGES: lambda note: msgspec.json.decode(note.value or b"", type=KnownMessage).task_id,
        **dict.fromkeys((TASKS, FOLLOW_UPS, CONFIGS, PUSHED), _named_first),
    }
    count = 0
    for collection, task_of in places.items():
        after = ""
        while page := store.notes(collection, after_key=after, limit=_PAGE):
            gone = [
                Note(collection=collection, key=note.key, value=None, at_ms=now_ms)
                for note in page
                if store.task(TaskId(task_of(note))) is None
            ]
            if gone:
                await store.put_notes(gone)
            count, after = count + len(gone), page[-1].key
            await asyncio.sleep(0)
    return count


def _named_first(note: Note) -> str:
    return note.key.partition("/")[0]
