"""docs/external-agents.md says what the gateway does: its client works as it stands there, its tables are complete."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from agentpost.edges.runtimes import make_runtime
from agentpost.protocol.errors import MEANINGS, Code
from agentpost.testing import FakeClock
from tests.auth.external.granting import GRANTED, OPENED_BY
from tests.edges.external.conftest import Door, recorded_log
from tests.edges.running import served_gateway

PAGE = (Path(__file__).parents[3] / "docs/external-agents.md").read_text()


@pytest.mark.req("EXT-2", "EXT-3")
def test_the_client_of_the_page_works(tmp_path: Path) -> None:
    """Exchange, send, claim, settle, refresh, as it is printed, against a gateway that lives by the same clock."""
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    page = SimpleNamespace()
    exec(compile(code[1], "external-agents.md", "exec"), page.__dict__)  # noqa: S102 - it is our own text
    clock = FakeClock(now_ms=int(time.time() * 1000))
    with recorded_log() as log, served_gateway(tmp_path / "vps-jane", clock=clock, runtimes=make_runtime) as served:
        door = Door(served)
        codex, claude = (page.Agent(door.url, name, door.invite(name)) for name in ("codex", "claude"))
        codex.invoke("ansible_send_message", toAgents=["claude"], body="Are you there?")
        (message,) = claude.invoke("ansible_read_messages", claim=True, waitSeconds=60)["claimed"]
        assert message["content"]["body"] == "Are you there?"
        assert claude.invoke("ansible_mark_read", eventIds=[message["eventId"]], settle="processed")["settled"]
        before = codex.session["refreshToken"]
        codex.server_nonce = "an old one"
        codex.refresh()
        assert codex.session["refreshToken"] != before
        assert codex.invoke("ansible_status")["waiting"] == 0
        secrets = {each.session[name] for each in (codex, claude) for name in ("accessToken", "refreshToken")}
    assert not any(secret in log.getvalue() for secret in secrets)


def test_the_page_names_every_operation_scope_and_refusal() -> None:
    """What is served is in the tables, with the status that each code has."""
    rows = dict(re.findall(r"^\| `(ansible_\w+)` \| `(ansible\.[\w.]+)` \|", PAGE, re.MULTILINE))
    assert rows == OPENED_BY
    assert sorted(set(rows.values())) == sorted(GRANTED)
    for code in (
        Code.INVALID_INVITE,
        Code.EXPIRED_INVITE,
        Code.INVITE_USED,
        Code.SCOPE_DENIED,
        Code.INVALID_ACCESS_TOKEN,
        Code.EXPIRED_ACCESS_TOKEN,
        Code.INVALID_REFRESH_TOKEN,
        Code.REPLAY_DETECTED,
        Code.RATE_LIMITED,
    ):
        assert f"{MEANINGS[code].status} `{code.value}`" in PAGE


def test_every_attack_of_the_threat_model_is_a_test() -> None:
    """SECURITY.md names a test for each attack, and each of these is there."""
    root = Path(__file__).parents[3]
    model = (root / "SECURITY.md").read_text().partition("## Threat model")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", model))
    files = [*(root / "tests/edges/external").glob("*.py"), *(root / "tests/faults").glob("*.py")]
    there = {
        name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 20
    assert named - there == set()


def test_the_openapi_document_has_every_call(tmp_path: Path) -> None:
    """On the public port what agents call, on the operator's socket what the operator does."""
    with served_gateway(tmp_path / "vps-jane", clock=FakeClock(), runtimes=make_runtime) as served:
        public = httpx.get(f"{served.url}/ansible/openapi/openapi.json", timeout=60).json()["paths"]
        operators = served.operator.get("/ansible/openapi/openapi.json")["paths"]
    prefix = "/ansible/agent"
    assert {path for path in public if path.startswith(prefix)} == {
        f"{prefix}/{name}" for name in ("auth/exchange", "auth/refresh", "invoke", "context-token", "revoke")
    }
    assert {path for path in operators if path.startswith(f"{prefix}/")} == {
        f"{prefix}/{name}" for name in ("invites", "sessions", "revoke", "keys/rotate")
    }
    assert "/ansible/audit" in operators
    body = public[f"{prefix}/invoke"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["$ref"].endswith("InvokeRequest")
