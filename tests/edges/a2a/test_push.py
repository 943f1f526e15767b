"""Push notifications: kept with the task, posted with their token, tried again, never into the gateway's network."""

import asyncio

import pytest
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, InvalidRequestError, TaskNotFoundError

from agentpost.edges.a2a.addresses import find_target
from agentpost.edges.a2a.pushing import PUSH_FAILED, RETRIES
from agentpost.protocol.errors import Code, Refusal
from tests.edges.a2a.conftest import Post
from tests.edges.a2a.peers import BINDINGS, SCOPES, client_of, sent, words
from tests.edges.a2a.receiver import receiving
from tests.edges.external.client import CONTEXT
from tests.edges.meshing import eventually

TOKEN = "a-token-of-the-peer-that-nobody-else-sees"  # noqa: S105 - made up
CREDENTIALS = "credentials-that-nobody-else-sees"
HALF_A_MINUTE = 30.0


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_peer_is_told_at_its_url(post: Post, binding: str) -> None:
    """From the send on, with token and credentials, until the end: each time the task as it stands."""
    post.secrets |= {TOKEN, CREDENTIALS}
    with receiving() as receiver:
        push = TaskPushNotificationConfig(
            url=receiver.url,
            token=TOKEN,
            authentication=AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS),
        )
        async with client_of(post.peer("orbit"), "scribe", binding=binding, streaming=False) as client:
            task_id = (await sent(client, words(now=True, push=push))).id
        await asyncio.to_thread(post.worker.claim, task_id)
        await asyncio.to_thread(post.worker.complete, task_id, output={"pages": 2})
        await asyncio.to_thread(
            eventually,
            lambda: "TASK_STATE_COMPLETED" in receiver.states(task_id),
            patience_seconds=HALF_A_MINUTE,
        )
    headers, body = receiver.got[-1]
    assert headers["x-a2a-notification-token"] == TOKEN
    assert headers["authorization"] == f"Bearer {CREDENTIALS}"
    assert headers["content-type"] == "application/a2a+json"
    assert headers["host"].startswith("localhost:")
    assert body["task"]["artifacts"][0]["parts"][1]["data"] == {"pages": 2}


@pytest.mark.req("EXT-2")
async def test_a_peer_that_was_revoked_is_told_nothing_more(post: Post) -> None:
    """Whose sessions were ended by the operator gets no task at its URL any more, until it is invited again."""
    with receiving() as receiver:

        async def asked(name: str) -> str:
            push = TaskPushNotificationConfig(url=receiver.url)
            async with client_of(post.peer(name), "scribe", streaming=False) as client:
                return (await sent(client, words(now=True, push=push))).id

        async def is_told(task_id: str, state: str) -> None:
            await asyncio.to_thread(
                eventually, lambda: state in receiver.states(task_id), patience_seconds=HALF_A_MINUTE
            )

        outcast, other = await asked("outcast"), await asked("orbit")
        await is_told(outcast, "TASK_STATE_SUBMITTED")
        await asyncio.to_thread(post.operator.post, "/ansible/agent/revoke", {"agentId": "outcast"})
        for task_id in (outcast, other):
            await asyncio.to_thread(post.worker.claim, task_id)
            await asyncio.to_thread(post.worker.complete, task_id)
        await is_told(other, "TASK_STATE_COMPLETED")
        assert set(receiver.states(outcast)) == {"TASK_STATE_SUBMITTED"}


@pytest.mark.req("EXT-6")
async def test_a_context_token_leaves_no_notifications_behind(post: Post) -> None:
    """Who has a token for one conversation sees its task, but neither sets nor learns where it is told about later."""
    peer = post.peer("lender")
    with receiving() as receiver:
        push = TaskPushNotificationConfig(url=receiver.url, token=TOKEN)
        async with client_of(peer, "scribe", streaming=False) as client:
            task = await sent(client, words(now=True, push=push))
            asked = {"contextId": task.context_id, "scopes": list(SCOPES), "ttlSeconds": 60}
            peer.access_token = peer.call(CONTEXT, asked).json()["contextToken"]
            peer.secrets.add(peer.access_token)
            assert (await client.get_task(GetTaskRequest(id=task.id))).id == task.id
            with pytest.raises(InvalidRequestError):
                await sent(client, words(now=True, push=push))
            with pytest.raises(InvalidRequestError):
                await client.create_task_push_notification_config(
                    TaskPushNotificationConfig(task_id=task.id, id="mine", url=receiver.url)
                )
            with pytest.raises(InvalidRequestError):
                await client.list_task_push_notification_configs(
                    ListTaskPushNotificationConfigsRequest(task_id=task.id)
                )


