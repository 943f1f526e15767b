"""Mail between real gateways: what a person who uses it sees."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agentpost.store.home import Home
from tests.edges.mailing import Machine, three_machines
from tests.edges.meshing import eventually, invite
from tests.edges.running import agentpost, running_gateway

Machines = tuple[Machine, Machine, Machine]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with three_machines(tmp_path) as found:
        yield found


@pytest.mark.req("PIPE-9", "ACK-2", "ACK-3", "ROUTE-1", "ROUTE-10")
def test_two_laptops_talk_through_the_seed(machines: Machines) -> None:
    """A message between gateways that cannot dial each other is answered, and the sender can say what became of it."""
    _, laptop, lab = machines
    receipt = laptop.send("builder", "Build it.", sender="architect", expectsReply=True)
    assert receipt["recipients"][0]["nodeId"] == "lab-jane"
    eventually(lambda: laptop.states(receipt["eventId"]) == ["Replied"])
    eventually(lambda: len(laptop.get("/ansible/agents/architect/inbox")) == 1)
    (answer,) = laptop.get(f"/ansible/messages/{receipt['eventId']}")["deliveries"]
    assert answer["answer"] == "done: Build it."
    steps = [step["what"] for step in laptop.get(f"/ansible/trace/{receipt['eventId']}")["steps"]]
    assert steps[:2] == ["emitted", "routed"]
    assert steps[-1] == "replied"
    there = {step["what"] for step in lab.get(f"/ansible/trace/{receipt['eventId']}")["steps"]}
    assert {"accepted", "engaged", "processed"} <= there
    assert lab.counted() == [receipt["eventId"]]


@pytest.mark.req("PIPE-4", "PIPE-9")
def test_the_seed_that_carries_it_cannot_read_it(machines: Machines) -> None:
    """Neither the seed's disk nor anybody's room holds a word of what two laptops say to each other."""
    laptop = machines[1]
    receipt = laptop.send("builder", "the word is xylophone", sender="architect")
    eventually(lambda: laptop.states(receipt["eventId"]) == ["Replied"])
    for machine in machines:
        machine.gateway.end()
        files = [path.read_bytes() for path in machine.home.rglob("agentpost.db*")]
        assert files
        assert not any(b"xylophone" in content for content in files), f"{machine.node} has it in the clear"


@pytest.mark.req("PIPE-9", "CUR-2", "RTY-5", "OPS-3")
def test_mail_waits_for_whoever_is_away(machines: Machines) -> None:
    """The recipient is dead, the sender sends and closes its lid: the mail arrives all the same, once."""
    _, laptop, lab = machines
    lab.gateway.end(signal.SIGKILL)
    eventually(lambda: not laptop.send("builder", "Are you there?", sender="architect")["recipients"][0]["isOnline"])
    last = laptop.send("builder", "Build it when you are back.", sender="architect")
    assert last["recipients"][0]["lastSeenMs"] is not None
    sent = laptop.get("/operator/status")["outboxSeq"]
    # The seed has it: from here on the laptop is not needed.
    eventually(lambda: _mirrored(machines[0], "mbp-jane") == sent)
    assert laptop.gateway.end() == 0
    lab.start()
    eventually(lambda: last["eventId"] in lab.counted())
    assert len(lab.counted()) == len(set(lab.counted()))
    laptop.start()
    eventually(lambda: laptop.states(last["eventId"]) == ["Replied"])


def _mirrored(machine: Machine, source: str) -> int:
    mirrors = machine.get("/ansible/mirrors")
    return next((mirror["lastSeq"] for mirror in mirrors if mirror["sourceNodeId"] == source), 0)


@pytest.mark.req("ROUTE-4", "ROUTE-6")
def test_what_cannot_be_sent_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """Nobody to send it to, an unknown agent, a sender that is not here, a field that does not exist: a code each."""
    with running_gateway(tmp_path / "vps") as gateway:
        socket = str(Home(gateway.home).operator_socket)
        gateway.operator.post("/ansible/agents", {"agentId": "architect"})
        with httpx.Client(transport=httpx.HTTPTransport(uds=socket), base_url="http://gateway") as http:

            def code_of(body: object) -> tuple[int, str]:
                answer = http.post("/ansible/messages", json=body)
                error = answer.json()["error"]
                assert error["message"]
                assert error["hint"]
                return answer.status_code, error["code"]

            start = {"fromAgentId": "architect", "body": "hello"}
            assert code_of(start) == (400, "missing_route_fields")
            assert code_of({**start, "toAgents": ["nobody"]}) == (400, "invalid_targets")
            assert code_of({**start, "requiredCapabilities": ["fly"]}) == (400, "no_route")
            assert code_of({**start, "fromAgentId": "nobody", "toAgents": ["architect"]}) == (404, "not_found")
            assert code_of({**start, "toAgents": ["architect"], "ttlSeconds": 0}) == (400, "invalid_field")
            assert code_of({**start, "toAgents": ["architect"], "corrId": "x"}) == (400, "invalid_field")
            assert code_of({**start, "surprise": 1}) == (400, "invalid_field")
            assert code_of({**start, "priority": "urgent"}) == (400, "invalid_field")
            assert (
                "priority"
                in http.post("/ansible/messages", json={**start, "priority": "urgent"}).json()["error"]["message"]
            )
            assert code_of([])[0] == 400
            assert http.get("/ansible/trace/evt_nothing").status_code == 404
            assert http.get("/ansible/openapi/openapi.json").json()["paths"]["/ansible/messages"]["post"]
        assert gateway.operator.get("/operator/status")["outboxSeq"] == 0


@pytest.mark.req("OPS-6", "ACK-1")
def test_an_agent_that_fetches_its_mail_and_a_person_who_reads_it(tmp_path: Path) -> None:
    """Reading never consumes, fetching engages, settling answers; all of it from the command line and over HTTP."""
    with running_gateway(tmp_path / "vps") as gateway:
        home = ("--home", str(gateway.home))
        for agent in ("architect", "builder"):
            assert agentpost("agents", "add", agent, *home).returncode == 0
        sent = agentpost("send", "Build it.", "--from", "architect", "--to", "builder", "-o", "json", *home)
        event_id = json.loads(sent.stdout)["eventId"]
        path = "/ansible/agents/builder"
        eventually(lambda: bool(gateway.operator.get(f"{path}/inbox")))
        for _ in range(2):
            shown = agentpost("read", event_id, "--agent", "builder", *home)
            assert "Build it." in shown.stdout
        (line,) = gateway.operator.get(f"{path}/inbox")
        assert (line["state"], line["isRead"]) == ("queued", True)
        (fetched,) = gateway.operator.post(f"{path}/fetch", {"limit": 5})
        assert fetched["content"]["body"] == "Build it."
        assert gateway.operator.post(f"{path}/fetch", {"limit": 5}) == []
        settled = gateway.operator.post(f"{path}/inbox/{event_id}/settle", {"reply": {"body": "It is built."}})
        assert settled == {"settled": True}
        eventually(lambda: agentpost("inbox", "architect", *home).stdout.count("builder@vps-jane") == 1)
        traced = agentpost("trace", event_id, *home)
        assert "replied" in traced.stdout
        assert agentpost("deadletters", "list", *home).stdout.strip() == "no dead letters"


@pytest.mark.req("RTY-2", "RTY-7", "ENV-7")
def test_a_dead_letter_is_reported_shown_sent_again_and_purged(machines: Machines) -> None:
    """Mail that expires before its recipient is back ends as a dead letter; its sender is told, and can try again."""
    _, laptop, lab = machines
    home = ("--home", str(laptop.home))
    assert agentpost("deadletters", "purge", *home).returncode == 2
    lab.gateway.end(signal.SIGKILL)
    late = ("send", "Build it.", "--from", "architect", "--to", "builder", "--ttl", "1s", "--wait", "60s")
    assert agentpost(*late, *home).returncode == 1
    assert agentpost("deadletters", "purge", "--to", "builder", *home).returncode == 0
    sent = laptop.send("builder", "Build it now.", sender="architect", ttlSeconds=1)["eventId"]
    eventually(lambda: laptop.states(sent) == ["DeadLetter"])
    eventually(lambda: "postmaster" in agentpost("inbox", *home).stdout)
    listed = agentpost("deadletters", "list", "--reason", "expired", "-o", "json", *home)
    assert [letter["eventId"] for letter in json.loads(listed.stdout)] == [sent]
    assert "Build it now." in agentpost("deadletters", "show", sent, *home).stdout
    unknown = agentpost("deadletters", "resend", "evt_01M7", *home)
    assert (unknown.returncode, unknown.stderr.split(":")[0]) == (1, "not_found")
    assert agentpost("deadletters", "resend", "--to", "nobody", *home).returncode == 0
    resent = json.loads(agentpost("deadletters", "resend", "--to", "builder", "-o", "json", *home).stdout)["resent"]
    (became,) = laptop.get(f"/ansible/messages/{sent}")["deliveries"]
    assert (became["hasFailed"], became["resentAs"]) == (True, resent[0]["resentAs"])
    assert "answeredByEventId" not in became
    assert f"DeadLetter expired, sent again as {resent[0]['resentAs']}" in agentpost("show", sent, *home).stdout
    lab.start()
    # It has as long to live as it had the first time, so it arrives, in time or not.
    eventually(lambda: resent[0]["resentAs"] in {line["eventId"] for line in lab.get("/ansible/agents/builder/inbox")})
    assert agentpost("deadletters", "purge", sent, *home).stdout.strip() == "1 purged"
    assert agentpost("deadletters", "purge", "--all", *home).stdout.strip().endswith("purged")
    assert agentpost("deadletters", "list", *home).stdout.strip() == "no dead letters"


@pytest.mark.req("ROUTE-3", "RTY-2", "ROOM-6")
def test_mail_for_a_revoked_gateway_is_a_dead_letter_at_every_sender(tmp_path: Path) -> None:
    """Only one seed was told to revoke it. The others hear of it in the room, and keep no mail for it."""
    names = {"vps-jane": "backbone", "mbp-jane": "edge", "lab-jane": "edge"}
    seed, laptop, lab = machines = [Machine(tmp_path, name, tier) for name, tier in names.items()]
    try:
        for machine in machines:
            machine.home.mkdir(mode=0o700)
            quick = "[delivery]\naccepted_ack_timeout_seconds = 1\naway_check_seconds = 1\n"
            (machine.home / "agentpost.toml").write_text(quick)
            machine.start()
        for machine in (laptop, lab):
            machine.post("/operator/join", {"url": seed.gateway.url, "token": invite(seed.gateway, machine.node)})
        laptop.add_agent("architect")
        seed.add_agent("chief")
        lab.add_agent("builder")
        eventually(lambda: laptop.knows("builder") and seed.knows("builder"))
        lab.stop()
        of_seed = seed.send("builder", "hello", sender="chief")["eventId"]
        of_laptop = laptop.send("builder", "hello", sender="architect")["eventId"]
        seed.post("/operator/revoke", {"node": "lab-jane"})
        eventually(lambda: (seed.states(of_seed), laptop.states(of_laptop)) == (["DeadLetter"], ["DeadLetter"]))
    finally:
        for machine in machines:
            machine.stop()
