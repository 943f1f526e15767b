"""Gateways that join by invites and share the room: real processes, real sockets."""

import asyncio
import contextlib
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from pycrdt import Doc, Map
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from agentpost.protocol.errors import Refusal
from agentpost.protocol.snapshot import ROOM_VERSION
from tests.edges.meshing import PATIENCE_SECONDS, ROOM, Stranger, eventually, invite, statuses
from tests.edges.running import RunningGateway, running_gateway

# Rounds of fifty connections over real sockets; tests/edges/test_ticket_race.py has a thousand without them.
ROUNDS = 3 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))

JSON = {"content-type": "application/json"}


async def status_of(attempt: connect) -> tuple[int, dict[str, Any]]:
    """The HTTP answer to a WebSocket that was refused: status and body. No 101 was sent."""
    with pytest.raises(InvalidStatus) as refused:
        await attempt
    response = refused.value.response
    return response.status_code, httpx.Response(200, content=bytes(response.body or b"")).json()["error"]


async def end_of(connection: ClientConnection) -> tuple[int, str]:
    """The code and the reason with which the other side closes, after whatever it still had to say."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        with contextlib.suppress(ConnectionClosedError):
            async for _ in connection:
                pass
    return connection.close_code or 0, connection.close_reason or ""


@pytest.mark.req("ROOM-1", "AUTH-3", "AUTH-5")
def test_three_gateways_join_by_invites_and_see_each_other(seed: RunningGateway, tmp_path: Path) -> None:
    """Two machines join with tokens of the first, all see all, and one that restarts is back without a token."""
    with ExitStack() as stack:
        others = [
            stack.enter_context(running_gateway(tmp_path / node, node=node, tier="edge"))
            for node in ("mbp-jane", "lab-jane")
        ]
        for node, other in zip(("mbp-jane", "lab-jane"), others, strict=True):
            other.operator.post("/operator/join", {"url": seed.url, "token": invite(seed, node)})
        everybody = dict.fromkeys(("lab-jane", "mbp-jane", "vps-jane"), "online")
        for gateway in (seed, *others):
            eventually(lambda gateway=gateway: statuses(gateway) == everybody)
        assert others[1].end() == 0
        eventually(lambda: statuses(seed)["lab-jane"] == "offline")
        with running_gateway(tmp_path / "lab-jane", node="lab-jane", tier="edge") as again:
            eventually(lambda: statuses(again) == everybody)
            eventually(lambda: statuses(others[0]) == everybody)


@pytest.mark.req("AUTH-1", "AUTH-9")
async def test_without_a_ticket_nothing_of_the_room_is_readable(stranger: Stranger) -> None:
    """Who has no ticket, or puts it into the URL, gets an HTTP refusal instead of a connection."""
    status, error = await status_of(stranger.socket(None))
    assert (status, error["code"]) == (401, "invalid_ticket")
    status, error = await status_of(stranger.socket(None, f"{ROOM}?ticket=anything"))
    assert (status, error["code"]) == (401, "invalid_ticket")
    status, error = await status_of(stranger.socket("not.a.ticket"))
    assert (status, error["code"]) == (401, "invalid_ticket")


@pytest.mark.req("AUTH-6", "AUTH-7")
def test_the_exchange_refuses_with_the_codes_of_the_spec(seed: RunningGateway, stranger: Stranger) -> None:
    """Wrong token, wrong node, a nonce twice, no proof: each has its code, and the earlier rule speaks first."""

    def code_of(answer: httpx.Response) -> tuple[int, str]:
        return answer.status_code, answer.json()["error"]["code"]

    token, foreign = invite(seed), invite(seed, "lab-jane")
    assert code_of(stranger.exchange("agp_unknown")) == (401, "invalid_token")
    assert code_of(stranger.exchange(foreign)) == (403, "node_mismatch")
    assert code_of(stranger.exchange(foreign, nodeProof=None)) == (403, "node_mismatch")
    assert code_of(stranger.exchange(token, nodeProof=None)) == (401, "node_proof_required")
    assert stranger.exchange(token, nonce="the-same-nonce-every-time").status_code == 200
    assert code_of(stranger.exchange(token, nonce="the-same-nonce-every-time")) == (409, "replay_detected")
    assert code_of(stranger.exchange(token, requestedRooms=["another"])) == (403, "room_denied")
    assert code_of(stranger.exchange(None)) == (401, "node_proof_invalid")
    assert code_of(httpx.post(f"{stranger.url}/ansible/auth/exchange", content=b"{", headers=JSON)) == (
        400,
        "malformed",
    )
    deep = httpx.post(f"{stranger.url}/ansible/auth/exchange", content=b"[" * 100_000, headers=JSON)
    assert (code_of(deep), deep.json()["error"]["message"]) == ((400, "malformed"), "the JSON is nested too deeply")
    assert "Traceback" not in seed.log


@pytest.mark.req("AUTH-5", "AUTH-6")
async def test_a_ticket_and_an_invite_are_used_once(seed: RunningGateway, stranger: Stranger) -> None:
    """The invite is used up when the first ticket opens a connection; a ticket opens one; the key opens the next."""
    token = invite(seed)
    first, second = stranger.ticket(token), stranger.ticket(token)
    status, error = await status_of(stranger.socket(first, "/ansible/room/another"))
    assert (status, error["code"]) == (403, "room_denied")
    third = stranger.ticket(token)
    async with stranger.socket(third):
        status, error = await status_of(stranger.socket(third))
        assert (status, error["code"]) == (409, "ticket_already_used")
        status, error = await status_of(stranger.socket(second))
        assert (status, error["code"]) == (409, "token_already_used")
        used = stranger.exchange(token)
        assert (used.status_code, used.json()["error"]["code"]) == (409, "token_already_used")
        async with stranger.socket(stranger.ticket(None)):
            pass


@pytest.mark.req("AUTH-6")
async def test_one_ticket_opens_one_of_many_connections(unlimited: RunningGateway, tmp_path: Path) -> None:
    """Fifty connections with the same ticket at the same moment: exactly one gets in, in every round."""
    stranger = Stranger("mbp-jane", tmp_path / "stranger", unlimited.url)

    async def attempt(ticket: str) -> int:
        try:
            async with stranger.socket(ticket) as connection:
                await connection.recv()
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    token: str | None = invite(unlimited)
    for _ in range(ROUNDS):
        ticket = await asyncio.to_thread(stranger.ticket, token)
        outcomes = await asyncio.gather(*(attempt(ticket) for _ in range(50)))
        assert sorted(outcomes) == [101, *[409] * 49]
        token = None


@pytest.mark.req("ROOM-3")
async def test_a_peer_that_writes_what_is_not_its_own_is_thrown_out(seed: RunningGateway, stranger: Stranger) -> None:
    """A write into another's record closes the connection with 1008, and nobody else ever sees it."""
    document: Doc = Doc()
    document["nodes"] = nodes = Map()
    nodes["vps-jane"] = {"tier": "edge", "status": "offline"}
    update = document.get_update()
    frame = bytes((0, 2, len(update) & 0x7F)) + update if len(update) < 128 else b""
    assert frame
    async with stranger.socket(stranger.ticket(invite(seed))) as connection:
        await connection.send(frame)
        assert (await end_of(connection))[0] == 1008
    assert statuses(seed)["vps-jane"] == "online"


