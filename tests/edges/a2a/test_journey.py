"""The whole of A2A with the official client, over both of its HTTP bindings, from the card to the result."""

import asyncio
from typing import Any

import pytest
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

from agentpost.protocol.errors import Refusal
from tests.edges.a2a.conftest import Post
from tests.edges.a2a.peers import BINDINGS, client_of, kinds, last_state, sent, text_of, told_when, words
from tests.edges.meshing import eventually

both = pytest.mark.parametrize("binding", BINDINGS)


@both
@pytest.mark.req("EXT-1")
async def test_a_message_is_streamed_to_its_end(post: Post, binding: str) -> None:
    """The task comes first, then each step that the agent takes, then the result; afterwards the stream ends."""
    peer, events = post.peer("orbit"), list[StreamResponse]()
    async with client_of(peer, "scribe", binding=binding) as client:
        async for event in client.send_message(words("Write the notes.\nAll of them.")):
            events.append(event)
            if len(events) == 1:
                task_id = event.task.id
                await asyncio.to_thread(post.worker.claim, task_id, planSummary="I read the log first.")
            elif len(events) == 2:
                await asyncio.to_thread(post.worker.update, task_id, progress=60, note="Half of it stands.")
            elif len(events) == 3:
                await asyncio.to_thread(post.worker.complete, task_id, output={"pages": 2})
        told = await client.get_task(GetTaskRequest(id=task_id))
    assert kinds(events) == ["task", "status_update", "status_update", "artifact_update", "status_update"]
    states = [each.status_update.status.state for each in events if each.HasField("status_update")]
    assert states == [
        TaskState.TASK_STATE_WORKING,
        TaskState.TASK_STATE_WORKING,
        TaskState.TASK_STATE_COMPLETED,
    ]
    assert events[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert text_of(events[2].status_update.status.message) == "Half of it stands."
    assert events[2].status_update.metadata["progress"] == 60
    (artifact,) = told.artifacts
    assert artifact == events[3].artifact_update.artifact
    assert artifact.parts[0].text == "They are written."
    assert artifact.parts[1].data.struct_value["pages"] == 2
    said = [text_of(message) for message in told.history]
    assert said == ["Write the notes.\nAll of them.", "I read the log first.", "Half of it stands."]
    # It is a task as any other, and its requester was told.
    assert post.worker.task(task_id)["task"]["requesterAgentId"] == "orbit"
    assert post.worker.task(task_id)["steps"][0]["content"]["title"] == "Write the notes."
    assert post.worker.inbox("orbit") == []


@both
@pytest.mark.req("EXT-1")
async def test_a_message_can_be_waited_for_or_not(post: Post, binding: str) -> None:
    """A send is answered with the result; one that does not want to wait gets the task at once."""
    async with client_of(post.peer("orbit"), "scribe", binding=binding, streaming=False) as client:
        at_once = await sent(client, words(now=True))
        assert at_once.status.state == TaskState.TASK_STATE_SUBMITTED
        waiting = asyncio.ensure_future(sent(client, words("Wait for it.")))
        task_id = await asyncio.to_thread(_task_called, post, "Wait for it.")
        await asyncio.to_thread(post.worker.claim, task_id)
        await asyncio.to_thread(post.worker.fail, task_id, "There is no log.", failureClass="rejected")
        told = await waiting
    assert told.id == task_id
    assert told.status.state == TaskState.TASK_STATE_REJECTED
    assert text_of(told.status.message) == "There is no log."
    assert told.status.message.metadata["failureClass"] == "rejected"


def _task_called(post: Post, title: str) -> str:
    def found() -> list[str]:
        lines = post.operator.get("/ansible/tasks", {"agent": "scribe", "only_open": True, "limit": 100})
        return [line["task"]["taskId"] for line in lines if line.get("title") == title]

    eventually(lambda: bool(found()))
    return found()[0]


@both
@pytest.mark.req("EXT-1", "TASK-5")
async def test_the_agent_asks_back_and_the_peer_answers(post: Post, binding: str) -> None:
    """The stream ends when something is needed; the answer goes to the agent as mail, and the work goes on."""
    async with client_of(post.peer("orbit"), "scribe", binding=binding) as client:
        first = await _first(client.send_message(words("Write it.")))
        task_id = first.task.id
        await asyncio.to_thread(post.worker.claim, task_id)
        listening = asyncio.ensure_future(_all(client.subscribe(SubscribeToTaskRequest(id=task_id))))
        await asyncio.to_thread(post.worker.update, task_id, status="input_required", note="In which language?")
        assert last_state(await listening) == TaskState.TASK_STATE_INPUT_REQUIRED
        asked = await client.get_task(GetTaskRequest(id=task_id))
        assert text_of(asked.status.message) == "In which language?"
        answer = words("In French.", task_id=task_id, context_id=first.task.context_id)
        answered = await _first(client.send_message(answer))
        assert answered.task.status.state == TaskState.TASK_STATE_WORKING
        eventually(lambda: any(line["kind"] == "message" for line in post.worker.inbox()))
        (line,) = [each for each in post.worker.inbox() if each["kind"] == "message"]
        mail = post.operator.post(f"/ansible/agents/scribe/inbox/{line['eventId']}/reply", {"body": "Very well."})
        assert mail["corrId"] == answered.task.context_id
        last = await told_when(client, task_id, lambda task: text_of(task.status.message) == "Very well.")
    said = [text_of(each) for each in (*last.history, last.status.message)]
    assert said == ["Write it.", "In which language?", "In French.", "Very well."]
    assert post.worker.inbox("orbit") == [], "what a peer was shown does not wait in its inbox"


async def _first(stream: Any) -> StreamResponse:
    event = await anext(stream)
    await stream.aclose()
    return event


async def _all(stream: Any) -> list[StreamResponse]:
    return [event async for event in stream]


@both
@pytest.mark.req("TASK-5")
async def test_a_task_is_canceled(post: Post, binding: str) -> None:
    """Whoever listens hears it, the worker can say nothing more, and what is over cannot be canceled again."""
    async with client_of(post.peer("orbit"), "scribe", binding=binding) as client:
        task_id = (await _first(client.send_message(words()))).task.id
        await asyncio.to_thread(post.worker.claim, task_id)
        stream = client.subscribe(SubscribeToTaskRequest(id=task_id))
        heard = [await anext(stream)]
        canceled = await client.cancel_task(CancelTaskRequest(id=task_id))
        assert canceled.status.state == TaskState.TASK_STATE_CANCELED
        assert last_state([*heard, *await _all(stream)]) == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=task_id))
        with pytest.raises(UnsupportedOperationError):
            await _all(client.subscribe(SubscribeToTaskRequest(id=task_id)))
        with pytest.raises(UnsupportedOperationError):
            await _all(client.send_message(words("More.", task_id=task_id)))
    with pytest.raises(Refusal, match="canceled"):
        post.worker.complete(task_id)


