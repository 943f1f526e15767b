"""A manifest as the two records of the room, and whether two records belong together. Pure (CAP-3).

The policy version of a publish is a checksum of the catalog's record, and stands in the index: an index entry that does
not have the version of what the catalog says was written for something else.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentpost.protocol.snapshot import CapabilityStatus
from agentpost.room.records import REMOVED, canonical
from agentpost.work.capabilities.manifest import Manifest, SignedManifest

__all__ = ["CATALOG", "INDEX", "policy_version", "published", "withdrawn"]

CATALOG: Final = "capabilities.catalog"
INDEX: Final = "capabilities.index"
_SIGNATURE: Final = ("signedBy", "rev", "sig")

Writes = list[tuple[str, str, Mapping[str, Any]]]


def published(manifest: Manifest, signed: SignedManifest, *, status: CapabilityStatus, updated_at: str) -> Writes:
    """What the room says of a capability. `status` is what it is now, which may be less than what was declared."""
    declared = manifest.declaration
    catalog: dict[str, Any] = {
        "capabilityId": declared.capability_id,
        "name": declared.name,
        "version": declared.version,
        "status": status.value,
        "ownerAgentId": declared.owner_agent_id,
        "ownerNodeId": manifest.owner_node_id,
        "delegationSkillRef": msgspec.to_builtins(declared.delegation_skill_ref),
        "executorSkillRef": msgspec.to_builtins(declared.executor_skill_ref),
        "contractSchemaRef": signed.ref,
        "defaultEtaSeconds": declared.default_eta_seconds,
        "publishedAt": manifest.published_at,
        "publishedByAgentId": manifest.published_by_agent_id,
    }
    index = {
        "capabilityId": declared.capability_id,
        "eligibleAgentIds": [declared.owner_agent_id],
        "policyVersion": policy_version(catalog),
        "updatedAt": updated_at,
    }
    return [(CATALOG, declared.capability_id, catalog), (INDEX, declared.capability_id, index)]


def withdrawn(capability_id: str) -> Writes:
    return [(CATALOG, capability_id, {"status": REMOVED}), (INDEX, capability_id, {"status": REMOVED})]


def policy_version(catalog: Mapping[str, Any]) -> str:
    said = {name: value for name, value in catalog.items() if name not in _SIGNATURE}
    return "cpv_" + hashlib.sha256(canonical(said)).hexdigest()[:16]
