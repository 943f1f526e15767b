"""Who may write what (ROOM-3), one rule for each map. Judges records that a member, who is not revoked, did sign.

`why_not_believed` asks of the record itself, and of the believed records as they are now: so it depends on the
document alone, and all replicas say the same. `why_not_written` holds the one who writes now, at the first gateway
that the write reaches, to what stands there: a stranger's write in the place of a record that is believed goes no
further.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from agentpost.protocol.snapshot import NodeTier
from agentpost.room.members import Member, Members
from agentpost.room.records import Record, is_removed
from agentpost.room.schema import is_id

__all__ = ["Believed", "may_replace", "why_not_believed", "why_not_written"]


class Believed(Protocol):
    """The believed records."""

    @property
    def members(self) -> Members: ...

    def get(self, map_name: str, key: str) -> Record | None: ...


def why_not_believed(map_name: str, key: str, record: Record, signer: Member, room: Believed) -> str | None:
    """Why the signer's word is not believed here; None if it is."""
    if is_removed(record) and signer.tier is NodeTier.BACKBONE:
        # Written over what nobody believed; over a record that is believed it gets nowhere, see `guard`.
        return None
    return _RULES[map_name](key, record, signer, room)


def why_not_written(
    map_name: str, key: str, record: Record, previous: Record | None, room: Believed, *, is_concurrent: bool
) -> str | None:
    """Why the signer may not write this in the place of the believed record that stood there; None if it may.

    `is_concurrent`: the signer had not seen what stands there.
    """
    signer: str = record["signedBy"]
    present = None if is_removed(previous) else previous
    if map_name == "coordination":
        return _why_no_setting(key, record, present, signer, room, is_concurrent=is_concurrent)
    if present is not None:
        return None if may_replace(map_name, key, present, signer, room) else _taken(map_name, present)
    if map_name == "agents" and not is_removed(record) and record["ownerNodeId"] != signer:
        return f"its ownerNodeId must be {signer}"
    return None


def may_replace(map_name: str, key: str, present: Record, signer: str, room: Believed) -> bool:
    """Whether a record that is believed is this node's to replace."""
    if map_name == "agents":
        return present["ownerNodeId"] == signer
    if map_name == "routing":
        return _why_not_owner(room, key, signer) is None
    if map_name == "capabilities.catalog":
        return _why_not_owner(room, present["ownerAgentId"], signer) is None
    if map_name == "capabilities.index":
        capability = room.get("capabilities.catalog", key)
        if capability is None or is_removed(capability):
            return capability is None or capability["signedBy"] == signer
        return _why_not_owner(room, capability["ownerAgentId"], signer) is None
    if map_name == "coordination":
        subject = key.partition(":")[0]
        if subject in _OWN_SUBJECTS:
            return present["signedBy"] == signer
        if subject == "delegationAck":
            return True
        member = room.members.nodes.get(signer)
        return member is not None and member.tier is NodeTier.BACKBONE
    return present["signedBy"] == signer


_OWN_SUBJECTS: Final = frozenset({"pref", "sweepTerm", "member"})


def _taken(map_name: str, present: Record) -> str:
    owner = present["ownerNodeId"] if map_name == "agents" else present["signedBy"]
    return f"{owner} owns the agent" if map_name == "agents" else f"it is {owner}'s"


def _why_no_setting(
    key: str, record: Record, present: Record | None, signer: str, room: Believed, *, is_concurrent: bool
) -> str | None:
    subject = key.partition(":")[0]
    if subject == "member":
        return None if present is None or present["sig"] == record["sig"] else "a statement is never altered"
    if subject in ("pref", "sweepTerm", "delegationAck"):
        return None
    chosen = present if key == "coordinator" else room.get("coordination", "coordinator")
    coordinator = None if chosen is None or is_removed(chosen) else chosen["value"]
    if coordinator is None or is_concurrent:
        return None
    if key == "coordinator" and record.get("value") not in (None, coordinator):
        # OPS-4: also for the coordinator itself, which may hand over but not by mistake.
        is_meant = record.get("confirmLastResort") is True
        return None if is_meant else f"{coordinator} is the coordinator; changing that takes confirmLastResort"
    return None if coordinator == signer else f"{coordinator} is the coordinator"