@pytest.mark.req("ROOM-6")
async def test_a_revoked_node_is_cut_off_at_once(seed: RunningGateway, stranger: Stranger) -> None:
    """Revoking ends the open connection, and neither its ticket nor its key opens another."""
    waiting = None
    async with stranger.socket(stranger.ticket(invite(seed))) as connection:
        waiting = stranger.ticket(None)
        await asyncio.to_thread(seed.operator.post, "/operator/revoke", {"node": "mbp-jane"})
        assert await end_of(connection) == (1008, "node_revoked")
    status, error = await status_of(stranger.socket(waiting))
    assert (status, error["code"]) == (403, "node_revoked")
    assert stranger.exchange(None).status_code == 403


def test_only_backbone_nodes_invite(tmp_path: Path) -> None:
    """An edge gateway says that it cannot let others in, and who can."""
    with (
        running_gateway(tmp_path / "mbp-jane", node="mbp-jane", tier="edge") as gateway,
        pytest.raises(Refusal, match="only backbone nodes"),
    ):
        gateway.operator.post("/operator/invites", {"node": "lab-jane"})


@pytest.mark.req("ROOM-5")
def test_the_room_outlives_a_restart_of_everybody(tmp_path: Path) -> None:
    """All gateways stop and start again: the same nodes are in the room, joined by their keys, without an invite."""
    with (
        running_gateway(tmp_path / "vps") as seed,
        running_gateway(tmp_path / "mbp", node="mbp-jane", tier="edge") as edge,
    ):
        edge.operator.post("/operator/join", {"url": seed.url, "token": invite(seed)})
        address = seed.url.removeprefix("http://")
        edge.end()
        seed.end()
    with (
        running_gateway(tmp_path / "vps", listen=address) as seed,
        running_gateway(tmp_path / "mbp", node="mbp-jane", tier="edge") as edge,
    ):
        for gateway in (seed, edge):
            eventually(lambda gateway=gateway: statuses(gateway) == {"mbp-jane": "online", "vps-jane": "online"})


@pytest.mark.req("AUTH-6")
def test_a_flood_is_slowed_down(tmp_path: Path) -> None:
    """Who guesses tokens is soon told to wait, and for how long."""
    with running_gateway(tmp_path / "vps", "--attempts-per-address", "1") as seed:
        stranger = Stranger("mbp-jane", tmp_path / "stranger", seed.url)
        guess = {"nodeId": "mbp-jane", "nonce": "nonce", "inviteToken": "agp_guess", "protocolVersion": ROOM_VERSION}
        answers = [stranger.post("/ansible/auth/exchange", guess) for _ in range(3)]
    assert answers[0].status_code == 401
    # A minute would have to pass between two of them for it to be otherwise.
    assert answers[-1].status_code == 429
    assert answers[-1].json()["error"]["code"] == "rate_limited"
    assert int(answers[-1].headers["retry-after"]) >= 1


@pytest.mark.req("ROOM-5")
def test_any_backbone_gateway_hosts_the_room(seed: RunningGateway, tmp_path: Path) -> None:
    """A second backbone joins the first and lets an edge node in; all three see each other through both of them."""
    with (
        running_gateway(tmp_path / "hub", node="hub-jane", tier="backbone") as hub,
        running_gateway(tmp_path / "lab", node="lab-jane", tier="edge") as edge,
    ):
        hub.operator.post("/operator/join", {"url": seed.url, "token": invite(seed, "hub-jane", tier="backbone")})
        edge.operator.post("/operator/join", {"url": hub.url, "token": invite(hub, "lab-jane")})
        everybody = dict.fromkeys(("hub-jane", "lab-jane", "vps-jane"), "online")
        for gateway in (seed, hub, edge):
            eventually(lambda gateway=gateway: statuses(gateway) == everybody)
