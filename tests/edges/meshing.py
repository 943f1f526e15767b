"""A node without a gateway, and the shortest way to what the tests of the mesh say."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as sync_connect
from websockets.typing import Subprotocol

from agentpost.auth.challenge import make_proof
from agentpost.auth.wire import Challenge
from agentpost.protocol.snapshot import ROOM_VERSION
from agentpost.store.home import Home
from agentpost.store.identity import Identity, load_identity
from tests.edges.running import RunningGateway, ServedGateway

ROOM = "/ansible/room/ansible-control"
# Long enough for a machine that is busy with something else; nobody waits for it when all is well.
PATIENCE_SECONDS = 180


class Stranger:
    """A node without a gateway: keys, and the handshake written by hand."""

    def __init__(self, node_id: str, home: Path, url: str) -> None:
        made = Home(home)
        made.prepare()
        self.node_id = node_id
        self.url = url
        self.identity: Identity = load_identity(made)
        # What this node was given or made that nobody else may see: tokens, tickets, proofs.
        self.secrets: set[str] = set()
        self._nonce = 0

    def request(self, token: str | None, **changed: Any) -> dict[str, Any]:
        """The body of an exchange with nothing wrong with it, except for the changes."""
        asked = self.post("/ansible/auth/challenge", {"nodeId": self.node_id}).json()
        challenge = Challenge(challenge=asked["challenge"], node_id=asked["nodeId"], expires_at=asked["expiresAt"])
        self._nonce += 1
        nonce = changed.pop("nonce", f"nonce-of-{self.node_id}-{self._nonce:08}")
        proof = make_proof(self.identity, challenge, node_id=self.node_id, nonce=nonce, invite_token=token)
        self.secrets |= {secret for secret in (token, proof.challenge, proof.signature) if secret}
        body: dict[str, Any] = {
            "nodeId": self.node_id,
            "nonce": nonce,
            "inviteToken": token,
            "protocolVersion": ROOM_VERSION,
            "nodeProof": {
                "challenge": proof.challenge,
                "signingPublic": proof.signing_public,
                "sealingPublic": proof.sealing_public,
                "signature": proof.signature,
            },
        }
        return body | changed

    def exchange(self, token: str | None, **changed: Any) -> httpx.Response:
        answer = self.post("/ansible/auth/exchange", self.request(token, **changed))
        if answer.status_code == 200:
            self.secrets.add(answer.json()["wsTicket"])
        return answer

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE_SECONDS)

    def ticket(self, token: str | None) -> str:
        answer = self.exchange(token)
        assert answer.status_code == 200, answer.text
        return answer.json()["wsTicket"]

    def socket(self, ticket: str | None, path: str = ROOM) -> connect:
        headers = {} if ticket is None else {"Authorization": f"Bearer {ticket}"}
        return connect(
            self.url.replace("http", "ws", 1) + path,
            additional_headers=headers,
            compression=None,
            open_timeout=PATIENCE_SECONDS,
            close_timeout=PATIENCE_SECONDS,
        )

    def knock(
        self, ticket: str | None, path: str = ROOM, *, protocols: list[str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Try to connect, and leave at once: 101 and nothing, or the status and the body of the refusal."""
        headers = {} if ticket is None else {"Authorization": f"Bearer {ticket}"}
        offered = None if protocols is None else [Subprotocol(name) for name in protocols]
        try:
            with sync_connect(
                self.url.replace("http", "ws", 1) + path,
                additional_headers=headers,
                subprotocols=offered,
                compression=None,
                open_timeout=PATIENCE_SECONDS,
                close_timeout=PATIENCE_SECONDS,
            ) as connection:
                assert connection.subprotocol == (offered[0] if offered else None)
                connection.recv(PATIENCE_SECONDS)
            return 101, {}
        except InvalidStatus as refused:
            return refused.response.status_code, json.loads(bytes(refused.response.body or b""))


def invite(seed: RunningGateway | ServedGateway, node: str = "mbp-jane", **more: Any) -> str:
    return seed.operator.post("/operator/invites", {"node": node, **more})["token"]


def statuses(gateway: RunningGateway) -> dict[str, str]:
    return {node["nodeId"]: node["status"] for node in gateway.operator.get("/operator/nodes")["nodes"]}


def eventually(what: Callable[[], bool], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + patience_seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
