"""What a gateway proves to a node that comes to it, and what an operator does about a node that lost its key."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.auth.challenge import is_granted_by
from agentpost.protocol.errors import Code
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import KnownNode
from agentpost.testing import MemoryStore
from tests.auth.building import NODE, Gateway, Visitor, an_identity
from tests.store.building import refused


@pytest.fixture
def gateway() -> Gateway:
    return Gateway(MemoryStore(node_id="vps-jane", epoch="one"))


@pytest.mark.req("AUTH-7", "ROOM-5")
async def test_a_grant_shows_who_gave_it(gateway: Gateway) -> None:
    """The gateway signs what it grants, for one node and one nonce; nothing of it can be changed or used again."""
    visitor = Visitor(gateway)
    request = visitor.request((await gateway.invite()).token)
    grant = await gateway.exchange(request)
    public = gateway.identity.signing_public
    asked = {"node_id": NODE, "nonce": request.nonce}
    assert is_granted_by(grant, public, **asked)
    assert not is_granted_by(grant, an_identity(7).signing_public, **asked)
    assert not is_granted_by(grant, public, node_id=NODE, nonce="another")
    assert not is_granted_by(grant, public, node_id="lab-jane", nonce=request.nonce)
    for changed in (
        replace(grant, ws_ticket="another"),
        replace(grant, root_public=an_identity(7).signing_public),
        replace(grant, root_node_id="lab-jane"),
        replace(grant, sealing_public=an_identity(7).sealing_public),
        replace(grant, server_proof=""),
    ):
        assert not is_granted_by(changed, public, **asked)


@pytest.mark.req("AUTH-7", "ROOM-5")
async def test_a_lost_key_is_replaced_by_an_explicit_act_only(gateway: Gateway) -> None:
    """An invite alone takes no other key and says how; with the operator's word it does, and the old key is out."""
    await Visitor(gateway).join()
    reborn = Visitor(gateway, identity=an_identity(2))
    with refused(Code.NODE_PROOF_INVALID) as caught:
        await reborn.join()
    assert "--replace-key" in (caught.value.hint or "")
    entry = await reborn.join(replace_key=True)
    assert entry.signing_public == reborn.identity.signing_public
    with refused(Code.NODE_PROOF_INVALID):
        await Visitor(gateway, nonces=100).ticket()
    actions = [entry.action for entry in gateway.store.audit_log()]
    assert "node.key_replaced" in actions
    with refused(Code.NOT_FOUND):
        await gateway.invite("nobody-jane", replace_key=True)


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize("wrong", [{"ttl_seconds": 0}, {"public_key": "no key"}, {"node_id": "vps-jane"}])
async def test_a_refused_invite_takes_no_key(wrong: dict[str, Any]) -> None:
    """A mistake in the request for a new key leaves the node, or the gateway itself, with the key that it has."""
    own = KnownNode(
        node_id="vps-jane",
        signing_public=an_identity(100).signing_public,
        tier=NodeTier.BACKBONE,
        admitted_by="vps-jane",
        pinned_at_ms=1,
    )
    store = MemoryStore(node_id="vps-jane", epoch="one")
    await store.pin_node(own)
    gateway = Gateway(store)
    await Visitor(gateway).join()
    with refused(Code.INVALID_FIELD):
        await gateway.invite(**{"replace_key": True, **wrong})
    assert [node.node_id for node in store.known_nodes() if node.revoked_at_ms is not None] == []
    assert "node.key_replaced" not in [entry.action for entry in store.audit_log()]
    await gateway.redeem(await Visitor(gateway, nonces=100).ticket())


@pytest.mark.req("AUTH-7", "ROOM-5")
async def test_a_node_that_joined_elsewhere_comes_with_its_key() -> None:
    """Who others vouch for needs no invite here, but its proof; and its key can be replaced here too."""
    visitor_key = an_identity(1).signing_public
    known = KnownNode(
        node_id=NODE, signing_public=visitor_key, tier=NodeTier.EDGE, admitted_by="hub-jane", pinned_at_ms=1
    )
    store = MemoryStore(node_id="vps-jane", epoch="one")
    options = {"find": lambda node_id: store.known_node(node_id) or (known if node_id == NODE else None)}
    gateway = Gateway(store, options=options)
    entry = await gateway.redeem(await Visitor(gateway).ticket())
    assert (entry.node_id, entry.first_join) == (NODE, False)
    assert store.known_node(NODE) is None
    with refused(Code.NODE_PROOF_INVALID):
        await Visitor(gateway, identity=an_identity(2), nonces=50).ticket()
    await Visitor(gateway, identity=an_identity(2), nonces=90).join(replace_key=True)
    with refused(Code.NODE_PROOF_INVALID):
        await Visitor(gateway, nonces=150).ticket()
