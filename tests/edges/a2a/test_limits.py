"""What one peer may hold open, and what is cut when its session ends."""

import asyncio
from typing import Any

import pytest
from a2a.client.errors import A2AClientError
from a2a.types import ListTasksRequest, StreamResponse, SubscribeToTaskRequest
from a2a.utils.errors import InvalidRequestError

from tests.edges.a2a.conftest import Post
from tests.edges.a2a.peers import BINDINGS, client_of, sent, words

MOST_AT_ONCE = 64


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.req("EXT-2")
async def test_a_revoked_session_hears_nothing_more(post: Post, binding: str) -> None:
    """A stream that is open and a call that waits are cut; neither is told what comes afterwards."""
    name = f"leaver-{binding[:4]}"
    async with client_of(post.peer(name), "scribe", binding=binding) as client:
        stream: Any = client.send_message(words())
        events: list[StreamResponse] = [await anext(stream)]
        post.operator.post("/ansible/agent/revoke", {"agentId": name})
        with pytest.raises((InvalidRequestError, A2AClientError)):
            async with asyncio.timeout(60):
                events += [each async for each in stream]
        assert len(events) == 1
        with pytest.raises(A2AClientError, match="401"):
            await client.list_tasks(ListTasksRequest())


@pytest.mark.req("EXT-5")
async def test_a_session_holds_so_many_calls_open_and_no_more(post: Post) -> None:
    """One stream more than that is refused, until one of the others ends."""
    greedy = post.peer("greedy")
    async with client_of(greedy, "scribe", streaming=False) as client, client_of(greedy, "scribe") as listener:
        task_id = (await sent(client, words(now=True))).id
        streams: list[Any] = [listener.subscribe(SubscribeToTaskRequest(id=task_id)) for _ in range(MOST_AT_ONCE)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(A2AClientError, match="429"):
            await client.list_tasks(ListTasksRequest())
        await asyncio.to_thread(post.worker.claim, task_id)
        await asyncio.to_thread(post.worker.complete, task_id)
        for stream in streams:
            assert [each async for each in stream]
        assert (await client.list_tasks(ListTasksRequest())).total_size == 1
