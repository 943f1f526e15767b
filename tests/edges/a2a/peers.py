"""Peers that speak A2A with the official client, each request proven; and a worker that does as the test says."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import (
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
)

from agentpost.edges.operator_client import OperatorClient
from tests.edges.external.client import NO_TLS, PATIENCE_SECONDS, AgentClient

BINDINGS = ("JSONRPC", "HTTP+JSON")
SCOPES = ("ansible.task.create", "ansible.task.read")


class Served(Protocol):
    """A gateway, in a process or in a thread."""

    url: str
    operator: OperatorClient


class Proven(httpx.Auth):
    """A proof for every request, and one more try when the gateway wants another nonce."""

    requires_request_body = True

    def __init__(self, session: AgentClient) -> None:
        self.session = session

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        for _ in range(2):
            url = str(request.url.copy_with(query=None, fragment=None))
            token = self.session.access_token
            proof = self.session.proof("", token=token, body=request.content, htm=request.method, htu=url)
            request.headers.update({"authorization": f"DPoP {token}", "dpop": proof})
            response = yield request
            self.session.nonce = response.headers.get("dpop-nonce", self.session.nonce)
            if "use_dpop_nonce" not in response.headers.get("www-authenticate", ""):
                return


def session_of(gateway: Served, name: str, scopes: tuple[str, ...] = SCOPES, **more: Any) -> AgentClient:
    """An agent outside the mesh with a session."""
    invite = gateway.operator.post("/ansible/agent/invites", {"agentId": name, "scopes": list(scopes)})
    session = AgentClient(gateway.url, **more)
    session.secrets.add(invite["inviteToken"])
    answer = session.exchange(invite["inviteToken"], name)
    assert answer.status_code == 200, answer.text
    return session


def plain_http(session: AgentClient) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(auth=Proven(session), timeout=PATIENCE_SECONDS, verify=NO_TLS, limits=limits)


@asynccontextmanager
async def client_of(
    session: AgentClient, agent: str, *, binding: str = "JSONRPC", streaming: bool = True
) -> AsyncIterator[Client]:
    """The official client for one agent, from its card."""
    async with plain_http(session) as http:
        card = await A2ACardResolver(http, f"{session.url}/a2a/{agent}").get_agent_card()
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], streaming=streaming)
        yield ClientFactory(config).create(card)


def words(text: str = "Write the notes.", *, message_id: str | None = None, **more: Any) -> SendMessageRequest:
    """A request to do something. `now` is answered at once, and `push` tells where to."""
    now, push = more.pop("now", False), more.pop("push", None)
    parts = more.pop("parts", None) or [Part(text=text)]
    message = Message(role=Role.ROLE_USER, message_id=message_id or str(uuid.uuid4()), parts=parts, **more)
    config = SendMessageConfiguration(return_immediately=now, task_push_notification_config=push)
    return SendMessageRequest(message=message, configuration=config)


async def sent(client: Client, request: SendMessageRequest) -> Task:
    """The task that a message became, from a client that does not stream."""
    (answer,) = [each async for each in client.send_message(request)]
    return answer.task


async def told_when(client: Client, task_id: str, is_so: Callable[[Task], bool]) -> Task:
    """The task, once it is as it should be."""
    for _ in range(600):
        task = await client.get_task(GetTaskRequest(id=task_id))
        if is_so(task):
            return task
        await asyncio.sleep(0.1)
    raise AssertionError("it did not happen in time")


def text_of(message: Message) -> str:
    return "".join(part.text for part in message.parts)


def last_state(events: list[StreamResponse]) -> int:
    """The state that a stream ended with: what it began with may be all that there was to tell."""
    last = events[-1]
    return (last.task if last.HasField("task") else last.status_update).status.state


def kinds(events: list[StreamResponse]) -> list[str]:
    return [each.WhichOneof("payload") or "" for each in events]


class Worker:
    """An agent of the gateway that does as the test says."""

    def __init__(self, gateway: Served, agent_id: str = "scribe", **exposed: Any) -> None:
        self.operator = gateway.operator
        self.agent_id = agent_id
        self.operator.post("/ansible/agents", {"agentId": agent_id})
        self.operator.post("/ansible/a2a/agents", {"agentId": agent_id, **exposed})

    def claim(self, task_id: str, **more: Any) -> None:
        self._move(task_id, "claim", etaSeconds=600, **more)

    def update(self, task_id: str, **more: Any) -> None:
        self._move(task_id, "update", **more)

    def complete(self, task_id: str, result: str = "They are written.", **more: Any) -> None:
        self._move(task_id, "complete", resultSummary=result, **more)

    def fail(self, task_id: str, why: str, **more: Any) -> None:
        self._move(task_id, "fail", errorSummary=why, **more)

    def task(self, task_id: str) -> dict[str, Any]:
        return self.operator.get(f"/ansible/tasks/{task_id}")

    def inbox(self, agent_id: str | None = None) -> list[dict[str, Any]]:
        return self.operator.get(f"/ansible/agents/{agent_id or self.agent_id}/inbox", {"only_open": True})

    def _move(self, task_id: str, move: str, **more: Any) -> None:
        self.operator.post(f"/ansible/tasks/{task_id}/{move}", {"agentId": self.agent_id, **more})
