"""Invite and exchange: what is refused, in which order, and that nothing is used up by what is refused."""

import secrets
import threading
from copy import deepcopy
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentpost.protocol.errors import Code, Refusal
from tests.edges.external.client import EXCHANGE, b64, code_of, jwk_of, sha
from tests.edges.external.conftest import Door


@pytest.mark.req("EXT-2", "EXT-5")
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"ttlSeconds": 901}, Code.INVALID_FIELD),
        ({"ttlSeconds": 299}, Code.INVALID_FIELD),
        ({"scopes": []}, Code.INVALID_FIELD),
        ({"scopes": ["ansible.admin.nodes"]}, Code.SCOPE_DENIED),
        ({"scopes": ["ansible.message.read", "ansible.*"]}, Code.SCOPE_DENIED),
        ({"agentId": "../../etc/passwd"}, Code.INVALID_FIELD),
        ({"agentId": "all"}, Code.INVALID_FIELD),
        ({"agentId": ""}, Code.INVALID_FIELD),
        ({"constraints": {"origins": ["javascript:alert(1)"]}}, Code.INVALID_FIELD),
        ({"constraints": {"maxSessions": 0}}, Code.INVALID_FIELD),
        ({"surprise": True}, Code.INVALID_FIELD),
    ],
    ids=str,
)
def test_an_invite_that_makes_no_sense_is_refused(gate: Door, changed: dict[str, Any], code: Code) -> None:
    """Too long, too short, an unknown scope, one for administrators, a name that is none: and no agent is added."""
    before = gate.operator.get("/ansible/agents")
    body = {"agentId": "new-one", "scopes": ["ansible.message.read"], "ttlSeconds": 900} | changed
    with pytest.raises(Refusal) as refused:
        gate.operator.post("/ansible/agent/invites", body)
    assert refused.value.code is code
    assert gate.operator.get("/ansible/agents") == before


@pytest.mark.req("EXT-2")
def test_an_invite_is_good_for_one_exchange(gate: Door) -> None:
    """The second one is told that it was used, whoever asks."""
    token = gate.invite()
    assert gate.client().exchange(token).status_code == 200
    assert code_of(gate.client().exchange(token)) == (409, "invite_used")


@pytest.mark.req("EXT-2")
def test_a_client_may_choose_its_first_refresh_token(gate: Door) -> None:
    """It is the session's; one that is no such token, that the proof does not cover, or that was given is refused."""
    client, token, chosen = gate.client(), gate.invite(), f"agp_refresh_{b64(secrets.token_bytes(32))}"
    client.secrets.add(chosen)
    covered = {"bh": sha(chosen)}
    assert code_of(client.exchange(token, refreshToken="agp_refresh_1", proof=covered)) == (400, "invalid_field")
    assert code_of(client.exchange(token, refreshToken=chosen)) == (401, "invalid_invite")
    assert client.exchange(token, refreshToken=chosen, proof=covered).json()["refreshToken"] == chosen
    again = gate.invite()
    assert code_of(client.exchange(again, refreshToken=chosen, proof=covered)) == (400, "invalid_field")
    assert client.refresh(chosen).status_code == 200
    assert gate.client().exchange(again).status_code == 200, "what was refused used nothing up"


