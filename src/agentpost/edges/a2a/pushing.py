"""Telling peers at their URLs what became of their tasks. At least once for what is newest, with bounded retries.

What was told is a note, so that after a restart it goes on where it was. A notification is the whole task: whoever
missed one has missed nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import httpx
import msgspec
from a2a.types import StreamResponse, TaskPushNotificationConfig
from google.protobuf.json_format import MessageToDict
from msgspec import Struct

from agentpost.delivery.ports import Wakeups
from agentpost.edges.a2a.addresses import Target, find_target
from agentpost.edges.a2a.noting import Notebook, notes_under
from agentpost.edges.a2a.push import CONFIGS, PushConfigs
from agentpost.edges.a2a.reading import Reader, Told
from agentpost.protocol.backoff import RetryPolicy, exhausted, next_delay_seconds
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import TaskId
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.interface import Store
from agentpost.store.values import Incident, Note
from agentpost.tasks import TaskOwner
from agentpost.world import Chance, Clock

__all__ = ["PUSHED", "PUSH_FAILED", "Pusher"]

PUSHED: Final = "a2a.pushed"
PUSH_FAILED: Final = IncidentKind.A2A_PUSH_FAILED
_TOKEN: Final = "X-A2A-Notification-Token"  # noqa: S105 - the name of a header
_MEDIA_TYPE: Final = "application/a2a+json"
_TIMEOUT_SECONDS: Final = 10.0
_AT_ONCE: Final = 8
_LOOK_SECONDS: Final = 0.25
_MOST_SESSIONS: Final = 1_000
# Half an hour in all.
RETRIES: Final = RetryPolicy(base_seconds=1, factor=4, max_delay_seconds=600, max_attempts=8, jitter_share=0.2)

_log = logging.getLogger(__name__)


class Pushed(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How far a receiver was told: the task as it was then. `attempts` have failed since."""

    updated_at_ms: int = 0
    steps: int = 0
    attempts: int = 0
    is_given_up: bool = False