@pytest.mark.parametrize("binding", BINDINGS)
async def test_configurations_are_made_read_listed_and_deleted(post: Post, binding: str) -> None:
    """Several for one task, by their ids; a peer finds only those of its own tasks."""
    with receiving() as receiver:
        async with (
            client_of(post.peer("orbit"), "scribe", binding=binding, streaming=False) as client,
            client_of(post.peer("mallory"), "scribe", binding=binding, streaming=False) as other,
        ):
            task_id = (await sent(client, words(now=True))).id
            made = [
                await client.create_task_push_notification_config(
                    TaskPushNotificationConfig(task_id=task_id, id=name, url=receiver.url, token=name)
                )
                for name in ("one", "two")
            ]
            assert [each.task_id for each in made] == [task_id, task_id]
            wanted = GetTaskPushNotificationConfigRequest(task_id=task_id, id="two")
            assert await client.get_task_push_notification_config(wanted) == made[1]
            with pytest.raises(TaskNotFoundError):
                await other.get_task_push_notification_config(wanted)
            with pytest.raises(TaskNotFoundError):
                await other.create_task_push_notification_config(
                    TaskPushNotificationConfig(task_id=task_id, url=receiver.url)
                )
            gone = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="two")
            with pytest.raises(TaskNotFoundError):
                await other.delete_task_push_notification_config(gone)
            await client.delete_task_push_notification_config(gone)
            listed = await client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=task_id)
            )
            assert list(listed.configs) == [made[0]]
            with pytest.raises(TaskNotFoundError):
                await client.get_task_push_notification_config(wanted)


async def test_who_cannot_be_reached_is_tried_again_and_then_given_up(post: Post) -> None:
    """An answer that is no success, a redirect too, is tried later; after the last try there is an incident."""
    with receiving() as receiver:
        receiver.answers = [500, 302]
        push = TaskPushNotificationConfig(url=receiver.url)
        async with client_of(post.peer("orbit"), "scribe", streaming=False) as client:
            task_id = (await sent(client, words(now=True, push=push))).id
        await asyncio.to_thread(_until, post, lambda: receiver.states(task_id) == ["TASK_STATE_SUBMITTED"])
        assert receiver.answers == []
        receiver.answers = [503] * RETRIES.max_attempts
        await asyncio.to_thread(post.worker.claim, task_id)
        await asyncio.to_thread(_until, post, lambda: bool(_incidents(post, task_id)))
        assert receiver.answers == []
        # What comes later is told again.
        await asyncio.to_thread(post.worker.complete, task_id)
        await asyncio.to_thread(_until, post, lambda: receiver.states(task_id)[-1] == "TASK_STATE_COMPLETED")


async def test_a_redirect_leads_nowhere(post: Post) -> None:
    """A redirect into the gateway's network is not followed, whatever its status."""
    statuses = [301, 302, 303, 307, 308]
    with receiving() as receiver, receiving() as inside:
        receiver.elsewhere, receiver.answers = inside.url, list(statuses)
        async with client_of(post.peer("orbit"), "scribe", streaming=False) as client:
            push = TaskPushNotificationConfig(url=receiver.url)
            task_id = (await sent(client, words(now=True, push=push))).id
        await asyncio.to_thread(_until, post, lambda: receiver.states(task_id) == ["TASK_STATE_SUBMITTED"])
        assert len(receiver.asked) == len(statuses) + 1
        assert inside.asked == []


def _until(post: Post, what: object) -> None:
    def is_so() -> bool:
        post.clock.advance(60_000)
        return what()  # type: ignore[operator]

    eventually(is_so, patience_seconds=HALF_A_MINUTE)


def _incidents(post: Post, task_id: str) -> list[str]:
    found = post.operator.get("/ansible/incidents")
    return [each["subject"] for each in found if each["kind"] == PUSH_FAILED and each["subject"].startswith(task_id)]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "https://192.168.1.1/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a00:1]/",
        "http://0.0.0.0/",
        "http://8.8.8.8/",
        "ftp://127.0.0.1/",
        "http://someone@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "https://no-such-host.invalid/",
        "not a url",
        "http://127.0.0.1/\r\nx: y",
    ],
)
async def test_a_url_that_leads_inside_is_refused(post: Post, url: str) -> None:
    """Neither with a message nor for a task: the message then becomes no task at all."""
    async with client_of(post.peer("prober"), "scribe", streaming=False) as client:
        with pytest.raises(InvalidParamsError, match="cannot be used"):
            await sent(client, words(now=True, push=TaskPushNotificationConfig(url=url)))
    assert post.operator.get("/ansible/tasks", {"agent": "prober"}) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_loopback_is_refused_unless_the_operator_allows_it(host: str) -> None:
    """By default no private address is called; an allowed network is, and over plain http."""
    with pytest.raises(Refusal) as refused:
        await find_target(f"http://{host}:8080/", allowed=())
    assert refused.value.code is Code.INVALID_FIELD
    target = await find_target(f"http://{host}:8080/", allowed=("127.0.0.0/8", "::1/128"))
    assert target.address in ("127.0.0.1", "::1")


@pytest.mark.parametrize("changed", [{"token": "x\r\ny: z"}, {"token": "ü"}, {"id": "a/b"}, {"id": "x" * 200}])
async def test_what_would_not_be_a_header_or_an_id_is_refused(post: Post, changed: dict[str, str]) -> None:
    """A token cannot bring headers of its own."""
    push = TaskPushNotificationConfig(url="http://127.0.0.1:1/", **changed)
    async with client_of(post.peer("prober"), "scribe", streaming=False) as client:
        with pytest.raises(InvalidParamsError):
            await sent(client, words(now=True, push=push))
