"""Who may write what (ROOM-3), one rule for each map. Judges records whose form and signature are already known good.

Two kinds of rules. What a record itself shows (a node signs its own) always holds. What depends on how things stood
when the record was written (who owned the agent, who was coordinator) holds for every write as it is made. For the
past it cannot be judged again by somebody who was away, so a backbone node that answers a sync is believed about it
(`is_past`): it judged those writes when they were made. It still can neither alter a record nor bring an older one
back.

A record that is authentic and fails a rule of the second kind may only have crossed with news on another way: a
revocation, a hand-over, a new key. That is `Crossed`, and not its bringer's fault unless the bringer signed it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from agentpost.protocol.errors import Code, Refusal
from agentpost.room.keys import KeyBook
from agentpost.room.records import Record, is_removed
from agentpost.room.schema import is_id
from agentpost.room.table import RecordTable

__all__ = ["Change", "Crossed", "Judge"]


class Crossed(Refusal):
    """An authentic record that does not fit how things stand here, but may have fitted where it comes from."""

    def __init__(self, code: Code, message: str, *, signer: str, field: str | None = None) -> None:
        super().__init__(code, message, field=field)
        self.signer = signer


class Change(NamedTuple):
    """A record that takes the place of another. `previous` is None for a new key, and a removed one counts as none."""

    map_name: str
    key: str
    record: Record
    previous: Record | None


class Judge:
    def __init__(self, table: RecordTable, keys: KeyBook) -> None:
        self._table = table
        self._keys = keys

    def check(self, change: Change, *, is_past: bool, is_concurrent: bool) -> None:
        """Refuse a change that its signer may not make. `is_concurrent`: the signer had not seen what stands there."""
        signer: str = change.record["signedBy"]
        if not is_past and self._keys.is_shut_out(signer):
            raise Crossed(Code.NODE_REVOKED, f"{signer} was revoked; its records are not taken any more", signer=signer)
        reason = _BY_ITSELF[change.map_name](change, signer)
        if reason is None and change.map_name == "nodes":
            reason = self._admission(change)
        if reason is not None:
            raise Refusal(Code.WRITE_DENIED, _denial(change, reason), field=change.map_name)
        if change.map_name == "nodes" and not is_past:
            reason = self._fresh_admission(change)
        if change.map_name == "coordination":
            reason = self._coordination(change, signer, may_differ=is_past or is_concurrent)
        if reason is None and not is_past:
            rule = _BY_STATE.get(change.map_name)
            reason = None if rule is None else rule(change, signer, self._table)
        if reason is not None:
            raise Crossed(Code.WRITE_DENIED, _denial(change, reason), signer=signer, field=change.map_name)

    def _admission(self, change: Change) -> str | None:
        admission = change.record.get("admission")
        if admission is None:
            return None
        if admission["tier"] != change.record.get("tier"):
            return "its tier is not the one that it was admitted with"
        if admission["publicKey"] != change.record.get("publicKey"):
            return "its key is not the one that it was admitted with"
        return None

    def _fresh_admission(self, change: Change) -> str | None:
        admission = change.record.get("admission")
        if admission is None or (change.previous is not None and change.previous.get("admission") == admission):
            return None
        if self._keys.is_revoked(admission["by"]):
            return f"{admission['by']}, which admitted it, was revoked"
        if not self._keys.is_vouched_now(change.key, admission):
            return f"{admission['by']} has another key than the one that admitted it"
        return None

    def _coordination(self, change: Change, signer: str, *, may_differ: bool) -> str | None:
        key, (subject, _, rest) = change.key, change.key.partition(":")
        if subject == "pref":
            return None if rest == signer else "a preference is its own node's"
        if subject == "delegationAck":
            if may_differ:
                return None
            return _owns(self._table, rest.rpartition(":")[0], signer)
        if not self._keys.is_backbone(signer):
            return "it is not a backbone node"
        if subject == "sweepTerm":
            # OPS-4: whoever leads says so itself, the coordinator or who stands in for it.
            return None if rest == signer else "a term is its own node's"
        if subject == "revoked":
            return "a node neither revokes nor readmits itself" if rest == signer else None
        present = change.previous if key == "coordinator" else self._table.get("coordination", "coordinator")
        coordinator = None if present is None or is_removed(present) else present["value"]
        if coordinator is None or may_differ:
            return None
        if key == "coordinator" and change.record.get("value") not in (None, coordinator):
            # OPS-4: also for the coordinator itself, which may hand over but not by mistake.
            is_meant = change.record.get("confirmLastResort") is True
            return None if is_meant else f"{coordinator} is the coordinator; changing that takes confirmLastResort"
        return None if coordinator == signer else f"{coordinator} is the coordinator"


def _denial(change: Change, reason: str) -> str:
    return f"{change.record['signedBy']} may not write {change.map_name}.{change.key}: {reason}"


Rule = Callable[[Change, str], str | None]
StateRule = Callable[[Change, str, RecordTable], str | None]


def _key_is_signer(change: Change, signer: str) -> str | None:
    return None if change.key == signer else "it is another node's"


def _cursor(change: Change, signer: str) -> str | None:
    consumer, _, source = change.key.partition("/")
    if consumer != signer:
        return "a cursor is its consumer's"
    return _says(change.record, consumerNodeId=consumer, sourceNodeId=source)


def _invite(change: Change, signer: str) -> str | None:
    if change.previous is not None and change.previous["createdBy"] != signer:
        return f"{change.previous['createdBy']} made it"
    return _says(change.record, createdBy=signer)


def _capability(change: Change, _signer: str) -> str | None:
    return _says(change.record, capabilityId=change.key)


def _setting(change: Change, _signer: str) -> str | None:
    if change.key == "coordinator" and not is_removed(change.record):
        value = change.record["value"]
        return None if isinstance(value, str) and is_id(value) else "a coordinator is a node"
    return None


def _agent(change: Change, signer: str, _table: RecordTable) -> str | None:
    if change.previous is not None:
        owner = change.previous["ownerNodeId"]
        return None if owner == signer else f"{owner} owns the agent"
    return _says(change.record, ownerNodeId=signer)


def _routing(change: Change, signer: str, table: RecordTable) -> str | None:
    return _owns(table, change.key, signer)


def _catalog(change: Change, signer: str, table: RecordTable) -> str | None:
    if change.previous is not None:
        reason = _owns(table, change.previous["ownerAgentId"], signer)
        if reason is not None:
            return reason
    if is_removed(change.record):
        return None
    return _says(change.record, ownerNodeId=signer) or _owns(table, change.record["ownerAgentId"], signer)


def _index(change: Change, signer: str, table: RecordTable) -> str | None:
    capability = table.get("capabilities.catalog", change.key)
    if capability is None:
        return "the catalog does not have it"
    if is_removed(capability):
        # The one who took it out of the catalog may take it out of the index too.
        return None if capability["signedBy"] == signer else "the catalog does not have it"
    return _owns(table, capability["ownerAgentId"], signer)


def _owns(table: RecordTable, agent_id: str, node_id: str) -> str | None:
    agent = table.get("agents", agent_id)
    if agent is None or is_removed(agent):
        return f"there is no agent {agent_id}"
    owner = agent["ownerNodeId"]
    return None if owner == node_id else f"{owner} owns the agent {agent_id}"


def _says(record: Mapping[str, Any], **expected: str) -> str | None:
    if is_removed(record):
        return None
    for name, value in expected.items():
        if record.get(name) != value:
            return f"its {name} must be {value}"
    return None


def _no_rule(_change: Change, _signer: str) -> str | None:
    return None


_BY_ITSELF: Final[Mapping[str, Rule]] = {
    "nodes": _key_is_signer,
    "coordination": _setting,
    "agents": _no_rule,
    "routing": _no_rule,
    "capabilities.catalog": _capability,
    "capabilities.index": _capability,
    "invites": _invite,
    "delivery": _key_is_signer,
    "delivery.cursors": _cursor,
}
_BY_STATE: Final[Mapping[str, StateRule]] = {
    "agents": _agent,
    "routing": _routing,
    "capabilities.catalog": _catalog,
    "capabilities.index": _index,
}
