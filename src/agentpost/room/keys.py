"""Whose key is whose: pinned keys first, and from those along the admissions that stand in the room.

An admission is a backbone node's signed word for another node's key and tier; it stands in the admitted node's record.
A key that was pinned here (at the first join, or with the invite) is never overruled by the room. A revocation is the
record `revoked:<node>` of `coordination`, signed by a backbone node other than the one it is about: a relay cannot
forge it, and withdrawing it takes another such signature. What a revoked backbone node admitted before stays admitted.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

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

    def is_backbone(self, node_id: str) -> bool: ...

    def is_revoked(self, node_id: str) -> bool: ...


def make_admission(
    *, by: str, signing: Ed25519PrivateKey, node_id: str, public_key: bytes, tier: NodeTier, at_ms: int
) -> dict[str, Any]:
    """The word of backbone node `by` that `node_id` has this key and this tier. Goes into the node's own record."""
    said = {"by": by, "publicKey": to_base64(public_key), "tier": tier.value, "at": at_ms}
    return said | {"sig": sign_bytes(signing, canonical(["admission", node_id, said]))}


class RoomKeyBook:
    """Implements `KeyBook`. `backbone` names the pinned nodes that are known here to be backbone."""

    def __init__(self, table: RecordTable, *, pinned: Mapping[str, bytes], backbone: Collection[str] = ()) -> None:
        self._table = table
        self._pinned = dict(pinned)
        self._backbone = set(backbone)
        # Signatures that were checked, with what they were checked against.
        self._checked: dict[tuple[object, ...], bool] = {}

    def pin(self, node_id: str, public_key: bytes, *, is_backbone: bool = False) -> None:
        """From now on this is the node's key, whatever the room says."""
        self._pinned[node_id] = public_key
        if is_backbone:
            self._backbone.add(node_id)

    def public_key(self, node_id: str) -> bytes | None:
        pinned = self._pinned.get(node_id)
        if pinned is not None:
            return pinned
        admission = self._admission(node_id, _LONGEST_CHAIN)
        return None if admission is None else _key_of(admission)

    def is_backbone(self, node_id: str) -> bool:
        return self._is_backbone(node_id, _LONGEST_CHAIN)

    def is_revoked(self, node_id: str) -> bool:
        return not is_removed(self._table.get("coordination", f"revoked:{node_id}"))

    def _is_backbone(self, node_id: str, steps: int) -> bool:
        if node_id in self._backbone:
            return True
        admission = self._admission(node_id, steps)
        if admission is None or admission["tier"] != NodeTier.BACKBONE:
            return False
        pinned = self._pinned.get(node_id)
        return pinned is None or pinned == _key_of(admission)

    def _admission(self, node_id: str, steps: int) -> Mapping[str, Any] | None:
        """The admission in the node's record, if it leads to a pinned backbone key in so many steps."""
        admission: Mapping[str, Any] | None = (self._table.get("nodes", node_id) or {}).get("admission")
        if admission is None or steps == 0:
            return None
        by: str = admission["by"]
        key = self._pinned.get(by)
        if key is None:
            above = self._admission(by, steps - 1)
            key = None if above is None else _key_of(above)
        if key is None or not self._is_backbone(by, steps - 1):
            return None
        return admission if self._is_signed(node_id, admission, key) else None

    def _is_signed(self, node_id: str, admission: Mapping[str, Any], key: bytes) -> bool:
        said = {name: value for name, value in admission.items() if name != "sig"}
        message = canonical(["admission", node_id, said])
        checked = (key, admission["sig"], message)
        if checked not in self._checked:
            if len(self._checked) >= _REMEMBERED:
                self._checked.clear()
            self._checked[checked] = verify_bytes(key, admission["sig"], message)
        return self._checked[checked]


def _key_of(admission: Mapping[str, Any]) -> bytes | None:
    try:
        return from_base64(admission["publicKey"])
    except ValueError:
        return None
