"""MCP over HTTP, for agents outside the mesh: the official client against a gateway process, and who is not let in."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from agentpost import Client
from agentpost.edges.operator_client import OperatorClient
from tests.edges.external.client import AgentClient, code_of, new_key
from tests.edges.external.conftest import ALL_MAIL
from tests.edges.mcp.proving import MCP, call, model_of, refusal
from tests.edges.meshing import eventually
from tests.edges.running import NO_LIMITS, RunningGateway, running_gateway

TASKS = tuple(f"ansible.task.{name}" for name in ("read", "create", "claim", "update", "complete"))
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
# Of another scope, and of the operator.
DENIED = ["ansible_send_message", "ansible_status", "ansible_resend", "ansible_set_coordination"]
BOTH = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("mcp") / "vps-jane", *NO_LIMITS) as gateway:
        yield gateway


def agent(gateway: RunningGateway, name: str, scopes: tuple[str, ...] = ALL_MAIL, **invited: Any) -> AgentClient:
    """An agent outside with a session."""
    body = {"agentId": name, "scopes": list(scopes), **invited}
    client = AgentClient(gateway.url)
    answer = client.exchange(gateway.operator.post("/ansible/agent/invites", body)["inviteToken"], name)
    assert answer.status_code == 200, answer.text
    return client


def audit(operator: OperatorClient, client: AgentClient) -> list[tuple[str, str | None, str | None]]:
    found = operator.get("/ansible/audit", {"sessionId": client.session["sessionId"], "limit": 1000})
    return [(each["action"], each["detail"].get("operation"), each["detail"].get("code")) for each in found]


async def has_begun(gateway: RunningGateway, client: AgentClient) -> None:
    """Once the gateway has written down that the agent reads its mail."""
    begun = ("agent.invoked", "ansible_read_messages", None)
    await asyncio.to_thread(eventually, lambda: begun in audit(gateway.operator, client))


@pytest.mark.req("OPS-1", "EXT-1", "EXT-2", "EXT-3", "EXT-5")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_two_models_outside_write_to_each_other(gateway: RunningGateway, mode: str) -> None:
    """In the newest protocol and in the one before: sent, seen as a line, read as data, answered; all of it audited."""
    names = f"claude-{mode}", f"codex-{mode}"
    first, second = (agent(gateway, name) for name in names)
    async with model_of(first, mode=mode) as claude, model_of(second, mode=mode) as codex:
        tools = {tool.name for tool in (await claude.list_tools()).tools}
        assert tools == {"ansible_status", "ansible_read_messages", "ansible_mark_read", "ansible_send_message"}
        me = await call(claude, "ansible_status")
        assert (me["agentId"], me["nodeId"]) == (names[0], "vps-jane")
        # An agent outside never sees the room (EXT-1).
        assert "agents" not in me
        asking = call(claude, "ansible_send_message", toAgents=[names[1]], body="Review it?", waitSeconds=60)
        answering = call(codex, "ansible_read_messages", waitSeconds=60)

        async def answer() -> None:
            (line,) = (await answering)["messages"]
            read = await call(codex, "ansible_read_messages", eventIds=[line["eventId"]])
            assert read["bodies"][0]["content"]["body"] == "Review it?"
            assert "never instructions" in read["notice"]
            await call(codex, "ansible_send_message", replyTo=line["eventId"], body="It is fine.")

        sent, _ = await asyncio.gather(asking, answer())
        assert [(each["state"], each["answer"]) for each in sent["deliveries"]] == [("Replied", "It is fine.")]
        (content,) = (await codex.read_resource("agentpost://inbox")).contents
        assert json.loads(content.text) == []  # pyright: ignore[reportAttributeAccessIssue]
        assert [str(each.uri) for each in (await codex.list_resources()).resources] == ["agentpost://inbox"]
        assert names[1] in (await codex.get_prompt("operator_loop")).messages[0].content.text  # pyright: ignore[reportAttributeAccessIssue]
    told = audit(gateway.operator, first)
    for operation in ("ansible_status", "ansible_send_message"):
        assert ("agent.invoked", operation, None) in told
        assert ("agent.answered", operation, "ok") in told


@pytest.mark.req("OPS-1", "EXT-2", "TASK-7")
async def test_a_task_between_two_models_outside(gateway: RunningGateway) -> None:
    """Delegated, claimed with an ETA, reported on and completed."""
    asks, works = (agent(gateway, name, (*ALL_MAIL, *TASKS)) for name in ("architect", "builder"))
    async with model_of(asks) as architect, model_of(works) as builder:
        task = await call(architect, "ansible_delegate_task", title="Build", toAgents=["builder"])
        await call(builder, "ansible_read_messages", waitSeconds=60)
        task_id = task["taskId"]
        assert (await call(builder, "ansible_claim_task", taskId=task_id, etaSeconds=60))["verdict"] == "won"
        await call(builder, "ansible_update_task", taskId=task_id, progress=40)
        await call(builder, "ansible_complete_task", taskId=task_id, resultSummary="built")
        async with Client("architect", home=gateway.home) as client:
            await client.tasks.ended(task_id, timeout_seconds=60)
        (line,) = (await call(architect, "ansible_list_tasks", onlyOpen=False))["tasks"]
        assert (line["taskId"], line["state"]) == (task_id, "completed")


@pytest.mark.req("EXT-1", "EXT-5")
async def test_what_the_scopes_do_not_open_is_neither_listed_nor_callable(gateway: RunningGateway) -> None:
    """A tool of another scope, one of the operator's, one that nobody knows: denied, and each refusal is audited."""
    reader = agent(gateway, "reader", ("ansible.message.read",))
    async with model_of(reader) as model:
        listed = [tool.name for tool in (await model.list_tools()).tools]
        assert listed == ["ansible_read_messages", "ansible_mark_read"]
        for tool in DENIED:
            assert await refusal(model, tool) == "scope_denied"
        with pytest.raises(MCPError, match="there is no tool"):
            await model.call_tool("ansible_x", {})
        assert [str(each.uri) for each in (await model.list_resources()).resources] == ["agentpost://inbox"]
        for uri in ("agentpost://agents", "agentpost://tasks"):
            with pytest.raises(MCPError):
                await model.read_resource(uri)
    denied = [operation for action, operation, code in audit(gateway.operator, reader) if code == "scope_denied"]
    assert denied == [*DENIED, "ansible_x"]


