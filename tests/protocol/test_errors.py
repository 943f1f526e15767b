"""The catalogue of refusals."""

import json

import pytest

from agentpost.protocol.errors import MEANINGS, Code, Refusal

# The codes that the rules name together with their status.
OF_A_RULE = {
    "ROUTE-4": {"invalid_targets": 400},
    "ROUTE-5": {"no_route": 400},
    "ROUTE-6": {"missing_route_fields": 400},
    "ROUTE-7": {"capability_unavailable": 409},
    "TASK-5": {"invalid_transition": 409},
    "AUTH-6": {
        "invalid_token": 401,
        "expired_token": 401,
        "node_mismatch": 403,
        "token_already_used": 409,
        "replay_detected": 409,
        "invalid_ticket": 401,
        "expired_ticket": 401,
        "ticket_already_used": 409,
        "node_proof_required": 401,
        "node_proof_invalid": 401,
        "rate_limited": 429,
    },
}
# What an external agent can be told.
OF_EXTERNAL_AGENTS = {
    "invalid_invite": 401,
    "expired_invite": 401,
    "invite_used": 409,
    "scope_denied": 403,
    "invalid_access_token": 401,
    "expired_access_token": 401,
    "invalid_refresh_token": 401,
    "replay_detected": 409,
    "rate_limited": 429,
}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param(code, status, marks=pytest.mark.req(rule), id=f"{rule} {code}")
        for rule, statuses in OF_A_RULE.items()
        for code, status in statuses.items()
    ],
)
def test_a_refusal_has_the_status_of_its_rule(code: str, status: int):
    """Where a rule names a refusal with its HTTP status, that is the status it has."""
    assert Refusal(Code(code), "no").status == status


@pytest.mark.parametrize(("code", "status"), OF_EXTERNAL_AGENTS.items())
def test_an_external_agent_is_told_the_protocols_status(code: str, status: int):
    """Each refusal of an external agent has the HTTP status that the protocol gives it."""
    assert Refusal(Code(code), "no").status == status


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_meaning(code: Code):
    """Each code has the status of an error and a sentence that says what to do about it."""
    meaning = MEANINGS[code]
    assert 400 <= meaning.status <= 599
    assert meaning.hint.endswith(".")
    assert meaning.hint[0].isupper()


def test_there_is_no_meaning_without_a_code():
    """The catalogue is complete in both directions, and every code is written as a wire name."""
    assert set(MEANINGS) == set(Code)
    assert all(code.value == code.name.lower() for code in Code)


def test_an_error_has_one_shape():
    """An error is an object with code, message and hint, and field and corrId where they are known."""
    bare = Refusal(Code.NO_ROUTE, "nobody can do that")
    hint = MEANINGS[Code.NO_ROUTE].hint
    assert bare.to_wire() == {"error": {"code": "no_route", "message": "nobody can do that", "hint": hint}}

    full = Refusal(Code.INVALID_FIELD, "seq must be 1 or more", field="seq", corr_id="corr_01K2H7Q4ZB9D6XW3T5N8RMVCGA")
    assert json.loads(json.dumps(full.to_wire())) == {
        "error": {
            "code": "invalid_field",
            "message": "seq must be 1 or more",
            "hint": MEANINGS[Code.INVALID_FIELD].hint,
            "field": "seq",
            "corrId": "corr_01K2H7Q4ZB9D6XW3T5N8RMVCGA",
        }
    }


def test_a_refusal_reads_as_its_message():
    """In a log a refusal is the sentence that says what is wrong."""
    assert str(Refusal(Code.NOT_FOUND, "there is no event evt_1")) == "there is no event evt_1"
