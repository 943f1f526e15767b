"""Events that could not be read, as an operator sees them: list, show, incident, doctor, metrics."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentpost.protocol.codec import Unreadable, encode_event
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.values import Acceptance
from agentpost.testing import START_MS, FakeClock, a_message
from tests.edges.meshing import eventually
from tests.edges.running import ServedGateway, agentpost, served_gateway

SOURCE = "lab-jane"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    with served_gateway(tmp_path / "vps-jane", clock=FakeClock()) as served:
        yield served


def quarantine(served: ServedGateway, *raws: bytes) -> None:
    store = served.gateway.engine.store
    unreadable = tuple(
        Unreadable(raw=raw, refusal=Refusal(Code.UNKNOWN_KIND, "kind [bold]poem"), seq=seq, event_id=None)
        for seq, raw in enumerate(raws, start=1)
    )
    batch = Acceptance(
        source_node_id=SOURCE,
        source_epoch="first",
        after_seq=0,
        through_seq=len(raws),
        unreadable=unreadable,
        at_ms=START_MS,
    )
    served.run(lambda: store.accept(batch))


@pytest.mark.req("ENV-6")
def test_the_quarantine_is_listed_and_shown(served: ServedGateway) -> None:
    """Each event with its source and the reason; one with its fields, the other with its bytes; as text and as JSON."""
    home = ("--home", str(served.gateway.settings.home))
    assert agentpost("quarantine", "list", *home).stdout == "the quarantine is empty\n"
    poem = encode_event(a_message(1, body="roses")).replace(b"message", b"massage", 1)
    quarantine(served, poem, b"\xc1 rubbish \x1b[31m")
    listed = agentpost("quarantine", "list", "--source", SOURCE, *home).stdout
    assert listed.count(SOURCE) == 2
    assert "unknown_kind: kind [bold]poem" in listed
    shown = agentpost("quarantine", "show", "1", *home).stdout
    assert '"kind": "massage"' in shown
    assert "begins, in base64" in agentpost("quarantine", "show", "2", *home).stdout
    page = json.loads(agentpost("quarantine", "list", "-o", "json", *home).stdout)
    assert page["sources"] == [
        {"sourceNodeId": SOURCE, "events": 2, "sizeBytes": len(poem) + len(b"\xc1 rubbish \x1b[31m"), "dropped": 0}
    ]
    assert [each["id"] for each in page["events"]] == [1, 2]
    missing = agentpost("quarantine", "show", "99", *home)
    assert (missing.returncode, "agentpost quarantine list" in missing.stderr) == (1, True)
    assert served.operator.get("/ansible/metrics")["quarantined"] == 2


@pytest.mark.req("ENV-6", "RTY-3")
def test_a_gateway_that_was_upgraded_reads_its_quarantine_at_its_start(tmp_path: Path) -> None:
    """What the version before could not read, and this one can, is in the agent's inbox after the start."""
    home = tmp_path / "vps-jane"
    mail = a_message(1, source_node_id=SOURCE)
    with served_gateway(home, clock=FakeClock()) as served:
        served.operator.post("/ansible/agents", {"agentId": "bob"})
        quarantine(served, encode_event(mail), b"\xc1 rubbish")
    with served_gateway(home, clock=FakeClock()) as served:
        eventually(lambda: bool(served.operator.get("/ansible/agents/bob/inbox")))
        (line,) = served.operator.get("/ansible/agents/bob/inbox")
        assert (line["eventId"], line["fromNodeId"]) == (mail.event_id, SOURCE)
        eventually(lambda: len(served.operator.get("/ansible/quarantine")["events"]) == 1)
