"""Invites: who may be asked in, for how long, and what is kept of it."""

from pathlib import Path
from typing import Any

import pytest

from agentpost.auth.invites import MAX_TTL_SECONDS, hash_token
from agentpost.auth.signing import from_text
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import InviteId, parse_id
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import format_ms
from agentpost.store.home import Home
from agentpost.testing import START_MS, MemoryStore
from tests.auth.building import ADDRESS, NODE, SEED, Gateway, Visitor, an_identity
from tests.store.building import refused

MACHINE = "mbp-jane.tail1234.ts.net"


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


async def test_an_invite_that_was_withdrawn_opens_nothing(either: Gateway) -> None:
    """Neither its token nor the ticket it was exchanged for; the audit log has it once."""
    visitor = Visitor(either)
    invite = await either.invite()
    ticket = await visitor.ticket(invite.token)
    for _ in range(2):
        await either.joining.withdraw(invite.invite_id, by="jane")
    with refused(Code.NODE_REVOKED):
        await either.redeem(ticket)
    with refused(Code.NODE_REVOKED):
        await visitor.ticket(invite.token)
    entries = [entry for entry in either.store.audit_log() if entry.action == "invite.withdrawn"]
    assert [(entry.actor, entry.subject, entry.detail) for entry in entries] == [
        ("jane", NODE, {"inviteId": invite.invite_id})
    ]
    await visitor.join()


async def test_only_an_open_invite_can_be_withdrawn(either: Gateway) -> None:
    """One that somebody joined with, or that was never made here, is told apart."""
    visitor = Visitor(either)
    invite = await either.invite()
    await either.redeem(await visitor.ticket(invite.token))
    with refused(Code.TOKEN_ALREADY_USED):
        await either.joining.withdraw(invite.invite_id)
    with refused(Code.NOT_FOUND):
        await either.joining.withdraw("inv_01JV3T7E6Q8M1W2R4D9K0N5P7H")


class Tailnet:
    """Who is where in a tailnet of the test's own; `None` means that nobody can be asked."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, int], str] | None = {}
        self.asked = 0

    async def whois(self, address: str, port: int) -> str | None:
        self.asked += 1
        if self.names is None:
            raise Refusal(Code.UNAVAILABLE, "tailscaled cannot be asked")
        return self.names.get((address, port))


@pytest.fixture
def tailnet() -> Tailnet:
    return Tailnet()


@pytest.fixture
def attesting(tailnet: Tailnet) -> Gateway:
    return Gateway(MemoryStore(node_id=SEED, epoch="first"), options={"whois": tailnet.whois})


@pytest.mark.req("AUTH-7")
async def test_an_invite_may_name_the_machine_that_has_to_come(attesting: Gateway, tailnet: Tailnet) -> None:
    """By the word of the tailnet for its address and port; the key is proven as always, and pinned."""
    visitor = Visitor(attesting)
    invite = await attesting.invite(tailnet_name=MACHINE)

    async def exchange(**changes: Any) -> str:
        request = visitor.request(invite.token, **changes)
        return (await attesting.joining.exchange(request, address=ADDRESS, port=40_001)).ws_ticket

    with refused(Code.NODE_PROOF_INVALID):
        await exchange()
    tailnet.names = {(ADDRESS, 40_001): f"x{MACHINE}", (ADDRESS, 40_002): MACHINE}
    with refused(Code.NODE_PROOF_INVALID):
        await exchange()
    tailnet.names = None
    with refused(Code.UNAVAILABLE):
        await exchange()
    tailnet.names = {(ADDRESS, 40_001): MACHINE}
    with refused(Code.NODE_PROOF_REQUIRED):
        await exchange(node_proof=None)
    entry = await attesting.redeem(await exchange())
    assert entry.signing_public == visitor.identity.signing_public
    asked = tailnet.asked
    await attesting.redeem(await visitor.ticket())
    assert tailnet.asked == asked


@pytest.mark.req("AUTH-7")
async def test_a_gateway_that_stopped_asking_the_tailnet_lets_nobody_in_by_it(
    attesting: Gateway, tailnet: Tailnet
) -> None:
    """An invite does not become weaker because a setting went away."""
    invite = await attesting.invite(tailnet_name=MACHINE)
    attesting.options = {}
    again = attesting.again(attesting.store)
    with refused(Code.UNAVAILABLE):
        await Visitor(again).ticket(invite.token)
    with refused(Code.INVALID_FIELD) as caught:
        await again.invite(tailnet_name=MACHINE)
    assert caught.value.field == "tailnet"


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize("name", ["", "mbp-jane", "MBP.ts.net", "mbp jane.ts.net", "mbp-jane.ts.net.", ".ts.net"])
async def test_a_machine_is_named_in_full(attesting: Gateway, name: str) -> None:
    """A short name may be another tailnet's, too."""
    with refused(Code.INVALID_FIELD) as caught:
        await attesting.invite(tailnet_name=name)
    assert caught.value.field == "tailnet"
    assert attesting.store.invites() == []
