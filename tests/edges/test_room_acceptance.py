"""The room between whole gateways: who is there after restarts, and members that are in each other's way."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentpost.protocol.errors import Code, Refusal
from tests.edges.meshing import eventually, invite, statuses
from tests.edges.test_seeds import Mesh, agents_at, message_of

# Two heartbeats.
AGREED_SECONDS = 20


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with ExitStack() as stack:
        yield Mesh(tmp_path, stack)


@pytest.fixture
def small_mesh(mesh: Mesh) -> Mesh:
    """A seed and two edge nodes."""
    mesh.start("vps-jane", "backbone")
    for node in ("mbp-jane", "lab-jane"):
        mesh.join(node, "vps-jane")
    mesh.see("vps-jane", "mbp-jane", "lab-jane")
    return mesh


@pytest.mark.req("ROUTE-2")
def test_all_agree_on_who_is_there_after_restarts(small_mesh: Mesh) -> None:
    """An edge node restarts, then the seed, then the other edge node, and that one stops: all say it within 20 s."""
    mesh = small_mesh
    for node in ("mbp-jane", "vps-jane", "lab-jane"):
        mesh.end(node, how=signal.SIGTERM)
        mesh.start(node)
        for each in mesh.up:
            eventually(lambda each=each: len(_online(mesh, each)) == 3, patience_seconds=AGREED_SECONDS)
    mesh.end("lab-jane", how=signal.SIGTERM)
    for node in ("vps-jane", "mbp-jane"):
        eventually(lambda node=node: _online(mesh, node) == {"vps-jane", "mbp-jane"}, patience_seconds=AGREED_SECONDS)


@pytest.mark.req("ROUTE-2")
def test_a_seed_that_stops_makes_nobody_else_offline(mesh: Mesh) -> None:
    """Neither at the other seed, which has a link of its own to the edge node, nor at the edge node itself."""
    mesh.start("vps-jane", "backbone")
    mesh.join("hub-jane", "vps-jane", tier="backbone")
    mesh.join("mbp-jane", "vps-jane")
    mesh.see("vps-jane", "hub-jane", "mbp-jane")
    mesh.linked("mbp-jane", "vps-jane", "hub-jane")
    mesh.end("vps-jane", how=signal.SIGTERM)
    eventually(lambda: "vps-jane" not in _online(mesh, "hub-jane"))
    assert {statuses(mesh.up[node])["mbp-jane"] for node in ("hub-jane", "mbp-jane")} == {"online"}


@pytest.mark.req("ROOM-5")
def test_two_edges_that_take_the_same_name_stay_in_the_mesh(small_mesh: Mesh) -> None:
    """The one that comes second hears that the agent is another's, and its other agents are reached as ever."""
    mesh = small_mesh
    mesh.end("vps-jane")
    for node in ("mbp-jane", "lab-jane"):
        mesh.up[node].operator.post("/ansible/agents", {"agentId": "bob"})
        mesh.up[node].operator.post("/ansible/agents", {"agentId": f"agent-of-{node}"})
    mesh.start("vps-jane")
    everybody = {"bob", "agent-of-mbp-jane", "agent-of-lab-jane"}
    for node in ("vps-jane", "mbp-jane", "lab-jane"):
        eventually(lambda node=node: everybody <= agents_at(mesh.up[node]))
    owners = {each["agentId"]: each["nodeId"] for each in mesh.up["vps-jane"].operator.get("/ansible/directory")}
    (loser,) = {"mbp-jane", "lab-jane"} - {owners["bob"]}
    for node in ("vps-jane", "mbp-jane", "lab-jane"):
        eventually(lambda node=node: _owner(mesh, node, "bob") == owners["bob"])
    eventually(lambda: "agent_conflict" in _incidents(mesh, loser))
    mesh.see("vps-jane", "mbp-jane", "lab-jane")
    assert mesh.up[loser].operator.post("/ansible/messages", message_of(f"agent-of-{loser}", "bob"))["recipients"]


@pytest.mark.req("ROOM-5")
def test_two_meshes_that_have_members_do_not_become_one(small_mesh: Mesh) -> None:
    """A seed with edge nodes joins no other mesh, nor does an edge node that is in touch with its own."""
    mesh = small_mesh
    mesh.start("hub-jane", "backbone")
    mesh.join("pi-jane", "hub-jane")
    for node, tier in (("vps-jane", "backbone"), ("mbp-jane", "edge")):
        token = invite(mesh.up["hub-jane"], node, tier=tier)
        with pytest.raises(Refusal) as refused:
            mesh.up[node].operator.post("/operator/join", {"url": mesh.up["hub-jane"].url, "token": token})
        assert refused.value.code is Code.CONFLICT
        assert "two meshes do not become one" in refused.value.message
        assert refused.value.hint
    for node in ("vps-jane", "mbp-jane", "lab-jane"):
        assert _online(mesh, node) == {"vps-jane", "mbp-jane", "lab-jane"}


def _online(mesh: Mesh, node: str) -> set[str]:
    return {each for each, status in statuses(mesh.up[node]).items() if status == "online"}


def _owner(mesh: Mesh, node: str, agent_id: str) -> str | None:
    directory = mesh.up[node].operator.get("/ansible/directory")
    return next((each["nodeId"] for each in directory if each["agentId"] == agent_id), None)


def _incidents(mesh: Mesh, node: str) -> set[str]:
    return {each["kind"] for each in mesh.up[node].operator.get("/ansible/incidents")}
