"""Callers that fetch mail are killed at random instants: none of them takes a message along that it never had."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentpost import Client
from agentpost.edges.outside import OutsideClient
from tests.edges.running import RunningGateway, running_gateway

# A handful in `make test`; 200 with AGENTPOST_TEST_ROUNDS=20 (`make test-long`).
ROUNDS = 10 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1")) if "AGENTPOST_TEST_ROUNDS" in os.environ else 5
_ROOT = Path(__file__).parents[2]
_AT_ONCE_SECONDS = 20
_SIGNALS = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])

Killed = Callable[[subprocess.Popen[bytes]], None]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path / "vps-jane") as running:
        for agent_id in ("ada", "bob"):
            running.operator.post("/ansible/agents", {"agentId": agent_id})
        yield running


def a_message(gateway: RunningGateway, body: str) -> str:
    said = {"fromAgentId": "ada", "toAgents": ["bob"], "body": body}
    return gateway.operator.post("/ansible/messages", said)["eventId"]


def fetch(gateway: RunningGateway, limit: int = 1) -> list[dict[str, Any]]:
    asked = {"limit": limit, "waitSeconds": _AT_ONCE_SECONDS}
    return gateway.operator.post("/ansible/agents/bob/fetch", asked)


def settle(gateway: RunningGateway, event_id: str) -> bool:
    done = {"kind": "processed"}
    return gateway.operator.post(f"/ansible/agents/bob/inbox/{event_id}/settle", done)["settled"]


@contextmanager
def caller(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def printed_at_the_end(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.read()


def kill_around_a_message(
    gateway: RunningGateway, process: subprocess.Popen[bytes], kill: Callable[[], None], number: int
) -> tuple[str, bytes]:
    """A message is sent and the caller is killed, in either order, up to some milliseconds apart."""
    where = random.Random(number)
    apart_seconds = where.uniform(-0.01, 0.04)
    if apart_seconds < 0:
        kill()
        time.sleep(-apart_seconds)
    event_id = a_message(gateway, f"message {number}")
    if apart_seconds >= 0:
        time.sleep(apart_seconds)
        kill()
    printed = printed_at_the_end(process)
    process.wait(_AT_ONCE_SECONDS)
    return event_id, printed


def expect_at_once(gateway: RunningGateway, event_id: str, *, has_caller_got_it: bool) -> None:
    """The message is there for the next caller, as the first attempt, and before later mail; or with the dead one."""
    if not has_caller_got_it:
        later = a_message(gateway, "later")
        (first,) = fetch(gateway)
        assert (first["eventId"], first["attempt"]) == (event_id, 1)
        (second,) = fetch(gateway)
        assert (second["eventId"], second["attempt"]) == (later, 1)
        assert settle(gateway, later)
    else:
        # It had the answer, and may or may not have said so.
        found = gateway.operator.post("/ansible/agents/bob/fetch", {"limit": 1})
        assert [(each["eventId"], each["attempt"]) for each in found] in ([], [(event_id, 1)])
    assert settle(gateway, event_id)


@pytest.mark.waits
@pytest.mark.req("RTY-3", "RTY-4")
@_SIGNALS
def test_a_killed_http_caller_takes_no_mail_along(gateway: RunningGateway, how: signal.Signals) -> None:
    """What it did not read off its connection is handed to the next caller at once, and cost no attempt."""
    for number in range(ROUNDS):
        with caller("tests.edges.dead_caller", "http", str(gateway.home), "bob") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            event_id, printed = kill_around_a_message(gateway, process, lambda: process.send_signal(how), number)
        is_whole = printed.endswith(b"]") and event_id.encode() in printed
        expect_at_once(gateway, event_id, has_caller_got_it=is_whole)


@pytest.mark.waits
@pytest.mark.req("RTY-3", "RTY-4")
@_SIGNALS
def test_a_killed_fetch_command_takes_no_mail_along(gateway: RunningGateway, how: signal.Signals) -> None:
    """`agentpost fetch --wait`: a message that it did not print is there for the next one."""
    for number in range(ROUNDS):
        words = ("agentpost", "fetch", "bob", "--wait", "60s", "-o", "json", "--home", str(gateway.home))
        with caller(*words) as process:
            time.sleep(0.4)
            event_id, printed = kill_around_a_message(gateway, process, lambda: process.send_signal(how), number)
        expect_at_once(gateway, event_id, has_caller_got_it=event_id.encode() in printed)


class Model:
    """A client of `agentpost mcp`, as far as it takes to claim mail."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "model", "version": "1"}}
        self._say({"id": 1, "method": "initialize", "params": who})
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == 1
        self._say({"method": "notifications/initialized"})

    def claim(self) -> None:
        params = {"name": "ansible_read_messages", "arguments": {"claim": True, "waitSeconds": 60}}
        self._say({"id": 2, "method": "tools/call", "params": params})

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()


