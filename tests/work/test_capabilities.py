"""Capabilities, published at a real gateway."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock
from agentpost.work.capabilities.manifest import open_manifest
from agentpost.work.capabilities.records import CATALOG, INDEX, policy_version, withdrawn
from tests.edges.meshing import eventually
from tests.edges.running import ServedGateway, agentpost, served_gateway
from tests.work.building import CAPABILITY, a_declaration, write_pair, write_skill

SKILLS = Path("skills/scribe")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    """A gateway with an agent that has both skills in version 1.0.0."""
    home = tmp_path / "home"
    with served_gateway(home, clock=FakeClock()) as served:
        served.operator.post("/ansible/agents", {"agentId": "scribe"})
        write_pair(home / SKILLS)
        yield served


def publish(served: ServedGateway, **changed: Any) -> dict[str, Any]:
    return served.operator.post("/ansible/capabilities", a_declaration(**changed))


def refused(served: ServedGateway, **changed: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        publish(served, **changed)
    return caught.value


def room_says(served: ServedGateway) -> list[Any]:
    room = served.gateway.host.room
    return [room.record(name, CAPABILITY) for name in (CATALOG, INDEX)]


def ask(served: ServedGateway) -> Any:
    """Send something to whoever has the capability."""
    body = {"fromAgentId": "scribe", "requiredCapabilities": [CAPABILITY], "body": "Please."}
    return served.operator.post("/ansible/messages", body)


@pytest.mark.req("CAP-1", "CAP-3", "CAP-7")
def test_a_capability_is_published_with_one_policy_version(served: ServedGateway) -> None:
    """The catalog has every field of the rule, the index the version of exactly that record, and the manifest a
    signature."""
    made = publish(served)
    catalog, index = room_says(served)
    assert {
        "capabilityId",
        "name",
        "version",
        "ownerAgentId",
        "ownerNodeId",
        "delegationSkillRef",
        "executorSkillRef",
        "contractSchemaRef",
        "defaultEtaSeconds",
        "status",
        "publishedAt",
        "publishedByAgentId",
    } <= catalog.keys()
    assert index["eligibleAgentIds"] == ["scribe"]
    assert index["policyVersion"] == policy_version(catalog) == made["line"]["policyVersion"]
    page = served.gateway.commons.book.active(CAPABILITY)
    assert page is not None
    assert page.signed.ref == catalog["contractSchemaRef"]
    key = served.gateway.engine.room.signing_key("vps-jane")
    manifest = open_manifest(page.signed, key)
    assert manifest.declaration.contract.executor.progress_every_seconds == 120
    forged = msgspec.structs.replace(page.signed, text=page.signed.text.replace("300", "301"))
    with pytest.raises(Refusal):
        open_manifest(forged, key)
    assert made["health"] == {"capabilityId": CAPABILITY, "version": "1.0.0", "health": "ok", "problems": []}
    assert ask(served)["recipients"][0]["agentId"] == "scribe"


@pytest.mark.req("CAP-2")
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"ownerAgentId": "nobody"}, Code.NOT_FOUND),
        ({"publishedByAgentId": "nobody"}, Code.NOT_FOUND),
        ({"executorSkillRef": {"name": "do-summary", "version": "1.0.1"}}, Code.CAPABILITY_UNAVAILABLE),
        ({"executorSkillRef": {"name": "do-nothing", "version": "1.0.0"}}, Code.CAPABILITY_UNAVAILABLE),
        ({"delegationSkillRef": {"name": "do-nothing", "version": "1.0.0"}}, Code.CAPABILITY_UNAVAILABLE),
        ({"executorSkillRef": {"name": "../do-summary", "version": "1.0.0"}}, Code.INVALID_FIELD),
        ({"defaultEtaSeconds": 29}, Code.INVALID_FIELD),
        ({"defaultEtaSeconds": 86_401}, Code.INVALID_FIELD),
        ({"capabilityId": "no spaces"}, Code.INVALID_FIELD),
        ({"contract": {}}, Code.INVALID_FIELD),
        ({"unknown": 1}, Code.INVALID_FIELD),
        ({"name": "Bearer abcdefghijklmnopqrstuvwxyz"}, Code.INVALID_FIELD),
    ],
)
def test_a_publish_that_is_refused_changes_nothing(served: ServedGateway, changed: dict[str, Any], code: Code) -> None:
    """An owner, a skill, a version, an ETA or a contract that is not right is refused, and what was there stays."""
    assert refused(served, **changed).code is code
    assert room_says(served) == [None, None]
    publish(served)
    before = room_says(served), served.gateway.commons.book.active(CAPABILITY)
    write_pair(served.gateway.settings.home / SKILLS, "1.1.0")
    assert refused(served, **({"version": "1.1.0"} | changed)).code in (code, Code.CAPABILITY_UNAVAILABLE)
    assert (room_says(served), served.gateway.commons.book.active(CAPABILITY)) == before


def test_a_skill_with_a_secret_is_not_published(served: ServedGateway) -> None:
    """The delegation skill goes to everybody, so a secret in its folder stops the publish."""
    write_skill(served.gateway.settings.home / SKILLS, "ask-summary", notes_txt="ghp_" + "c" * 36)
    assert "notes.txt" in refused(served).message
    assert room_says(served) == [None, None]


@pytest.mark.req("CAP-3")
def test_a_new_version_retires_the_old_one(served: ServedGateway) -> None:
    """The room has one version of a capability; what was published stays what it was."""
    first = publish(served)
    again = publish(served)
    assert again["line"] == first["line"]
    assert refused(served, name="Something else").code is Code.CONFLICT
    write_pair(served.gateway.settings.home / SKILLS, "2.0.0")
    second = publish(served, version="2.0.0")
    assert second["line"]["version"] == "2.0.0"
    assert second["retiredVersions"] == ["1.0.0"]
    assert second["line"]["policyVersion"] != first["line"]["policyVersion"]
    assert [line["version"] for line in served.operator.get("/ansible/capabilities")] == ["2.0.0"]


@pytest.mark.req("CAP-3", "ROUTE-5")
def test_what_is_unpublished_is_not_routed_any_more(served: ServedGateway) -> None:
    """The next request for a capability that was taken back is refused with no_route, and it can be published again."""
    publish(served)
    ask(served)
    served.operator.delete(f"/ansible/capabilities/{CAPABILITY}")
    with pytest.raises(Refusal) as caught:
        ask(served)
    assert (caught.value.code, caught.value.status) == (Code.NO_ROUTE, 400)
    assert served.operator.get("/ansible/capabilities") == []
    with pytest.raises(Refusal) as caught:
        served.operator.delete(f"/ansible/capabilities/{CAPABILITY}")
    assert caught.value.code is Code.NOT_FOUND
    publish(served)
    ask(served)


@pytest.mark.req("ROUTE-7")
def test_a_capability_whose_skill_is_gone_is_not_available(served: ServedGateway) -> None:
    """While the executor skill does not resolve, a request is refused with 409; it works again once it does."""
    publish(served)
    skill = served.gateway.settings.home / SKILLS / "do-summary"
    skill.rename(skill.with_name("elsewhere"))
    served.run(served.gateway.commons.desk.restore)
    with pytest.raises(Refusal) as caught:
        ask(served)
    assert (caught.value.code, caught.value.status) == (Code.CAPABILITY_UNAVAILABLE, 409)
    (health,) = served.operator.get("/ansible/capability-health")
    assert health["health"] == "unavailable"
    skill.with_name("elsewhere").rename(skill)
    served.run(served.gateway.commons.desk.restore)
    ask(served)


@pytest.mark.req("CAP-3")
def test_the_room_follows_the_book_after_a_crash(tmp_path: Path) -> None:
    """What was published and did not reach the room before a crash reaches it at the next start."""
    home, clock = tmp_path / "home", FakeClock()
    with served_gateway(home, clock=clock) as served:
        served.operator.post("/ansible/agents", {"agentId": "scribe"})
        write_pair(home / SKILLS)
        publish(served)
        page = served.gateway.commons.book.active(CAPABILITY)
        room = served.gateway.host.room
        served.run(lambda: room.write_together(withdrawn(CAPABILITY)))
        assert served.operator.get("/ansible/capabilities") == []
    clock.advance(1000)
    with served_gateway(home, clock=clock, seed=2) as served:
        served.run(served.gateway.commons.desk.restore)
        assert [line["version"] for line in served.operator.get("/ansible/capabilities")] == ["1.0.0"]
        assert served.gateway.commons.book.active(CAPABILITY) == page


def test_the_commands_do_the_same(served: ServedGateway, tmp_path: Path) -> None:
    """publish, list, show, health, unpublish and skill work from the command line, with text and with JSON."""
    home = ("--home", str(served.gateway.settings.home))
    file = tmp_path / "summarize.json"
    file.write_text(json.dumps(a_declaration()))

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return agentpost(*words, *home)

    assert "is published" in run("capability", "publish", str(file)).stdout
    (line,) = json.loads(run("capability", "list", "-o", "json").stdout)
    assert line["capabilityId"] == CAPABILITY
    assert "A document is longer than a page." in run("capability", "show", CAPABILITY).stdout
    assert run("capability", "health").returncode == 0
    assert "do-summary" in run("skill", "list", "scribe").stdout
    assert json.loads(run("skill", "accept", "scribe", "--no", "-o", "json").stdout)["place"]["accepts"] is False
    assert run("skill", "directory", "scribe", str(tmp_path / "nowhere")).returncode == 0
    assert run("capability", "health").returncode == 1
    assert "is not offered any more" in run("capability", "unpublish", CAPABILITY).stdout
    failed = run("capability", "publish", str(tmp_path / "missing.toml"))
    assert failed.returncode == 1
    assert "cannot be read" in failed.stderr


def test_a_task_that_breaks_the_installer_ends_nothing_else(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation that ends in a defect is a failed task; capabilities are looked after as before."""

    def broken(*_given: Any, **_named: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("agentpost.work.skills.installer.install_skill", broken)
    served.operator.post("/ansible/agents", {"agentId": "builder"})
    publish(served)
    served.run(served.gateway.commons.look)

    def installation() -> dict[str, Any]:
        return served.operator.get(f"/ansible/capabilities/{CAPABILITY}")["installations"][0]

    eventually(lambda: installation()["state"] == "failed", patience_seconds=10)
    served.run(served.gateway.commons.look)
