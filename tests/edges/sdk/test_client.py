"""The Python SDK against a gateway: in this process, in another one, and while it is away."""

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import agentpost
from agentpost import Agent, Client, Code, Failed, MailboxMessage, Message, Refusal, SyncClient, Task
from agentpost.delivery.mailroom import InboxLine
from agentpost.delivery.ports import ResultKind
from agentpost.edges.sdk.blocking_parts import SyncMailbox, SyncTaskCalls
from agentpost.edges.sdk.tasks import TaskCalls
from agentpost.mailbox.remote import RemoteMailbox
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind
from agentpost.protocol.taskbook import Verdict
from agentpost.protocol.tasks import TaskState
from agentpost.tasks import TaskOwner
from tests.edges.running import TIMEOUT_SECONDS, running_gateway
from tests.mailboxes.building import message


@asynccontextmanager
async def two_agents(home: Path) -> AsyncIterator[tuple[Client, Client]]:
    """The clients of architect and builder, at one gateway in this process."""
    async with (
        Client.embedded("architect", node="vps-jane", home=home, listen="127.0.0.1:0") as architect,
        Client("builder", home=home) as builder,
    ):
        await builder.register()
        yield architect, builder


async def arrived(client: Client) -> InboxLine:
    """The only message for an agent, once it is there."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        lines = [line async for line in client.inbox()]
        if lines:
            (line,) = lines
            return line
        assert time.monotonic() < until
        await asyncio.sleep(0.02)


@asynccontextmanager
async def at_work(agent: Agent) -> AsyncIterator[None]:
    tasks, stopping = TaskOwner("test"), asyncio.Event()
    working = tasks.spawn(agent.serve(stopping), name="agent")
    try:
        yield
    finally:
        stopping.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await working


@pytest.mark.req("OPS-6")
async def test_send_read_reply_and_what_became_of_it(tmp_path: Path) -> None:
    """A message is sent, listed, read without being consumed and answered; its sender sees the answer and each step."""
    async with two_agents(tmp_path / "vps-jane") as (architect, builder):
        receipt = await architect.send("builder", "Build it, please.", subject="Work", context={"branch": "main"})
        line = await arrived(builder)
        assert (line.event_id, line.subject, line.from_agent_id) == (receipt.event_id, "Work", "architect")
        for _ in range(2):
            message = await builder.read(receipt.event_id)
            assert (message.content.body, message.content.context) == ("Build it, please.", {"branch": "main"})
        assert not (await architect.sent(receipt.event_id)).is_over
        assert (await builder.reply(receipt.event_id, "It is built.")).settled
        sent = await architect.ended(receipt.event_id, timeout_seconds=TIMEOUT_SECONDS)
        (delivery,) = sent.deliveries
        assert (delivery.state, delivery.answer) == (DeliveryState.REPLIED, "It is built.")
        assert {step.what for step in await architect.trace(receipt.event_id)} >= {"emitted", "accepted"}
        assert [line async for line in builder.inbox(only_open=True)] == []


async def test_an_agent_of_functions_answers_tries_again_and_gives_up(tmp_path: Path) -> None:
    """What a handler returns is the reply; what it raises is another try; `Failed` ends it, and the sender hears so."""
    home = tmp_path / "vps-jane"
    agent = Agent("builder", home=home)

    @agent.on_message
    async def build(message: Message) -> str | None:
        match message.content.body:
            case "build":
                return f"built by attempt {message.attempt}"
            case "note":
                return None
            case _:
                raise Failed("that is no work of mine")

    async with two_agents(home) as (architect, builder), at_work(agent):
        assert await architect.ask("builder", "build", timeout_seconds=TIMEOUT_SECONDS) == "built by attempt 1"
        assert await architect.ask("builder", "note", timeout_seconds=TIMEOUT_SECONDS) is None
        with pytest.raises(Refusal, match=r"builder did not handle .*: failed"):
            await architect.ask("builder", "dance", timeout_seconds=TIMEOUT_SECONDS)
        assert [line.error async for line in builder.inbox()][-1] == "that is no work of mine"


async def test_a_handler_that_raises_leaves_the_message_for_the_next_attempt(tmp_path: Path) -> None:
    """An exception is an attempt that failed: the message stays open, with the error in its line."""
    home = tmp_path / "vps-jane"
    agent, tried = Agent("builder", home=home), asyncio.Event()

    @agent.on_message
    async def build(_message: Message) -> str:
        tried.set()
        raise ValueError("no compiler")

    async with two_agents(home) as (architect, builder):
        async with at_work(agent):
            receipt = await architect.send("builder", "build")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await tried.wait()
        (line,) = [line async for line in builder.inbox(only_open=True)]
        assert (line.event_id, line.attempts, line.error) == (receipt.event_id, 1, "ValueError: no compiler")
        # What its sender is told of that, a moment later.
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (failing := (await architect.sent(receipt.event_id)).deliveries[0].failing) is None:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.02)
        assert (failing.attempt, failing.most_attempts, failing.error) == (1, 8, "ValueError: no compiler")
        assert failing.next_try_at_ms is not None


async def test_who_asks_and_waits_in_vain_is_told_so(tmp_path: Path) -> None:
    """No answer in time is a TimeoutError, and the message is on its way all the same."""
    async with two_agents(tmp_path / "vps-jane") as (architect, builder):
        with pytest.raises(TimeoutError, match="builder has not answered"):
            await architect.ask("builder", "still there?", timeout_seconds=0.05)
        (fetched,) = await builder.fetch(wait_seconds=TIMEOUT_SECONDS)
        assert await builder.settle(fetched.event_id, reply="yes")
        assert not await builder.settle(fetched.event_id, ResultKind.FAILED, error="too late")


async def test_refusals_are_those_of_the_gateway(tmp_path: Path) -> None:
    """An unknown recipient, an unknown message, no agent and no gateway: each its code, and nothing was sent."""
    home = tmp_path / "vps-jane"
    async with two_agents(home) as (architect, builder):
        for code, call in (
            (Code.INVALID_TARGETS, lambda: architect.send("nobody", "hi")),
            (Code.NOT_FOUND, lambda: architect.read("evt_01ARZ3NDEKTSV4RRFFQ69G5FAV")),
            (Code.NOT_FOUND, lambda: architect.sent("../../operator/shutdown")),
        ):
            with pytest.raises(Refusal) as refused:
                await call()
            assert refused.value.code is code
        async with Client(home=home) as nobody:
            with pytest.raises(Refusal, match="speaks for no agent"):
                await nobody.send("builder", "hi")
        assert [line async for line in builder.inbox()] == []
    async with Client("architect", home=home) as late:
        for client, problem in ((architect, "was closed"), (late, "no gateway runs")):
            with pytest.raises(Refusal, match=problem) as refused:
                await client.send("builder", "hi")
            assert refused.value.code is Code.UNAVAILABLE


async def test_a_second_gateway_in_one_home_is_refused(tmp_path: Path) -> None:
    """A program that embeds a gateway where one runs already is told so, and the first goes on."""
    home = tmp_path / "vps-jane"
    async with two_agents(home) as (architect, _):
        with pytest.raises(Refusal) as refused:
            async with Client.embedded("ada", node="vps-jane", home=home, listen="127.0.0.1:0"):
                pass
        assert refused.value.code is Code.HOME_IN_USE
        assert (await architect.send("builder", "hi")).seq > 0


@pytest.mark.req("TASK-2", "TASK-3", "TASK-7")
async def test_a_task_is_claimed_reported_on_and_completed(tmp_path: Path) -> None:
    """An agent of functions accepts a task with its ETA, says how it goes, and its answer completes it."""
    home = tmp_path / "vps-jane"
    agent = Agent("builder", home=home)

    @agent.on_task
    async def work(task: Task) -> str:
        await task.progress(50, "half of it")
        if task.input == "impossible":
            raise Failed("it cannot be done")
        return f"{task.title}: done"

    async with two_agents(home) as (architect, _), at_work(agent):
        done = await architect.tasks.create("Build", to="builder", input="main")
        view = await architect.tasks.ended(done.task_id, timeout_seconds=TIMEOUT_SECONDS)
        assert (view.task.state, view.task.progress) == (TaskState.COMPLETED, 100)
        assert view.task.eta_at_ms is not None
        assert [step.kind for step in view.steps] == [
            Kind.TASK_CREATE,
            Kind.TASK_ACCEPT,
            Kind.TASK_UPDATE,
            Kind.TASK_COMPLETE,
        ]
        assert view.steps[-1].content.result_summary == "Build: done"
        failed = await architect.tasks.create("Fly", to="builder", input="impossible")
        view = await architect.tasks.ended(failed.task_id, timeout_seconds=TIMEOUT_SECONDS)
        assert (view.task.state, view.steps[-1].content.error_summary) == (TaskState.FAILED, "it cannot be done")
        assert {line.task.task_id for line in await architect.tasks.list()} == {done.task_id, failed.task_id}


@pytest.mark.req("TASK-5")
async def test_a_task_under_way_when_the_program_ended_is_begun_anew(tmp_path: Path) -> None:
    """The agent accepted it and was gone; at its next start it does it, and nobody has to ask again."""
    home = tmp_path / "vps-jane"
    agent = Agent("builder", home=home)

    @agent.on_task
    async def work(task: Task) -> str:
        return f"{task.title}, after all"

    async with two_agents(home) as (architect, builder):
        offered = await architect.tasks.create("Build", to="builder")
        await builder.fetch(wait_seconds=TIMEOUT_SECONDS)
        await builder.tasks.claim(offered.task_id, eta_seconds=60)
        async with at_work(agent):
            view = await architect.tasks.ended(offered.task_id, timeout_seconds=TIMEOUT_SECONDS)
        assert (view.task.state, view.steps[-1].content.result_summary) == (TaskState.COMPLETED, "Build, after all")


def test_a_program_of_its_own_and_a_client_that_waits(tmp_path: Path) -> None:
    """An agent in another process answers a client without a loop; SIGTERM ends the agent."""
    home = tmp_path / "vps-jane"
    program = textwrap.dedent(
        """
        import sys
        import agentpost

        agent = agentpost.Agent("builder", home=sys.argv[1], concurrency=2)

        @agent.on_message
        async def build(message):
            return message.content.body.upper()

        agent.run()
        """
    )
    with (
        running_gateway(home),
        subprocess.Popen([sys.executable, "-c", program, str(home)]) as running,
        SyncClient("architect", home=home) as architect,
    ):
        try:
            architect.register()
            _until_there(architect, "builder")
            assert architect.ask("builder", "loud", timeout_seconds=TIMEOUT_SECONDS) == "LOUD"
            assert {line.from_agent_id for line in architect.inbox()} == {"builder"}
            running.terminate()
            assert running.wait(TIMEOUT_SECONDS) == 0
        finally:
            running.kill()


def _until_there(client: SyncClient, agent_id: str) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            client.send(agent_id, "are you there?")
        except Refusal:
            assert time.monotonic() < until, f"{agent_id} never came"
            time.sleep(0.05)
        else:
            return


def note(number: int, to: str) -> MailboxMessage:
    return message(f"note-{number}", sender="architect", to=to, payload="look here", created_at=int(time.time()))


async def test_the_mailbox_of_the_gateway(tmp_path: Path) -> None:
    """A client puts messages into the mailbox of its gateway and takes them out; it is closed with the client."""
    async with two_agents(tmp_path / "vps-jane") as (architect, builder):
        assert (await architect.mailbox.enqueue(note(1, "analyst"))).queued
        got = await builder.mailbox.dequeue("analyst", wait_seconds=TIMEOUT_SECONDS)
        assert got is not None
        assert (got.msg_id, got.payload) == ("note-1", "look here")
        await builder.mailbox.ack("analyst", got.msg_id)
        assert await architect.mailbox.peek("analyst") == []


def test_the_twin_without_a_loop_has_every_call(tmp_path: Path) -> None:
    """Mailbox, tasks, status: what the client has, its twin has, by the same names."""
    for kind, twin in ((Client, SyncClient), (TaskCalls, SyncTaskCalls), (RemoteMailbox, SyncMailbox)):
        names = {name for name in vars(kind) if not name.startswith("_")} - {"embedded", "home", "close"}
        assert names - set(vars(twin)) == set()
    home = tmp_path / "vps-jane"
    with running_gateway(home), SyncClient("architect", home=home) as architect:
        architect.register()
        assert architect.status()["nodeId"] == "vps-jane"
        architect.mailbox.enqueue(note(2, "analyst"))
        got = architect.mailbox.dequeue("analyst")
        assert got is not None
        architect.mailbox.nack("analyst", got.msg_id, "later")
        assert len(architect.mailbox.peek("analyst")) == 1
        made = architect.tasks.create("Build it", to="architect")
        assert architect.tasks.claim(made.task_id, eta_seconds=60).verdict is Verdict.WON
        architect.tasks.complete(made.task_id, "built")
        assert architect.tasks.ended(made.task_id, timeout_seconds=TIMEOUT_SECONDS).task.state is TaskState.COMPLETED


def test_what_the_package_offers() -> None:
    """The names of the SDK are there, and nothing else is made up."""
    assert {"Agent", "Client", "SyncClient", "Refusal"} <= set(dir(agentpost))
    with pytest.raises(AttributeError):
        _ = agentpost.Postman  # pyright: ignore[reportAttributeAccessIssue]
