"""Who A2A clients find: nobody, until the operator says so; on the card what the agent has published."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver
from a2a.types import Message, Part, Role, SendMessageRequest
from a2a.utils.errors import InvalidParamsError
from typer.testing import CliRunner

from agentpost.edges.cli.app import make_app
from agentpost.protocol.errors import Code, Refusal
from tests.edges.a2a.peers import client_of, sent, session_of, words
from tests.edges.external.client import code_of
from tests.edges.running import RunningGateway, running_gateway
from tests.work.building import CAPABILITY, a_declaration, write_pair


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    home: Path = tmp_path_factory.mktemp("exposing") / "vps-jane"
    with running_gateway(home) as gateway:
        for agent_id in ("scribe", "quiet@one"):
            gateway.operator.post("/ansible/agents", {"agentId": agent_id})
        write_pair(home / "skills" / "scribe")
        gateway.operator.post("/ansible/capabilities", a_declaration())
        yield gateway


def run(gateway: RunningGateway, *words: str) -> Any:
    """What the command prints, in this process; or the code and the hint of its refusal."""
    done = CliRunner().invoke(make_app(), ["a2a", *words, "-o", "json", "--home", str(gateway.home)])
    if isinstance(done.exception, Refusal):
        return done.exception.code, done.exception.hint
    return json.loads(done.stdout)


def card_of(gateway: RunningGateway, place: str = "") -> httpx.Response:
    return httpx.get(f"{gateway.url}{place}/.well-known/agent-card.json", timeout=60)


@pytest.mark.req("EXT-5")
def test_nobody_is_found_until_the_operator_says_so(gateway: RunningGateway) -> None:
    """Expose, list and hide, as commands; the well-known card is that of the default, or of who came first."""
    assert run(gateway, "list") == []
    assert code_of(card_of(gateway)) == (404, "not_found")
    assert code_of(card_of(gateway, "/a2a/scribe")) == (404, "not_found")
    made = run(gateway, "expose", "scribe", "--description", "Writes notes.")
    assert made["cardUrl"] == f"{gateway.url}/a2a/scribe/.well-known/agent-card.json"
    assert (made["isDefault"], made["skills"]) == (True, [CAPABILITY])
    quiet = run(gateway, "expose", "quiet@one")
    assert "isDefault" not in quiet
    assert httpx.get(quiet["cardUrl"], timeout=60).json()["name"] == "quiet@one"
    assert card_of(gateway).json()["name"] == "scribe"
    run(gateway, "expose", "quiet@one", "--default")
    assert card_of(gateway).json()["name"] == "quiet@one"
    assert [each["agentId"] for each in run(gateway, "list")] == ["quiet@one", "scribe"]
    assert run(gateway, "hide", "quiet@one") == {"agentId": "quiet@one"}
    assert card_of(gateway).json()["name"] == "scribe"
    assert code_of(httpx.get(quiet["cardUrl"], timeout=60)) == (404, "not_found")
    text = CliRunner().invoke(make_app(), ["a2a", "list", "--home", str(gateway.home)])
    assert (text.exit_code, "scribe" in text.stdout) == (0, True)


def test_what_cannot_be_exposed_is_refused(gateway: RunningGateway) -> None:
    """An agent that there is not, a capability that it has not, and hiding who is not shown."""
    assert run(gateway, "expose", "nobody")[0] is Code.INVALID_TARGETS
    code, hint = run(gateway, "expose", "scribe", "--skill", "flying")
    assert (code, CAPABILITY in hint) == (Code.INVALID_FIELD, True)
    assert run(gateway, "hide", "nobody")[0] is Code.NOT_FOUND


async def test_the_card_says_how_to_call(gateway: RunningGateway) -> None:
    """Both bindings, what a caller has to have, and the capabilities as skills; it can be kept by its ETag."""
    gateway.operator.post("/ansible/a2a/agents", {"agentId": "scribe"})
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, f"{gateway.url}/a2a/scribe").get_agent_card()
        head = await http.head(f"{gateway.url}/a2a/scribe/.well-known/agent-card.json")
    interfaces = [(each.protocol_binding, each.protocol_version, each.url) for each in card.supported_interfaces]
    url = f"{gateway.url}/a2a/scribe"
    assert interfaces == [("JSONRPC", "1.0", url), ("HTTP+JSON", "1.0", url)]
    scheme = card.security_schemes["dpop"].http_auth_security_scheme
    assert (scheme.scheme, scheme.bearer_format) == ("DPoP", "JWT")
    assert "/ansible/agent/auth/exchange" in scheme.description
    assert list(card.security_requirements[0].schemes["dpop"].list) == ["ansible.task.create", "ansible.task.read"]
    assert (card.capabilities.streaming, card.capabilities.push_notifications) == (True, True)
    assert not card.capabilities.extended_agent_card
    assert [(skill.id, skill.name) for skill in card.skills] == [(CAPABILITY, "Summaries of documents")]
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"]


@pytest.mark.req("CAP-5")
async def test_a_skill_is_asked_for_with_its_contract(gateway: RunningGateway) -> None:
    """Data that the capability cannot begin with is refused; what fits is the input of the task."""
    gateway.operator.post("/ansible/a2a/agents", {"agentId": "scribe"})

    def asked(data: dict[str, Any]) -> SendMessageRequest:
        part = Part()
        part.data.struct_value.update(data)
        request = words(now=True, parts=[Part(text="Sum it up."), part])
        request.message.metadata["skillId"] = CAPABILITY
        return request

    async with client_of(session_of(gateway, "orbit"), "scribe", streaming=False) as client:
        with pytest.raises(InvalidParamsError):
            await sent(client, asked({"pages": 3}))
        task = await sent(client, asked({"document": "A long one."}))
    shown = gateway.operator.get(f"/ansible/tasks/{task.id}")
    assert shown["task"]["capabilityId"] == CAPABILITY
    assert shown["steps"][0]["content"]["context"] == {"document": "A long one."}
    assert [part.WhichOneof("content") for part in task.history[0].parts] == ["text", "data"]


async def test_a_message_comes_back_as_it_was_sent(gateway: RunningGateway) -> None:
    """Several parts, files and links, metadata and references: the agent gets all of it, and so does the history."""
    gateway.operator.post("/ansible/a2a/agents", {"agentId": "scribe"})
    message = Message(
        role=Role.ROLE_USER,
        message_id="rich",
        parts=[
            Part(text="One."),
            Part(text="Two."),
            Part(raw=b"\x00\x01", filename="bits"),
            Part(url="https://example.com/notes"),
        ],
        metadata={"thread": "7"},
        reference_task_ids=["an older one"],
    )
    request = words(now=True)
    request.message.CopyFrom(message)
    async with client_of(session_of(gateway, "orbit"), "scribe", streaming=False) as client:
        task = await sent(client, request)
    (said,) = task.history
    message.task_id, message.context_id = task.id, task.context_id
    assert said == message
    context = gateway.operator.get(f"/ansible/tasks/{task.id}")["steps"][0]["content"]["context"]
    assert [sorted(part) for part in context["a2a"]["parts"]] == [["text"], ["text"], ["filename", "raw"], ["url"]]
