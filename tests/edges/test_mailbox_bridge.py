"""The mailbox of a real gateway: served on its socket, and joined to the mesh in both directions."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentpost.edges.mailbox.connecting import connect_mailbox
from agentpost.protocol.mailbox import MailboxMessage
from tests.edges.mailing import Machine, three_machines
from tests.edges.meshing import eventually
from tests.edges.running import agentpost, running_gateway
from tests.mailboxes.building import message

Machines = tuple[Machine, Machine, Machine]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with three_machines(tmp_path) as found:
        yield found


def put(machine: Machine, *messages: MailboxMessage) -> None:
    async def work() -> None:
        async with await connect_mailbox(f"gateway:{machine.home}") as mailbox:
            await mailbox.enqueue_many(messages)

    asyncio.run(work())


@pytest.mark.req("MBX-10", "ROUTE-1")
def test_a_program_reaches_an_agent_elsewhere_through_its_mailbox(machines: Machines) -> None:
    """What is enqueued to agent@node runs that agent once, and its answer comes to the sender's inbox."""
    _, laptop, lab = machines
    put(laptop, message("m1", sender="architect", to="builder@lab-jane", payload="Build it."))
    eventually(lambda: len(laptop.get("/ansible/agents/architect/inbox")) == 1)
    assert len(lab.counted()) == 1
    (line,) = laptop.get("/ansible/agents/architect/inbox")
    read = laptop.get(f"/ansible/agents/architect/inbox/{line['eventId']}")
    assert read["content"]["body"] == "done: Build it."
    assert laptop.get("/ansible/mailbox/builder%40lab-jane/peek") == []


@pytest.mark.req("MBX-5", "MBX-10")
def test_an_agent_lives_in_its_mailbox(machines: Machines) -> None:
    """Mesh mail is received and acked with the mailbox command, and an answer sent to the sender's address arrives."""
    _, laptop, lab = machines
    at = ("--at", f"gateway:{lab.home}")
    lab.post(
        "/ansible/agents", {"agentId": "desk", "runtime": "mailbox", "options": {"file": str(lab.home / "mailbox.db")}}
    )
    eventually(lambda: laptop.knows("desk"))
    receipt = laptop.send("desk", "Are you there?", sender="architect")
    shown = agentpost("mailbox", "receive", "desk", "--wait", "60", "-o", "json", *at)
    (got,) = json.loads(shown.stdout)
    assert (got["from"], got["payload"]) == ("architect@mbp-jane", "Are you there?")
    assert agentpost("mailbox", "send", got["from"], "I am.", "--from", "desk", *at).returncode == 0
    assert agentpost("mailbox", "ack", "desk", got["msg_id"], *at).returncode == 0
    eventually(lambda: laptop.states(receipt["eventId"]) == ["Processed"])
    eventually(lambda: len(laptop.get("/ansible/agents/architect/inbox")) == 1)


@pytest.mark.long
@pytest.mark.req("MBX-9", "PIPE-3")
def test_a_gateway_killed_while_it_forwards_sends_everything_once(machines: Machines) -> None:
    """Killed again and again with a full mailbox: each message runs the agent at the other end exactly once."""
    _, laptop, lab = machines
    put(laptop, *(message(f"m{n}", sender="architect", to="builder@lab-jane", created_at=n) for n in range(60)))
    for done in (5, 15, 30):
        eventually(lambda done=done: len(lab.counted()) >= done, patience_seconds=120)
        laptop.gateway.end(signal.SIGKILL)
        laptop.start()
    eventually(lambda: len(set(lab.counted())) == 60, patience_seconds=240)
    assert len(lab.counted()) == 60


@pytest.mark.req("MBX-10")
def test_a_gateway_that_stops_lets_nobody_wait(tmp_path: Path) -> None:
    """A receiver that waits does not hold up the end of the gateway, and what was queued is there again."""
    home = tmp_path / "vps-jane"

    async def wait_while_it_stops() -> None:
        async with await connect_mailbox(f"gateway:{home}") as mailbox:
            await mailbox.enqueue(message("m1", to="ann"))
            waiting = asyncio.ensure_future(mailbox.dequeue("bob", wait_seconds=50))
            await asyncio.sleep(0.2)
            gateway.operator.post("/operator/shutdown")
            assert await asyncio.wait_for(waiting, 30) is None

    with running_gateway(home) as gateway:
        asyncio.run(wait_while_it_stops())
        assert gateway.process.wait(30) == 0
    with running_gateway(home) as gateway:
        assert [each["msg_id"] for each in gateway.operator.get("/ansible/mailbox/ann/peek")] == ["m1"]


@pytest.mark.req("MBX-11")
def test_the_gateway_documents_its_mailbox_and_takes_names_as_data(tmp_path: Path) -> None:
    """The routes are in the gateway's OpenAPI document; a session may be called anything; no file appears."""
    with running_gateway(tmp_path / "vps-jane") as gateway:
        before = {path.name for path in gateway.home.rglob("*")}
        paths = gateway.operator.get("/ansible/openapi/openapi.json")["paths"]
        assert "/ansible/mailbox/{session}/enqueue" in paths

        async def work() -> None:
            async with await connect_mailbox(f"gateway:{gateway.home}") as mailbox:
                for name in ("../x", "a\0b", "x" * 10_000, "a/b?c#d", ".."):
                    await mailbox.enqueue(message(name, to=name))
                    got = await mailbox.dequeue(name)
                    assert got is not None
                    assert got.to == name

        asyncio.run(work())
        assert {path.name for path in gateway.home.rglob("*")} == before