@pytest.mark.req("EXT-2")
def test_of_many_who_exchange_at_once_one_gets_the_session(gate: Door) -> None:
    """The invite is used up by the commit that opens the session."""
    token = gate.invite("racer")
    answers: list[int] = []
    clients = [gate.client() for _ in range(8)]
    threads = [
        threading.Thread(target=lambda client=client: answers.append(client.exchange(token, "racer").status_code))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == [200] + [409] * 7
    live = gate.operator.get("/ansible/agent/sessions", {"agentId": "racer"})
    assert len(live) == 1


@pytest.mark.req("EXT-2")
def test_the_checks_of_the_exchange_have_their_order(door: Door) -> None:
    """No such invite, used, expired, another agent, a nonce again, a bad proof: the first that is wrong is told."""
    bad_proof = {"clientProof": "nonsense"}
    client = door.client()
    assert code_of(client.exchange("agp_invite_unknown", **bad_proof)) == (401, "invalid_invite")
    used = door.invite()
    assert client.exchange(used, nonce="first").status_code == 200
    door.clock.advance(16 * 60_000)
    assert code_of(client.exchange(used, "another", **bad_proof)) == (409, "invite_used")
    expired = door.invite()
    door.clock.advance(16 * 60_000)
    assert code_of(client.exchange(expired, "another", **bad_proof)) == (401, "expired_invite")
    token = door.invite()
    assert code_of(client.exchange(token, "another", nonce="first", **bad_proof)) == (401, "invalid_invite")
    assert code_of(client.exchange(token, nonce="first", **bad_proof)) == (409, "replay_detected")
    refused = client.exchange(token, nonce="second", **bad_proof)
    assert code_of(refused) == (401, "invalid_invite")
    assert 'error="invalid_dpop_proof"' in refused.headers["www-authenticate"]
    # After all that the invite is still good.
    assert client.exchange(token, nonce="third").status_code == 200


OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"another key of thirty-two bytes.")
MISFITS: dict[str, dict[str, Any]] = {
    "another key": {"clientPubKey": jwk_of(OTHER_KEY)},
    "no key": {"clientPubKey": {}},
    "an RSA key": {"clientPubKey": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}},
    "a symmetric key": {"clientPubKey": {"kty": "oct", "k": "c2VjcmV0"}},
    "another nonce": {"proof": {"jti": "not-the-nonce"}},
    "another token": {"proof": {"ath": sha("another-token")}},
    "another method": {"proof": {"htm": "GET"}},
    "another URL": {"proof": {"htu": "http://evil.example/ansible/agent/auth/exchange"}},
    "no token": {"proof": {"drop": ("ath",)}},
    "another time": {"proof": {"iat": 1_000}},
    "signed by another key": {"proof": {"key": OTHER_KEY}},
}


@pytest.mark.req("EXT-3")
@pytest.mark.parametrize("what", list(MISFITS))
def test_a_proof_that_does_not_fit_opens_no_session(gate: Door, what: str) -> None:
    """Another key, token, nonce, URL, method or time: refused, and the invite stays good."""
    token = gate.invite("prover")
    client = gate.client()
    assert code_of(client.exchange(token, "prover", **deepcopy(MISFITS[what]))) == (401, "invalid_invite")
    assert client.exchange(token, "prover").status_code == 200


@pytest.mark.req("EXT-2")
def test_an_invite_can_limit_the_sessions_of_its_agent(gate: Door) -> None:
    """With two allowed the third is refused; once one has ended, the same invite opens it."""
    limit = {"constraints": {"maxSessions": 2}}
    first, _ = gate.agent("limited", **limit), gate.agent("limited", **limit)
    token = gate.invite("limited", **limit)
    third = gate.client()
    assert code_of(third.exchange(token, "limited")) == (403, "scope_denied")
    gate.operator.post("/ansible/agent/revoke", {"sessionId": first.session["sessionId"]})
    assert third.exchange(token, "limited").status_code == 200


@pytest.mark.req("EXT-4")
def test_a_nonce_counts_once_over_all_calls(gate: Door) -> None:
    """What a key has said in an exchange it cannot say again in a refresh or an invocation."""
    client = gate.client()
    assert client.exchange(gate.invite(), nonce="only-once").status_code == 200
    assert code_of(client.refresh(nonce="only-once")) == (409, "replay_detected")
    assert code_of(client.invoke("ansible_status", jti="only-once")) == (409, "replay_detected")
    assert client.invoke("ansible_status", jti="another").status_code == 200
    assert code_of(client.refresh(nonce="another")) == (409, "replay_detected")
    assert client.refresh().status_code == 200


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize("path", ["/ansible/agent/invites", "/ansible/agent/sessions", "/ansible/agent/keys/rotate"])
def test_what_is_the_operators_is_not_on_the_public_door(gate: Door, path: str) -> None:
    """Invites, sessions and keys are behind the socket in the home."""
    answer = gate.client().post(path, b'{"agentId": "codex", "scopes": ["ansible.message.read"]}')
    assert answer.status_code == 404


@pytest.mark.req("EXT-2")
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"inviteToken": 7}', b'"\\ud800"', b"\xff\xfe"])
def test_what_is_no_request_is_refused_with_a_sentence(gate: Door, body: bytes) -> None:
    """Not JSON, not an object, a wrong type, no text at all."""
    answer = gate.client().post(EXCHANGE, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
