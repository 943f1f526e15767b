"""The exchange: an invite, or the key of a known node, for a ticket. Its checks have a fixed order (AUTH-5):

    the invite exists and is unused, it has not expired, it is for this node, the nonce is new, the proof holds,
    the node is not revoked, the rooms exist; then the ticket is minted.

A request that breaks two rules is told of the first. The invite is not used up here, but where the ticket is.
"""

from typing import Final

from msgspec import Struct

from agentpost.auth.challenge import Challenges, check_proof, with_server_proof
from agentpost.auth.guard import ReplayGuard
from agentpost.auth.invites import hash_token
from agentpost.auth.signing import check_node_id, check_nonce, in_time
from agentpost.auth.tickets import Tickets
from agentpost.auth.wire import CONTROL_ROOM, LINK_ROOM, ExchangeRequest, Find, FindRoot, Grant, NodeProof, Whois
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import InviteId, SessionId
from agentpost.protocol.snapshot import ROOM_VERSION, NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import Invite, KnownNode
from agentpost.world import Clock, IdMaker

__all__ = ["Exchange", "Granted"]

_NONCE: Final = "exchange.nonce"
_CHALLENGE: Final = "challenge"
_NONCE_KEPT_MS: Final = 60_000
# What a node that is unknown, or has no key, would have to prove. Nothing that is written so is a key.
_NO_KEY: Final = "no key"
_SET_SOCKET: Final = "Start the gateway with --tailnet-socket, or set tailnet_socket in its agentpost.toml."
_REPLACE_KEY: Final = "If the node lost its home and has a new key, invite it with --replace-key; if not, beware."


class Granted(Struct, frozen=True, kw_only=True):
    """A grant, and the invite that it rests on, if any."""

    grant: Grant
    invite_id: InviteId | None


class _Candidate(Struct, frozen=True, kw_only=True):
    """Who gets the ticket, once everything is checked."""

    tier: NodeTier
    proof: NodeProof | None
    invite_id: InviteId | None = None