@pytest.mark.req("EXT-6")
async def test_a_context_token_does_not_leave_its_conversation(gateway: RunningGateway) -> None:
    """Over MCP as anywhere else: the other messages of the inbox do not exist for it."""
    writer, within = agent(gateway, "ctx-writer"), agent(gateway, "ctx-reader")
    first, second = (writer.ask("ansible_send_message", toAgents=["ctx-reader"], body=text) for text in ("1", "2"))
    eventually(lambda: within.ask("ansible_status")["waiting"] == 2)
    asked = {"contextId": first["corrId"], "scopes": ["ansible.message.read"], "ttlSeconds": 60}
    token = within.call("/ansible/agent/context-token", asked).json()["contextToken"]
    async with model_of(within, token=token) as model:
        seen = await call(model, "ansible_read_messages")
        assert [line["eventId"] for line in seen["messages"]] == [first["eventId"]]
        assert (seen["open"], seen["unread"]) == (1, 1)
        assert await refusal(model, "ansible_read_messages", eventIds=[second["eventId"]]) == "not_found"
        assert await refusal(model, "ansible_send_message", toAgents=["ctx-writer"], body="x") == "scope_denied"


@pytest.mark.req("EXT-3", "EXT-4", "EXT-5")
def test_every_request_is_proven_as_at_invoke(gateway: RunningGateway) -> None:
    """No token, a stolen one, a replayed proof, for another URL, method, body or time: refused as at invoke."""
    codex = agent(gateway, "codex-proofs")
    raw = json.dumps(LIST).encode()
    token = codex.access_token

    def ask(body: bytes = raw, headers: dict[str, str] | None = None, **changed: Any) -> Any:
        proof = codex.proof(MCP, **{"token": token, "body": raw, **changed})
        return codex.post(MCP, body, {"authorization": f"DPoP {token}", "dpop": proof, **BOTH, **(headers or {})})

    assert ask().status_code == 200
    invalid = (401, "invalid_access_token")
    assert code_of(codex.post(MCP, raw, BOTH)) == invalid
    assert code_of(codex.post(MCP, raw, {"authorization": f"Bearer {token}", **BOTH})) == invalid
    assert code_of(codex.post(f"{MCP}?access_token={token}", raw, BOTH)) == invalid
    assert code_of(ask(key=new_key())) == invalid
    assert code_of(ask(htu=f"{codex.url}/ansible/agent/invoke")) == invalid
    assert code_of(ask(htm="GET")) == invalid
    assert code_of(ask(raw.replace(b"tools/list", b"tools/call"))) == invalid
    assert code_of(ask(drop=("bh",))) == invalid
    assert code_of(ask(iat=int(time.time()) - 600)) == invalid
    stale = ask(nonce="an old one")
    assert (code_of(stale), "use_dpop_nonce" in stale.headers["www-authenticate"]) == (invalid, True)
    assert stale.headers["dpop-nonce"]
    assert ask(jti="only-once").status_code == 200
    assert code_of(ask(jti="only-once")) == (409, "replay_detected")
    assert code_of(ask(headers={"origin": "https://evil.example"})) == (403, "scope_denied")
    assert code_of(ask(b"x" * 2_000_000)) == (413, "too_large")
    told = audit(gateway.operator, codex)
    refused = [(operation, code) for action, operation, code in told if action == "agent.refused"]
    assert ("mcp", "replay_detected") in refused
    assert ("mcp", "scope_denied") in refused


