"""Whose key is whose: pinned keys first, and from those along the admissions that stand in the room.

An admission is a backbone node's signed word for another node's key and tier; it stands in the admitted node's record.
A key that was pinned here (at the first join, or with the invite) is overruled by one thing only: an admission that
names it among the keys that it replaces, which a backbone node gives when its operator says so. The keys that were
replaced still speak for what was signed before, so that the room stays readable; see `authority`.

A revocation is the record `revoked:<node>` of `coordination`, signed by a backbone node other than the one it is about:
a relay cannot forge it, and withdrawing it takes another such signature. What a revoked backbone node admitted before
stays admitted.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentpost.protocol.snapshot import NodeTier
from agentpost.room.records import canonical, from_base64, is_removed, sign_bytes, to_base64, verify_bytes
from agentpost.room.table import RecordTable

__all__ = ["KeyBook", "RoomKeyBook", "make_admission"]

_LONGEST_CHAIN: Final = 16
_REMEMBERED: Final = 4096


class KeyBook(Protocol):
    def public_key(self, node_id: str) -> bytes | None:
        """The Ed25519 key that signs for this node; None if nobody that is trusted here has vouched for one."""
        ...

    def former_keys(self, node_id: str) -> tuple[bytes, ...]:
        """The keys that signed for this node before its key was replaced."""
        ...

    def is_vouched_now(self, node_id: str, admission: Mapping[str, Any]) -> bool:
        """Whether the word is signed by the key that its giver has now, and not by one of those before."""
        ...

    def is_backbone(self, node_id: str) -> bool: ...

    def is_revoked(self, node_id: str) -> bool: ...

    def is_shut_out(self, node_id: str) -> bool:
        """Whether nothing is taken from this node. Its own writes a revoked node takes: it may be let in again."""
        ...


def make_admission(
    *,
    by: str,
    signing: Ed25519PrivateKey,
    node_id: str,
    public_key: bytes,
    tier: NodeTier,
    at_ms: int,
    replaces: Collection[str] = (),
) -> dict[str, Any]:
    """The word of backbone node `by` that `node_id` has this key and this tier. Goes into the node's own record.

    `replaces` are the keys that the node had before, as they are written in the room.
    """
    said: dict[str, Any] = {"by": by, "publicKey": to_base64(public_key), "tier": tier.value, "at": at_ms}
    if replaces:
        said["replaces"] = list(replaces)
    return said | {"sig": sign_bytes(signing, canonical(["admission", node_id, said]))}


class _Standing(NamedTuple):
    """What is known of a node: its key and those that it had before, and whether its word counts."""

    keys: tuple[bytes, ...]
    is_backbone: bool


_NOBODY: Final = _Standing((), False)


class RoomKeyBook:
    """Implements `KeyBook`. `backbone` names the pinned nodes that are known here to be backbone."""

    def __init__(
        self, table: RecordTable, *, own: str = "", pinned: Mapping[str, bytes], backbone: Collection[str] = ()
    ) -> None:
        self._table = table
        self._own = own
        self._pinned = dict(pinned)
        self._backbone = set(backbone)
        # Signatures that hold, with what they were checked against. Of those that do not, nothing is kept.
        self._checked: set[tuple[object, ...]] = set()
        # What was found out of each node, good for one version of `nodes`.
        self._found: dict[str, _Standing] = {}
        self._found_at = -1

    def pin(self, node_id: str, public_key: bytes, *, is_backbone: bool = False) -> None:
        """From now on this is the node's key, whatever the room says, until a backbone node replaces it."""
        self._pinned[node_id] = public_key
        if is_backbone:
            self._backbone.add(node_id)
        else:
            self._backbone.discard(node_id)
        self._found_at = -1

    def public_key(self, node_id: str) -> bytes | None:
        keys = self._standing(node_id).keys
        return keys[0] if keys else None

    def former_keys(self, node_id: str) -> tuple[bytes, ...]:
        return self._standing(node_id).keys[1:]

    def is_backbone(self, node_id: str) -> bool:
        return self._standing(node_id).is_backbone

    def is_revoked(self, node_id: str) -> bool:
        return not is_removed(self._table.get("coordination", f"revoked:{node_id}"))

    def is_shut_out(self, node_id: str) -> bool:
        return node_id != self._own and self.is_revoked(node_id)

    def is_vouched_now(self, node_id: str, admission: Mapping[str, Any]) -> bool:
        key = self.public_key(admission["by"])
        return key is not None and self._is_signed(node_id, admission, key)

    def _standing(self, node_id: str) -> _Standing:
        version = self._table.version("nodes")
        if self._found_at != version:
            self._found, self._found_at = {}, version
        found = self._found.get(node_id)
        if found is None:
            found = self._found[node_id] = self._find(node_id, _LONGEST_CHAIN)
        return found

    def _find(self, node_id: str, steps: int) -> _Standing:
        pinned = self._pinned.get(node_id)
        is_backbone = node_id in self._backbone
        known = _NOBODY if pinned is None else _Standing((pinned,), is_backbone)
        admission = None if steps == 0 else self._admission(node_id, steps)
        key = None if admission is None else _key_of(admission["publicKey"])
        if admission is None or key is None:
            return known
        former = tuple(filter(None, map(_key_of, admission.get("replaces", ()))))
        is_admitted_backbone = admission["tier"] == NodeTier.BACKBONE
        if key == pinned:
            return _Standing((key, *former), is_backbone or is_admitted_backbone)
        if pinned is None or (pinned in former and node_id != self._own):
            return _Standing((key, *former), is_admitted_backbone)
        return known

    def _admission(self, node_id: str, steps: int) -> Mapping[str, Any] | None:
        """The admission in the node's record, if it leads to a pinned backbone key in so many steps."""
        admission: Mapping[str, Any] | None = (self._table.get("nodes", node_id) or {}).get("admission")
        if admission is None or admission["by"] == node_id:
            return None
        above = self._find(admission["by"], steps - 1)
        if not above.is_backbone or not any(self._is_signed(node_id, admission, key) for key in above.keys):
            return None
        return admission

    def _is_signed(self, node_id: str, admission: Mapping[str, Any], key: bytes) -> bool:
        said = {name: value for name, value in admission.items() if name != "sig"}
        message = canonical(["admission", node_id, said])
        checked = (key, admission["sig"], message)
        if checked in self._checked:
            return True
        if not verify_bytes(key, admission["sig"], message):
            return False
        if len(self._checked) >= _REMEMBERED:
            self._checked.clear()
        self._checked.add(checked)
        return True


def _key_of(text: str) -> bytes | None:
    try:
        return from_base64(text)
    except ValueError:
        return None