@pytest.mark.waits
@pytest.mark.req("RTY-3", "RTY-4", "OPS-1")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=["kill", "term", "client"])
def test_a_killed_mcp_server_takes_no_mail_along(gateway: RunningGateway, how: signal.Signals | None) -> None:
    """A claim that waits ends with its server, or with the client of the model, which closes stdin when it dies."""
    for number in range(ROUNDS):
        with caller("agentpost", "mcp", "--agent", "bob", "--home", str(gateway.home)) as process:
            model = Model(process)
            model.claim()
            time.sleep(0.05)
            kill = model.leave if how is None else lambda: process.send_signal(how)
            event_id, printed = kill_around_a_message(gateway, process, kill, number)
        expect_at_once(gateway, event_id, has_caller_got_it=event_id.encode() in printed)


@pytest.mark.waits
@pytest.mark.req("RTY-3", "RTY-4", "EXT-5")
@_SIGNALS
def test_a_killed_agent_outside_the_mesh_takes_no_mail_along(
    gateway: RunningGateway, tmp_path: Path, how: signal.Signals
) -> None:
    """Its claim waits at a gateway elsewhere: it ends with the connection, whether or not a message came meanwhile."""
    invited = {"agentId": "bob", "scopes": ["ansible.message.read"]}
    token = gateway.operator.post("/ansible/agent/invites", invited)["inviteToken"]
    file = tmp_path / "credentials"

    async def accept() -> None:
        await (await OutsideClient.accept(file, url=gateway.url, agent_id="bob", invite_token=token)).close()

    asyncio.run(accept())
    for number in range(ROUNDS):
        with caller("tests.edges.dead_caller", "outside", str(file), "bob") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            # Whether it waits by then or is still about to ask is a matter of chance, too.
            time.sleep(random.Random(number).uniform(0, 0.2))
            process.send_signal(how)
            event_id = a_message(gateway, f"message {number}")
            printed = printed_at_the_end(process)
        expect_at_once(gateway, event_id, has_caller_got_it=event_id.encode() in printed)


@pytest.mark.waits
@pytest.mark.req("RTY-3", "RTY-4")
@_SIGNALS
def test_an_agent_that_is_restarted_leaves_no_message_behind(gateway: RunningGateway, how: signal.Signals) -> None:
    """An `Agent` with eight workers is killed while mail arrives: the next one answers all of it, without a lease."""
    unanswered: list[str] = []
    for number in range(ROUNDS):
        with caller("tests.edges.dead_caller", "agent", str(gateway.home), "bob") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            expect_answers(gateway, unanswered)
            kill_seconds = random.Random(number).uniform(0, 0.03)
            unanswered = [a_message(gateway, f"{number}.{each}") for each in range(4)]
            time.sleep(kill_seconds)
            process.send_signal(how)
            process.wait(_AT_ONCE_SECONDS)
        unanswered += [a_message(gateway, f"{number}.{each}") for each in range(4, 8)]
    with caller("tests.edges.dead_caller", "agent", str(gateway.home), "bob"):
        expect_answers(gateway, unanswered)


def expect_answers(gateway: RunningGateway, event_ids: list[str]) -> None:
    until = time.monotonic() + _AT_ONCE_SECONDS
    for event_id in event_ids:
        left_seconds = round(max(until - time.monotonic(), 0.0), 3)
        sent = gateway.operator.get(f"/ansible/messages/{event_id}", {"wait_seconds": left_seconds})
        assert [each["state"] for each in sent["deliveries"]] == ["Replied"], f"{event_id} is stuck"


@pytest.mark.waits
@pytest.mark.req("RTY-3", "RTY-4")
async def test_a_fetch_that_is_cancelled_hides_no_message(gateway: RunningGateway) -> None:
    """`wait_for(client.fetch(…))` ends about when the message comes: it returns it, or the next fetch does."""
    where = random.Random(1)
    async with Client("ada", home=gateway.home) as ada, Client("bob", home=gateway.home) as bob:
        for number in range(max(ROUNDS, 20)):
            fetching = asyncio.ensure_future(asyncio.wait_for(bob.fetch(wait_seconds=60), where.uniform(0.02, 0.06)))
            await asyncio.sleep(where.uniform(0, 0.05))
            sent = await ada.send("bob", f"message {number}")
            await asyncio.wait((fetching,))
            failed = fetching.exception()
            fetched = [] if failed is not None else fetching.result()
            assert isinstance(failed, TimeoutError | None)
            if not fetched:
                fetched = await asyncio.wait_for(bob.fetch(wait_seconds=60), _AT_ONCE_SECONDS)
            assert [(each.event_id, each.attempt) for each in fetched] == [(sent.event_id, 1)]
            assert await bob.settle(sent.event_id)
