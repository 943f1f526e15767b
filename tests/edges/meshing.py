"""A node without a gateway, and the shortest way to what the tests of the mesh say."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from agentpost.auth.challenge import make_proof
from agentpost.auth.wire import Challenge
from agentpost.store.home import Home
from agentpost.store.identity import Identity, load_identity
from tests.edges.running import RunningGateway

ROOM = "/ansible/room/ansible-control"
PATIENCE_SECONDS = 30


class Stranger:
    """A node without a gateway: keys, and the handshake written by hand."""

    def __init__(self, node_id: str, home: Path, url: str) -> None:
        made = Home(home)
        made.prepare()
        self.node_id = node_id
        self.url = url
        self.identity: Identity = load_identity(made)
        self._nonce = 0

    def exchange(self, token: str | None, **changed: Any) -> httpx.Response:
        asked = httpx.post(f"{self.url}/ansible/auth/challenge", json={"nodeId": self.node_id}).json()
        challenge = Challenge(challenge=asked["challenge"], node_id=asked["nodeId"], expires_at=asked["expiresAt"])
        self._nonce += 1
        nonce = changed.pop("nonce", f"nonce-of-{self.node_id}-{self._nonce:08}")
        proof = make_proof(self.identity, challenge, node_id=self.node_id, nonce=nonce, invite_token=token)
        body: dict[str, Any] = {
            "nodeId": self.node_id,
            "nonce": nonce,
            "inviteToken": token,
            "nodeProof": {
                "challenge": proof.challenge,
                "signingPublic": proof.signing_public,
                "sealingPublic": proof.sealing_public,
                "signature": proof.signature,
            },
        }
        return httpx.post(f"{self.url}/ansible/auth/exchange", json=body | changed)

    def ticket(self, token: str | None) -> str:
        answer = self.exchange(token)
        assert answer.status_code == 200, answer.text
        return answer.json()["wsTicket"]

    def socket(self, ticket: str | None, path: str = ROOM) -> connect:
        headers = {} if ticket is None else {"Authorization": f"Bearer {ticket}"}
        return connect(self.url.replace("http", "ws", 1) + path, additional_headers=headers, compression=None)


def invite(seed: RunningGateway, node: str = "mbp-jane", **more: Any) -> str:
    return seed.operator.post("/operator/invites", {"node": node, **more})["token"]


def statuses(gateway: RunningGateway) -> dict[str, str]:
    return {node["nodeId"]: node["status"] for node in gateway.operator.get("/operator/nodes")["nodes"]}


def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
