"""The delegation policy as it stands in the room: four settings, a record for each intent, three for each ACK. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from agentpost.protocol.delegation import Ack, Intent, Policy
from agentpost.room.records import REMOVED, Record, is_removed

__all__ = ["MAP", "ack_writes", "read_acks", "read_policy", "writes_of"]

MAP: Final = "coordination"
_INTENT: Final = "delegationIntent:"
_ACK: Final = "delegationAck:"
_POLICY: Final = {
    "version": "delegationPolicyVersion",
    "checksum": "delegationPolicyChecksum",
    "updated_at": "delegationPolicyUpdatedAt",
    "updated_by": "delegationPolicyUpdatedBy",
}
_SIGNATURE: Final = ("signedBy", "rev", "sig")

Writes = list[tuple[str, str, Mapping[str, Any]]]
Records = Mapping[str, Record]


def read_policy(records: Records) -> Policy | None:
    """The policy that the room has; None if it has none that is whole."""
    said = {name: records.get(key) for name, key in _POLICY.items()}
    if any(is_removed(record) for record in said.values()):
        return None
    intents = [
        msgspec.convert({name: each for name, each in record.items() if name not in _SIGNATURE}, Intent)
        for key, record in sorted(records.items())
        if key.startswith(_INTENT) and not is_removed(record)
    ]
    values = {name: str((record or {})["value"]) for name, record in said.items()}
    return Policy(**values, intents=tuple(intents))


def writes_of(policy: Policy, present: Iterable[str]) -> Writes:
    """What makes the room say this policy. `present` are the keys that it has; intents that are gone are removed."""
    writes: Writes = [(MAP, key, {"value": getattr(policy, name)}) for name, key in _POLICY.items()]
    rows = {_INTENT + each.intent: msgspec.to_builtins(each) for each in policy.intents}
    writes += [(MAP, key, row) for key, row in rows.items()]
    writes += [(MAP, key, {"status": REMOVED}) for key in present if key.startswith(_INTENT) and key not in rows]
    return writes


def ack_writes(ack: Ack) -> Writes:
    said = {"version": ack.version, "checksum": ack.checksum, "at": ack.at}
    return [(MAP, f"{_ACK}{ack.agent_id}:{name}", {"value": value}) for name, value in said.items()]


def read_acks(records: Records) -> dict[str, Ack]:
    """The acknowledgements that are whole, by agent."""
    parts: dict[str, dict[str, str]] = {}
    for key, record in records.items():
        if key.startswith(_ACK) and not is_removed(record):
            agent_id, _, name = key.removeprefix(_ACK).rpartition(":")
            parts.setdefault(agent_id, {})[name] = str(record["value"])
    return {
        agent_id: Ack(agent_id=agent_id, version=said["version"], checksum=said["checksum"], at=said["at"])
        for agent_id, said in sorted(parts.items())
        if len(said) == 3
    }
