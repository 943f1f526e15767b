"""What goes wrong has a name of A2A, over both bindings; nothing is a traceback, and sizes are bounded."""

import json
from typing import Any

import httpx
import pytest

from tests.edges.a2a.conftest import Post
from tests.edges.a2a.peers import plain_http
from tests.edges.external.client import AgentClient, code_of
from tests.edges.meshing import eventually

TASK_NOT_FOUND, UNSUPPORTED, CONTENT_TYPE, VERSION = -32001, -32004, -32005, -32009
BAD_REQUEST, NO_METHOD, BAD_PARAMS, NOT_JSON = -32600, -32601, -32602, -32700
JSON = {"content-type": "application/json"}
V1 = {"a2a-version": "1.0", **JSON}
MESSAGE = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Do it."}]}


@pytest.fixture(scope="module")
def clumsy(post: Post) -> AgentClient:
    return post.peer("clumsy")


@pytest.fixture
def http(clumsy: AgentClient) -> httpx.AsyncClient:
    return plain_http(clumsy)


async def rpc(http: httpx.AsyncClient, post: Post, body: Any, headers: dict[str, str] | None = None) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http:
        answer = await http.post(
            f"{post.url}/a2a/scribe", content=content, headers=V1 if headers is None else JSON | headers
        )
    assert answer.status_code == 200, answer.text
    assert "Traceback" not in answer.text
    return answer.json()["error"]


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (call("GetTask", id="tsk_01JV3T7E6Q8M1W2R4D9K0N5P7H"), TASK_NOT_FOUND),
        (call("GetTask", id="../../etc/passwd\n"), TASK_NOT_FOUND),
        (call("GetTask"), BAD_PARAMS),
        (call("CancelTask", id="nothing"), TASK_NOT_FOUND),
        (call("SubscribeToTask", id="nothing"), TASK_NOT_FOUND),
        (call("GetTaskPushNotificationConfig", taskId="nothing", id="x"), TASK_NOT_FOUND),
        (call("GetExtendedAgentCard"), UNSUPPORTED),
        (call("ListTasks", pageSize=0), BAD_PARAMS),
        (call("ListTasks", pageSize=101), BAD_PARAMS),
        (call("ListTasks", pageToken="x"), BAD_PARAMS),
        (call("ListTasks", historyLength=-1), BAD_PARAMS),
        (call("SendMessage"), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "parts": []}), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "parts": [{}]}), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "parts": [{"text": "x"}] * 65}), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "messageId": ""}), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "messageId": "x" * 257}), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "role": "ROLE_AGENT"}), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "taskId": "nothing"}), TASK_NOT_FOUND),
        (call("SendMessage", message={**MESSAGE, "metadata": {"skillId": "flying"}}), BAD_PARAMS),
        (call("SendMessage", message={**MESSAGE, "parts": [{"text": "x", "mediaType": "image/png"}]}), CONTENT_TYPE),
        (call("SendMessage", message=MESSAGE, configuration={"acceptedOutputModes": ["audio/ogg"]}), CONTENT_TYPE),
        (call("SendMessage", message=7), BAD_PARAMS),
        (call("tasks/get", id="x"), NO_METHOD),
        (call("Fly"), NO_METHOD),
        ([call("GetTask", id="x")], BAD_REQUEST),
        ({"jsonrpc": "1.0", "id": 1, "method": "GetTask"}, BAD_REQUEST),
        (b"{", NOT_JSON),
    ],
)
async def test_each_mistake_has_its_code(http: httpx.AsyncClient, post: Post, body: Any, code: int) -> None:
    """As A2A numbers them; and nothing becomes a task."""
    error = await rpc(http, post, body)
    assert error["code"] == code, error
    assert error["message"]
    assert post.operator.get("/ansible/tasks", {"agent": "clumsy"}) == []


