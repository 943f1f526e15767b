"""Every operation called with every scope, through the door: what the table does not open is refused."""

from typing import Any

import pytest

from tests.auth.external.granting import GRANTED, OPENED_BY
from tests.edges.external.client import code_of
from tests.edges.external.conftest import Door

ARGS: dict[str, dict[str, Any]] = {
    "ansible_mark_read": {"eventIds": ["evt_01JV3Q9A1V7M4R3N8E2W0D6Y5T"]},
    "ansible_send_message": {"toAgents": ["nobody"], "body": "hello"},
    "ansible_delegate_task": {"title": "Build", "toAgents": ["nobody"]},
    "ansible_claim_task": {"taskId": "tsk_nothing", "etaSeconds": 60},
    "ansible_update_task": {"taskId": "tsk_nothing"},
    "ansible_complete_task": {"taskId": "tsk_nothing", "resultSummary": "done"},
    "ansible_fail_task": {"taskId": "tsk_nothing", "errorSummary": "no"},
}


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("scope", GRANTED)
def test_a_session_calls_what_its_scope_opens_and_nothing_else(gate: Door, scope: str) -> None:
    """A session with one scope calls all operations: those of its scope are carried out, the others are refused."""
    agent = "agent-with-" + scope.rpartition("ansible.")[2].replace(".", "-")
    session = gate.agent(agent, scopes=(scope,))
    opened: list[str] = []
    for operation in OPENED_BY:
        answer = session.invoke(operation, ARGS.get(operation, {}))
        if answer.status_code != 403:
            opened.append(operation)
        else:
            assert code_of(answer) == (403, "scope_denied")
    assert sorted(opened) == sorted(name for name, needed in OPENED_BY.items() if needed == scope)
