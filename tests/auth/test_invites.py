"""Invites: who may be asked in, for how long, and what is kept of it."""

from pathlib import Path

import pytest

from agentpost.auth.invites import MAX_TTL_SECONDS, hash_token
from agentpost.auth.signing import from_text
from agentpost.protocol.errors import Code
from agentpost.protocol.ids import InviteId, parse_id
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.home import Home
from agentpost.testing import START_MS
from tests.auth.building import NODE, SEED, Gateway, an_identity
from tests.store.building import refused


@pytest.mark.req("AUTH-2")
async def test_an_invite_says_who_may_join_as_what_and_until_when(gateway: Gateway) -> None:
    """It has a tier, a node, an end after 15 minutes and the name of whoever made it."""
    made = await gateway.invite(tier=NodeTier.BACKBONE, created_by="jane")
    stored = gateway.store.invite_by_hash(hash_token(made.token))
    assert stored is not None
    assert stored.invite_id == made.invite_id == parse_id(InviteId, made.invite_id, field="inviteId")
    assert (stored.tier, stored.expected_node_id, stored.created_by) == (NodeTier.BACKBONE, NODE, "jane")
    assert (stored.created_at_ms, stored.expires_at_ms) == (START_MS, START_MS + 15 * 60_000)
    assert (stored.consumed_at_ms, stored.revoked_at_ms) == (None, None)
    assert made.expires_at == format_ms(stored.expires_at_ms)


@pytest.mark.req("AUTH-2")
async def test_a_token_is_256_random_bits(gateway: Gateway) -> None:
    """Nobody guesses it, and no two are alike."""
    tokens = [(await gateway.invite()).token for _ in range(20)]
    assert all(token.startswith("agp_") for token in tokens)
    assert {len(from_text(token.removeprefix("agp_")) or b"") for token in tokens} == {32}
    assert len(set(tokens)) == 20


@pytest.mark.req("AUTH-2", "AUTH-9")
async def test_only_the_hash_of_a_token_is_stored(on_disk: Gateway, home: Path) -> None:
    """Who reads the database cannot join with what is there."""
    made = await on_disk.invite()
    await on_disk.store.close()
    database = Home(home).database.read_bytes()
    assert made.token.encode() not in database
    assert made.token.removeprefix("agp_").encode() not in database
    assert hash_token(made.token) in database


@pytest.mark.req("AUTH-2")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"node_id": ""}, "expectedNodeId"),
        ({"node_id": "a b"}, "expectedNodeId"),
        ({"node_id": "a\nb"}, "expectedNodeId"),
        ({"node_id": "x" * 65}, "expectedNodeId"),
        ({"node_id": SEED}, "expectedNodeId"),
        ({"node_id": "agp_looks-like-a-token"}, "expectedNodeId"),
        ({"ttl_seconds": 0}, "ttlSeconds"),
        ({"ttl_seconds": MAX_TTL_SECONDS + 1}, "ttlSeconds"),
        ({"public_key": "short"}, "publicKey"),
        ({"public_key": "=" * 43}, "publicKey"),
    ],
)
async def test_an_invite_that_makes_no_sense_is_not_made(gateway: Gateway, options: dict, field: str) -> None:
    """The refusal names the field, and nothing is stored."""
    with refused(Code.INVALID_FIELD) as caught:
        await gateway.invite(**options)
    assert caught.value.field == field
    assert gateway.store.invites() == []
    assert gateway.store.audit_log() == []


async def test_an_invite_may_live_for_a_day_and_name_a_key(gateway: Gateway) -> None:
    """The longest life is 24 hours; a key that is known beforehand is kept with the invite."""
    key = an_identity(1).signing_public
    made = await gateway.invite(ttl_seconds=MAX_TTL_SECONDS, public_key=key)
    stored = gateway.store.invite(made.invite_id)
    assert stored is not None
    assert (stored.public_key, stored.expires_at_ms) == (key, START_MS + 86_400_000)
