"""What the tests of joining are made of: a gateway that lets nodes in, and a node that wants to."""

from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from agentpost.auth.challenge import make_proof
from agentpost.auth.invites import NewInvite
from agentpost.auth.joining import Joining
from agentpost.auth.limits import Limits, Rate
from agentpost.auth.wire import CONTROL_ROOM, Challenge, Entry, ExchangeRequest, Grant
from agentpost.protocol.snapshot import ROOM_VERSION, NodeTier
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.testing import FakeClock, SeededChance

SEED = "vps-jane"
NODE = "mbp-jane"
ADDRESS = "192.0.2.7"
ROOM = CONTROL_ROOM
PLENTY = Rate(burst=1e9, per_second=1e9)


def an_identity(number: int) -> Identity:
    """The keys of node `number`: the same ones every time."""
    chance = SeededChance(number)
    return Identity(
        Ed25519PrivateKey.from_private_bytes(chance.entropy(32)),
        X25519PrivateKey.from_private_bytes(chance.entropy(32)),
    )


@dataclass
class Gateway:
    """A gateway as far as joining goes. `again` is the same one after a restart, on the given store."""

    store: Store
    clock: FakeClock = field(default_factory=FakeClock)
    chance: SeededChance = field(default_factory=lambda: SeededChance(1))
    identity: Identity = field(default_factory=lambda: an_identity(100))
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = {"limits": Limits(self.clock, per_address=PLENTY, per_token=PLENTY)} | self.options
        self.joining = Joining(self.store, self.identity, self.clock, self.chance, **options)

    def again(self, store: Store) -> "Gateway":
        return Gateway(store, self.clock, self.chance, self.identity, self.options)

    async def invite(self, node_id: str = NODE, tier: NodeTier = NodeTier.EDGE, **options: Any) -> NewInvite:
        return await self.joining.invite(tier=tier, expected_node_id=node_id, **options)

    async def exchange(self, request: ExchangeRequest) -> Grant:
        return await self.joining.exchange(request, address=ADDRESS)

    async def redeem(self, ticket: str, room: str = ROOM) -> Entry:
        return await self.joining.redeem(ticket, room=room, address=ADDRESS)


@dataclass
class Visitor:
    """A node at the door of a gateway."""

    gateway: Gateway
    node_id: str = NODE
    identity: Identity = field(default_factory=lambda: an_identity(1))
    nonces: int = 0

    def challenge(self) -> Challenge:
        return self.gateway.joining.challenge(self.node_id, address=ADDRESS)

    def request(self, token: str | None = None, **changes: Any) -> ExchangeRequest:
        """A request with nothing wrong with it, except for the changes."""
        self.nonces += 1
        nonce = changes.pop("nonce", f"nonce-{self.node_id}-{self.nonces}")
        challenge = changes.pop("challenge", None) or self.challenge()
        proof = make_proof(self.identity, challenge, node_id=self.node_id, nonce=nonce, invite_token=token)
        fields: dict[str, Any] = {
            "node_id": self.node_id,
            "nonce": nonce,
            "invite_token": token,
            "node_proof": proof,
            "protocol_version": ROOM_VERSION,
        }
        return ExchangeRequest(**fields | changes)

    async def ticket(self, token: str | None = None, **changes: Any) -> str:
        return (await self.gateway.exchange(self.request(token, **changes))).ws_ticket

    async def join(self, **options: Any) -> Entry:
        """Join with a fresh invite."""
        invite = await self.gateway.invite(self.node_id, **options)
        return await self.gateway.redeem(await self.ticket(invite.token))
