"""A2A over kill -9: what was answered stays, what was not can be sent again, and nothing happens twice."""

import asyncio
import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from a2a.client.errors import A2AClientError
from a2a.types import GetTaskRequest, ListTasksRequest, TaskPushNotificationConfig, TaskState

from tests.edges.a2a.peers import BINDINGS, Worker, client_of, sent, session_of, words
from tests.edges.a2a.receiver import receiving
from tests.edges.meshing import eventually
from tests.edges.running import RunningGateway, running_gateway

SENDS = 12


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose gateway may notify loopback."""
    home = tmp_path / "vps-jane"
    home.mkdir(mode=0o700)
    (home / "agentpost.toml").write_text('[a2a]\npush_networks = ["127.0.0.0/8"]\n')
    (home / "agentpost.toml").chmod(0o600)
    return home


@contextlib.contextmanager
def life(home: Path, before: RunningGateway | None = None) -> Iterator[RunningGateway]:
    """One run of the gateway; the next one listens where the one before did."""
    listen = "127.0.0.1:0" if before is None else before.url.removeprefix("http://")
    with running_gateway(home, listen=listen) as gateway:
        yield gateway


@pytest.mark.req("RTY-3", "PIPE-3")
async def test_a_message_is_taken_once_over_kills(home: Path) -> None:
    """The gateway dies while messages come in; all are sent again, and each is one task with its own words."""
    chance = random.Random(8)
    with life(home) as gateway:
        Worker(gateway)
        session = session_of(gateway, "orbit")
        requests = [words(f"Number {at}", message_id=f"m-{at}", now=True) for at in range(SENDS)]
        async with client_of(session, "scribe", streaming=False) as client:
            first = await sent(client, requests[0])

            async def tried(at: int) -> str | None:
                with contextlib.suppress(A2AClientError):
                    return (await sent(client, requests[at])).id
                return None

            trying = [asyncio.ensure_future(tried(at)) for at in range(1, SENDS)]
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            gateway.end(signal.SIGKILL)
            answered = [first.id, *await asyncio.gather(*trying)]
    with life(home, gateway) as again:
        async with client_of(session, "scribe", binding=BINDINGS[1], streaming=False) as client:
            told = [await sent(client, request) for request in requests]
            assert len({task.id for task in told}) == SENDS
            assert [task.id for task, known in zip(told, answered, strict=True) if known] == list(
                filter(None, answered)
            )
            listed = await client.list_tasks(ListTasksRequest(page_size=100))
            assert listed.total_size == SENDS
            assert [task.history[0].parts[0].text for task in told] == [f"Number {at}" for at in range(SENDS)]
        assert again.end() == 0


async def test_a_task_goes_on_after_a_kill(home: Path) -> None:
    """Its words, its context and its push configuration are there again, and the end is told."""
    with receiving() as receiver:
        with life(home) as gateway:
            worker, session = Worker(gateway), session_of(gateway, "orbit")
            push = TaskPushNotificationConfig(url=receiver.url)
            async with client_of(session, "scribe", streaming=False) as client:
                made = await sent(client, words("Write it.", now=True, push=push, context_id="mine"))
            worker.claim(made.id)
            gateway.end(signal.SIGKILL)
        with life(home, gateway) as again:
            worker.operator = again.operator
            worker.complete(made.id)
            async with client_of(session, "scribe") as client:
                told = await client.get_task(GetTaskRequest(id=made.id))
            assert told.status.state == TaskState.TASK_STATE_COMPLETED
            assert (told.context_id, told.history[0].parts[0].text) == ("mine", "Write it.")
            await asyncio.to_thread(
                eventually, lambda: "TASK_STATE_COMPLETED" in receiver.states(made.id), patience_seconds=60
            )
            assert "Traceback" not in again.log
