"""Challenge and proof: a node shows that it holds its key by signing what this gateway gave it (AUTH-7).

The other way round, the gateway signs the node's nonce and what it grants with it, so that the node knows whom it found
at an address.

The gateway keeps nothing of a challenge: it knows its own signature again. That each is used once is the replay
guard's business, and which key a node must have is `exchange`'s.
"""

from typing import Final

import msgspec

from agentpost.auth.invites import hash_token
from agentpost.auth.signing import check_node_id, check_nonce, from_text, in_time, is_key, sign, signed_by, to_text
from agentpost.auth.wire import Challenge, Grant, NodeProof
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import format_ms
from agentpost.store.identity import Identity
from agentpost.world import Chance, Clock

__all__ = [
    "CHALLENGE_MS",
    "Challenges",
    "OpenChallenge",
    "check_proof",
    "is_granted_by",
    "make_proof",
    "proof_message",
    "with_server_proof",
]

CHALLENGE_MS: Final = 60_000
_ID_BYTES: Final = 16
_CHALLENGE: Final = "ansible-challenge-v1"
_PROOF: Final = "ansible-node-proof-v1"
_SERVER_PROOF: Final = "ansible-server-proof-v1"


class OpenChallenge(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a challenge says inside: who gave it to whom, and until when it is good."""

    id: str
    by_node_id: str
    for_node_id: str
    expires_at_ms: int


class Challenges:
    """Gives challenges, and knows its own again."""

    def __init__(self, node_id: str, identity: Identity, *, clock: Clock, chance: Chance) -> None:
        self._node_id = node_id
        self._identity = identity
        self._clock = clock
        self._chance = chance

    def make(self, for_node_id: str) -> Challenge:
        expires_at_ms = self._clock.now_ms() + CHALLENGE_MS
        body = msgspec.json.encode(
            OpenChallenge(
                id=to_text(self._chance.entropy(_ID_BYTES)),
                by_node_id=self._node_id,
                for_node_id=check_node_id(for_node_id),
                expires_at_ms=expires_at_ms,
            )
        )
        text = f"{to_text(body)}.{sign(self._identity.signing, _CHALLENGE, body)}"
        return Challenge(challenge=text, node_id=self._node_id, expires_at=format_ms(expires_at_ms))

    def read(self, text: str, *, for_node_id: str) -> OpenChallenge:
        """The challenge, if this gateway gave it to this node a moment ago."""
        head, _, signature = text.partition(".")
        body = from_text(head)
        if body is None or not signed_by(self._identity.signing_public, _CHALLENGE, body, signature):
            raise _invalid("the challenge is not one that this gateway gave")
        opened = msgspec.json.decode(body, type=OpenChallenge)
        if opened.by_node_id != self._node_id or opened.for_node_id != for_node_id:
            raise _invalid("the challenge was given to another node")
        until_ms = opened.expires_at_ms
        if not in_time(self._clock.now_ms(), from_ms=until_ms - CHALLENGE_MS, until_ms=until_ms):
            raise _invalid("the challenge has expired")
        return opened


def proof_message(
    *,
    challenge: str,
    node_id: str,
    nonce: str,
    server_node_id: str,
    token_hash: bytes | None,
    signing_public: str,
    sealing_public: str | None,
) -> bytes:
    """What a node signs: one line for each thing that the proof is bound to, `-` where there is none.

    The server's id and the hash of the invite's token keep it from being used elsewhere or with another invite; the
    keys are there so that nobody on the way can exchange the one that content will be sealed for.
    """
    token = "-" if token_hash is None else token_hash.hex()
    lines = (challenge, node_id, nonce, server_node_id, token, signing_public, sealing_public or "-")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def make_proof(
    identity: Identity, challenge: Challenge, *, node_id: str, nonce: str, invite_token: str | None = None
) -> NodeProof:
    """The proof of the node that holds `identity`, for the gateway that gave the challenge."""
    message = proof_message(
        challenge=challenge.challenge,
        node_id=check_node_id(node_id),
        nonce=check_nonce(nonce),
        server_node_id=challenge.node_id,
        token_hash=None if invite_token is None else hash_token(invite_token),
        signing_public=identity.signing_public,
        sealing_public=identity.sealing_public,
    )
    return NodeProof(
        challenge=challenge.challenge,
        signing_public=identity.signing_public,
        sealing_public=identity.sealing_public,
        signature=sign(identity.signing, _PROOF, message),
    )


def check_proof(proof: NodeProof, *, node_id: str, nonce: str, server_node_id: str, token_hash: bytes | None) -> None:
    """Refuse a proof whose signature is not that of its key over all that it must be bound to."""
    message = proof_message(
        challenge=proof.challenge,
        node_id=node_id,
        nonce=nonce,
        server_node_id=server_node_id,
        token_hash=token_hash,
        signing_public=proof.signing_public,
        sealing_public=proof.sealing_public,
    )
    if proof.sealing_public is not None and not is_key(proof.sealing_public):
        raise _invalid("the sealing key is not a public key")
    if not signed_by(proof.signing_public, _PROOF, message, proof.signature):
        raise _invalid("the signature of the proof does not hold")


def with_server_proof(grant: Grant, identity: Identity, *, node_id: str, nonce: str) -> Grant:
    """The grant, signed for the node that asked with this nonce."""
    proof = sign(identity.signing, _SERVER_PROOF, _granted(grant, node_id, nonce))
    return msgspec.structs.replace(grant, server_proof=proof)


def is_granted_by(grant: Grant, public: str, *, node_id: str, nonce: str) -> bool:
    """Whether the holder of this key granted exactly this to this node, for this nonce."""
    return signed_by(public, _SERVER_PROOF, _granted(grant, node_id, nonce), grant.server_proof)


def _granted(grant: Grant, node_id: str, nonce: str) -> bytes:
    unsigned = msgspec.structs.replace(grant, server_proof="")
    return b"\n".join((node_id.encode(), nonce.encode(), msgspec.json.encode(unsigned, order="deterministic")))


def _invalid(message: str) -> Refusal:
    return Refusal(Code.NODE_PROOF_INVALID, message)
