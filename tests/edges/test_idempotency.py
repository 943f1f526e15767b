"""A call that is repeated with its idempotency key is answered as before, and what it says is said once."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentpost import Client
from agentpost.edges.async_operator_client import AsyncOperatorClient
from agentpost.edges.mcp.posts import LocalPost
from agentpost.edges.outside import OutsideClient
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home
from agentpost.testing import FakeClock
from tests.edges.losing import LosingRelay
from tests.edges.meshing import eventually
from tests.edges.running import ServedGateway, agentpost, served_gateway

DAY_MS = 86_400_000
SCOPES = [f"ansible.{each}" for each in ("message.read", "message.send", "status.read", "task.read", "task.create")]
# In this order: each move of a task needs the one before.
MOVES = (
    ("claim", {"agentId": "builder", "etaSeconds": 600}),
    ("update", {"agentId": "builder", "progress": 50, "note": "Half."}),
    ("complete", {"agentId": "builder", "resultSummary": "Built."}),
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    with served_gateway(tmp_path / "vps-jane", clock=FakeClock()) as served:
        for agent in ("architect", "builder"):
            served.operator.post("/ansible/agents", {"agentId": agent})
        yield served


def a_message(body: str = "Build it.", **more: Any) -> dict[str, Any]:
    return {"fromAgentId": "architect", "toAgents": ["builder"], "body": body, **more}


def send(served: ServedGateway, key: str, *, body: str = "Build it.", **more: Any) -> dict[str, Any]:
    return served.operator.post("/ansible/messages", a_message(body, **more), key=key)


def inbox(served: ServedGateway, agent: str = "builder") -> list[dict[str, Any]]:
    return served.operator.get(f"/ansible/agents/{agent}/inbox")


def outbox_seq(served: ServedGateway) -> int:
    return served.operator.get("/ansible/metrics")["outboxSeq"]


def refused(call: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value


@pytest.mark.req("RTY-3")
def test_the_same_key_gives_the_same_receipt(served: ServedGateway) -> None:
    """Sent three times with one key: three equal receipts, and one message."""
    receipts = [send(served, "order-17") for _ in range(3)]
    assert receipts[0] == receipts[1] == receipts[2]
    eventually(lambda: bool(inbox(served)))
    assert [line["eventId"] for line in inbox(served)] == [receipts[0]["eventId"]]


@pytest.mark.req("RTY-3")
def test_another_body_under_a_key_is_refused(served: ServedGateway) -> None:
    """Another text, recipient or verb under a used key is a mistake, told with a code of its own and a next step."""
    first = send(served, "order-17")
    for other in (
        lambda: send(served, "order-17", body="Tear it down."),
        lambda: send(served, "order-17", ttlSeconds=9),
    ):
        refusal = refused(other)
        assert (refusal.code, refusal.status, refusal.field) == (Code.IDEMPOTENCY_KEY_REUSED, 422, "idempotencyKey")
        assert "new key" in refusal.hint
    task = {"requesterAgentId": "architect", "title": "Build it.", "toAgents": ["builder"]}
    assert refused(lambda: served.operator.post("/ansible/tasks", task, key="order-17")).status == 422
    assert send(served, "order-17") == first


@pytest.mark.req("RTY-3")
def test_a_key_is_one_agents_own(served: ServedGateway) -> None:
    """Another agent's call with the same key is another call."""
    send(served, "order-17")
    other = a_message() | {"fromAgentId": "builder", "toAgents": ["architect"]}
    assert served.operator.post("/ansible/messages", other, key="order-17")["recipients"][0]["agentId"] == "architect"


@pytest.mark.req("RTY-3")
def test_a_key_counts_for_a_day(served: ServedGateway) -> None:
    """Just before 24 hours are over it gives the same receipt; after them the message is sent anew."""
    first = send(served, "order-17")
    served.clock.advance(DAY_MS - 1_000)
    assert send(served, "order-17") == first
    served.clock.advance(1_000)
    assert send(served, "order-17")["eventId"] != first["eventId"]


@pytest.mark.req("RTY-3")
def test_calls_at_once_with_one_key_give_one_message(served: ServedGateway) -> None:
    """Twenty at the same moment, over connections of their own: one message, and everybody gets its receipt."""
    with ThreadPoolExecutor(20) as pool:
        receipts = list(pool.map(lambda _: send(served, "order-17"), range(20)))
    assert all(receipt == receipts[0] for receipt in receipts)
    eventually(lambda: bool(inbox(served)))
    assert len(inbox(served)) == 1


