"""The audit log has every decision, and no secret is in it, nor in anything that could be printed (AUTH-9)."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.pretty import pretty_repr

from agentpost.protocol.errors import Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.home import Home
from agentpost.testing import MemoryStore
from tests.auth.building import ADDRESS, NODE, ROOM, SEED, Gateway, Visitor, an_identity
from tests.store.building import open_sqlite


class Run:
    """A life of a gateway with all that can happen at its door: what was secret, and what could be seen of it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.secrets: set[str] = set()
        self.seen: list[str] = []

    def show(self, *values: Any) -> None:
        for value in values:
            self.seen += [repr(value), str(value), pretty_repr(value)]

    async def ask(self, visitor: Visitor, token: str | None = None, **changes: Any) -> str:
        request = visitor.request(token, **changes)
        self.secrets |= {request.nonce, token or request.nonce}
        if request.node_proof is not None:
            self.secrets |= {request.node_proof.challenge, request.node_proof.signature}
        self.show(request, request.node_proof)
        grant = await self.gateway.exchange(request)
        self.secrets.add(grant.ws_ticket)
        self.show(grant)
        return grant.ws_ticket

    async def refused(self, attempt: Any) -> None:
        with pytest.raises(Refusal) as caught:
            await attempt
        refusal = caught.value
        self.show(refusal, refusal.to_wire(), refusal.hint, refusal.__cause__, refusal.__context__)

    async def whole(self) -> None:
        gateway = self.gateway
        node, thief = Visitor(gateway), Visitor(gateway, identity=an_identity(2), nonces=1000)
        invite = await gateway.invite(tier=NodeTier.BACKBONE, public_key=node.identity.signing_public)
        self.secrets.add(invite.token)
        self.show(invite, gateway.joining, node.challenge())
        await self.refused(self.ask(node, "agp_" + "B" * 43))
        await self.refused(self.ask(thief, invite.token))
        await self.refused(self.ask(node, invite.token, node_proof=None))
        await self.refused(self.ask(node, invite.token, node_id=invite.token))
        await self.refused(self.ask(node, invite.token, requested_rooms=("x",)))
        ticket = await self.ask(node, invite.token)
        await self.refused(gateway.redeem(ticket, room="another"))
        await self.refused(gateway.redeem(ticket[:-4] + "AAAA"))
        self.show(await gateway.redeem(ticket))
        await self.refused(gateway.redeem(ticket))
        await self.refused(self.ask(node, invite.token))
        back = await self.ask(node)
        await self.refused(self.ask(node, nonce=f"nonce-{NODE}-{node.nonces}"))
        gateway.clock.advance(60_000)
        await self.refused(gateway.redeem(back))
        last = await self.ask(node)
        await gateway.joining.revoke(NODE)
        await self.refused(gateway.redeem(last))
        await self.refused(self.ask(node))
        keys = (node.identity, thief.identity, gateway.identity)
        self.show(*keys, gateway.store.known_nodes())
        log = gateway.store.audit_log(limit=10_000)
        self.show(*log, msgspec.json.encode(log).decode())

    @property
    def public_keys(self) -> set[str]:
        identities = (an_identity(1), an_identity(2), self.gateway.identity)
        return {key for one in identities for key in (one.signing_public, one.sealing_public)}


@pytest.mark.req("AUTH-9")
async def test_no_secret_can_be_seen_anywhere(on_disk: Gateway, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in what is printed, refused, logged, written to the audit log, or in the database file."""
    caplog.set_level(logging.DEBUG)
    run = Run(on_disk)
    await run.whole()
    await on_disk.store.close()
    assert len(run.secrets) > 20
    everything = "\n".join([*run.seen, caplog.text])
    on_the_disk = b"".join(path.read_bytes() for path in Home(home).path.iterdir() if path.is_file())
    for secret in run.secrets:
        assert secret not in everything
        assert secret.encode() not in on_the_disk


@pytest.mark.req("AUTH-9")
async def test_no_key_is_in_the_audit_log(gateway: Gateway) -> None:
    """Not even a public one."""
    run = Run(gateway)
    await run.whole()
    text = msgspec.json.encode(gateway.store.audit_log(limit=10_000)).decode()
    assert not [key for key in run.public_keys if key in text]


async def test_every_decision_is_written_down(gateway: Gateway) -> None:
    """Who was let in or turned away, why, from where, and in which session."""
    visitor = Visitor(gateway)
    invite = await gateway.invite(created_by="jane")
    with pytest.raises(Refusal):
        await visitor.ticket(invite.token, node_proof=None)
    grant = await gateway.exchange(visitor.request(invite.token))
    with pytest.raises(Refusal):
        await gateway.redeem("nonsense")
    await gateway.redeem(grant.ws_ticket)
    with pytest.raises(Refusal):
        await gateway.redeem(grant.ws_ticket)
    await gateway.joining.revoke(NODE, by="jane")
    log = gateway.store.audit_log()
    assert [(entry.action, entry.actor, entry.subject) for entry in log] == [
        ("invite.made", "jane", NODE),
        ("exchange.refused", "anonymous", NODE),
        ("exchange.granted", NODE, None),
        ("ticket.refused", "anonymous", None),
        ("ticket.redeemed", NODE, ROOM),
        ("ticket.refused", "anonymous", NODE),
        ("node.revoked", "jane", NODE),
    ]
    assert [entry.detail.get("code") for entry in log if entry.action.endswith("refused")] == [
        "node_proof_required",
        "invalid_ticket",
        "ticket_already_used",
    ]
    assert [entry.detail["address"] for entry in log[1:-1]] == [ADDRESS] * 5
    assert {entry.session_id for entry in log if entry.session_id} == {grant.session_id}
    assert {entry.detail["inviteId"] for entry in log if "inviteId" in entry.detail} == {invite.invite_id}


async def test_what_a_stranger_calls_himself_is_written_down_only_if_it_is_a_name(gateway: Gateway) -> None:
    """Somebody who mixes up the fields does not put his token into the log."""
    visitor = Visitor(gateway)
    token = (await gateway.invite()).token
    for wrong in (token, "a b", ""):
        with pytest.raises(Refusal):
            await visitor.ticket(token, node_id=wrong)
    assert [entry.subject for entry in gateway.store.audit_log()[1:]] == [None] * 3


async def test_both_stores_give_the_same_log(home: Path) -> None:
    """The same life leaves the same trace, in memory and on a disk."""
    memory, disk = MemoryStore(node_id=SEED, epoch="first"), open_sqlite(home, node_id=SEED)
    for store in (memory, disk):
        await Run(Gateway(store)).whole()
    assert memory.audit_log(limit=10_000) == disk.audit_log(limit=10_000)
    assert memory.known_nodes() == disk.known_nodes()
    assert memory.invites() == disk.invites()
    await disk.close()