class Pusher:
    def __init__(
        self,
        store: Store,
        configs: PushConfigs,
        reader: Reader,
        *,
        clock: Clock,
        chance: Chance,
        wakeups: Wakeups,
        networks: tuple[str, ...],
    ) -> None:
        self._store = store
        self._configs = configs
        self._reader = reader
        self._notebook = Notebook(store)
        self._clock = clock
        self._chance = chance
        self._networks = networks
        self._tasks = TaskOwner("a2a push")
        # When each configuration is to be looked at; those that are being served now.
        self._due: dict[str, int] = {}
        self._busy: set[str] = set()
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._http: httpx.AsyncClient | None = None
        wakeups.listen(tasks=self.tasks_moved)

    def start(self) -> None:
        """Begin with what was not told before the last stop."""
        for key in self._configs.all_keys():
            self._due[key] = 0
        self._tasks.spawn(self._run(), name="pusher")

    async def close(self) -> None:
        await self._tasks.close()
        if self._http is not None:
            await self._http.aclose()

    def tasks_moved(self, task_ids: Sequence[TaskId]) -> None:
        for task_id in task_ids:
            for note in notes_under(self._store, CONFIGS, f"{task_id}/"):
                self._due[note.key] = 0
        self._woken.set()

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.now_ms()
            for key in [key for key, due_at_ms in self._due.items() if due_at_ms <= now_ms and key not in self._busy]:
                del self._due[key]
                self._busy.add(key)
                self._tasks.spawn(self._serve(key), name=key)
            self._woken.clear()
            try:
                # The clock may be anybody's, so a timer is looked at now and then.
                async with asyncio.timeout(_LOOK_SECONDS if self._due else None):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _serve(self, key: str) -> None:
        try:
            async with self._slots:
                await self._bring_up_to_date(key)
        except Refusal as refusal:
            _log.warning("notifications of %s wait: %s", key, refusal.message)
        finally:
            self._busy.discard(key)
            self._woken.set()

    async def _bring_up_to_date(self, key: str) -> None:
        task_id, _, config_id = key.partition("/")
        record, known = self._store.task(TaskId(task_id)), self._notebook.task(task_id)
        if record is None or known is None or self._store.note(CONFIGS, key) is None or self._is_out(known.peer_id):
            return
        told, before = self._reader.read(record, known), self._pushed(key)
        place = (record.updated_at_ms, len(told.steps))
        is_same = place == (before.updated_at_ms, before.steps)
        if is_same and (before.attempts == 0 or before.is_given_up):
            return
        config = self._configs.get(record.task_id, config_id)
        problem = await self._post(config, told)
        if problem is None:
            await self._keep(key, Pushed(updated_at_ms=place[0], steps=place[1]))
            if before.is_given_up:
                await self._store.close_incident(PUSH_FAILED, key, at_ms=self._clock.now_ms())
            return
        attempts = (before.attempts if is_same and not before.is_given_up else 0) + 1
        given_up = exhausted(RETRIES, attempt=attempts)
        await self._keep(key, Pushed(updated_at_ms=place[0], steps=place[1], attempts=attempts, is_given_up=given_up))
        if given_up:
            await self._report(key, told, problem)
            return
        delay_seconds = next_delay_seconds(RETRIES, attempt=attempts, jitter=self._chance.fraction())
        self._due.setdefault(key, self._clock.now_ms() + round(delay_seconds * 1000))

    def _is_out(self, peer_id: str) -> bool:
        """Whether others ended all sessions of the peer. One that expired, or took its leave, may wait for a task."""
        sessions = self._store.agent_sessions(agent_id=peer_id, limit=_MOST_SESSIONS)
        return all(session.ended_at_ms is not None and session.ended_by != peer_id for session in sessions)

    async def _post(self, config: TaskPushNotificationConfig, told: Told) -> str | None:
        """What went wrong, or None. Redirects are not followed, and what is answered is not read."""
        body = msgspec.json.encode(MessageToDict(StreamResponse(task=told.task())))
        try:
            target = await find_target(config.url, allowed=self._networks)
            request = self._request(target, config, body)
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                response = await self._client().send(request, stream=True)
                await response.aclose()
        except Refusal as refusal:
            return refusal.message
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            return f"it cannot be reached ({type(error).__name__})"
        return None if response.is_success else f"it answered {response.status_code}"

    def _request(self, target: Target, config: TaskPushNotificationConfig, body: bytes) -> httpx.Request:
        url = httpx.URL(target.url)
        headers = {"host": url.netloc.decode("ascii"), "content-type": _MEDIA_TYPE}
        if config.token:
            headers[_TOKEN] = config.token
        info = config.authentication
        if info.scheme and info.credentials:
            headers["authorization"] = f"{info.scheme} {info.credentials}"
        # To the address that was judged; the certificate still has to be that of the name.
        return self._client().build_request(
            "POST",
            url.copy_with(host=target.address),
            content=body,
            headers=headers,
            extensions={"sni_hostname": target.host},
        )

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            # No proxy of the environment: it would connect to what it likes.
            self._http = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False, follow_redirects=False)
        return self._http

    def _pushed(self, key: str) -> Pushed:
        found = self._store.note(PUSHED, key)
        return Pushed() if found is None or found.value is None else msgspec.json.decode(found.value, type=Pushed)

    async def _keep(self, key: str, pushed: Pushed) -> None:
        value, at_ms = msgspec.json.encode(pushed), self._clock.now_ms()
        await self._store.put_notes([Note(collection=PUSHED, key=key, value=value, at_ms=at_ms)])

    async def _report(self, key: str, told: Told, problem: str) -> None:
        _log.warning("%s was not notified: %s", key, problem)
        detail: dict[str, str | int | bool | None] = {"peer": told.known.peer_id, "problem": problem}
        await self._store.raise_incident(
            Incident(
                kind=PUSH_FAILED,
                subject=key,
                at_ms=self._clock.now_ms(),
                corr_id=told.record.corr_id,
                detail=detail,
            )
        )
