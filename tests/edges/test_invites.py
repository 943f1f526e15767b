"""Invites as operators see them: in the room for all, and taken back by the gateway that made them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentpost.auth.invites import hash_token
from agentpost.testing import START_MS, FakeClock
from tests.edges.meshing import Stranger, eventually
from tests.edges.running import ServedGateway, agentpost, running_gateway, served_gateway


@pytest.fixture
def seed(tmp_path: Path) -> Iterator[ServedGateway]:
    with served_gateway(tmp_path / "vps-jane", clock=FakeClock()) as gateway:
        yield gateway


@pytest.fixture
def stranger(seed: ServedGateway, tmp_path: Path) -> Stranger:
    return Stranger("mbp-jane", tmp_path / "stranger", seed.url)


def made(seed: ServedGateway, node: str = "mbp-jane") -> dict[str, Any]:
    return seed.operator.post("/operator/invites", {"node": node})


def statuses_of(seed: ServedGateway) -> dict[str, str]:
    return {each["inviteId"]: each["status"] for each in seed.operator.get("/operator/invites")["invites"]}


@pytest.mark.req("ROOM-2", "AUTH-2", "AUTH-9")
def test_an_invite_stands_in_the_room_without_its_token(seed: ServedGateway) -> None:
    """All may see who is invited as what and until when, and nobody can join with what is there."""
    invite = made(seed)
    assert seed.operator.get("/operator/invites")["invites"] == [
        {
            "inviteId": invite["inviteId"],
            "tier": "edge",
            "expectedNodeId": "mbp-jane",
            "expiresAt": invite["expiresAt"],
            "createdBy": "vps-jane",
            "status": "open",
        }
    ]
    document = seed.gateway.host.room.update_since()
    digest = hash_token(invite["token"])
    assert invite["inviteId"].encode() in document
    for secret in (invite["token"].encode(), digest, digest.hex().encode()):
        assert secret not in document


@pytest.mark.req("AUTH-5")
def test_an_invite_is_used_or_expires_in_the_room_too(seed: ServedGateway, stranger: Stranger) -> None:
    """The first connection makes it used, not the exchange; one that nobody came with expires."""
    used, unused = made(seed), made(seed, "lab-jane")
    ticket = stranger.ticket(used["token"])
    assert statuses_of(seed) == {used["inviteId"]: "open", unused["inviteId"]: "open"}
    assert stranger.knock(ticket) == (101, {})
    assert statuses_of(seed) == {used["inviteId"]: "used", unused["inviteId"]: "open"}
    seed.clock.advance(3_600_000)
    assert statuses_of(seed) == {used["inviteId"]: "used", unused["inviteId"]: "expired"}


def test_an_invite_that_is_withdrawn_opens_nothing(seed: ServedGateway, stranger: Stranger) -> None:
    """Neither its token nor a ticket that was given for it; it is written down who did it, and again is no harm."""
    invite = made(seed)
    ticket = stranger.ticket(invite["token"])
    for _ in range(2):
        done = agentpost("invites", "withdraw", invite["inviteId"], "--home", str(seed.gateway.settings.home))
        assert done.returncode == 0, done.stderr
    assert statuses_of(seed) == {invite["inviteId"]: "withdrawn"}
    status, body = stranger.knock(ticket)
    assert (status, body["error"]["code"]) == (403, "node_revoked")
    refused = stranger.exchange(invite["token"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "node_revoked")
    assert "withdrawn" in refused.json()["error"]["message"]
    entries = [entry for entry in seed.gateway.store.audit_log() if entry.action == "invite.withdrawn"]
    assert [(entry.actor, entry.subject, entry.at_ms) for entry in entries] == [("operator", "mbp-jane", START_MS)]
    assert entries[0].detail == {"inviteId": invite["inviteId"]}
    assert stranger.knock(stranger.ticket(made(seed)["token"])) == (101, {})


def test_what_is_used_up_or_unknown_cannot_be_withdrawn(seed: ServedGateway, stranger: Stranger) -> None:
    """The refusal says what to do instead."""
    home = str(seed.gateway.settings.home)
    invite = made(seed)
    stranger.knock(stranger.ticket(invite["token"]))
    used = agentpost("invites", "withdraw", invite["inviteId"], "--home", home)
    assert used.returncode == 1
    assert "agentpost revoke mbp-jane" in used.stderr
    unknown = agentpost("invites", "withdraw", "inv_01JV3T7E6Q8M1W2R4D9K0N5P7H", "--home", home, "-o", "json")
    assert unknown.returncode == 1
    assert json.loads(unknown.stderr)["error"]["code"] == "not_found"


@pytest.mark.req("ROOM-2")
def test_every_gateway_sees_the_invites_of_the_others(tmp_path: Path) -> None:
    """`agentpost invites` on a machine that joined shows what the seed has made, as text and as JSON."""
    home = tmp_path / "mbp-jane"
    with running_gateway(tmp_path / "vps-jane") as seed, running_gateway(home, node="mbp-jane", tier="edge") as edge:
        used = seed.operator.post("/operator/invites", {"node": "mbp-jane"})
        edge.operator.post("/operator/join", {"url": seed.url, "token": used["token"]})
        waiting = seed.operator.post("/operator/invites", {"node": "lab-jane"})

        def seen() -> dict[str, str]:
            return {each["inviteId"]: each["status"] for each in edge.operator.get("/operator/invites")["invites"]}

        eventually(lambda: seen() == {used["inviteId"]: "used", waiting["inviteId"]: "open"})
        shown = json.loads(agentpost("invites", "--home", str(home), "-o", "json").stdout)
        assert [each["expectedNodeId"] for each in shown] == ["mbp-jane", "lab-jane"]
        assert "lab-jane" in agentpost("invites", "--home", str(home)).stdout
