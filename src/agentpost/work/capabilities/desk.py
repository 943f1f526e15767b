"""Publish and unpublish the capabilities of this gateway's agents (CAP-1 to CAP-3, CAP-7).

A capability is published where its owner lives: only there can the executor skill be looked at, and only that gateway
may write its records. The book comes first and the room follows: what the book says is active is made true in the room
again after a crash, and whenever the executor skill goes away or comes back.
"""

import asyncio
import logging
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import CapabilityStatus
from agentpost.protocol.timestamps import format_ms
from agentpost.room.document import Room
from agentpost.room.records import is_removed
from agentpost.store.interface import Store
from agentpost.work.capabilities.book import ManifestBook, ManifestState, Page
from agentpost.work.capabilities.manifest import Declaration, Manifest, read_declaration, sign_manifest
from agentpost.work.capabilities.records import CATALOG, INDEX, policy_version, published, withdrawn
from agentpost.work.capabilities.secrets import refuse_secret_files, refuse_secrets
from agentpost.work.contracts import ContractChecker
from agentpost.work.skills.bundle import Bundle, pack, unpack
from agentpost.work.skills.places import SkillPlaces
from agentpost.world import Clock

__all__ = ["CapabilityDesk"]

_log = logging.getLogger(__name__)


class CapabilityDesk:
    def __init__(
        self,
        *,
        store: Store,
        room: Room,
        signing: Ed25519PrivateKey,
        clock: Clock,
        book: ManifestBook,
        places: SkillPlaces,
        checker: ContractChecker,
    ) -> None:
        self._checker = checker
        self._store = store
        self._room = room
        self._signing = signing
        self._clock = clock
        self._book = book
        self._places = places
        self._one_at_a_time = asyncio.Lock()

    async def publish(self, declared: object) -> Page:
        """Check, sign and publish. The version before is retired; a refusal changes nothing."""
        declaration = read_declaration(declared)
        refuse_secrets(msgspec.to_builtins(declaration), field="capability")
        async with self._one_at_a_time:
            publisher = self._check_owner(declaration)
            await self._check_schemas(declaration)
            bundle = await asyncio.to_thread(self._checked_skills, declaration)
            before = self._book.active(declaration.capability_id)
            if before is not None and _says_the_same(before, declaration, bundle):
                self._write(before)
                return before
            self._check_version(declaration, bundle)
            now_ms = self._clock.now_ms()
            manifest = Manifest(
                declaration=declaration,
                owner_node_id=self._store.node_id,
                published_at=format_ms(now_ms),
                published_by_agent_id=publisher,
                bundle_sha256=bundle.sha256,
            )
            signed = sign_manifest(manifest, self._signing)
            await self._book.publish(signed, manifest, at_ms=now_ms)
            page = Page(state=ManifestState.ACTIVE, signed=signed, manifest=manifest, at_ms=now_ms)
            try:
                self._write(page)
            except Refusal:
                # The room has the last word on who may publish what: then this never was.
                await self._book.take_back(page, before)
                raise
            return page

    async def unpublish(self, capability_id: str) -> Page:
        """Take a capability back: from now on nobody is given it (CAP-3)."""
        async with self._one_at_a_time:
            page = self._book.active(capability_id)
            if page is None:
                raise self._not_ours(capability_id)
            await self._book.withdraw(page)
            self._room.write_together(withdrawn(capability_id))
            return page

    def restore(self) -> None:
        """Make the room say what the book says, with the skills as they are now (ROUTE-7)."""
        for page in self._book.own():
            try:
                self._write(page)
            except Refusal as refusal:
                _log.warning("%s cannot be published any more: %s", page.capability_id, refusal.message)
        for page in self._book.own(ManifestState.WITHDRAWN):
            record = self._room.record(CATALOG, page.capability_id)
            if record is not None and not is_removed(record) and record.get("contractSchemaRef") == page.signed.ref:
                self._room.write_together(withdrawn(page.capability_id))

    def bundle_of(self, page: Page) -> Bundle:
        """The delegation skill of an own capability, as it was published; refused if its folder has changed since."""
        declared = page.manifest.declaration
        ref = declared.delegation_skill_ref
        bundle = pack(self._places.resolve(declared.owner_agent_id, ref.name, ref.version).path)
        if bundle.sha256 != page.manifest.bundle_sha256:
            raise Refusal(
                Code.CONFLICT,
                f"the skill {ref.name} is not what was published with {page.capability_id} {page.version}",
                field="delegationSkillRef",
                hint="Give the changed skill a new version, and publish the capability again.",
            )
        return bundle

    def why_unavailable(self, page: Page) -> str | None:
        """Why an own capability cannot be carried out right now; None if it can."""
        declared = page.manifest.declaration
        if self._store.local_agent(declared.owner_agent_id) is None:
            return f"its owner {declared.owner_agent_id} is not an agent of this gateway any more"
        try:
            self._places.resolve(
                declared.owner_agent_id, declared.executor_skill_ref.name, declared.executor_skill_ref.version
            )
        except Refusal as refusal:
            return refusal.message
        return None

    def _write(self, page: Page) -> None:
        status = page.manifest.declaration.status
        if status is not CapabilityStatus.DISABLED and self.why_unavailable(page) is not None:
            status = CapabilityStatus.DISABLED
        writes = published(
            page.manifest, page.signed, status=status, updated_at=self._updated_at(page, status) or self._now()
        )
        self._room.write_together(writes)

    def _updated_at(self, page: Page, status: CapabilityStatus) -> str | None:
        """When the index got its entry, if that one is still right: what says nothing new is not written."""
        index = self._room.record(INDEX, page.capability_id)
        if index is None or is_removed(index):
            return None
        (_, _, catalog), _ = published(page.manifest, page.signed, status=status, updated_at="")
        return index["updatedAt"] if index["policyVersion"] == policy_version(catalog) else None

    def _check_owner(self, declared: Declaration) -> str:
        """Who publishes. Refused if the owner is not an active agent of this gateway, or the publisher not one."""
        owner = self._room.snapshot().agents.get(declared.owner_agent_id)
        if owner is None:
            raise Refusal(
                Code.NOT_FOUND, f"there is no agent {declared.owner_agent_id}", field="ownerAgentId", hint=_ADD_IT
            )
        if owner.owner_node_id != self._store.node_id:
            raise Refusal(
                Code.FOREIGN_SOURCE,
                f"{declared.owner_agent_id} lives at {owner.owner_node_id}",
                field="ownerAgentId",
                hint=f"Publish it there: only {owner.owner_node_id} can see whether the executor skill resolves.",
            )
        if not owner.is_active or self._store.local_agent(declared.owner_agent_id) is None:
            raise Refusal(
                Code.CAPABILITY_UNAVAILABLE,
                f"{declared.owner_agent_id} is not active",
                field="ownerAgentId",
                hint=_ADD_IT,
            )
        publisher = declared.published_by_agent_id or declared.owner_agent_id
        if self._store.local_agent(publisher) is None:
            raise Refusal(
                Code.NOT_FOUND, f"{publisher} is not an agent of this gateway", field="publishedByAgentId", hint=_ADD_IT
            )
        present = self._room.record(CATALOG, declared.capability_id)
        if present is not None and not is_removed(present) and present["ownerNodeId"] != self._store.node_id:
            raise Refusal(
                Code.CONFLICT,
                f"{declared.capability_id} was published by {present['ownerNodeId']}",
                field="capabilityId",
                hint="Take another id, or have it unpublished there first.",
            )
        return publisher

    async def _check_schemas(self, declared: Declaration) -> None:
        contract = declared.contract
        for name, schema in (("input", contract.input), ("output", contract.output), ("failure", contract.failure)):
            if schema is not None:
                await self._checker.check_schema(schema, field=f"contract.{name}")

    def _checked_skills(self, declared: Declaration) -> Bundle:
        """CAP-2: both skills are there, in the versions that are declared. Gives the one that the others will get."""
        executor, delegation = declared.executor_skill_ref, declared.delegation_skill_ref
        self._places.resolve(declared.owner_agent_id, executor.name, executor.version)
        bundle = pack(self._places.resolve(declared.owner_agent_id, delegation.name, delegation.version).path)
        refuse_secret_files(unpack(bundle.raw, sha256=bundle.sha256))
        return bundle

    def _check_version(self, declared: Declaration, bundle: Bundle) -> None:
        """A version is one thing for ever: whoever has it must be able to rely on that."""
        earlier = next(
            (page for page in self._book.versions(declared.capability_id) if page.version == declared.version), None
        )
        if earlier is not None and earlier.state is not ManifestState.RECEIVED:
            if earlier.state is not ManifestState.ACTIVE and _says_the_same(earlier, declared, bundle):
                return
            raise Refusal(
                Code.CONFLICT,
                f"{declared.capability_id} {declared.version} was published before, and said something else",
                field="version",
                hint="Give what has changed a new version.",
            )

    def _not_ours(self, capability_id: str) -> Refusal:
        record: dict[str, Any] | None = self._room.record(CATALOG, capability_id)
        if record is None or is_removed(record):
            return Refusal(
                Code.NOT_FOUND,
                f"{capability_id!r:.80} is not published",
                field="capabilityId",
                hint="See what is: agentpost capability list.",
            )
        return Refusal(
            Code.FOREIGN_SOURCE,
            f"{capability_id} was published by {record['ownerNodeId']}",
            field="capabilityId",
            hint=f"Unpublish it at {record['ownerNodeId']}.",
        )

    def _now(self) -> str:
        return format_ms(self._clock.now_ms())


_ADD_IT = "Add the agent first: agentpost agents add."


def _says_the_same(page: Page, declared: Declaration, bundle: Bundle) -> bool:
    return page.manifest.declaration == declared and page.manifest.bundle_sha256 == bundle.sha256
