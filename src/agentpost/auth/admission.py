"""Admissions: one node's signed word that it let another in, so that others can trust a key they never saw proven.

Who is believed is not decided here: a reader takes the word of a backbone node whose own key it knows.
"""

from typing import Final

from msgspec.structs import replace

from agentpost.auth.signing import sign, signed_by
from agentpost.auth.wire import Admission
from agentpost.protocol.timestamps import format_ms, is_timestamp
from agentpost.store.identity import Identity
from agentpost.store.values import KnownNode

__all__ = ["Admission", "make_admission", "verify_admission"]

_ADMISSION: Final = "ansible-admission-v1"


def make_admission(identity: Identity, node: KnownNode) -> Admission | None:
    """The word of `node.admitted_by`, whose identity this is. None for a node without a key: there is nothing to say.

    It follows from what is pinned, so the same node gets the same words each time.
    """
    if node.signing_public is None:
        return None
    said = Admission(
        admitted_by=node.admitted_by,
        node_id=node.node_id,
        signing_public=node.signing_public,
        tier=node.tier,
        admitted_at=format_ms(node.pinned_at_ms),
        signature="",
    )
    return replace(said, signature=sign(identity.signing, _ADMISSION, _message(said)))


def verify_admission(admission: Admission, *, signer_public: str) -> bool:
    """Whether the holder of `signer_public`, the key of `admitted_by`, said this."""
    fields = (admission.admitted_by, admission.node_id, admission.signing_public)
    # A line break inside a field would let one message be read as another.
    if any("\n" in field for field in fields) or not is_timestamp(admission.admitted_at):
        return False
    return signed_by(signer_public, _ADMISSION, _message(admission), admission.signature)


def _message(admission: Admission) -> bytes:
    lines = (
        admission.admitted_by,
        admission.node_id,
        admission.signing_public,
        admission.tier.value,
        admission.admitted_at,
    )
    return "\n".join(lines).encode("utf-8", "surrogatepass")
