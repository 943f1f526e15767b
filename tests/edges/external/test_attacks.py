"""The attacks of the threat model (SECURITY.md) on tokens and proofs, over real HTTP, against a gateway at work."""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentpost.auth.external.ring import KeyRing
from tests.edges.external.client import (
    INVOKE,
    AgentClient,
    b64,
    code_of,
    jwk_of,
    new_key,
    sha,
    signed,
    signer,
)
from tests.edges.external.conftest import Door
from tests.edges.meshing import Stranger, eventually, invite

INVALID = (401, "invalid_access_token")
STATUS = {"operation": "ansible_status", "args": {}}


@pytest.fixture(scope="module")
def codex(gate: Door) -> AgentClient:
    return gate.agent("codex")


def parts_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = token.split(".")
    return json.loads(_decoded(header)), json.loads(_decoded(claims))


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


# Stolen tokens


@pytest.mark.req("EXT-3")
def test_a_stolen_access_token_is_useless_without_the_key(gate: Door) -> None:
    """Alone, as a bearer token, or with a proof by the thief's own key: refused, and the operator hears of it."""
    victim = gate.agent("victim")
    thief = gate.client()
    thief.nonce = victim.nonce
    body = json.dumps(STATUS).encode()
    for headers in (
        {},
        {"authorization": f"Bearer {victim.access_token}"},
        {"authorization": f"DPoP {victim.access_token}"},
        {"authorization": f"DPoP {victim.access_token}", "dpop": "nonsense"},
    ):
        assert code_of(thief.post(INVOKE, body, headers)) == INVALID
    assert code_of(thief.invoke("ansible_status", token=victim.access_token)) == INVALID
    incidents = gate.operator.get("/ansible/incidents")
    assert [i["kind"] for i in incidents if i["subject"] == victim.session["sessionId"]] == ["agent_token_stolen"]
    assert victim.ask("ansible_status")


@pytest.mark.req("EXT-3")
def test_a_stolen_refresh_token_is_useless_without_the_key(gate: Door) -> None:
    """Refused for the thief, and still good for its owner."""
    victim = gate.agent("victim")
    thief = gate.client()
    thief.nonce = victim.nonce
    assert code_of(thief.refresh(victim.refresh_token)) == (401, "invalid_refresh_token")
    assert victim.refresh().status_code == 200


@pytest.mark.req("EXT-2")
def test_a_thief_with_key_and_token_is_found_out_by_reuse(door: Door) -> None:
    """Whoever of the two refreshes second ends the session for both, and an incident tells the operator."""
    victim = door.agent("victim")
    thief = door.client(key=victim.key)
    thief.nonce, stolen = victim.nonce, victim.refresh_token
    assert thief.refresh(stolen).status_code == 200
    assert thief.ask("ansible_status")
    door.clock.advance(30_000)
    assert code_of(victim.refresh(stolen)) == (401, "invalid_refresh_token")
    assert code_of(thief.invoke("ansible_status")) == INVALID
    assert code_of(thief.refresh()) == (401, "invalid_refresh_token")
    (incident,) = door.operator.get("/ansible/incidents")
    assert (incident["kind"], incident["subject"]) == ("agent_token_stolen", victim.session["sessionId"])
    ended = [entry for entry in door.audit(sessionId=victim.session["sessionId"]) if entry["action"] == "agent.revoked"]
    assert [entry["detail"]["reason"] for entry in ended] == ["refresh token used twice"]


def next_token() -> str:
    return f"agp_refresh_{b64(secrets.token_bytes(32))}"


def refresh_for(client: AgentClient, token: str, following: str, **changed: Any) -> httpx.Response:
    """A refresh whose next token the client has chosen."""
    client.secrets |= {token, following}
    proof = {"bh": sha(following)} | changed
    return client.refresh(token, nextRefreshToken=following, proof=proof)