@both
@pytest.mark.req("EXT-1")
async def test_tasks_are_listed_page_by_page(post: Post, binding: str) -> None:
    """The last changed first, by context or state if that is wanted, without artifacts unless they are."""
    async with client_of(post.peer(f"lister-{binding[:4]}"), "scribe", binding=binding, streaming=False) as client:
        made = []
        for number in range(5):
            made.append((await sent(client, words(f"Number {number}", now=True, context_id="my own name"))).id)
            post.clock.advance(1)
        other = (await sent(client, words("Another", now=True))).id
        post.clock.advance(1)
        await asyncio.to_thread(post.worker.claim, made[0])
        await asyncio.to_thread(post.worker.complete, made[0])
        eventually(lambda: post.worker.task(made[0])["task"]["state"] == "completed")

        pages, token = [], ""
        while True:
            page = await client.list_tasks(ListTasksRequest(page_size=4, page_token=token))
            assert (page.total_size, page.page_size) == (6, 4)
            pages.append([task.id for task in page.tasks])
            if not (token := page.next_page_token):
                break
        assert pages == [[made[0], other, made[4], made[3]], [made[2], made[1]]]
        named = await client.list_tasks(ListTasksRequest(context_id="my own name"))
        assert {task.id for task in named.tasks} == set(made)
        assert {task.context_id for task in named.tasks} == {"my own name"}
        assert not any(task.artifacts for task in named.tasks)
        over = await client.list_tasks(
            ListTasksRequest(status=TaskState.TASK_STATE_COMPLETED, include_artifacts=True, history_length=0)
        )
        (task,) = over.tasks
        assert (task.id, len(task.artifacts), len(task.history)) == (made[0], 1, 0)
        since = await client.list_tasks(ListTasksRequest(status_timestamp_after=task.status.timestamp))
        assert [task.id for task in since.tasks] == [made[0]]


@both
@pytest.mark.req("EXT-1")
async def test_a_peer_sees_its_own_tasks_only(post: Post, binding: str) -> None:
    """Another peer finds neither the task nor that there is one, and its own messages may have the same names."""
    async with (
        client_of(post.peer("orbit"), "scribe", binding=binding, streaming=False) as client,
        client_of(post.peer("mallory"), "scribe", binding=binding, streaming=False) as other,
    ):
        name = f"the same name {binding}"
        mine = await sent(client, words("Mine", message_id=name, now=True))
        theirs = await sent(other, words("Theirs", message_id=name, now=True))
        assert mine.id != theirs.id
        for call in (
            other.get_task(GetTaskRequest(id=mine.id)),
            other.cancel_task(CancelTaskRequest(id=mine.id)),
            sent(other, words("Hm", task_id=mine.id)),
        ):
            with pytest.raises(TaskNotFoundError):
                await call
        listed = await other.list_tasks(ListTasksRequest())
        assert mine.id not in {task.id for task in listed.tasks}


@both
@pytest.mark.req("RTY-3")
async def test_the_same_message_twice_is_one_task(post: Post, binding: str) -> None:
    """Also when both come at once; another message under the same id is refused."""
    async with client_of(post.peer("orbit"), "scribe", binding=binding, streaming=False) as client:
        name = f"once {binding}"

        def request(text: str = "Once.") -> SendMessageRequest:
            return words(text, message_id=name, now=True)

        several = await asyncio.gather(*(sent(client, request()) for _ in range(5)))
        assert len({task.id for task in several}) == 1
        with pytest.raises(InvalidParamsError, match="another message"):
            await sent(client, request("Twice."))
        listed = await client.list_tasks(ListTasksRequest(page_size=100))
    assert [task.id for task in listed.tasks].count(several[0].id) == 1


@pytest.mark.req("EXT-5")
async def test_without_a_session_there_is_only_the_card(post: Post) -> None:
    """Neither a stranger nor an agent without the scopes gets anything done."""
    reader = post.peer("reader", ("ansible.task.read",))
    async with client_of(reader, "scribe", streaming=False) as client:
        with pytest.raises(A2AClientError, match="403"):
            await sent(client, words())
        assert (await client.list_tasks(ListTasksRequest())).total_size == 0
    creator = post.peer("creator", ("ansible.task.create",))
    async with client_of(creator, "scribe", streaming=False) as client:
        with pytest.raises(A2AClientError, match="403"):
            await sent(client, words())
    reader.access_token = creator.access_token
    async with client_of(reader, "scribe", streaming=False) as client:
        with pytest.raises(A2AClientError, match="401"):
            await client.list_tasks(ListTasksRequest())
