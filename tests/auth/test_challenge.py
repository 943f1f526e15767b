"""Challenges and proofs: signed by the right one, for the right one, for a minute."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.auth.challenge import CHALLENGE_MS, Challenges, check_proof, make_proof
from agentpost.auth.invites import hash_token
from agentpost.auth.signing import sign, signed_by, to_text
from agentpost.protocol.errors import Code
from agentpost.testing import FakeClock, SeededChance
from tests.auth.building import NODE, SEED, an_identity
from tests.store.building import refused

HOLDER = an_identity(1)
INVITED_WITH = "agp_t"
BOUND: dict[str, Any] = {
    "node_id": NODE,
    "nonce": "n-1",
    "server_node_id": SEED,
    "token_hash": hash_token(INVITED_WITH),
}


def a_desk(clock: FakeClock, *, node_id: str = SEED, identity: int = 100) -> Challenges:
    return Challenges(node_id, an_identity(identity), clock=clock, chance=SeededChance(3))


@pytest.mark.req("AUTH-7")
def test_a_challenge_is_known_again_by_its_giver_even_after_a_restart() -> None:
    """It is kept nowhere: the gateway recognises its own signature."""
    clock = FakeClock()
    given = a_desk(clock).make(NODE)
    read = a_desk(clock).read(given.challenge, for_node_id=NODE)
    assert (read.by_node_id, read.for_node_id) == (SEED, NODE)
    assert given.node_id == SEED


@pytest.mark.req("AUTH-7")
def test_a_challenge_is_good_for_a_minute() -> None:
    """At its last millisecond it is, one later it is not."""
    clock = FakeClock()
    desk = a_desk(clock)
    given = desk.make(NODE)
    clock.advance(CHALLENGE_MS - 1)
    desk.read(given.challenge, for_node_id=NODE)
    clock.advance(1)
    with refused(Code.NODE_PROOF_INVALID):
        desk.read(given.challenge, for_node_id=NODE)


@pytest.mark.req("AUTH-7")
def test_a_clock_that_steps_back_does_not_prolong_a_challenge() -> None:
    """A small step does no harm; after a large one the challenge is not good any more."""
    clock = FakeClock()
    desk = a_desk(clock)
    given = desk.make(NODE)
    clock.step_back(50_000)
    desk.read(given.challenge, for_node_id=NODE)
    clock.step_back(3_600_000)
    with refused(Code.NODE_PROOF_INVALID):
        desk.read(given.challenge, for_node_id=NODE)


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize("text", ["", ".", "nonsense", "a.b", "é.b", "eyJ9." + "A" * 86, "\ud800"])
def test_a_challenge_that_nobody_gave_is_refused(text: str) -> None:
    """Whatever it looks like."""
    with refused(Code.NODE_PROOF_INVALID):
        a_desk(FakeClock()).read(text, for_node_id=NODE)


@pytest.mark.req("AUTH-7")
def test_a_challenge_of_another_gateway_or_for_another_node_is_refused() -> None:
    """It is bound to both."""
    clock = FakeClock()
    desk = a_desk(clock)
    with refused(Code.NODE_PROOF_INVALID):
        desk.read(a_desk(clock, identity=101).make(NODE).challenge, for_node_id=NODE)
    with refused(Code.NODE_PROOF_INVALID):
        desk.read(a_desk(clock, node_id="other").make(NODE).challenge, for_node_id=NODE)
    with refused(Code.NODE_PROOF_INVALID):
        desk.read(desk.make("lab-jane").challenge, for_node_id=NODE)


@pytest.mark.req("AUTH-7")
def test_an_altered_challenge_is_refused() -> None:
    """Its content is under the signature."""
    desk = a_desk(FakeClock())
    body, signature = desk.make("lab-jane").challenge.split(".")
    forged = to_text(b'{"id":"x","byNodeId":"vps-jane","forNodeId":"mbp-jane","expiresAtMs":9999999999999}')
    for text in (f"{forged}.{signature}", f"{body}.{signature[:-2]}AA", f"{body}.{signature}="):
        with refused(Code.NODE_PROOF_INVALID):
            desk.read(text, for_node_id=NODE)


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize(
    "change",
    [
        {"node_id": "lab-jane"},
        {"nonce": "n-2"},
        {"server_node_id": "other"},
        {"token_hash": None},
        {"token_hash": b"x"},
    ],
)
def test_a_proof_is_bound_to_all_that_it_was_made_for(change: dict[str, Any]) -> None:
    """With another node, nonce, server or invite the same signature proves nothing."""
    given = a_desk(FakeClock()).make(NODE)
    proof = make_proof(HOLDER, given, node_id=NODE, nonce="n-1", invite_token=INVITED_WITH)
    check_proof(proof, **BOUND)
    with refused(Code.NODE_PROOF_INVALID):
        check_proof(proof, **BOUND | change)


@pytest.mark.req("AUTH-7")
def test_the_keys_in_a_proof_cannot_be_exchanged_on_the_way() -> None:
    """Neither the key that signs nor the one that content is sealed for."""
    given = a_desk(FakeClock()).make(NODE)
    proof = make_proof(HOLDER, given, node_id=NODE, nonce="n-1", invite_token=INVITED_WITH)
    other = an_identity(2)
    for change in (
        {"signing_public": other.signing_public},
        {"sealing_public": other.sealing_public},
        {"sealing_public": None},
        {"sealing_public": "not a key"},
        {"signature": ""},
        {"signature": "é"},
        {"challenge": given.challenge + "x"},
    ):
        with refused(Code.NODE_PROOF_INVALID):
            check_proof(replace(proof, **change), **BOUND)


def test_a_signature_is_good_for_one_purpose() -> None:
    """What was signed as one thing does not pass for another, however the message is cut."""
    signature = sign(HOLDER.signing, "one", b"two\nthree")
    assert signed_by(HOLDER.signing_public, "one", b"two\nthree", signature)
    assert not signed_by(HOLDER.signing_public, "two", b"two\nthree", signature)
    assert not signed_by(an_identity(2).signing_public, "one", b"two\nthree", signature)
