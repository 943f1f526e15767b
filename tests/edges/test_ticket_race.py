"""A ticket at the same moment in many hands: the real gate, the real store, a thousand rounds, and no sockets."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentpost.auth.challenge import make_proof
from agentpost.auth.wire import ExchangeRequest
from agentpost.config import Settings
from agentpost.edges.http.public import PublicDoor
from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import ROOM_VERSION, NodeTier
from agentpost.store.identity import Identity
from agentpost.testing import FakeClock, SeededChance
from tests.auth.building import ADDRESS, an_identity
from tests.edges.meshing import ROOM

ROUNDS = 1_000
CONNECTIONS = 50
# An invite is made anew so often; in between the node comes back with its key.
ROUNDS_PER_INVITE = 10


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    settings = Settings(
        home=tmp_path / "vps-jane",
        node_id="vps-jane",
        tier=NodeTier.BACKBONE,
        attempts_per_address=1_000_000_000,
        attempts_per_token=1_000_000_000,
    )
    gateway = Gateway(settings, clock=FakeClock(), chance=SeededChance(1))
    await gateway.start()
    yield gateway
    await gateway.stop()


class Attempt:
    """One WebSocket at the gate, as the server would bring it: what is answered, without a wire."""

    def __init__(self, ticket: str) -> None:
        self.scope: Any = {
            "type": "websocket",
            "path": ROOM,
            "headers": [(b"authorization", f"Bearer {ticket}".encode())],
            "client": (ADDRESS, 40_000),
            "subprotocols": [],
        }
        self.outcome: int | None = None
        self._said = ["websocket.connect", "websocket.disconnect"]

    async def receive(self) -> Any:
        return {"type": self._said.pop(0), "code": 1000}

    async def send(self, message: Any) -> None:
        if self.outcome is None:
            self.outcome = 101 if message["type"] == "websocket.accept" else message["status"]


async def a_ticket(gateway: Gateway, node_id: str, identity: Identity, nonce: str, token: str | None) -> str:
    challenge = gateway.joining.challenge(node_id, address=ADDRESS)
    proof = make_proof(identity, challenge, node_id=node_id, nonce=nonce, invite_token=token)
    request = ExchangeRequest(
        node_id=node_id, nonce=nonce, invite_token=token, node_proof=proof, protocol_version=ROOM_VERSION
    )
    return (await gateway.joining.exchange(request, address=ADDRESS)).ws_ticket


@pytest.mark.req("AUTH-6", "AUTH-8")
async def test_a_ticket_in_fifty_hands_opens_one_connection_a_thousand_times(gateway: Gateway) -> None:
    """In each of a thousand rounds one of fifty simultaneous connections gets in, and the others are told why not."""
    gate: Any = PublicDoor(gateway)
    identity = an_identity(1)
    for number in range(ROUNDS):
        node_id, token = f"node-{number // ROUNDS_PER_INVITE}", None
        if number % ROUNDS_PER_INVITE == 0:
            token = (await gateway.joining.invite(tier=NodeTier.EDGE, expected_node_id=node_id)).token
        ticket = await a_ticket(gateway, node_id, identity, f"nonce-{number}", token)
        attempts = [Attempt(ticket) for _ in range(CONNECTIONS)]
        await asyncio.gather(*(gate(each.scope, each.receive, each.send) for each in attempts))
        assert Counter(each.outcome for each in attempts) == {101: 1, 409: CONNECTIONS - 1}
    assert gateway.connections == set()
    refused = [entry for entry in gateway.store.audit_log(limit=1_000) if entry.action == "ticket.refused"]
    assert {entry.detail["code"] for entry in refused} == {Code.TICKET_ALREADY_USED.value}