@pytest.mark.req("EXT-2")
def test_a_chosen_next_token_is_no_way_around_the_reuse(door: Door) -> None:
    """To ask again for the token that one has chosen gives nothing; any other second use ends the session."""
    victim = door.agent("victim")
    first, second = victim.refresh_token, next_token()
    assert refresh_for(victim, first, second).json()["refreshToken"] == second
    door.clock.advance(60_000)
    thief = door.client(key=victim.key)
    thief.nonce = victim.nonce
    asked_again = refresh_for(thief, first, second)
    assert code_of(asked_again) == (409, "conflict")
    assert "accessToken" not in asked_again.text
    # Whoever knows it can use it, once; who comes later with it, or with what came before, is found out.
    assert refresh_for(victim, second, next_token()).status_code == 200
    assert code_of(refresh_for(thief, first, second)) == (401, "invalid_refresh_token")
    assert code_of(victim.invoke("ansible_status")) == INVALID
    assert [each["kind"] for each in door.operator.get("/ansible/incidents")] == ["agent_token_stolen"]


@pytest.mark.req("EXT-2")
def test_an_old_token_with_another_next_one_ends_the_session(door: Door) -> None:
    """A thief with the key and an old token does not know what its owner has chosen."""
    victim = door.agent("victim")
    first = victim.refresh_token
    assert refresh_for(victim, first, next_token()).status_code == 200
    door.clock.advance(30_000)
    thief = door.client(key=victim.key)
    thief.nonce = victim.nonce
    assert code_of(refresh_for(thief, first, next_token())) == (401, "invalid_refresh_token")
    assert code_of(victim.invoke("ansible_status")) == INVALID


@pytest.mark.req("EXT-3")
def test_a_chosen_next_token_is_proven_and_in_its_form(gate: Door) -> None:
    """One that was put in on the way, that is another's, or that is not 32 bytes, is refused, and nothing is spent."""
    codex, other = gate.agent("codex"), gate.agent("other")
    token, mine = codex.refresh_token, next_token()
    assert code_of(refresh_for(codex, token, next_token(), bh=sha(mine))) == (401, "invalid_refresh_token")
    assert code_of(refresh_for(codex, token, mine, bh="")) == (401, "invalid_refresh_token")
    assert code_of(refresh_for(codex, token, other.refresh_token)) == (400, "invalid_field")
    for wrong in ("x" * 55, "agp_refresh_", mine + "x", f"{mine[:-1]} ", "agp_refresh_" + "é" * 43):
        assert code_of(refresh_for(codex, token, wrong)) == (400, "invalid_field")
    assert refresh_for(codex, token, mine).status_code == 200


# Proofs


@pytest.mark.req("EXT-4")
def test_a_recorded_request_cannot_be_sent_again(gate: Door, codex: AgentClient) -> None:
    """Byte for byte the same call is a replay; nothing is done twice."""
    body = json.dumps({"operation": "ansible_send_message", "args": {"toAgents": ["codex"], "body": "once"}}).encode()
    proof = codex.proof(INVOKE, token=codex.access_token, body=body)
    headers = {"authorization": f"DPoP {codex.access_token}", "dpop": proof}
    assert codex.post(INVOKE, body, headers).status_code == 200
    before = gate.operator.get("/operator/status")["outboxSeq"]
    for _ in range(3):
        assert code_of(codex.post(INVOKE, body, headers)) == (409, "replay_detected")
    # The acknowledgement of the one that was sent may have come meanwhile, another message not.
    sent = [line for line in codex.ask("ansible_read_messages", limit=100)["messages"] if line["kind"] == "message"]
    assert len(sent) == 1
    assert gate.operator.get("/operator/status")["outboxSeq"] - before <= 1