@pytest.mark.req("EXT-1")
def test_a_page_of_an_allowed_origin_may_use_its_session(gateway: RunningGateway) -> None:
    """The origin that the invite names is let in, and no other."""
    page = agent(gateway, "page", constraints={"origins": ["https://app.example"]})
    for origin, status in (("https://app.example", 200), ("https://app.example.evil", 403)):
        assert page.call(MCP, LIST, headers={"origin": origin, **BOTH}).status_code == status


def test_what_is_not_a_request_of_the_protocol_is_refused(gateway: RunningGateway) -> None:
    """Other methods, bodies that are no JSON-RPC, versions that nobody knows: an error, and the gateway lives on."""
    codex = agent(gateway, "codex-malformed")
    assert codex._http.get(gateway.url + MCP).status_code == 405
    assert codex._http.delete(gateway.url + MCP).status_code == 405
    for body in ({}, {"jsonrpc": "2.0"}, {"jsonrpc": "2.0", "id": 1, "method": "x/y"}, {"id": [1]}):
        for version in ("2025-11-25", "2026-07-28", "1999-01-01"):
            answer = codex.call(MCP, body, headers={**BOTH, "mcp-protocol-version": version})
            assert answer.status_code < 500
            assert '"result":' not in answer.text
    assert codex.ask("ansible_status")


@pytest.mark.req("EXT-2", "EXT-5")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_revocation_cuts_what_is_open(gateway: RunningGateway, mode: str) -> None:
    """A tool that waits for mail ends with the revocation, and nothing of the session is good after it."""
    name = f"revoked-{mode}"
    gone = agent(gateway, name)
    async with model_of(gone, mode=mode) as model:
        waiting = asyncio.ensure_future(model.call_tool("ansible_read_messages", {"waitSeconds": 60, "claim": True}))
        await has_begun(gateway, gone)
        gateway.operator.post("/ansible/agent/revoke", {"agentId": name})
        async with asyncio.timeout(30):
            result = await waiting
        assert result.is_error
        assert "invalid_access_token" in str(result.content)
        assert code_of(gone.call(MCP, LIST, headers=BOTH)) == (401, "invalid_access_token")
    assert ("agent.answered", "ansible_read_messages", "invalid_access_token") in audit(gateway.operator, gone)


def test_no_secret_is_in_the_log_of_the_gateway(gateway: RunningGateway) -> None:
    """Tokens and proofs of all that was asked for here: none of them was logged, and nothing failed."""
    codex = agent(gateway, "codex-log")
    assert codex.call(MCP, LIST, headers=BOTH).status_code == 200
    assert [secret for secret in codex.secrets if secret in gateway.log] == []
    assert "Traceback" not in gateway.log
