"""Redeeming: a ticket opens one connection, and the first one uses the invite up and pins the key."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agentpost.auth.wire import Entry
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.testing import START_MS
from tests.auth.building import ADDRESS, NODE, ROOM, SEED, Gateway, Visitor, an_identity
from tests.store.building import open_sqlite, refused

ROUNDS = 10 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
CONNECTIONS = 50
DAY_MS = 86_400_000


async def outcomes(gateway: Gateway, tickets: list[str]) -> tuple[list[Entry], list[Code]]:
    """What comes of connections that bring these tickets at the same moment."""
    results = await asyncio.gather(*(gateway.redeem(ticket) for ticket in tickets), return_exceptions=True)
    entries = [result for result in results if isinstance(result, Entry)]
    codes = [result.code for result in results if isinstance(result, Refusal)]
    assert len(entries) + len(codes) == len(tickets), results
    return entries, codes


@pytest.mark.req("AUTH-5", "AUTH-7")
async def test_the_first_redeem_uses_the_invite_up_and_pins_the_key(either: Gateway) -> None:
    """From then on the node is known, with its keys, its tier, and who let it in."""
    visitor = Visitor(either)
    invite = await either.invite(tier=NodeTier.BACKBONE)
    ticket = await visitor.ticket(invite.token)
    stored = either.store.invite(invite.invite_id)
    assert stored is not None
    assert stored.consumed_at_ms is None
    entry = await either.redeem(ticket)
    stored = either.store.invite(invite.invite_id)
    assert stored is not None
    assert (stored.consumed_at_ms, stored.consumed_by) == (START_MS, NODE)
    node = either.store.known_node(NODE)
    assert node is not None
    assert (node.signing_public, node.sealing_public) == (
        visitor.identity.signing_public,
        visitor.identity.sealing_public,
    )
    assert (node.tier, node.admitted_by, node.invite_id) == (NodeTier.BACKBONE, SEED, invite.invite_id)
    assert (entry.node_id, entry.rooms, entry.first_join) == (NODE, (ROOM,), True)


@pytest.mark.req("AUTH-6")
async def test_a_ticket_opens_one_connection(either: Gateway) -> None:
    """The second time it is used up, for a new node and for a known one."""
    visitor = Visitor(either)
    invite = await either.invite()
    for token in (invite.token, None):
        ticket = await visitor.ticket(token)
        await either.redeem(ticket)
        with refused(Code.TICKET_ALREADY_USED):
            await either.redeem(ticket)


@pytest.mark.req("AUTH-5")
async def test_of_two_tickets_for_one_invite_the_second_comes_too_late(either: Gateway) -> None:
    """An invite joins once, however many tickets were given for it."""
    visitor = Visitor(either)
    invite = await either.invite()
    first, second = await visitor.ticket(invite.token), await visitor.ticket(invite.token)
    await either.redeem(second)
    with refused(Code.TOKEN_ALREADY_USED):
        await either.redeem(first)
    with refused(Code.TOKEN_ALREADY_USED):
        await visitor.ticket(invite.token)


@pytest.mark.req("AUTH-5")
async def test_a_refused_connection_leaves_invite_and_ticket_as_they_are(gateway: Gateway, visitor: Visitor) -> None:
    """Whoever asks for the wrong room may ask for the right one."""
    invite = await gateway.invite()
    ticket = await visitor.ticket(invite.token)
    with refused(Code.ROOM_DENIED):
        await gateway.redeem(ticket, room="another-room")
    await gateway.redeem(ticket)


@pytest.mark.req("AUTH-6", "AUTH-8")
async def test_of_50_connections_with_one_ticket_exactly_one_opens(either: Gateway) -> None:
    """In every round, for a new node and for a known one."""
    for number in range(ROUNDS):
        visitor = Visitor(either, node_id=f"node-{number}", identity=an_identity(number))
        invite = await either.invite(visitor.node_id)
        for token in (invite.token, None):
            ticket = await visitor.ticket(token)
            entries, codes = await outcomes(either, [ticket] * CONNECTIONS)
            assert len(entries) == 1
            assert set(codes) == {Code.TICKET_ALREADY_USED}


@pytest.mark.req("AUTH-5")
async def test_of_50_tickets_for_one_invite_exactly_one_opens(either: Gateway) -> None:
    """The invite is used up once, by whichever comes first."""
    for number in range(max(1, ROUNDS // 5)):
        visitor = Visitor(either, node_id=f"node-{number}", identity=an_identity(number))
        invite = await either.invite(visitor.node_id)
        entries, codes = await outcomes(either, [await visitor.ticket(invite.token) for _ in range(CONNECTIONS)])
        assert len(entries) == 1
        assert set(codes) == {Code.TOKEN_ALREADY_USED}


@pytest.mark.req("AUTH-7")
async def test_two_invites_for_one_new_node_do_not_pin_two_keys(either: Gateway) -> None:
    """Both got their tickets while the node was unknown; the first key stays, and the other is refused."""
    one, other = Visitor(either), Visitor(either, identity=an_identity(2), nonces=100)
    tickets = [
        await one.ticket((await either.invite()).token),
        await other.ticket((await either.invite()).token),
    ]
    entries, codes = await outcomes(either, tickets)
    assert codes == [Code.NODE_PROOF_INVALID]
    node = either.store.known_node(NODE)
    assert node is not None
    assert node.signing_public == entries[0].signing_public
    assert [invite.consumed_by for invite in either.store.invites()].count(NODE) == 1


@pytest.mark.req("AUTH-8")
async def test_what_was_used_stays_used_after_a_restart(home: Path) -> None:
    """Ticket, nonce and challenge; and what was not used yet is still good."""
    store = open_sqlite(home, node_id=SEED)
    gateway = Gateway(store)
    visitor = Visitor(gateway)
    await visitor.join()
    request, unused = visitor.request(), visitor.request()
    used = (await gateway.exchange(request)).ws_ticket
    fresh = await visitor.ticket()
    await gateway.redeem(used)
    await store.close()

    store = open_sqlite(home, node_id=SEED)
    gateway = gateway.again(store)
    with refused(Code.TICKET_ALREADY_USED):
        await gateway.redeem(used)
    with refused(Code.REPLAY_DETECTED):
        await gateway.exchange(request)
    await gateway.redeem(fresh)
    await gateway.redeem((await gateway.exchange(unused)).ws_ticket)
    await store.close()


@pytest.mark.req("AUTH-8")
async def test_a_clock_that_ran_ahead_does_not_revive_a_used_ticket(either: Gateway) -> None:
    """Even if the guard was cleaned up while the clock was hours ahead."""
    visitor = Visitor(either)
    await visitor.join()
    request = visitor.request()
    ticket = (await either.exchange(request)).ws_ticket
    await either.redeem(ticket)
    either.clock.advance(DAY_MS // 2)
    await either.redeem(await visitor.ticket())
    either.clock.step_back(DAY_MS // 2)
    with refused(Code.TICKET_ALREADY_USED):
        await either.redeem(ticket)
    with refused(Code.REPLAY_DETECTED):
        await either.exchange(request)


@pytest.mark.req("ROOM-6")
async def test_a_revocation_voids_tickets_that_are_out(either: Gateway) -> None:
    """Of a known node, of one that was about to join, and a used one; the right room or not."""
    visitor, newcomer = Visitor(either), Visitor(either, node_id="lab-jane", identity=an_identity(2))
    invite = await either.invite()
    used = await visitor.ticket(invite.token)
    await either.redeem(used)
    known = await visitor.ticket()
    joining = await newcomer.ticket((await either.invite("lab-jane")).token)
    await either.joining.revoke(NODE)
    await either.joining.revoke("lab-jane")
    for ticket in (used, known, joining):
        with refused(Code.NODE_REVOKED):
            await either.redeem(ticket, room="another-room")
        with refused(Code.NODE_REVOKED):
            await either.redeem(ticket)
    assert either.store.known_node("lab-jane") is None


@pytest.mark.req("ROOM-6")
async def test_a_ticket_from_before_a_revocation_stays_void_when_the_node_has_a_new_key(
    gateway: Gateway, visitor: Visitor
) -> None:
    """Letting a node in again does not bring back what was taken."""
    await visitor.join()
    old = await visitor.ticket()
    await gateway.joining.revoke(NODE)
    await Visitor(gateway, identity=an_identity(2), nonces=100).join()
    with refused(Code.INVALID_TICKET):
        await gateway.redeem(old)


@pytest.mark.req("ROOM-6")
@pytest.mark.parametrize(
    ("meanwhile", "log"),
    [
        ("remember_once", ["ticket.refused"]),
        ("record_audit", ["ticket.redeemed", "ticket.refused"]),
    ],
)
async def test_a_revocation_during_a_redeem_wins(
    either: Gateway, monkeypatch: pytest.MonkeyPatch, meanwhile: str, log: list[str]
) -> None:
    """Whenever it comes in between, nobody is let in after it, and the log says so."""
    visitor = Visitor(either)
    await visitor.join()
    ticket = await visitor.ticket()
    before = len(either.store.audit_log())
    write = getattr(either.store, meanwhile)

    async def write_and_revoke(*values: Any, **named: Any) -> Any:
        answer = await write(*values, **named)
        await either.store.revoke_node(NODE, at_ms=START_MS)
        return answer

    monkeypatch.setattr(either.store, meanwhile, write_and_revoke)
    with refused(Code.NODE_REVOKED):
        await either.redeem(ticket)
    assert [entry.action for entry in either.store.audit_log(after_id=before)] == log


async def test_a_node_may_change_the_key_that_content_is_sealed_for(gateway: Gateway, visitor: Visitor) -> None:
    """It signs the new one with the key it is pinned to."""
    await visitor.join()
    visitor.identity.sealing = an_identity(9).sealing
    entry = await gateway.redeem(await visitor.ticket())
    assert entry.sealing_public == an_identity(9).sealing_public
    node = gateway.store.known_node(NODE)
    assert node is not None
    assert node.sealing_public == an_identity(9).sealing_public


async def test_an_invite_for_a_known_node_changes_its_tier(gateway: Gateway, visitor: Visitor) -> None:
    """With its own key, of course."""
    assert (await visitor.join(tier=NodeTier.EDGE)).tier is NodeTier.EDGE
    assert (await visitor.join(tier=NodeTier.BACKBONE)).tier is NodeTier.BACKBONE
    assert (await gateway.redeem(await visitor.ticket())).tier is NodeTier.BACKBONE


@pytest.mark.req("ROOM-6")
async def test_a_node_is_revoked_once_and_an_unknown_one_not_at_all(gateway: Gateway, visitor: Visitor) -> None:
    """Again is no harm; a name that nobody has is told to the operator."""
    await visitor.join()
    await gateway.joining.revoke(NODE, by="jane")
    await gateway.joining.revoke(NODE, by="jane")
    with refused(Code.NOT_FOUND):
        await gateway.joining.revoke("nobody")
    with refused(Code.INVALID_FIELD):
        await gateway.joining.revoke("no body")
    entries = [entry for entry in gateway.store.audit_log() if entry.action == "node.revoked"]
    assert [(entry.actor, entry.subject) for entry in entries] == [("jane", NODE)]


async def test_nothing_is_granted_that_cannot_be_written_down(gateway: Gateway, visitor: Visitor) -> None:
    """When the store is gone so is the door."""
    request = visitor.request((await gateway.invite()).token)
    await gateway.store.close()
    with refused(Code.UNAVAILABLE):
        await gateway.exchange(request)
    with refused(Code.UNAVAILABLE):
        await gateway.joining.invite(tier=NodeTier.EDGE, expected_node_id=NODE)
    with refused(Code.UNAVAILABLE):
        await gateway.joining.redeem("", address=ADDRESS)