OTHER_URL = "http://127.0.0.1:1/ansible/agent/invoke"
WRONG: dict[str, dict[str, Any]] = {
    "another method": {"htm": "GET"},
    "a method in other letters": {"htm": "post"},
    "another host": {"htu": OTHER_URL},
    "another path": {"htu": "{url}/ansible/agent/context-token"},
    "a path that climbs": {"htu": "{url}/ansible/agent/x/../invoke"},
    "a user in the URL": {"htu": "http://user@{host}/ansible/agent/invoke"},
    "another scheme": {"htu": "ws://{host}/ansible/agent/invoke"},
    "no URL": {"htu": "/ansible/agent/invoke"},
    "another token": {"ath": sha("another")},
    "no token": {"drop": ("ath",)},
    "another body": {"bh": sha(b"{}")},
    "no body": {"drop": ("bh",)},
    "no id": {"drop": ("jti",)},
    "an empty id": {"jti": ""},
    "a number as id": {"jti": 7},
    "an id with a line break": {"jti": "one\ntwo"},
    "an id without end": {"jti": "x" * 201},
    "no time": {"drop": ("iat",)},
    "a time as text": {"iat": "now"},
    "long ago": {"iat": -121},
    "in the future": {"iat": 121},
    "a stale nonce": {"nonce": "AAAAAAAAAAAAAAAAAAAAAAAA"},
    "no nonce": {"drop": ("nonce",)},
}


@pytest.mark.req("EXT-3")
@pytest.mark.parametrize("what", list(WRONG))
def test_a_proof_for_something_else_is_refused(codex: AgentClient, what: str) -> None:
    """Another method, URL, token, body, time or nonce than those of the request."""
    changed = dict(WRONG[what])
    if isinstance(changed.get("htu"), str):
        changed["htu"] = changed["htu"].format(url=codex.url, host=codex.url.removeprefix("http://"))
    if isinstance(changed.get("iat"), int):
        changed["iat"] += int(codex.now())
    answer = codex.call(INVOKE, STATUS, **changed)
    assert code_of(answer) == INVALID
    error = "use_dpop_nonce" if "nonce" in what else "invalid_dpop_proof"
    assert answer.headers["www-authenticate"] == f'DPoP error="{error}", algs="EdDSA ES256"'
    assert answer.headers["dpop-nonce"]


@pytest.mark.req("EXT-3")
def test_the_url_of_a_proof_may_be_written_as_the_rfc_allows(codex: AgentClient) -> None:
    """Query and fragment do not count, nor do capital letters in the host, nor localhost for the loopback."""
    for htu in ("{url}/ansible/agent/invoke?x=1#y", "http://LOCALHOST:{port}/ansible/agent/invoke"):
        port = codex.url.rpartition(":")[2]
        assert codex.call(INVOKE, STATUS, htu=htu.format(url=codex.url, port=port)).status_code == 200


@pytest.mark.req("EXT-4")
def test_a_nonce_of_the_server_goes_stale(door: Door) -> None:
    """Proofs that somebody made in advance are good for minutes at most; the answer brings the nonce that is."""
    codex = door.agent()
    assert codex.ask("ansible_status")
    old = codex.nonce
    door.clock.advance(5 * 60_000)
    refused = codex.invoke("ansible_status", nonce=old)
    assert code_of(refused) == INVALID
    assert 'error="use_dpop_nonce"' in refused.headers["www-authenticate"]
    assert codex.invoke("ansible_status").status_code == 200


@pytest.mark.req("EXT-3")
def test_the_host_that_a_request_names_decides_nothing(codex: AgentClient) -> None:
    """A proof that was made for another server is not good here, even if the request says that this is that server."""
    for evil, refused in (("203.0.113.7", INVALID), ("evil.example", (400, "invalid_field"))):
        answer = codex.call(INVOKE, STATUS, headers={"host": evil}, htu=f"http://{evil}/ansible/agent/invoke")
        assert code_of(answer) == refused


