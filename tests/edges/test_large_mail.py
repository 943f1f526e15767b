"""Content as large as it may be, through the operator's socket: what its owner says is taken, or refused in words."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentpost.delivery.content import encode_content
from agentpost.delivery.ports import Content
from agentpost.delivery.sealing import MAX_CONTENT_BYTES
from agentpost.edges.http.parameters import MAX_CONTENT_CALL_BYTES
from agentpost.store.home import Home
from tests.edges.mailing import Machine, three_machines
from tests.edges.meshing import PATIENCE_SECONDS, eventually
from tests.edges.running import RunningGateway, agentpost, running_gateway

_LARGE_BYTES = 20_000_000


def _sent(machine: Machine, to: str, body: str) -> str:
    """The id of a message that was piped into `agentpost send`."""
    words = ("send", "-", "--from", "architect", "--to", to, "--home", str(machine.home), "-o", "json")
    done = subprocess.run(
        [sys.executable, "-m", "agentpost", *words],
        input=body,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["eventId"]


@pytest.mark.req("PIPE-5")
def test_twenty_megabytes_go_from_one_machine_to_another(tmp_path: Path) -> None:
    """What is piped into `send` on one laptop is read on the other, every letter of it."""
    body = "All work and no play: \N{SNOWMAN}.\n" * (_LARGE_BYTES // 27)
    with three_machines(tmp_path) as (_, laptop, lab):
        lab.add_agent("archivist")
        eventually(lambda: laptop.knows("archivist"))
        event_id = _sent(laptop, "archivist", body)

        def arrived() -> list[dict[str, Any]]:
            return lab.post("/ansible/agents/archivist/fetch", {"limit": 1})

        found = list[dict[str, Any]]()
        eventually(lambda: bool(found.extend(arrived()) or found))
        assert found[0]["eventId"] == event_id
        assert found[0]["content"]["body"] == body


def _letters(count: int) -> str:
    return "\N{CYRILLIC SMALL LETTER ZHE}" * count


@pytest.mark.req("PIPE-5")
def test_content_is_taken_up_to_its_limit_however_json_spells_it(tmp_path: Path) -> None:
    """64 MiB whose every letter is escaped are sent; one letter more is refused, with the limit and what to do."""
    with running_gateway(tmp_path / "vps") as gateway:
        gateway.operator.post("/ansible/agents", {"agentId": "architect"})
        overhead = len(encode_content(Content(body=_letters(100_000)))) - 200_000
        most = (MAX_CONTENT_BYTES - overhead) // 2
        with _http(gateway) as http:
            taken = _post(http, _letters(most))
            refused = _post(http, _letters(most + 1))
        assert taken.status_code == 202
        assert refused.status_code == 413
        error = refused.json()["error"]
        assert error["code"] == "too_large"
        assert str(MAX_CONTENT_BYTES) in error["message"]
        assert error["hint"]
        path = f"/ansible/agents/architect/inbox/{taken.json()['eventId']}"
        eventually(lambda: bool(gateway.operator.get("/ansible/agents/architect/inbox")))
        assert gateway.operator.get(path)["content"]["body"] == _letters(most)


def test_an_answer_with_several_large_messages_is_bounded(tmp_path: Path) -> None:
    """Bodies, replies and subjects come up to a bound; what had no room is named, and is neither read nor taken."""
    megabytes = "x" * 5_000_000
    with running_gateway(tmp_path / "vps") as gateway:
        post = gateway.operator
        names = [f"worker-{number}" for number in range(3)]
        for name in ("architect", *names):
            post.post("/ansible/agents", {"agentId": name})
        asked = {"fromAgentId": "architect", "toAgents": names, "subject": megabytes, "context": {"data": megabytes}}
        event_id = post.post("/ansible/messages", asked)["eventId"]
        for name in names:
            eventually(lambda name=name: bool(post.get(f"/ansible/agents/{name}/inbox")))
            (line,) = post.get(f"/ansible/agents/{name}/inbox")
            assert len(line["subject"]) <= 1_000
            post.post(f"/ansible/agents/{name}/inbox/{event_id}/reply", {"body": megabytes, "context": megabytes})

        def answers() -> list[dict[str, Any]]:
            return post.get(f"/ansible/messages/{event_id}")["deliveries"]

        eventually(lambda: all(each["state"] == "Replied" for each in answers()))
        told = answers()
        assert [len(each.get("answer", "")) for each in told] == [5_000_000, 5_000_000, 0]
        assert [each.get("answerLeftOut", False) for each in told] == [False, False, True]
        shown = agentpost("show", event_id, "--home", str(gateway.home)).stdout
        assert told[-1]["answeredByEventId"] in shown

        def operation(**args: Any) -> dict[str, Any]:
            call = {"operation": "ansible_read_messages", "args": args}
            return post.post("/ansible/agents/architect/operations", call)["result"]

        replies = [each["answeredByEventId"] for each in told]
        found = operation(eventIds=replies, maxCharacters=100)
        assert [each["line"]["eventId"] for each in found["bodies"]] == replies[:2]
        assert replies[2] in found["next"]
        assert found["unread"] == 1
        claimed = operation(claim=True, limit=10)
        assert len(claimed["claimed"]) == 1
        assert "claim again" in claimed["next"]
        fetched = agentpost("fetch", "architect", "--limit", "10", "--home", str(gateway.home))
        assert "1 came" in fetched.stderr
        assert "agentpost fetch architect" in fetched.stderr


@pytest.mark.parametrize(
    ("path", "most_bytes"),
    [
        ("/ansible/messages", MAX_CONTENT_CALL_BYTES),
        ("/ansible/agents/architect/inbox/evt_1/reply", MAX_CONTENT_CALL_BYTES),
        ("/ansible/agents/architect/inbox/evt_1/settle", MAX_CONTENT_CALL_BYTES),
        ("/ansible/agents/architect/operations", MAX_CONTENT_CALL_BYTES),
        ("/ansible/tasks", MAX_CONTENT_CALL_BYTES),
        ("/ansible/tasks/tsk_1/complete", MAX_CONTENT_CALL_BYTES),
        ("/ansible/agents", 10_000_000),
        ("/operator/invites", 10_000_000),
    ],
)
def test_a_call_is_refused_by_its_length_before_it_is_read(gateway: RunningGateway, path: str, most_bytes: int) -> None:
    """Calls that say something may be long, all others may not; a longer one gets a code and a sentence at once."""
    assert _answer_to_length(gateway, path, most_bytes + 1) == (413, "too_large", f"a call has at most {most_bytes:,}")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_gateway(tmp_path_factory.mktemp("large") / "vps") as found:
        yield found


def _answer_to_length(gateway: RunningGateway, path: str, length: int) -> tuple[int, str, str]:
    """What a caller hears that announces so many bytes, and sends none of them."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(PATIENCE_SECONDS)
        caller.connect(str(Home(gateway.home).operator_socket))
        caller.sendall(head.encode())
        answer = b""
        while not answer.endswith(b"}"):
            answer += caller.recv(65_536)
    status, error = int(answer.split()[1]), json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return status, error["code"], error["message"].partition(" bytes")[0]


def _http(gateway: RunningGateway) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(Home(gateway.home).operator_socket))
    return httpx.Client(transport=transport, base_url="http://gateway", timeout=PATIENCE_SECONDS)


def _post(http: httpx.Client, body: str) -> httpx.Response:
    message = {"fromAgentId": "architect", "toAgents": ["architect"], "body": body}
    # As Python's own JSON has it: everything that is not ASCII is escaped.
    raw = json.dumps(message).encode()
    # httpx copies what is left of a piece with each write.
    pieces = (raw[at : at + 65_536] for at in range(0, len(raw), 65_536))
    return http.post("/ansible/messages", content=pieces, headers={"content-type": "application/json"})
