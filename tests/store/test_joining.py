"""Invites and known nodes: what is used up together, refused together, and kept over a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import InviteId, UlidSource
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.interface import Store
from agentpost.store.values import Invite, KnownNode
from agentpost.testing import START_MS
from tests.store.building import NODE, PEER, open_sqlite, refused


def an_invite(number: int = 1, **fields: Any) -> Invite:
    settings: dict[str, Any] = {
        "invite_id": UlidSource().make(InviteId, now_ms=START_MS + number, entropy=bytes(10)),
        "token_hash": number.to_bytes(32, "big"),
        "tier": NodeTier.EDGE,
        "expected_node_id": PEER,
        "created_by": "operator",
        "created_at_ms": START_MS,
        "expires_at_ms": START_MS + 900_000,
    }
    return Invite(**settings | fields)


def a_node(key: str | None = "key-1", **fields: Any) -> KnownNode:
    settings: dict[str, Any] = {
        "node_id": PEER,
        "signing_public": key,
        "tier": NodeTier.EDGE,
        "admitted_by": NODE,
        "pinned_at_ms": START_MS + 5,
    }
    return KnownNode(**settings | fields)


@pytest.mark.req("AUTH-2")
async def test_an_invite_is_found_by_its_hash_and_by_its_id(store: Store) -> None:
    """It comes back as it was given; another hash or id finds nothing."""
    invite = an_invite(tier=NodeTier.BACKBONE, public_key="key-1")
    await store.create_invite(invite)
    assert store.invite_by_hash(invite.token_hash) == invite == store.invite(invite.invite_id)
    assert store.invite_by_hash(bytes(32)) is None
    assert store.invite(an_invite(2).invite_id) is None


async def test_invites_are_listed_from_the_newest(store: Store) -> None:
    """As many as one asks for."""
    made = [an_invite(number) for number in range(1, 6)]
    for invite in made:
        await store.create_invite(invite)
    assert store.invites() == made[::-1]
    assert store.invites(limit=2) == [made[4], made[3]]


@pytest.mark.req("AUTH-2")
async def test_an_invite_is_made_once(store: Store) -> None:
    """Neither its id nor its hash can be taken by another."""
    await store.create_invite(an_invite())
    for again in (an_invite(token_hash=bytes(32)), an_invite(2, token_hash=an_invite().token_hash)):
        with refused(Code.CONFLICT):
            await store.create_invite(again)
    assert store.invites() == [an_invite()]


@pytest.mark.req("AUTH-5", "AUTH-7")
async def test_using_an_invite_up_pins_the_node(store: Store) -> None:
    """Both are there at once."""
    await store.create_invite(an_invite())
    node = a_node(sealing_public="seal-1", invite_id=an_invite().invite_id)
    assert await store.consume_invite_and_pin(an_invite().invite_id, node) == node
    assert store.known_node(PEER) == node
    assert store.known_nodes() == [node]
    assert store.invite(an_invite().invite_id) == an_invite(consumed_at_ms=START_MS + 5, consumed_by=PEER)


@pytest.mark.req("AUTH-5")
async def test_of_many_who_use_one_invite_one_succeeds(store: Store) -> None:
    """And it is his key that is pinned."""
    await store.create_invite(an_invite())
    calls = [store.consume_invite_and_pin(an_invite().invite_id, a_node(f"key-{number}")) for number in range(64)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    winners = [result for result in results if isinstance(result, KnownNode)]
    assert store.known_nodes() == winners
    assert len(winners) == 1
    assert {result.code for result in results if isinstance(result, Refusal)} == {Code.TOKEN_ALREADY_USED}


@pytest.mark.req("AUTH-5", "AUTH-7")
@pytest.mark.parametrize(
    ("invite", "node", "code"),
    [
        (None, a_node(), Code.INVALID_TOKEN),
        (an_invite(expected_node_id="node-c"), a_node(), Code.NODE_MISMATCH),
        (an_invite(public_key="key-2"), a_node(), Code.NODE_PROOF_INVALID),
        (an_invite(public_key="key-2"), a_node(None), Code.NODE_PROOF_INVALID),
        (an_invite(consumed_at_ms=1, consumed_by=PEER), a_node(), Code.TOKEN_ALREADY_USED),
        (an_invite(revoked_at_ms=1), a_node(), Code.NODE_REVOKED),
    ],
)
async def test_an_invite_that_is_not_for_this_node_changes_nothing(
    store: Store, invite: Invite | None, node: KnownNode, code: Code
) -> None:
    """No key is pinned, and the invite is as it was."""
    if invite is not None:
        await store.create_invite(invite)
    with refused(code):
        await store.consume_invite_and_pin(an_invite().invite_id, node)
    assert store.known_nodes() == []
    assert store.invites() == ([] if invite is None else [invite])


@pytest.mark.req("AUTH-7")
async def test_a_pinned_key_is_never_replaced(store: Store) -> None:
    """Not by an invite, not by the word of others; and the invite stays open."""
    await store.pin_node(a_node("key-1"))
    await store.create_invite(an_invite())
    for key in ("key-2", None):
        with refused(Code.NODE_PROOF_INVALID):
            await store.consume_invite_and_pin(an_invite().invite_id, a_node(key))
        with refused(Code.NODE_PROOF_INVALID):
            await store.pin_node(a_node(key))
    assert store.known_nodes() == [a_node("key-1")]
    assert store.invites() == [an_invite()]


async def test_a_node_with_the_same_key_may_change_the_rest(store: Store) -> None:
    """Its tier and its sealing key; one that is left out stays."""
    await store.pin_node(a_node(sealing_public="seal-1"))
    changed = await store.pin_node(a_node(tier=NodeTier.BACKBONE, pinned_at_ms=START_MS + 9))
    assert changed == a_node(tier=NodeTier.BACKBONE, sealing_public="seal-1", pinned_at_ms=START_MS + 9)
    await store.pin_node(a_node(sealing_public="seal-2"))
    assert store.known_nodes() == [a_node(sealing_public="seal-2")]


async def test_a_node_without_a_key_may_get_one(store: Store) -> None:
    """Where there was none, none is lost."""
    await store.pin_node(a_node(None))
    await store.pin_node(a_node("key-1"))
    assert store.known_nodes() == [a_node("key-1")]


@pytest.mark.req("ROOM-6")
async def test_a_revocation_takes_the_open_invites_too(store: Store) -> None:
    """Those of this node, and no other; what was used before stays as it was."""
    used, open_one, other = an_invite(1), an_invite(2), an_invite(3, expected_node_id="node-c")
    for invite in (used, open_one, other):
        await store.create_invite(invite)
    node = await store.consume_invite_and_pin(used.invite_id, a_node())
    assert await store.revoke_node(PEER, at_ms=START_MS + 7) is True
    assert store.known_node(PEER) == replace(node, revoked_at_ms=START_MS + 7)
    assert [invite.revoked_at_ms for invite in store.invites()] == [None, START_MS + 7, None]
    assert await store.revoke_node(PEER, at_ms=START_MS + 8) is False
    assert store.known_node(PEER) == replace(node, revoked_at_ms=START_MS + 7)


@pytest.mark.req("ROOM-6")
async def test_who_has_only_an_invite_can_be_revoked(store: Store) -> None:
    """The invite goes; for a name that nobody has there is nothing to take."""
    await store.create_invite(an_invite())
    assert await store.revoke_node(PEER, at_ms=1) is True
    assert await store.revoke_node(PEER, at_ms=2) is False
    assert await store.revoke_node("nobody", at_ms=3) is False
    assert store.known_nodes() == []


async def test_an_open_invite_can_be_withdrawn_once(store: Store) -> None:
    """It joins nobody afterwards; one that is used up, withdrawn or not there is left as it is."""
    used, open_one = an_invite(1), an_invite(2, tailnet_name="mbp-jane.tail1234.ts.net")
    for invite in (used, open_one):
        await store.create_invite(invite)
    await store.consume_invite_and_pin(used.invite_id, a_node())
    assert await store.withdraw_invite(open_one.invite_id, at_ms=START_MS + 7) is True
    assert store.invite(open_one.invite_id) == replace(open_one, revoked_at_ms=START_MS + 7)
    with refused(Code.NODE_REVOKED):
        await store.consume_invite_and_pin(open_one.invite_id, a_node())
    for invite_id in (open_one.invite_id, used.invite_id, an_invite(3).invite_id):
        assert await store.withdraw_invite(invite_id, at_ms=START_MS + 8) is False
    assert [invite.revoked_at_ms for invite in store.invites()] == [START_MS + 7, None]


@pytest.mark.req("ROOM-6")
async def test_only_a_new_invite_brings_a_revoked_node_back(store: Store) -> None:
    """The word of others does not; the invite takes its new key."""
    await store.pin_node(a_node("key-1"))
    await store.revoke_node(PEER, at_ms=START_MS + 7)
    with refused(Code.NODE_REVOKED):
        await store.pin_node(a_node("key-1"))
    await store.create_invite(an_invite())
    await store.consume_invite_and_pin(an_invite().invite_id, a_node("key-2"))
    assert store.known_nodes() == [a_node("key-2")]


async def test_known_nodes_are_listed_by_name(store: Store) -> None:
    """Whatever the order they came in."""
    for node_id in ("c", "a", "b"):
        await store.pin_node(a_node(node_id=node_id))
    assert [node.node_id for node in store.known_nodes()] == ["a", "b", "c"]


@pytest.mark.req("AUTH-2", "AUTH-7")
async def test_invites_and_nodes_survive_a_restart(home: Path) -> None:
    """Used, open and withdrawn ones; pinned and revoked nodes."""
    store = open_sqlite(home)
    for number in (1, 2, 3):
        await store.create_invite(an_invite(number, expected_node_id=f"node-{number}", public_key="key-1"))
    await store.consume_invite_and_pin(an_invite(1).invite_id, a_node(node_id="node-1"))
    await store.pin_node(a_node(node_id="node-2"))
    await store.revoke_node("node-2", at_ms=9)
    before = (store.invites(), store.known_nodes())
    await store.close()
    store = open_sqlite(home)
    assert (store.invites(), store.known_nodes()) == before
    await store.close()


async def test_a_closed_store_refuses_everything(store: Store) -> None:
    """Reads and writes alike."""
    await store.close()
    for write in (
        lambda: store.create_invite(an_invite()),
        lambda: store.consume_invite_and_pin(an_invite().invite_id, a_node()),
        lambda: store.pin_node(a_node()),
        lambda: store.revoke_node(PEER, at_ms=1),
    ):
        with refused(Code.UNAVAILABLE):
            await write()
    for read in (store.known_nodes, store.invites, lambda: store.known_node(PEER)):
        with refused(Code.UNAVAILABLE):
            read()
