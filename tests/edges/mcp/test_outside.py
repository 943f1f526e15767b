"""A model on a machine without a gateway: `agent accept`, then `mcp --credentials`, with the official client."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters

from agentpost import Code, Refusal
from agentpost.edges.outside import OutsideClient
from tests.edges.mcp.proving import call, refusal
from tests.edges.running import NO_LIMITS, RunningGateway, agentpost, running_gateway

SCOPES = ["ansible.message.read", "ansible.message.send", "ansible.status.read"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("outside") / "vps-jane", *NO_LIMITS) as gateway:
        yield gateway


def invite(gateway: RunningGateway, agent: str) -> str:
    return gateway.operator.post("/ansible/agent/invites", {"agentId": agent, "scopes": SCOPES})["inviteToken"]


@asynccontextmanager
async def accepted(gateway: RunningGateway, agent: str, file: Path) -> AsyncIterator[OutsideClient]:
    token = invite(gateway, agent)
    async with await OutsideClient.accept(file, url=gateway.url, agent_id=agent, invite_token=token) as client:
        yield client


def accept(gateway: RunningGateway, agent: str, file: Path, token: str) -> "tuple[int, str]":
    words = ("--url", gateway.url, "--agent", agent, "--credentials", str(file), "--token", token)
    done = agentpost("agent", "accept", *words, "-o", "json")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.req("OPS-1", "EXT-2", "EXT-3")
async def test_a_model_without_a_gateway_beside_it(gateway: RunningGateway, tmp_path: Path) -> None:
    """An invite becomes a file that only its owner reads; from it the tools of the agent are served over stdio."""
    file = tmp_path / "codex.json"
    code, said = accept(gateway, "codex", file, invite(gateway, "codex"))
    assert (code, json.loads(said)["scopes"]) == (0, SCOPES)
    assert file.stat().st_mode & 0o777 == 0o600
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "agentpost", "mcp", "--credentials", str(file)], env={"HOME": str(tmp_path)}
    )
    async with (
        accepted(gateway, "claude", tmp_path / "claude.json") as claude,
        McpClient(command, read_timeout_seconds=60) as codex,
    ):
        tools = {tool.name for tool in (await codex.list_tools()).tools}
        assert tools == {"ansible_status", "ansible_read_messages", "ansible_mark_read", "ansible_send_message"}
        sent = await claude.call("ansible_send_message", {"toAgents": ["codex"], "body": "Are you there?"})
        (line,) = (await call(codex, "ansible_read_messages", waitSeconds=60))["messages"]
        assert line["eventId"] == sent["eventId"]
        assert (await call(codex, "ansible_send_message", replyTo=line["eventId"], body="Yes."))["settled"]
        assert await refusal(codex, "ansible_resend", eventId=line["eventId"]) == "scope_denied"


@pytest.mark.req("EXT-2")
async def test_tokens_are_renewed_once_for_all_who_share_a_file(gateway: RunningGateway, tmp_path: Path) -> None:
    """When the access token is void, calls go on; two clients of one file never spend a refresh token twice."""
    file = tmp_path / "shared.json"
    async with accepted(gateway, "shared", file) as one, OutsideClient(file) as other:
        before = json.loads(file.read_bytes())
        gateway.operator.post("/ansible/agent/keys/rotate", {"dropOthers": True})
        answers = await asyncio.gather(*(client.call("ansible_status", {}) for client in (one, other, one, other)))
        assert {answer["agentId"] for answer in answers} == {"shared"}
        after = json.loads(file.read_bytes())
        assert before["refreshToken"] != after["refreshToken"]
        found = gateway.operator.get("/ansible/audit", {"limit": 1000})
        assert [each["action"] for each in found if each["actor"] == "shared"].count("agent.refreshed") == 1
        assert before["privateKey"] not in repr(one._credentials)


async def test_a_session_that_is_over_says_so(gateway: RunningGateway, tmp_path: Path) -> None:
    """After a revocation calls are refused, and the hint says what to do."""
    async with accepted(gateway, "gone", tmp_path / "gone.json") as gone:
        gateway.operator.post("/ansible/agent/revoke", {"agentId": "gone"})
        with pytest.raises(Refusal) as refused:
            await gone.call("ansible_status", {})
        assert refused.value.code is Code.INVALID_REFRESH_TOKEN


class Died(BaseException):
    """The end of the process, as far as the client hears of it."""


def dies(*_: Any, **__: Any) -> None:
    raise Died


async def is_cut_off(http: httpx.AsyncClient, *words: Any, **more: Any) -> httpx.Response:
    """The gateway gets the call, and its answer gets lost."""
    await http.request("POST", *words, **more)
    raise httpx.ReadError("cut off")


@pytest.mark.req("EXT-2")
@pytest.mark.parametrize(
    ("where", "name", "instead", "problem"),
    [(OutsideClient, "_keep", dies, Died), (httpx.AsyncClient, "post", is_cut_off, Refusal)],
    ids=["dies", "cut off"],
)
async def test_an_answer_that_gets_lost_costs_no_invite(
    gateway: RunningGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    instead: Any,
    problem: type[BaseException],
) -> None:
    """Whoever dies between the exchange and its answer says the same again, and has the session that was opened."""
    agent, file = f"lost-{name.strip('_')}", tmp_path / "lost.json"
    token = invite(gateway, agent)
    with monkeypatch.context() as broken:
        broken.setattr(where, name, instead)
        with pytest.raises(problem) as lost:
            await OutsideClient.accept(file, url=gateway.url, agent_id=agent, invite_token=token)
    if isinstance(lost.value, Refusal):
        assert "say the same again" in str(lost.value.hint)
    assert len(gateway.operator.get("/ansible/agent/sessions", {"agentId": agent})) == 1
    assert accept(gateway, agent, tmp_path / "other.json", token)[0] == 1, "it is used up for everybody else"
    code, said = accept(gateway, agent, file, token)
    assert (code, json.loads(said)["scopes"]) == (0, SCOPES)
    async with OutsideClient(file) as client:
        assert (await client.call("ansible_status", {}))["agentId"] == agent
    (session,) = gateway.operator.get("/ansible/agent/sessions", {"agentId": agent})
    assert session["state"] == "live"


async def test_a_try_that_never_got_there_is_gone_on_with(gateway: RunningGateway, tmp_path: Path) -> None:
    """The file of a try that came to nothing is used again; one with a session, or of another agent, is not."""
    file = tmp_path / "begun.json"
    token = invite(gateway, "begun")
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(OutsideClient, "_post", dies)
        with pytest.raises(Died):
            await OutsideClient.accept(file, url=gateway.url, agent_id="begun", invite_token=token)
    assert accept(gateway, "another", file, token)[0] == 1
    assert accept(gateway, "begun", file, "agp_invite_wrong")[0] == 4
    assert accept(gateway, "begun", file, token)[0] == 0
    assert accept(gateway, "begun", file, invite(gateway, "begun"))[0] == 1


def test_what_cannot_be_accepted_leaves_nothing_behind(gateway: RunningGateway, tmp_path: Path) -> None:
    """A wrong token, a gateway that is not there, a file that exists: a sentence, and no file."""
    file = tmp_path / "new.json"
    code, said = accept(gateway, "codex", file, "agp_invite_wrong")
    assert (code, "invalid_invite" in said) == (4, True)
    done = agentpost(
        *("agent", "accept", "--url", "http://127.0.0.1:9", "--agent", "x", "--token", "x"), "--credentials", str(file)
    )
    assert (done.returncode, "does not answer" in done.stderr) == (3, True)
    assert list(tmp_path.iterdir()) == []
    code, said = accept(gateway, "codex", Path("/proc/agentpost/new.json"), "x")
    assert (code, "a file that you can write" in said) == (4, True)
    file.write_text("mine")
    assert accept(gateway, "codex", file, "x")[0] == 1
    assert file.read_text() == "mine"
    done = agentpost("mcp", "--credentials", str(tmp_path / "none.json"))
    assert (done.returncode, "agent accept" in done.stderr) == (1, True)
    done = agentpost("mcp")
    assert (done.returncode, "--credentials" in done.stderr) == (2, True)
