"""The headers of a message (OPS-7): every verb that sends can set kind and thread, and every reader shows them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentpost import Client, SyncClient
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.headers import HeaderKind
from tests.edges.running import RunningGateway, agentpost, running_gateway

BODY = "kind: request\nthread: release 1.3\n\nPlease validate."
KIND, THREAD, TEXT = HeaderKind.REQUEST, "release 1.3", "Please validate."


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("headers") / "vps-jane") as running:
        running.operator.post("/ansible/agents", {"agentId": "architect"})
        yield running


def command(gateway: RunningGateway, *said: str) -> str:
    done = agentpost(*said, "--home", str(gateway.home))
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_command(gateway: RunningGateway, to: str) -> None:
    words = ("--from", "architect", "--to", to, "--kind", KIND, "--thread", THREAD)
    command(gateway, "send", TEXT, *words)


def by_http(gateway: RunningGateway, to: str) -> None:
    said = {"fromAgentId": "architect", "toAgents": [to], "body": TEXT, "kind": KIND, "thread": THREAD}
    gateway.operator.post("/ansible/messages", said)


def by_tool(gateway: RunningGateway, to: str) -> None:
    args = {"toAgents": [to], "body": TEXT, "kind": KIND, "thread": THREAD}
    operate(gateway, "architect", "ansible_send_message", args)


def by_sync_client(gateway: RunningGateway, to: str) -> None:
    with SyncClient("architect", home=gateway.home) as client:
        client.send(to, TEXT, kind=KIND, thread=THREAD)


def by_hand(gateway: RunningGateway, to: str) -> None:
    gateway.operator.post("/ansible/messages", {"fromAgentId": "architect", "toAgents": [to], "body": BODY})


def operate(gateway: RunningGateway, agent: str, operation: str, args: dict[str, Any]) -> Any:
    called = {"operation": operation, "args": args}
    return gateway.operator.post(f"/ansible/agents/{agent}/operations", called)["result"]


@pytest.mark.req("OPS-7")
@pytest.mark.parametrize("send", [by_command, by_http, by_tool, by_sync_client, by_hand])
def test_kind_and_thread_can_be_set_and_are_shown(
    gateway: RunningGateway, send: Callable[[RunningGateway, str], None]
) -> None:
    """Set by a verb or written by hand, they are in lists, in the message, in what is fetched, and in the context."""
    reader = send.__name__.replace("_", "-")
    gateway.operator.post("/ansible/agents", {"agentId": reader})
    send(gateway, reader)
    (line,) = gateway.operator.get(f"/ansible/agents/{reader}/inbox")
    assert (line["headerKind"], line["thread"]) == (KIND, THREAD)
    table = command(gateway, "inbox", reader)
    assert all(part in table for part in (f"[{KIND},", f"{THREAD}]"))
    (told,) = json.loads(command(gateway, "inbox", reader, "-o", "json"))
    assert told["thread"] == THREAD
    (listed,) = operate(gateway, reader, "ansible_read_messages", {})["messages"]
    assert (listed["headerKind"], listed["thread"]) == (KIND, THREAD)
    block = gateway.operator.get(f"/ansible/agents/{reader}/context")["text"]
    assert f"| request {line['eventId']} from architect" in block
    assert f"[{THREAD}]" in block
    assert TEXT in block
    message = gateway.operator.get(f"/ansible/agents/{reader}/inbox/{line['eventId']}")
    assert message["content"]["body"] == BODY, "the text says it itself, to whoever reads it"
    assert BODY in command(gateway, "read", line["eventId"], "--agent", reader)
    (engagement,) = gateway.operator.post(f"/ansible/agents/{reader}/fetch", {"limit": 1})
    assert (engagement["headerKind"], engagement["thread"]) == (KIND, THREAD)


@pytest.mark.req("OPS-7")
async def test_an_answer_has_headers_too(gateway: RunningGateway) -> None:
    """From the command line, over HTTP, with a tool and from Python."""
    gateway.operator.post("/ansible/agents", {"agentId": "builder"})
    headers = {"kind": HeaderKind.RESULT, "thread": THREAD}

    def ask() -> str:
        said = {"fromAgentId": "architect", "toAgents": ["builder"], "body": "?"}
        gateway.operator.post("/ansible/messages", said)
        return gateway.operator.post("/ansible/agents/builder/fetch", {"limit": 1, "waitSeconds": 30})[0]["eventId"]

    command(gateway, "reply", ask(), "Done.", "--agent", "builder", "--kind", "result", "--thread", THREAD)
    gateway.operator.post(f"/ansible/agents/builder/inbox/{ask()}/reply", {"body": "Done.", **headers})
    args = {"replyTo": ask(), "body": "Done.", **headers}
    operate(gateway, "builder", "ansible_send_message", args)
    async with Client("builder", home=gateway.home) as client:
        await client.reply(ask(), "Done.", kind=HeaderKind.RESULT, thread=THREAD)
    lines = gateway.operator.get("/ansible/agents/architect/inbox?wait_seconds=30")
    while len(lines) < 4:
        lines = gateway.operator.get("/ansible/agents/architect/inbox?limit=10")
    assert [(each["kind"], each["headerKind"], each["thread"]) for each in lines] == [("reply", "result", THREAD)] * 4


@pytest.mark.req("OPS-7", "OPS-5")
def test_a_priority_that_is_written_in_the_text_counts(gateway: RunningGateway) -> None:
    """A writer who only knows the convention is urgent by it, unless the verb says another priority."""
    gateway.operator.post("/ansible/agents", {"agentId": "reader"})
    for more in ({}, {"priority": "low"}):
        said = {"fromAgentId": "architect", "toAgents": ["reader"], "body": "priority: high\n\nNow.", **more}
        gateway.operator.post("/ansible/messages", said)
    lines = gateway.operator.get("/ansible/agents/reader/inbox?wait_seconds=30")
    assert lines[0]["priority"] == "high"


@pytest.mark.req("OPS-7")
@pytest.mark.parametrize(
    ("headers", "field"), [({"kind": "shout"}, "kind"), ({"thread": "a\nb"}, "thread"), ({"thread": 7}, "thread")]
)
def test_headers_that_are_none_are_refused(gateway: RunningGateway, headers: dict[str, Any], field: str) -> None:
    """With the name of the field, and nothing is sent."""
    said = {"fromAgentId": "architect", "toAgents": ["architect"], "body": "Go.", **headers}
    with pytest.raises(Refusal) as caught:
        gateway.operator.post("/ansible/messages", said)
    assert caught.value.code is Code.INVALID_FIELD
    assert field in (caught.value.field or "") + caught.value.message