@pytest.mark.req("RTY-3")
def test_what_was_refused_may_be_tried_again_with_its_key(served: ServedGateway) -> None:
    """A refused call said nothing, so its key is still free."""
    missing = a_message() | {"toAgents": ["nobody-here"]}
    assert refused(lambda: served.operator.post("/ansible/messages", missing, key="order-17")).status == 400
    served.operator.post("/ansible/agents", {"agentId": "nobody-here"})
    assert served.operator.post("/ansible/messages", missing, key="order-17")["eventId"]


@pytest.mark.req("RTY-3")
def test_large_messages_and_several_recipients_have_keys_too(served: ServedGateway) -> None:
    """A message that travels as a payload, and one to two agents, are repeated as any other."""
    large = "x" * 600_000
    receipts = [send(served, "large", body=large) for _ in range(2)]
    assert receipts[0] == receipts[1]
    both = [send(served, "both", toAgents=["builder", "architect"]) for _ in range(2)]
    assert both[0] == both[1]
    assert len(both[0]["recipients"]) == 2


@pytest.mark.req("RTY-3")
def test_a_reply_is_said_once(served: ServedGateway) -> None:
    """An answer that settles its message, and a second one to the settled message: each once under its key."""
    event_id = send(served, "order-17")["eventId"]
    eventually(lambda: bool(inbox(served)))
    path = f"/ansible/agents/builder/inbox/{event_id}/reply"
    answers = [served.operator.post(path, {"body": "Built."}, key="answer-1") for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["settled"] is True
    more = [served.operator.post(path, {"body": "And painted."}, key="answer-2") for _ in range(2)]
    assert more[0] == more[1]
    assert more[0]["settled"] is False
    eventually(lambda: len(inbox(served, "architect")) == 2)
    assert [line["eventId"] for line in inbox(served, "architect")] == [answers[0]["eventId"], more[0]["eventId"]]


@pytest.mark.req("RTY-3", "TASK-5")
def test_a_task_and_its_moves_are_said_once(served: ServedGateway) -> None:
    """Create, claim, update and complete, each three times with its key: one task, one event for each move."""
    task = {"requesterAgentId": "architect", "title": "Build it.", "toAgents": ["builder"]}
    made = [served.operator.post("/ansible/tasks", task, key="task-1") for _ in range(3)]
    assert made[0] == made[1] == made[2]
    task_id = made[0]["taskId"]
    eventually(lambda: bool(inbox(served)))
    for move, said in MOVES:
        moved = [served.operator.post(f"/ansible/tasks/{task_id}/{move}", said, key=f"{move}-1") for _ in range(3)]
        assert len({each["eventId"] for each in moved}) == 1, move
    steps = served.operator.get(f"/ansible/tasks/{task_id}")["steps"]
    assert [step["kind"] for step in steps] == ["task_create", "task_accept", "task_update", "task_complete"]


@pytest.mark.req("RTY-3", "TASK-5")
def test_failing_canceling_and_tasks_for_each_are_said_once(served: ServedGateway) -> None:
    """The other verbs of tasks: without a key the second call is refused, with one it is answered as the first."""
    task = {"requesterAgentId": "architect", "title": "Build it.", "toAgents": ["builder", "architect"]}
    each = [served.operator.post("/ansible/tasks/each", task, key="all-of-you") for _ in range(2)]
    assert each[0] == each[1]
    assert [offered["receipt"]["seq"] for offered in each[0]] == [1, 2]
    first, second = (offered["taskId"] for offered in each[0])
    served.operator.post(f"/ansible/tasks/{first}/claim", {"agentId": "builder", "etaSeconds": 60})
    said = {"agentId": "builder", "errorSummary": "No stone left."}
    eventually(lambda: served.operator.get(f"/ansible/tasks/{first}")["task"]["state"] == "accepted")
    failed = [served.operator.post(f"/ansible/tasks/{first}/fail", said, key="no-stone") for _ in range(2)]
    assert failed[0]["eventId"] == failed[1]["eventId"]
    own = {"agentId": "architect"}
    canceled = [served.operator.post(f"/ansible/tasks/{second}/cancel", own, key="never-mind") for _ in range(2)]
    assert canceled[0] == canceled[1]
    assert canceled[0]["state"] == "canceled"


@pytest.mark.req("RTY-3")
@pytest.mark.parametrize("key", ["", "x" * 256, "k\u00e9y"])
def test_a_key_that_cannot_be_one_is_refused(served: ServedGateway, key: str) -> None:
    """Empty, too long, or not ASCII: refused by field, and nothing is sent."""
    before = outbox_seq(served)
    said = {"operation": "ansible_send_message", "args": {"toAgents": ["builder"], "body": "x", "idempotencyKey": key}}
    if key:
        refusal = refused(lambda: served.operator.post("/ansible/agents/architect/operations", said))
        assert (refusal.code, refusal.field) == (Code.INVALID_FIELD, "idempotencyKey")
    assert refused(lambda: send(served, key)).code is Code.INVALID_FIELD
    assert outbox_seq(served) == before


@pytest.mark.req("RTY-3")
def test_the_header_may_be_a_string_of_structured_fields(served: ServedGateway) -> None:
    """`Idempotency-Key: "order-17"` as the IETF draft writes it is the same key as the bare `order-17`."""
    first = send(served, "order-17")
    assert _raw_post(served, "/ansible/messages", a_message(), {"Idempotency-Key": '"order-17"'}) == first
    assert _raw_post(served, "/ansible/messages", a_message(), {"IDEMPOTENCY-KEY": "order-17"}) == first


@pytest.mark.req("RTY-3")
def test_keys_on_the_command_line(served: ServedGateway) -> None:
    """`--idempotency-key` of send, reply and the verbs of tasks; a deadline is counted from each call's own now."""
    home = ("--home", str(served.gateway.settings.home), "-o", "json")

    def twice(*words: str) -> dict[str, Any]:
        done = [agentpost(*words, *home, "--idempotency-key", f"key-of-{words[0]}-{words[1]}") for _ in range(2)]
        assert [each.returncode for each in done] == [0, 0], done[1].stderr
        assert json.loads(done[0].stdout) == json.loads(done[1].stdout)
        return json.loads(done[0].stdout)

    sent = twice("send", "Build it.", "--from", "architect", "--to", "builder", "--ttl", "2h")
    eventually(lambda: bool(inbox(served)))
    twice("reply", sent["eventId"], "Built.", "--agent", "builder")
    made = twice("task", "create", "Build v2", "--from", "architect", "--to", "builder", "--deadline", "2h")
    eventually(lambda: len(inbox(served)) == 2)
    twice("task", "claim", made["taskId"], "--agent", "builder", "--eta", "30m")
    twice("task", "update", made["taskId"], "--agent", "builder", "--progress", "60")
    twice("task", "complete", made["taskId"], "It is built.", "--agent", "builder")
    other = agentpost(
        *("send", "Tear it down.", "--from", "architect", "--to", "builder", *home),
        *("--idempotency-key", "key-of-send-Build it."),
    )
    assert other.returncode == 1
    assert json.loads(other.stderr)["error"]["code"] == "idempotency_key_reused"


def test_a_command_whose_answer_was_lost_says_how_to_repeat_it(served: ServedGateway, tmp_path: Path) -> None:
    """The command does not know whether the message was sent; repeated as it says, the message is sent once."""
    with _relayed(served, tmp_path) as (relay, home):
        words = ("send", "Build it.", "--from", "architect", "--to", "builder", "--home", str(home), "-o", "json")
        relay.lose(1)
        lost = agentpost(*words)
        assert lost.returncode == 3
        hint = json.loads(lost.stderr)["error"]["hint"]
        again = agentpost(*words, "--idempotency-key", hint.split("--idempotency-key ")[1].split(":")[0])
    eventually(lambda: bool(inbox(served)))
    assert [line["eventId"] for line in inbox(served)] == [json.loads(again.stdout)["eventId"]]


@pytest.mark.req("RTY-3")
async def test_the_sdk_repeats_a_call_whose_answer_was_lost(served: ServedGateway, tmp_path: Path) -> None:
    """The connection ends after each call was done, twice: the SDK repeats it, and everything was said once."""
    with _relayed(served, tmp_path) as (relay, home):
        async with Client("architect", home=home) as architect, Client("builder", home=home) as builder:
            relay.lose(2)
            receipt = await architect.send("builder", "Build it.")
            await _arrived(builder, 1)
            relay.lose(2)
            answered = await builder.reply(receipt.event_id, "Built.")
            relay.lose(1)
            offered = await architect.tasks.create("Build v2", to="builder")
            await _arrived(builder, 2)
            relay.lose(1)
            await builder.tasks.claim(offered.task_id, eta_seconds=60)
            relay.lose(1)
            await builder.tasks.complete(offered.task_id, "It is built.")
        assert relay.lost == 7
    assert answered.settled
    assert [line["kind"] for line in inbox(served)] == ["message", "task_create"]
    eventually(lambda: "task_complete" in {line["kind"] for line in inbox(served, "architect")})
    kinds = [line["kind"] for line in inbox(served, "architect")]
    assert sorted(kinds) == sorted({*kinds} | {"reply"}), "something was said twice"


@pytest.mark.req("RTY-3")
async def test_the_sdk_takes_a_key_of_the_caller(served: ServedGateway) -> None:
    """A program that was restarted gives its own key, and gets the receipt of before."""
    async with Client("architect", home=served.gateway.settings.home) as architect:
        first = await architect.send("builder", "Build it.", idempotency_key="order-17")
    async with Client("architect", home=served.gateway.settings.home) as architect:
        assert await architect.send("builder", "Build it.", idempotency_key="order-17") == first
        with pytest.raises(Refusal) as caught:
            await architect.send("builder", "Something else.", idempotency_key="order-17")
    assert caught.value.code is Code.IDEMPOTENCY_KEY_REUSED


@pytest.mark.req("RTY-3")
async def test_tools_repeat_a_call_whose_answer_was_lost(served: ServedGateway, tmp_path: Path) -> None:
    """A model's tool call is done once, although its first two answers were lost; a key of the model counts."""
    with _relayed(served, tmp_path) as (relay, home):
        async with AsyncOperatorClient(home) as gateway:
            post = LocalPost(gateway, "architect")
            relay.lose(2)
            sent = await post.call("ansible_send_message", {"toAgents": ["builder"], "body": "Build it."})
            args = {"title": "Build v2", "toAgents": ["builder"], "idempotencyKey": "model-1"}
            made = [await post.call("ansible_delegate_task", args) for _ in range(2)]
    assert made[0] == made[1]
    eventually(lambda: len(inbox(served)) == 2)
    assert inbox(served)[0]["eventId"] == sent["eventId"]


@pytest.mark.req("RTY-3", "EXT-4")
async def test_an_agent_outside_repeats_a_call_whose_answer_was_lost(tmp_path: Path) -> None:
    """Each repeat has a proof of its own and the same key: the message and the task are there once."""
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with LosingRelay(("127.0.0.1", port)) as relay:
        at = f"http://127.0.0.1:{relay.port}"
        options: dict[str, Any] = {"listen_port": port, "public_url": at}
        with served_gateway(tmp_path / "vps-jane", clock=FakeClock(), **options) as served:
            served.operator.post("/ansible/agents", {"agentId": "builder"})
            invited = served.operator.post("/ansible/agent/invites", {"agentId": "codex", "scopes": SCOPES})
            accepting = OutsideClient.accept(
                tmp_path / "codex.json",
                url=at,
                agent_id="codex",
                invite_token=invited["inviteToken"],
                clock=served.clock,
            )
            async with await accepting as codex:
                # The first call may be asked for another nonce, and that answer is one, too.
                await codex.call("ansible_status", {})
                relay.lose(2)
                sent = await codex.call("ansible_send_message", {"toAgents": ["builder"], "body": "Build it."})
                relay.lose(1)
                await codex.call("ansible_delegate_task", {"toAgents": ["builder"], "title": "Build v2"})
            assert relay.lost == 3
            eventually(lambda: len(inbox(served)) == 2)
            assert inbox(served)[0]["eventId"] == sent["eventId"]


class _Relayed:
    """A home whose socket is a relay in front of the gateway's."""

    def __init__(self, served: ServedGateway, folder: Path) -> None:
        self._home = folder / "relayed"
        self._home.mkdir(mode=0o700)
        there = Home(served.gateway.settings.home).operator_socket
        self._relay = LosingRelay(there, at=Home(self._home).operator_socket)

    def __enter__(self) -> tuple[LosingRelay, Path]:
        self._relay.__enter__()
        return self._relay, self._home

    def __exit__(self, *why: Any) -> None:
        self._relay.__exit__(*why)


def _relayed(served: ServedGateway, folder: Path) -> _Relayed:
    return _Relayed(served, folder)


async def _arrived(client: Client, count: int) -> None:
    """Wait until so much is in the inbox of an agent."""
    await client.calls.get(
        f"/ansible/agents/{client.agent}/inbox", {"after": count - 1, "wait_seconds": 30}, wait_seconds=30
    )


def _raw_post(served: ServedGateway, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    connection = http.client.HTTPConnection("gateway")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(Home(served.gateway.settings.home).operator_socket))
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **headers})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()
