"""The receiving side of a distribution (CAP-4): the gateway installs the skill in the agent's name, and says so.

The agent is not engaged. Before anything is written, the manifest has to be signed by the gateway that the task came
from, the room's catalog has to name exactly that manifest, and the bundle has to have the checksum that it names. A
task that is interrupted is taken up again at the next look: installing twice gives the same.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from agentpost.delivery.engine import Engine
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import TaskId
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.timestamps import format_ms
from agentpost.work.capabilities.book import ManifestBook
from agentpost.work.capabilities.manifest import Manifest, SignedManifest, open_manifest
from agentpost.work.skills.distribution import DECLINED, SKILL_DISTRIBUTION
from agentpost.work.skills.install import install_skill
from agentpost.work.skills.places import SkillPlaces
from agentpost.work.tasks import Tasks

__all__ = ["Installer"]

_log = logging.getLogger(__name__)

_ETA_SECONDS: Final = 300
_PAGE: Final = 256
# The room may be behind the mail; for so long a catalog that does not name the manifest is waited for.
_PATIENCE_MS: Final = 10 * 60_000


class Given(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a distribution task has as its input."""

    manifest: SignedManifest
    sha256: str
    bundle: str


class Installer:
    def __init__(self, *, engine: Engine, book: ManifestBook, places: SkillPlaces, tasks: Tasks) -> None:
        self._engine = engine
        self._store = engine.store
        self._book = book
        self._places = places
        self._tasks = tasks
        self._one_at_a_time = asyncio.Lock()
        # What could not be done yet, and is tried again.
        self._waiting: set[TaskId] = set()

    async def serve(self, task_ids: Sequence[TaskId]) -> None:
        """Do those of these tasks that distribute a skill to an agent of this gateway."""
        for task_id in task_ids:
            record = self._store.task(task_id)
            if record is not None:
                await self._serve(record)

    async def retry(self) -> None:
        """Do what could not be done before."""
        await self.serve(sorted(self._waiting))

    async def resume(self) -> None:
        """Do all that is open, at a start: what was interrupted, and what came unseen."""
        after = ""
        while page := self._store.tasks(after=after, limit=_PAGE, open_only=True):
            after = page[-1].task_id
            for record in page:
                await self._serve(record)

    async def _serve(self, record: TaskRecord) -> None:
        if record.task_type != SKILL_DISTRIBUTION or not record.is_open or len(record.to_agents) != 1:
            return
        (agent_id,) = record.to_agents
        if self._store.local_agent(agent_id) is None:
            return
        async with self._one_at_a_time:
            self._waiting.add(record.task_id)
            try:
                await self._install(record, agent_id)
                self._waiting.discard(record.task_id)
            except Refusal as refusal:
                # Its content may still be on its way, or the disk full: the next look tries again.
                _log.info("%s is not installed yet: %s", record.task_id, refusal.message)
            except Exception:  # noqa: BLE001 - it is logged, with all that is known
                # Others wrote what is in it: one task that nobody can read must not keep all else waiting.
                self._waiting.discard(record.task_id)
                _log.exception("a defect with the task %s; it is left until the next start", record.task_id)

    async def _install(self, record: TaskRecord, agent_id: str) -> None:
        present = self._tasks.get(record.task_id)
        if not present.is_open:
            return
        event = self._engine.task_moves.offer_of(present)
        content = self._engine.sealer.open(event)
        try:
            given = _read(content.context)
            manifest = self._checked(given, event.source_node_id)
        except Refusal as refusal:
            if refusal.code is Code.UNAVAILABLE and self._engine.clock.now_ms() - record.offered_at_ms < _PATIENCE_MS:
                raise
            await self._end(present, agent_id, failure_class="not_published", error=refusal.message)
            return
        await self._book.receive(given.manifest, manifest, at_ms=self._engine.clock.now_ms())
        if not self._places.of(agent_id).accepts:
            await self._end(present, agent_id, failure_class=DECLINED, error="this agent takes no skills of others")
            return
        await self._claim(present, agent_id)
        ref = manifest.declaration.delegation_skill_ref
        directory = Path(self._places.of(agent_id).directory)
        try:
            raw = base64.b64decode(given.bundle, validate=True)
            await asyncio.to_thread(
                install_skill,
                directory,
                raw,
                sha256=manifest.bundle_sha256,
                name=ref.name,
                version=ref.version,
                publisher=manifest.owner_node_id,
            )
        except Exception as problem:  # noqa: BLE001 - whatever an archive brings about, its publisher is told
            if not isinstance(problem, Refusal | OSError | binascii.Error):
                _log.error("a defect while %s was installed", record.task_id, exc_info=problem)
            error = problem.message if isinstance(problem, Refusal) else str(problem)
            await self._end(present, agent_id, failure_class="install_failed", error=error)
            return
        await self._tasks.complete(
            record.task_id,
            agent_id,
            result_summary=f"{ref.name} {ref.version} is installed",
            output={"sha256": manifest.bundle_sha256},
            installed_version=ref.version,
            installed_at=format_ms(self._engine.clock.now_ms()),
        )

    def _checked(self, given: Given, source_node_id: str) -> Manifest:
        """The manifest, if it is the one that was published by the gateway that the task came from."""
        signed = given.manifest
        manifest = open_manifest(signed, self._engine.room.signing_key(signed.signed_by))
        if manifest.owner_node_id != source_node_id:
            raise Refusal(Code.FOREIGN_SOURCE, f"{source_node_id} distributes what {manifest.owner_node_id} published")
        if given.sha256 != manifest.bundle_sha256:
            raise Refusal(Code.INVALID_FIELD, "the bundle is not the one that the manifest names", field="sha256")
        published = self._engine.room.snapshot().catalog.get(manifest.declaration.capability_id)
        if published is None or published.contract_schema_ref != signed.ref:
            raise Refusal(Code.UNAVAILABLE, "the catalog does not name this manifest", field="manifest")
        return manifest

    async def _claim(self, record: TaskRecord, agent_id: str) -> None:
        if record.accepted_by_agent_id is None:
            await self._tasks.claim(record.task_id, agent_id, eta_seconds=_ETA_SECONDS)

    async def _end(self, record: TaskRecord, agent_id: str, *, failure_class: str, error: str) -> None:
        await self._claim(self._tasks.get(record.task_id), agent_id)
        await self._tasks.fail(record.task_id, agent_id, failure_class=failure_class, error_summary=error)


def _read(context: Any) -> Given:
    try:
        return msgspec.convert(context, Given)
    except msgspec.ValidationError as problem:
        raise Refusal(Code.INVALID_FIELD, f"this is no distribution of a skill: {problem}", field="input") from None