def _hs256(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda message: hmac.digest(secret, message, hashlib.sha256)


def _forged_proofs(codex: AgentClient) -> dict[str, str]:
    """Proofs that would be good if one believed what they say of themselves."""
    body = json.dumps(STATUS).encode()
    jwk, private = jwk_of(codex.key), codex.key.private_bytes_raw()

    def proof(header: dict[str, Any], sign: Callable[[bytes], bytes] | None = None) -> str:
        claims = {
            "jti": "forged",
            "htm": "POST",
            "htu": codex.url + INVOKE,
            "iat": int(codex.now()),
            "ath": sha(codex.access_token),
            "bh": sha(body),
            "nonce": codex.nonce,
        }
        return signed({"typ": "dpop+jwt", "alg": "EdDSA", "jwk": jwk} | header, claims, sign or signer(codex.key))

    raw_public = codex.key.public_key().public_bytes_raw()
    other = new_key("ES256")
    nested = f"{b64(json.dumps({'typ': 'dpop+jwt', 'alg': 'EdDSA', 'jwk': jwk}).encode())}.{b64(b'[' * 2500)}"
    deep = f"{nested}.{b64(signer(codex.key)(nested.encode()))}"
    return {
        "no algorithm": proof({"alg": "none"}, lambda _: b""),
        "no algorithm in capitals": proof({"alg": "NONE"}, lambda _: b""),
        "no signature": proof({}).rpartition(".")[0] + ".",
        "two parts": proof({}).rpartition(".")[0],
        "HS256 with the public key": proof({"alg": "HS256"}, _hs256(raw_public)),
        "HS256 with the key as JSON": proof({"alg": "HS256"}, _hs256(json.dumps(jwk).encode())),
        "a symmetric key": proof({"alg": "HS256", "jwk": {"kty": "oct", "k": b64(b"k" * 32)}}, _hs256(b"k" * 32)),
        "ES256 with an Ed25519 key": proof({"alg": "ES256"}),
        "EdDSA with a P-256 key": proof({"jwk": jwk_of(other)}, signer(other)),
        "another key in the header": proof({"jwk": jwk_of(new_key())}),
        "a private key in the header": proof({"jwk": jwk | {"d": b64(private)}}),
        "a point that is not on the curve": proof(
            {"alg": "ES256", "jwk": {"kty": "EC", "crv": "P-256", "x": b64(b"\1" * 32), "y": b64(b"\2" * 32)}}
        ),
        "kid": proof({"kid": "../../keys/signing.pem"}),
        "jku": proof({"jku": "http://evil.example/keys.json"}),
        "x5u": proof({"x5u": "http://evil.example/cert.pem"}),
        "crit": proof({"crit": ["exp"]}),
        "b64": proof({"b64": False, "crit": ["b64"]}),
        "another type": proof({"typ": "at+jwt"}),
        "no type": proof({"typ": None}),
        "a key that is a list": proof({"jwk": [jwk]}),
        "an access token": codex.access_token,
        "a header that is a list": f"{b64(b'[]')}.{b64(b'{}')}.{b64(b'x')}",
        "a header that nests": f"{b64(b'[' * 2000)}.{b64(b'{}')}.{b64(b'x')}",
        "claims that nest": deep,
        "a header that nests an object": b64(b'{"a":' * 600) + ".e30.eA",
        "a header that is no text": f"{b64(bytes(range(128, 256)))}.{b64(b'{}')}.{b64(b'x')}",
        "nothing": "",
        "dots": "..",
        "too long": "x" * 5000,
    }


FORGERIES = [
    "no algorithm", "no algorithm in capitals", "no signature", "two parts", "HS256 with the public key",
    "HS256 with the key as JSON", "a symmetric key", "ES256 with an Ed25519 key", "EdDSA with a P-256 key",
    "another key in the header", "a private key in the header", "a point that is not on the curve", "kid", "jku", "x5u",
    "crit", "b64", "another type", "no type", "a key that is a list", "an access token", "a header that is a list",
    "a header that nests", "claims that nest", "a header that nests an object", "a header that is no text", "nothing",
    "dots", "too long",
]  # fmt: skip


@pytest.mark.req("EXT-3")
@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_proof_is_refused(codex: AgentClient, what: str) -> None:
    """alg=none, HS256 with the public key, keys and rules that a header brings along: none of it is believed."""
    body = json.dumps(STATUS).encode()
    headers = {"authorization": f"DPoP {codex.access_token}", "dpop": _forged_proofs(codex)[what]}
    assert code_of(codex.post(INVOKE, body, headers)) == INVALID


def test_every_forgery_is_tried(codex: AgentClient) -> None:
    """The list of names is the list of forgeries; and an honest proof of the same making is taken."""
    assert list(_forged_proofs(codex)) == FORGERIES
    assert codex.call(INVOKE, STATUS).status_code == 200


@pytest.mark.req("EXT-3")
def test_two_proofs_are_none(codex: AgentClient) -> None:
    """Nobody picks the one that he likes: a header that is there twice counts as missing."""
    body = json.dumps(STATUS).encode()
    good = [("authorization", f"DPoP {codex.access_token}"), ("content-type", "application/json")]
    for twice in (
        [*good, *(("dpop", codex.proof(INVOKE, token=codex.access_token, body=body)) for _ in range(2))],
        [*good, good[0], ("dpop", codex.proof(INVOKE, token=codex.access_token, body=body))],
    ):
        assert code_of(httpx.post(codex.url + INVOKE, content=body, headers=twice, timeout=60)) == INVALID


# Tokens


def _forged_tokens(gate: Door, codex: AgentClient) -> dict[str, str]:
    """Tokens that would be good if one believed what they say of themselves."""
    header, claims = parts_of(codex.access_token)
    own = new_key()
    gateway = gate.served.gateway
    ring = KeyRing(gateway.store, gateway.identity, clock=gate.clock)
    public = ring.find(header["kid"]).private.public_key().public_bytes_raw()

    def token(changed: dict[str, Any], sign: Callable[[bytes], bytes] = signer(own), **more: Any) -> str:  # noqa: B008
        return signed(header | changed, claims | more, sign)

    head, _, signature = codex.access_token.split(".")
    more_scope = b64(json.dumps(claims | {"scope": "ansible.admin.all"}).encode())
    return {
        "signed by another": token({}),
        "no algorithm": token({"alg": "none"}, lambda _: b""),
        "HS256 with the public key": token({"alg": "HS256"}, _hs256(public)),
        "its own key in the header": token({"jwk": jwk_of(own)}),
        "its own key by URL": token({"jku": "http://evil.example/keys.json"}),
        "a path as kid": token({"kid": "../../keys/signing.pem"}),
        "no kid": token({"kid": None}),
        "a list as kid": token({"kid": ["x"]}),
        "another kid": token({"kid": "AAAAAAAAAAAAAAAA"}),
        "crit": token({"crit": ["exp"]}),
        "more scopes, the old signature": f"{head}.{more_scope}.{signature}",
        "another type": token({"typ": "ansible-context+jwt"}),
        "signed with the node's own key": token({}, gateway.identity.signing.sign),
        "the refresh token": codex.refresh_token,
        "a proof": codex.proof(INVOKE),
        "half of it": codex.access_token[: len(codex.access_token) // 2],
        "too long": codex.access_token + "x" * 5000,
    }


TOKENS = [
    "signed by another", "no algorithm", "HS256 with the public key", "its own key in the header", "its own key by URL",
    "a path as kid", "no kid", "a list as kid", "another kid", "crit", "more scopes, the old signature", "another type",
    "signed with the node's own key", "the refresh token", "a proof", "half of it", "too long",
]  # fmt: skip


@pytest.mark.req("EXT-3")
@pytest.mark.parametrize("what", TOKENS)
def test_a_forged_token_is_refused(gate: Door, codex: AgentClient, what: str) -> None:
    """Whatever a token says of its own algorithm, key, type or scope, the gateway knows its own signature."""
    forged = _forged_tokens(gate, codex)
    assert list(forged) == TOKENS
    assert code_of(codex.call(INVOKE, STATUS, token=forged[what])) == INVALID


@pytest.mark.req("EXT-3", "AUTH-9")
def test_no_kind_of_token_passes_for_another(gate: Door, codex: AgentClient, tmp_path: Any) -> None:
    """A ticket opens no call, an access token no room, an invite no refresh, a refresh token no exchange."""
    stranger = Stranger("mbp-jane", tmp_path / "stranger", gate.url)
    node_invite = invite(gate.served)
    ticket = stranger.ticket(node_invite)
    gate.secrets |= {node_invite, ticket}
    assert code_of(codex.call(INVOKE, STATUS, token=ticket)) == INVALID
    assert stranger.knock(codex.access_token)[1]["error"]["code"] == "invalid_ticket"
    assert code_of(codex.exchange(codex.refresh_token)) == (401, "invalid_invite")
    assert code_of(codex.exchange(node_invite)) == (401, "invalid_invite")
    assert code_of(codex.refresh(gate.invite())) == (401, "invalid_refresh_token")
    assert code_of(codex.refresh(codex.access_token[:200])) == (401, "invalid_refresh_token")
    agent_invite = gate.invite()
    assert stranger.exchange(agent_invite).json()["error"]["code"] == "invalid_token"


# Scopes, and the mail of others


@pytest.mark.req("EXT-5")
@pytest.mark.parametrize(
    "operation",
    [
        "ansible_send_message", "ansible_status", "ansible_claim_task", "ansible_delegate_task", "ansible_resend",
        "ansible_dead_letters", "ansible_set_coordination", "ansible_capability_publish", "ansible_unheard_of",
        "", "__class__", "ansible_read_messages\n", "ANSIBLE_READ_MESSAGES",
    ],
)  # fmt: skip
def test_what_was_not_granted_is_denied(gate: Door, operation: str) -> None:
    """A session that may read does nothing else; an operation that nobody knows is nobody's."""
    reader = gate.agent("reader", scopes=("ansible.message.read",))
    assert code_of(reader.invoke(operation, {"toAgents": ["codex"], "body": "x"})) == (403, "scope_denied")
    assert reader.ask("ansible_read_messages")["messages"] == []


@pytest.mark.req("EXT-1", "EXT-5")
def test_the_inbox_of_another_agent_does_not_exist(gate: Door) -> None:
    """Neither by its event ids, nor by an argument that names another agent, nor in the sender's name of another."""
    mallory, alice, bob = gate.agent("mallory"), gate.agent("alice"), gate.agent("bob")
    sent = alice.ask("ansible_send_message", toAgents=["bob"], body="for bob alone")
    eventually(lambda: len(bob.ask("ansible_read_messages")["messages"]) == 1)
    event_id = sent["eventId"]
    for operation, args in (
        ("ansible_read_messages", {"eventIds": [event_id]}),
        ("ansible_mark_read", {"eventIds": [event_id]}),
        ("ansible_mark_read", {"eventIds": [event_id], "settle": "processed"}),
        ("ansible_send_message", {"replyTo": event_id, "body": "I am bob"}),
        ("ansible_status", {"eventId": event_id}),
    ):
        assert code_of(mallory.invoke(operation, args)) == (404, "not_found")
    for extra in ({"agentId": "bob"}, {"fromAgentId": "bob"}, {"sourceAgentId": "bob"}):
        assert code_of(mallory.invoke("ansible_read_messages", extra)) == (400, "invalid_field")
        refused = mallory.invoke("ansible_send_message", {"toAgents": ["alice"], "body": "x", **extra})
        assert code_of(refused) == (400, "invalid_field")
    assert mallory.ask("ansible_read_messages", onlyOpen=False)["messages"] == []
    assert mallory.ask("ansible_read_messages", claim=True)["claimed"] == []
    (line,) = bob.ask("ansible_read_messages")["messages"]
    assert (line["state"], line["fromAgentId"]) == ("queued", "alice")