class Exchange:
    def __init__(
        self,
        store: Store,
        identity: Identity,
        *,
        clock: Clock,
        ids: IdMaker,
        challenges: Challenges,
        tickets: Tickets,
        guard: ReplayGuard,
        find: Find,
        find_root: FindRoot,
        require_proof: bool,
        whois: Whois | None,
    ) -> None:
        self._find = find
        self._find_root = find_root
        self._store = store
        self._identity = identity
        self._clock = clock
        self._ids = ids
        self._challenges = challenges
        self._tickets = tickets
        self._guard = guard
        self._require_proof = require_proof
        self._whois = whois

    async def exchange(self, request: ExchangeRequest, *, address: str, port: int) -> Granted:
        check_node_id(request.node_id)
        check_version(request)
        check_nonce(request.nonce)
        if request.invite_token is None:
            candidate = await self._known(request)
        else:
            candidate = await self._invited(request, hash_token(request.invite_token), address, port)
        rooms = _rooms(request.requested_rooms, is_member=request.invite_token is None)
        return Granted(grant=self._mint(request, candidate, rooms), invite_id=candidate.invite_id)

    async def _invited(self, request: ExchangeRequest, token_hash: bytes, address: str, port: int) -> _Candidate:
        now_ms = self._clock.now_ms()
        invite = self._store.invite_by_hash(token_hash)
        if invite is None:
            raise Refusal(Code.INVALID_TOKEN, "there is no such invite", field="inviteToken")
        if invite.consumed_at_ms is not None:
            raise Refusal(Code.TOKEN_ALREADY_USED, "this invite was used already", field="inviteToken")
        if not in_time(now_ms, from_ms=invite.created_at_ms, until_ms=invite.expires_at_ms):
            raise Refusal(Code.EXPIRED_TOKEN, "this invite has expired", field="inviteToken")
        if invite.expected_node_id != request.node_id:
            raise Refusal(Code.NODE_MISMATCH, "this invite is for another node", field="nodeId")
        await self._check_nonce(f"{token_hash.hex()} {request.nonce}", now_ms, invite.expires_at_ms)
        pinned = _pinned_key(self._find(request.node_id), invite)
        proof = await self._proven(request, token_hash=token_hash, keys=(invite.public_key, pinned))
        if invite.tailnet_name is not None:
            await self._attested(invite.tailnet_name, address, port)
        if invite.revoked_at_ms is not None:
            raise Refusal(Code.NODE_REVOKED, f"the invite of {request.node_id} was withdrawn")
        return _Candidate(tier=invite.tier, proof=proof, invite_id=invite.invite_id)

    async def _known(self, request: ExchangeRequest) -> _Candidate:
        """A node that comes back. Nobody who cannot prove it learns whether the node is known here (AUTH-1)."""
        if request.node_proof is None and not self._require_proof:
            raise Refusal(Code.INVALID_TOKEN, "without a proof an invite is needed", field="inviteToken")
        node = self._find(request.node_id)
        key = _NO_KEY if node is None or node.signing_public is None else node.signing_public
        proof = await self._proven(request, token_hash=None, keys=(key,))
        now_ms = self._clock.now_ms()
        # Only after the proof: a stranger must not be able to fill the replay guard.
        await self._check_nonce(f"{request.node_id} {request.nonce}", now_ms, now_ms + _NONCE_KEPT_MS)
        if node is None or node.revoked_at_ms is not None:
            raise Refusal(Code.NODE_REVOKED, f"the node {request.node_id} was revoked")
        return _Candidate(tier=node.tier, proof=proof)

    async def _check_nonce(self, value: str, now_ms: int, good_until_ms: int) -> None:
        if not await self._guard.first_use(_NONCE, value, now_ms=now_ms, good_until_ms=good_until_ms):
            raise Refusal(Code.REPLAY_DETECTED, "this nonce was used already", field="nonce")

    async def _proven(
        self, request: ExchangeRequest, *, token_hash: bytes | None, keys: tuple[str | None, ...]
    ) -> NodeProof | None:
        """The proof, if it holds and has each of the `keys` that are not None; None if there is and need be none."""
        expected = [key for key in keys if key is not None]
        proof = request.node_proof
        if proof is None:
            if expected or self._require_proof:
                raise Refusal(
                    Code.NODE_PROOF_REQUIRED, "this gateway wants a proof of the node's key", field="nodeProof"
                )
            return None
        challenge = self._challenges.read(proof.challenge, for_node_id=request.node_id)
        if any(key != proof.signing_public for key in expected):
            # Who has an invite may know why it is not enough; others learn nothing of the node.
            hint = None if token_hash is None else _REPLACE_KEY
            raise Refusal(
                Code.NODE_PROOF_INVALID, "the proof is not by the key of this node", field="nodeProof", hint=hint
            )
        check_proof(
            proof,
            node_id=request.node_id,
            nonce=request.nonce,
            server_node_id=self._store.node_id,
            token_hash=token_hash,
        )
        now_ms = self._clock.now_ms()
        if not await self._guard.first_use(
            _CHALLENGE, challenge.id, now_ms=now_ms, good_until_ms=challenge.expires_at_ms
        ):
            raise Refusal(Code.REPLAY_DETECTED, "this challenge was used already", field="nodeProof")
        return proof

    async def _attested(self, tailnet_name: str, address: str, port: int) -> None:
        """Refuse a machine that the tailnet does not know by this name. If it cannot be asked, nobody gets in."""
        if self._whois is None:
            raise Refusal(Code.UNAVAILABLE, "this gateway does not ask the tailnet any more", hint=_SET_SOCKET)
        if await self._whois(address, port) != tailnet_name:
            raise Refusal(
                Code.NODE_PROOF_INVALID,
                f"the tailnet does not know {tailnet_name} at this address",
                field="nodeProof",
                hint="Join from the machine that the invite was made for, over the tailnet.",
            )

    def _mint(self, request: ExchangeRequest, candidate: _Candidate, rooms: tuple[str, ...]) -> Grant:
        proof = candidate.proof
        root_node_id, root_public = self._find_root()
        session_id = self._ids.make(SessionId)
        ticket, claims = self._tickets.mint(
            node_id=request.node_id,
            tier=candidate.tier,
            rooms=rooms,
            invite_id=candidate.invite_id,
            session_id=session_id,
            signing_public=None if proof is None else proof.signing_public,
            sealing_public=None if proof is None else proof.sealing_public,
        )
        grant = Grant(
            ws_ticket=ticket,
            expires_at=format_ms(claims.expires_at_ms),
            rooms=rooms,
            session_id=session_id,
            node_id=self._store.node_id,
            signing_public=self._identity.signing_public,
            sealing_public=self._identity.sealing_public,
            root_node_id=root_node_id,
            root_public=root_public,
        )
        return with_server_proof(grant, self._identity, node_id=request.node_id, nonce=request.nonce)


def check_version(request: ExchangeRequest) -> None:
    """Refuse a gateway whose room is another: it would write what nobody here believes."""
    version = request.protocol_version
    if version is None or version.partition(".")[0] != ROOM_VERSION.partition(".")[0]:
        said = "does not say which version of the room it speaks" if version is None else f"speaks {version!r:.20}"
        raise Refusal(
            Code.INVALID_FIELD,
            f"{request.node_id} {said}; this mesh speaks {ROOM_VERSION}",
            field="protocolVersion",
            hint="Install the other gateways' version on it (`pip install -U agentpost`), and start it again.",
        )


def _pinned_key(known: KnownNode | None, invite: Invite) -> str | None:
    """The key that a node must have, if its id is pinned to one. A new invite after a revocation takes a new key."""
    if known is None or (known.revoked_at_ms is not None and invite.revoked_at_ms is None):
        return None
    return known.signing_public


def _rooms(requested: tuple[str, ...] | None, *, is_member: bool) -> tuple[str, ...]:
    """The rooms that are granted: asking for none means the control room. Links are for those who have joined."""
    granted = tuple(dict.fromkeys(requested or (CONTROL_ROOM,)))
    allowed = (CONTROL_ROOM, LINK_ROOM) if is_member else (CONTROL_ROOM,)
    if any(room not in allowed for room in granted):
        raise Refusal(Code.ROOM_DENIED, "there is no such room, or it is not for you", field="requestedRooms")
    return granted