async def test_what_nests_too_deep_is_refused(http: httpx.AsyncClient, post: Post) -> None:
    """A request of nothing but brackets is answered like any other mistake."""
    error = await rpc(http, post, b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":' + b"[" * 100_000)
    assert error["code"] in (NOT_JSON, BAD_REQUEST, -32603)


@pytest.mark.parametrize("headers", [{}, {"a2a-version": "0.3"}, {"a2a-version": "2.0"}, {"a2a-version": "x"}])
async def test_another_version_is_not_spoken(http: httpx.AsyncClient, post: Post, headers: dict[str, str]) -> None:
    """Without the header it is 0.3, by the rules of A2A."""
    assert (await rpc(http, post, call("ListTasks"), headers))["code"] == VERSION


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/tasks/nothing", 404, "TASK_NOT_FOUND"),
        ("POST", "/tasks/nothing:cancel", 404, "TASK_NOT_FOUND"),
        ("GET", "/tasks/nothing:subscribe", 404, "TASK_NOT_FOUND"),
        ("POST", "/tasks/nothing:subscribe", 404, "TASK_NOT_FOUND"),
        ("DELETE", "/tasks/nothing/pushNotificationConfigs/x", 404, "TASK_NOT_FOUND"),
        ("GET", "/tasks?pageSize=1000", 400, "INVALID_PARAMS"),
        ("GET", "/extendedAgentCard", 400, "UNSUPPORTED_OPERATION"),
        ("POST", "/message:send", 400, "INVALID_REQUEST"),
    ],
)
async def test_rest_has_the_same_mistakes(
    http: httpx.AsyncClient, post: Post, method: str, path: str, status: int, reason: str
) -> None:
    """With the status and the reason that A2A gives them."""
    async with http:
        answer = await http.request(method, f"{post.url}/a2a/scribe{path}", headers=V1)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["details"][0]["reason"] == reason


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/a2a/scribe"),
        ("GET", "/a2a/nobody"),
        ("POST", "/a2a/nobody"),
        ("POST", "/a2a/scribe/"),
        ("GET", "/a2a/scribe/nothing"),
        ("PUT", "/a2a/scribe/tasks/x"),
        ("GET", "/a2a/"),
        ("POST", "/a2a/scribe/.well-known/agent-card.json"),
        ("GET", "/a2a/nobody/.well-known/agent-card.json"),
        ("GET", "/a2a/%2e%2e/.well-known/agent-card.json"),
    ],
)
async def test_other_paths_are_not_there(http: httpx.AsyncClient, post: Post, method: str, path: str) -> None:
    """Who is not exposed is not found, and looks like what never was."""
    async with http:
        answer = await http.request(method, post.url + path, headers=V1)
    assert code_of(answer) == (404, "not_found")


@pytest.mark.req("EXT-3", "EXT-4")
async def test_a_call_without_a_good_proof_is_refused_before_anything_else(post: Post) -> None:
    """No token, a token alone, a proof for another body, and a proof twice: 401 or 409, and how to do better."""
    session = post.peer("clumsy")
    body, url = json.dumps(call("ListTasks")).encode(), f"{post.url}/a2a/scribe"
    async with httpx.AsyncClient(timeout=60) as http:
        bare = await http.post(url, content=body, headers=V1)
        assert code_of(bare) == (401, "invalid_access_token")
        assert bare.headers["dpop-nonce"]
        session.nonce = bare.headers["dpop-nonce"]
        token = {"authorization": f"DPoP {session.access_token}", **V1}
        alone = await http.post(url, content=body, headers=token)
        assert code_of(alone) == (401, "invalid_access_token")
        proof = session.proof("/a2a/scribe", token=session.access_token, body=body)
        other = await http.post(url, content=body + b" ", headers={**token, "dpop": proof})
        assert code_of(other) == (401, "invalid_access_token")
        proof = session.proof("/a2a/scribe", token=session.access_token, body=body)
        assert (await http.post(url, content=body, headers={**token, "dpop": proof})).status_code == 200
        again = await http.post(url, content=body, headers={**token, "dpop": proof})
        assert code_of(again) == (409, "replay_detected")


@pytest.mark.req("EXT-5")
async def test_what_is_too_large_is_not_read(post: Post, http: httpx.AsyncClient) -> None:
    """A megabyte is the most, whoever sends it."""
    async with http:
        answer = await http.post(f"{post.url}/a2a/scribe", content=b" " * 1_048_577, headers=V1)
    assert code_of(answer) == (413, "too_large")


@pytest.mark.req("EXT-2", "EXT-5")
async def test_every_call_is_in_the_audit_log(post: Post) -> None:
    """Which operation, by whom, in which session and conversation, and how it was answered."""
    session = post.peer("audited")
    async with plain_http(session) as http:
        params = {"message": MESSAGE, "configuration": {"returnImmediately": True}}
        made = (await http.post(f"{post.url}/a2a/scribe", json=call("SendMessage", **params), headers=V1)).json()
        await http.post(f"{post.url}/a2a/scribe", json=call("GetTask", id="nothing"), headers=V1)

    def audited() -> list[dict[str, Any]]:
        return post.operator.get("/ansible/audit", {"sessionId": session.session["sessionId"], "limit": 1000})

    # What was answered is written down after the answer was sent.
    eventually(lambda: len(audited()) == 5)
    log = audited()
    told = [(each["action"], each["detail"]["operation"], each["detail"].get("code")) for each in log]
    assert told[1:] == [
        ("agent.invoked", "a2a.SendMessage", None),
        ("agent.answered", "a2a.SendMessage", "ok"),
        ("agent.invoked", "a2a.GetTask", None),
        ("agent.answered", "a2a.GetTask", "not_found"),
    ]
    assert log[2]["corrId"] == made["result"]["task"]["contextId"]
