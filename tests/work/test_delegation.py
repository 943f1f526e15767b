"""The delegation directory at a real gateway."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock
from tests.edges.meshing import eventually
from tests.edges.running import ServedGateway, agentpost, served_gateway
from tests.protocol.test_delegation import a_row


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    with served_gateway(tmp_path / "home", clock=FakeClock()) as served:
        for agent_id in ("chief", "builder", "helper"):
            served.operator.post("/ansible/agents", {"agentId": agent_id})
        yield served


def set_policy(served: ServedGateway, *rows: dict[str, Any], by: str = "chief") -> dict[str, Any]:
    return served.operator.post("/ansible/delegation", {"by": by, "intents": list(rows) or [a_row()]})


def subjects(served: ServedGateway, agent_id: str) -> list[str]:
    return [line["subject"] for line in served.operator.get(f"/ansible/agents/{agent_id}/inbox")]


def hears(served: ServedGateway, agent_id: str, *expected: str) -> None:
    """What is sent is in the outbox at once, and in the inbox of an agent of the same gateway a moment later."""
    eventually(lambda: subjects(served, agent_id) == list(expected))


@pytest.mark.req("OPS-8")
def test_a_policy_is_set_told_applied_and_acknowledged(served: ServedGateway, tmp_path: Path) -> None:
    """Every agent hears of a new policy, its file gets the section, and the ACK has the same version and checksum."""
    policy = set_policy(served)["policy"]
    assert policy["version"] == "2026-02-25.1"
    for agent_id in ("chief", "builder", "helper"):
        hears(served, agent_id, "policy_update 2026-02-25.1")
    file = tmp_path / "IDENTITY.md"
    file.write_bytes(b"# Builder\r\n\r\nI build.")
    body = {"agentId": "builder", "file": str(file)}
    done = served.operator.post("/ansible/delegation/apply", body)
    assert done["checksum"] == policy["checksum"]
    text = file.read_bytes()
    assert text.startswith(b"# Builder\r\n\r\nI build.")
    assert text.count(b"## Delegation Directory\r\n") == 1
    assert policy["checksum"].encode() in text
    (ack,) = served.operator.get("/ansible/delegation")["acks"]
    assert (ack["agentId"], ack["version"], ack["checksum"]) == ("builder", policy["version"], policy["checksum"])
    eventually(lambda: "policy_ack 2026-02-25.1" in subjects(served, "chief"))


@pytest.mark.req("OPS-8")
def test_the_same_rows_make_no_new_version_and_other_rows_do(served: ServedGateway) -> None:
    """Setting what is there already tells nobody anything; an intent that is gone is gone from the room."""
    set_policy(served, a_row("a"), a_row("b"))
    set_policy(served, a_row("b"), a_row("a"))
    hears(served, "helper", "policy_update 2026-02-25.1")
    policy = set_policy(served, a_row("b"))["policy"]
    assert policy["version"] == "2026-02-25.2"
    assert [row["intent"] for row in policy["intents"]] == ["b"]
    hears(served, "helper", "policy_update 2026-02-25.1", "policy_update 2026-02-25.2")


@pytest.mark.req("OPS-8")
def test_what_does_not_hold_is_refused(served: ServedGateway, tmp_path: Path) -> None:
    """Unknown owners, unknown authors and ACKs for another policy are refused, and nothing changes."""
    for rows, by, code in (
        ([a_row(ownerAgent="ghost")], "chief", Code.INVALID_FIELD),
        ([a_row()], "ghost", Code.NOT_FOUND),
        ([a_row(), a_row()], "chief", Code.INVALID_FIELD),
    ):
        with pytest.raises(Refusal) as caught:
            set_policy(served, *rows, by=by)
        assert caught.value.code is code
    assert served.operator.get("/ansible/delegation")["policy"] is None
    policy = set_policy(served)["policy"]
    for version, checksum in (("2026-01-01.1", policy["checksum"]), (policy["version"], "sha256:0")):
        body = {"agentId": "builder", "version": version, "checksum": checksum}
        with pytest.raises(Refusal) as caught:
            served.operator.post("/ansible/delegation/ack", body)
        assert caught.value.code is Code.CONFLICT
    assert served.operator.get("/ansible/delegation")["acks"] == []


@pytest.mark.req("OPS-8")
def test_late_acknowledgements_are_shown_and_nothing_else(served: ServedGateway, tmp_path: Path) -> None:
    """After the threshold the view names exactly those who have not acknowledged; the command says the same."""
    set_policy(served)
    file = tmp_path / "IDENTITY.md"
    home = ("--home", str(served.gateway.settings.home))
    for agent_id in ("builder", "helper"):
        done = agentpost("delegation", "apply", "--agent", agent_id, "--file", str(file), *home)
        assert done.returncode == 0, done.stderr
    assert served.operator.get("/ansible/delegation")["problems"] == []
    served.clock.advance(3_600_000)
    (problem,) = served.operator.get("/ansible/delegation")["problems"]
    assert (problem["kind"], problem["subject"]) == ("missing_ack", "chief")
    shown = agentpost("delegation", "show", *home)
    assert "chief has not acknowledged 2026-02-25.1" in shown.stdout
