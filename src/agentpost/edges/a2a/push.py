"""What peers want to be told at a URL of theirs: one configuration or several for a task, kept sealed.

Their tokens are secrets of others: encrypted with a key that is derived from the node's own and stands in no database.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types import TaskPushNotificationConfig
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.json_format import MessageToDict, ParseDict

from agentpost.auth.external.ring import derived_secret
from agentpost.edges.a2a.addresses import find_target
from agentpost.edges.a2a.noting import notes_under
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import TaskId
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.world import Chance, Clock

__all__ = ["CONFIGS", "PushConfigs", "config_key"]

CONFIGS: Final = "a2a.push"
_MOST_PER_TASK: Final = 10
_LONGEST_SECRET: Final = 4_096
_LONGEST_ID: Final = 128
_NONCE_BYTES: Final = 12
_PAGE: Final = 256


def config_key(task_id: str, config_id: str) -> str:
    return f"{task_id}/{config_id}"


class PushConfigs:
    def __init__(
        self, store: Store, identity: Identity, *, clock: Clock, chance: Chance, networks: tuple[str, ...]
    ) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._networks = networks
        self._cipher = AESGCM(derived_secret(identity, "agentpost a2a notifications 1"))

    async def check(self, config: TaskPushNotificationConfig) -> None:
        """Refuse what cannot be used, or must not: a place in the gateway's own network, a token that is no header."""
        info = config.authentication
        for name, text in (("token", config.token), ("scheme", info.scheme), ("credentials", info.credentials)):
            if len(text) > _LONGEST_SECRET or not text.isascii() or (text and not text.isprintable()):
                raise Refusal(
                    Code.INVALID_FIELD, f"{name} must be up to {_LONGEST_SECRET} printable characters", field=name
                )
        if len(config.id) > _LONGEST_ID or "/" in config.id or (config.id and not config.id.isprintable()):
            raise Refusal(
                Code.INVALID_FIELD, f"id must be up to {_LONGEST_ID} printable characters, without a /", field="id"
            )
        await find_target(config.url, allowed=self._networks)

    async def create(self, task_id: TaskId, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Keep it, in the place of the one with its id."""
        await self.check(config)
        made = normalize_push_notification_config(task_id, config)
        others = [each for each in self.of(task_id) if each.id != made.id]
        if len(others) >= _MOST_PER_TASK:
            raise Refusal(
                Code.CONFLICT, f"a task has {_MOST_PER_TASK} of them at most", field="id", hint="Delete one first."
            )
        await self._store.put_notes([self.note(task_id, made)])
        return made

    def get(self, task_id: TaskId, config_id: str) -> TaskPushNotificationConfig:
        found = self._store.note(CONFIGS, config_key(task_id, config_id))
        if found is None:
            raise Refusal(Code.NOT_FOUND, f"task {task_id} has no configuration {config_id!r:.40}", field="id")
        return self._opened(found)

    def of(self, task_id: TaskId) -> list[TaskPushNotificationConfig]:
        return [self._opened(note) for note in notes_under(self._store, CONFIGS, f"{task_id}/")]

    async def delete(self, task_id: TaskId, config_id: str) -> None:
        """A second time is no error: it is gone."""
        key = config_key(task_id, config_id)
        await self._store.put_notes([Note(collection=CONFIGS, key=key, value=None, at_ms=self._clock.now_ms())])

    def all_keys(self) -> Iterator[str]:
        """Of all that are kept."""
        after = ""
        while page := self._store.notes(CONFIGS, after_key=after, limit=_PAGE):
            yield from (each.key for each in page)
            after = page[-1].key

    def note(self, task_id: TaskId, config: TaskPushNotificationConfig) -> Note:
        """How it is kept."""
        made = normalize_push_notification_config(task_id, config)
        key, nonce = config_key(task_id, made.id), self._chance.entropy(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, msgspec.json.encode(MessageToDict(made)), key.encode())
        return Note(collection=CONFIGS, key=key, value=nonce + sealed, at_ms=self._clock.now_ms())

    def _opened(self, note: Note) -> TaskPushNotificationConfig:
        value = note.value or b""
        try:
            raw = self._cipher.decrypt(value[:_NONCE_BYTES], value[_NONCE_BYTES:], note.key.encode())
        except (InvalidTag, ValueError):
            raise Refusal(
                Code.CONFLICT, "this configuration was kept by a gateway with another key", hint="Create it again."
            ) from None
        return ParseDict(msgspec.json.decode(raw), TaskPushNotificationConfig())