def _node(key: str, record: Record, signer: Member, _room: Believed) -> str | None:
    if key != signer.node_id:
        return "it is another node's"
    if is_removed(record):
        return None
    if record["tier"] != signer.tier:
        return "its tier is not the one that it was admitted with"
    if record.get("publicKey") not in (None, signer.public_key):
        return "its key is not the one that it was admitted with"
    return None


def _coordination(key: str, record: Record, signer: Member, room: Believed) -> str | None:
    subject, _, rest = key.partition(":")
    if subject == "pref":
        return None if rest == signer.node_id else "a preference is its own node's"
    if subject == "delegationAck":
        return _why_not_owner(room, rest.rpartition(":")[0], signer.node_id)
    if signer.tier is not NodeTier.BACKBONE:
        return "it is not a backbone node"
    if subject == "sweepTerm":
        # OPS-4: who leads says so itself, the coordinator or who stands in for it.
        return None if rest == signer.node_id else "a term is its own node's"
    if key == "coordinator" and not is_removed(record):
        value = record["value"]
        return None if isinstance(value, str) and is_id(value) else "a coordinator is a node"
    return None


def _agent(_key: str, record: Record, _signer: Member, room: Believed) -> str | None:
    if is_removed(record):
        return None
    owner = room.members.nodes.get(record["ownerNodeId"])
    if owner is None:
        return f"{record['ownerNodeId']} is not a member of this mesh"
    return f"{owner.node_id} was revoked" if owner.is_revoked else None


def _routing(key: str, record: Record, signer: Member, room: Believed) -> str | None:
    return None if is_removed(record) else _why_not_owner(room, key, signer.node_id)


def _catalog(key: str, record: Record, signer: Member, room: Believed) -> str | None:
    if is_removed(record):
        return None
    reason = _why_not_said(record, capabilityId=key, ownerNodeId=signer.node_id)
    return reason or _why_not_owner(room, record["ownerAgentId"], signer.node_id)


def _index(key: str, record: Record, signer: Member, room: Believed) -> str | None:
    if is_removed(record):
        return None
    capability = room.get("capabilities.catalog", key)
    if capability is None or is_removed(capability):
        return "the catalog does not have it"
    reason = _why_not_said(record, capabilityId=key)
    return reason or _why_not_owner(room, capability["ownerAgentId"], signer.node_id)


def _invite(_key: str, record: Record, signer: Member, _room: Believed) -> str | None:
    return _why_not_said(record, createdBy=signer.node_id)


def _delivery(key: str, _record: Record, signer: Member, _room: Believed) -> str | None:
    return None if key == signer.node_id else "it is another node's"


def _cursor(key: str, record: Record, signer: Member, _room: Believed) -> str | None:
    consumer, _, source = key.partition("/")
    if consumer != signer.node_id:
        return "a cursor is its consumer's"
    return _why_not_said(record, consumerNodeId=consumer, sourceNodeId=source)


def _why_not_owner(room: Believed, agent_id: str, node_id: str) -> str | None:
    agent = room.get("agents", agent_id)
    if agent is None or is_removed(agent):
        return f"there is no agent {agent_id}"
    owner = agent["ownerNodeId"]
    return None if owner == node_id else f"{owner} owns the agent {agent_id}"


def _why_not_said(record: Mapping[str, Any], **expected: str) -> str | None:
    if not is_removed(record):
        for name, value in expected.items():
            if record.get(name) != value:
                return f"its {name} must be {value}"
    return None


_Rule = Callable[[str, Record, Member, Believed], str | None]
_RULES: Final[Mapping[str, _Rule]] = {
    "nodes": _node,
    "coordination": _coordination,
    "agents": _agent,
    "routing": _routing,
    "capabilities.catalog": _catalog,
    "capabilities.index": _index,
    "invites": _invite,
    "delivery": _delivery,
    "delivery.cursors": _cursor,
}
