"""Admissions: one node's word for another, which nobody can alter or make up."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentpost.auth.admission import Admission, make_admission, verify_admission
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import KnownNode
from agentpost.testing import START_MS
from tests.auth.building import NODE, SEED, Gateway, Visitor, an_identity

SIGNER = an_identity(100)
KNOWN = KnownNode(
    node_id=NODE,
    signing_public=an_identity(1).signing_public,
    tier=NodeTier.EDGE,
    admitted_by=SEED,
    pinned_at_ms=START_MS,
)


def an_admission() -> Admission:
    admission = make_admission(SIGNER, KNOWN)
    assert admission is not None
    return admission


@pytest.mark.req("AUTH-7")
def test_an_admission_says_who_let_in_whom_with_which_key_as_what_and_when() -> None:
    """And everybody who knows the signer's key can check it, also after it travelled as JSON."""
    admission = an_admission()
    assert (admission.admitted_by, admission.node_id, admission.tier) == (SEED, NODE, NodeTier.EDGE)
    assert admission.signing_public == an_identity(1).signing_public
    assert admission.admitted_at == format_ms(START_MS)
    travelled = msgspec.json.decode(msgspec.json.encode(admission), type=Admission)
    assert verify_admission(travelled, signer_public=SIGNER.signing_public)
    assert an_admission() == admission


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize(
    "change",
    [
        {"admitted_by": "lab-jane"},
        {"node_id": "lab-jane"},
        {"signing_public": an_identity(2).signing_public},
        {"tier": NodeTier.BACKBONE},
        {"admitted_at": format_ms(START_MS + 1)},
        {"admitted_at": "yesterday"},
        {"signature": ""},
        {"signature": "A" * 86},
        {"admitted_by": f"{SEED}\n{NODE}", "node_id": an_identity(1).signing_public},
    ],
)
def test_an_altered_admission_does_not_verify(change: dict[str, Any]) -> None:
    """Not a word of it can be changed."""
    assert not verify_admission(replace(an_admission(), **change), signer_public=SIGNER.signing_public)


@pytest.mark.req("AUTH-7")
def test_the_word_of_another_does_not_verify() -> None:
    """The key must be that of the node that is named as the signer."""
    assert not verify_admission(an_admission(), signer_public=an_identity(2).signing_public)
    assert not verify_admission(an_admission(), signer_public="nonsense")


async def test_there_is_no_word_for_a_node_without_a_key() -> None:
    """Nothing was proven, so there is nothing to vouch for."""
    assert make_admission(SIGNER, replace(KNOWN, signing_public=None)) is None


async def test_a_gateway_speaks_only_for_nodes_that_it_let_in_itself(gateway: Gateway) -> None:
    """Of one that another gateway admitted it has the key, and no word of its own to give."""
    visitor = Visitor(gateway)
    await gateway.store.pin_node(replace(KNOWN, admitted_by="lab-jane"))
    assert gateway.joining.admission_of(NODE) is None
    grant = await gateway.exchange(visitor.request())
    assert grant.admission is None
    assert (await gateway.redeem(grant.ws_ticket)).admission is None
    assert gateway.joining.admission_of("nobody") is None
