"""What is kept beside a task that came over A2A: small notes, written in the transaction of what they are about.

Only ids and hashes: what was said stays sealed in the events (PIPE-4).
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from agentpost.protocol.ids import EventId, TaskId
from agentpost.store.interface import Store
from agentpost.store.values import Note

__all__ = [
    "FOLLOW_UPS",
    "MESSAGES",
    "TASKS",
    "KnownMessage",
    "KnownTask",
    "Notebook",
    "begun",
    "followed",
    "message_key",
    "notes_under",
    "taken",
]

MESSAGES: Final = "a2a.message"
TASKS: Final = "a2a.task"
FOLLOW_UPS: Final = "a2a.followup"
_PAGE: Final = 256


class KnownMessage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that was taken: what it became, and a hash of what it said."""

    task_id: TaskId
    digest: str


class KnownTask(Struct, frozen=True, kw_only=True, rename="camel"):
    """A task that a peer asked an agent for over A2A. `context_id` is the name that the peer knows its context by."""

    peer_id: str
    agent_id: str
    context_id: str
    message_id: str


class FollowUp(Struct, frozen=True, kw_only=True, rename="camel"):
    message_id: str


def message_key(peer_id: str, agent_id: str, message_id: str) -> str:
    """The idempotency key: a messageId means nothing beyond the peer that chose it and the agent it is for."""
    return sha256(msgspec.json.encode((peer_id, agent_id, message_id))).hexdigest()


def notes_under(store: Store, collection: str, prefix: str) -> Iterator[Note]:
    """The notes whose keys begin with `prefix`, by key."""
    after = prefix
    while page := store.notes(collection, after_key=after, limit=_PAGE):
        for each in page:
            if not each.key.startswith(prefix):
                return
            yield each
        after = page[-1].key


class Notebook:
    def __init__(self, store: Store) -> None:
        self._store = store

    def message(self, key: str) -> KnownMessage | None:
        found = self._store.note(MESSAGES, key)
        return None if found is None or found.value is None else msgspec.json.decode(found.value, type=KnownMessage)

    def task(self, task_id: str) -> KnownTask | None:
        found = self._store.note(TASKS, task_id)
        return None if found is None or found.value is None else msgspec.json.decode(found.value, type=KnownTask)

    def follow_ups(self, task_id: TaskId) -> Iterator[tuple[EventId, str, int]]:
        """The messages about a task that its peer sent later: the event, the messageId, the time."""
        for note in notes_under(self._store, FOLLOW_UPS, f"{task_id}/"):
            told = msgspec.json.decode(note.value or b"", type=FollowUp)
            yield EventId(note.key.rpartition("/")[2]), told.message_id, note.at_ms


def taken(key: str, *, task_id: TaskId, digest: str, at_ms: int) -> Note:
    return _note(MESSAGES, key, KnownMessage(task_id=task_id, digest=digest), at_ms)


def begun(task_id: TaskId, known: KnownTask, *, at_ms: int) -> Note:
    return _note(TASKS, task_id, known, at_ms)


def followed(task_id: TaskId, event_id: EventId, message_id: str, *, at_ms: int) -> Note:
    return _note(FOLLOW_UPS, f"{task_id}/{event_id}", FollowUp(message_id=message_id), at_ms)


def _note(collection: str, key: str, value: Struct, at_ms: int) -> Note:
    return Note(collection=collection, key=key, value=msgspec.json.encode(value), at_ms=at_ms)
