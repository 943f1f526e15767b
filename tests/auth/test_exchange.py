"""The exchange: what is granted, what is refused with which code, and in which order things are looked at."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from agentpost.auth.wire import CONTROL_ROOM, LINK_ROOM, ExchangeRequest
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import SessionId, parse_id
from agentpost.protocol.snapshot import NodeTier
from agentpost.protocol.timestamps import parse_ms
from agentpost.testing import START_MS, MemoryStore
from tests.auth.building import NODE, ROOM, SEED, Gateway, Visitor, an_identity
from tests.store.building import refused

HOUR_MS = 3_600_000


@pytest.mark.req("AUTH-3")
async def test_an_invite_is_exchanged_for_a_ticket(gateway: Gateway, visitor: Visitor) -> None:
    """The answer has the ticket, its end within 30 to 60 s, the rooms, a session, and who answered."""
    invite = await gateway.invite()
    grant = await gateway.exchange(visitor.request(invite.token))
    assert 30_000 <= parse_ms(grant.expires_at) - START_MS <= 60_000
    assert grant.rooms == (ROOM,)
    assert parse_id(SessionId, grant.session_id, field="sessionId") == grant.session_id
    assert (grant.node_id, grant.signing_public) == (SEED, gateway.identity.signing_public)
    assert grant.sealing_public == gateway.identity.sealing_public


@pytest.mark.req("AUTH-7")
async def test_a_grant_names_the_root_of_the_mesh(gateway: Gateway, visitor: Visitor) -> None:
    """A gateway that joined no mesh is the root of its own."""
    invite = await gateway.invite()
    grant = await gateway.exchange(visitor.request(invite.token))
    assert (grant.root_node_id, grant.root_public) == (SEED, gateway.identity.signing_public)


@pytest.mark.req("ROOM-1")
@pytest.mark.parametrize("version", [None, "1.1", "3.0", "x"])
async def test_an_older_gateway_is_told_what_to_do(gateway: Gateway, visitor: Visitor, version: str | None) -> None:
    """One that speaks another version of the room gets no ticket, and the invite stays open."""
    invite = await gateway.invite()
    with refused(Code.INVALID_FIELD) as caught:
        await gateway.exchange(visitor.request(invite.token, protocol_version=version))
    assert "this mesh speaks 2." in caught.value.message
    assert "pip install -U agentpost" in (caught.value.hint or "")
    stored = gateway.store.invite(invite.invite_id)
    assert stored is not None
    assert stored.consumed_at_ms is None


@pytest.mark.req("AUTH-5")
async def test_an_exchange_uses_nothing_up(gateway: Gateway, visitor: Visitor) -> None:
    """The invite is still open and no key is pinned."""
    invite = await gateway.invite()
    for _ in range(3):
        await gateway.exchange(visitor.request(invite.token))
    stored = gateway.store.invite(invite.invite_id)
    assert stored is not None
    assert stored.consumed_at_ms is None
    assert gateway.store.known_nodes() == []


class Violation(NamedTuple):
    """A way to break one rule: what happens beforehand, how the request differs, and the code for it."""

    name: str
    code: Code
    prepare: Callable[["Scene"], Any] | None = None
    change: Callable[["Scene", ExchangeRequest], ExchangeRequest] | None = None


class Scene:
    """A gateway, an invite and a node. What a violation needs of time is done last, on the whole scene."""

    def __init__(self) -> None:
        self.gateway = Gateway(MemoryStore(node_id=SEED, epoch="first"))
        self.visitor = Visitor(self.gateway)
        self.late_ms = 0
        self.nonce = "the-nonce"
        self.token = ""

    async def refusal(self, violations: tuple[Violation, ...]) -> Code:
        self.token = (await self.gateway.invite()).token
        for violation in violations:
            if violation.prepare is not None:
                await violation.prepare(self)
        self.gateway.clock.advance(self.late_ms)
        request = self.visitor.request(self.token, nonce=self.nonce)
        for violation in violations:
            if violation.change is not None:
                request = violation.change(self, request)
        with pytest.raises(Refusal) as caught:
            await self.gateway.exchange(request)
        return caught.value.code


async def _use_the_invite(scene: Scene) -> None:
    await scene.gateway.redeem(await scene.visitor.ticket(scene.token))


async def _come_late(scene: Scene) -> None:
    scene.late_ms = HOUR_MS


async def _use_the_nonce(scene: Scene) -> None:
    await scene.gateway.exchange(scene.visitor.request(scene.token, nonce=scene.nonce))


async def _revoke(scene: Scene) -> None:
    await scene.gateway.joining.revoke(NODE)


def _unknown_token(_: Scene, request: ExchangeRequest) -> ExchangeRequest:
    return replace(request, invite_token="agp_" + "A" * 43)


def _other_node(_: Scene, request: ExchangeRequest) -> ExchangeRequest:
    return replace(request, node_id="lab-jane")


def _no_proof(_: Scene, request: ExchangeRequest) -> ExchangeRequest:
    return replace(request, node_proof=None)


def _bad_proof(_: Scene, request: ExchangeRequest) -> ExchangeRequest:
    proof = request.node_proof
    return request if proof is None else replace(request, node_proof=replace(proof, signature="A" * 86))


def _other_room(_: Scene, request: ExchangeRequest) -> ExchangeRequest:
    return replace(request, requested_rooms=("another-room",))


# In the order of AUTH-5. Any two of them can be wrong with the same request.
IN_ORDER = [
    Violation("unknown token", Code.INVALID_TOKEN, change=_unknown_token),
    Violation("used invite", Code.TOKEN_ALREADY_USED, prepare=_use_the_invite),
    Violation("expired invite", Code.EXPIRED_TOKEN, prepare=_come_late),
    Violation("another node", Code.NODE_MISMATCH, change=_other_node),
    Violation("used nonce", Code.REPLAY_DETECTED, prepare=_use_the_nonce),
    Violation("no proof", Code.NODE_PROOF_REQUIRED, change=_no_proof),
    Violation("bad proof", Code.NODE_PROOF_INVALID, change=_bad_proof),
    Violation("withdrawn invite", Code.NODE_REVOKED, prepare=_revoke),
    Violation("another room", Code.ROOM_DENIED, change=_other_room),
]
PAIRS = list(itertools.combinations(IN_ORDER, 2))


@pytest.mark.req("AUTH-5", "AUTH-6", "AUTH-7")
@pytest.mark.parametrize("violation", IN_ORDER, ids=lambda violation: violation.name)
async def test_every_broken_rule_has_its_code(violation: Violation) -> None:
    """A request with one thing wrong is told which."""
    assert await Scene().refusal((violation,)) is violation.code


@pytest.mark.req("AUTH-5")
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].name} and {pair[1].name}")
async def test_of_two_broken_rules_the_earlier_is_told(pair: tuple[Violation, Violation]) -> None:
    """The order of the checks is fixed, whichever way the request is wrong."""
    # A nonce is used before an invite is used up or withdrawn: afterwards it would not get so far.
    happenings = sorted(pair, key=lambda violation: violation.prepare is not _use_the_nonce)
    assert await Scene().refusal(tuple(happenings)) is pair[0].code


@pytest.mark.req("AUTH-5")
async def test_an_invite_expires_at_its_millisecond(gateway: Gateway, visitor: Visitor) -> None:
    """Until then it works; from then on it does not."""
    invite = await gateway.invite(ttl_seconds=60)
    gateway.clock.advance(59_999)
    await visitor.ticket(invite.token)
    gateway.clock.advance(1)
    with refused(Code.EXPIRED_TOKEN):
        await visitor.ticket(invite.token)


@pytest.mark.req("AUTH-5")
async def test_a_clock_that_steps_back_does_not_prolong_an_invite(gateway: Gateway, visitor: Visitor) -> None:
    """A step of seconds is nothing; after a step of hours a new invite is needed."""
    invite = await gateway.invite()
    gateway.clock.step_back(30_000)
    await visitor.ticket(invite.token)
    gateway.clock.step_back(HOUR_MS)
    with refused(Code.EXPIRED_TOKEN):
        await visitor.ticket(invite.token)


@pytest.mark.req("AUTH-7")
async def test_a_key_that_was_registered_with_the_invite_must_match(gateway: Gateway, visitor: Visitor) -> None:
    """Whoever got hold of the token first does not win."""
    invite = await gateway.invite(public_key=visitor.identity.signing_public)
    thief = Visitor(gateway, identity=an_identity(2), nonces=100)
    with refused(Code.NODE_PROOF_INVALID):
        await thief.ticket(invite.token)
    entry = await gateway.redeem(await visitor.ticket(invite.token))
    assert entry.signing_public == visitor.identity.signing_public


@pytest.mark.req("AUTH-7")
async def test_a_known_node_comes_back_with_its_key_alone(gateway: Gateway, visitor: Visitor) -> None:
    """No invite is needed."""
    await visitor.join(tier=NodeTier.BACKBONE)
    gateway.clock.advance(HOUR_MS)
    grant = await gateway.exchange(visitor.request())
    entry = await gateway.redeem(grant.ws_ticket)
    assert (entry.node_id, entry.tier, entry.first_join) == (NODE, NodeTier.BACKBONE, False)


@pytest.mark.req("AUTH-8")
async def test_nodes_may_choose_the_same_nonce(gateway: Gateway, visitor: Visitor) -> None:
    """A nonce is one node's, and one invite's: that another has used it keeps nobody out."""
    other = Visitor(gateway, node_id="lab-jane", identity=an_identity(3))
    for each in (visitor, other):
        invite = await gateway.invite(each.node_id)
        await gateway.redeem(await each.ticket(invite.token, nonce="a-nonce-like-any-other"))
    for each in (visitor, other):
        assert (await gateway.exchange(each.request(nonce="a-nonce-like-any-other"))).ws_ticket
        with refused(Code.REPLAY_DETECTED):
            await gateway.exchange(each.request(nonce="a-nonce-like-any-other"))


@pytest.mark.req("AUTH-5", "ROOM-6")
async def test_a_node_that_has_not_joined_gets_no_ticket_for_links(gateway: Gateway, visitor: Visitor) -> None:
    """An invite opens the control room alone; mail goes to members, which come back by their key."""
    invite = await gateway.invite()
    for rooms in ((LINK_ROOM,), (CONTROL_ROOM, LINK_ROOM)):
        with refused(Code.ROOM_DENIED):
            await gateway.exchange(visitor.request(invite.token, requested_rooms=rooms))
    await gateway.redeem(await visitor.ticket(invite.token))
    grant = await gateway.exchange(visitor.request(requested_rooms=(CONTROL_ROOM, LINK_ROOM)))
    assert grant.rooms == (CONTROL_ROOM, LINK_ROOM)


@pytest.mark.req("AUTH-7")
async def test_a_known_node_id_without_its_key_gets_nothing(gateway: Gateway, visitor: Visitor) -> None:
    """Neither by coming back, nor with an invite for that very id."""
    await visitor.join()
    impostor = Visitor(gateway, identity=an_identity(2), nonces=100)
    with refused(Code.NODE_PROOF_INVALID):
        await impostor.ticket()
    with refused(Code.NODE_PROOF_REQUIRED):
        await impostor.ticket(node_proof=None)
    invite = await gateway.invite()
    with refused(Code.NODE_PROOF_INVALID):
        await impostor.ticket(invite.token)
    await gateway.redeem(await visitor.ticket(invite.token))


@pytest.mark.req("AUTH-1")
async def test_a_stranger_does_not_learn_who_is_known(gateway: Gateway, visitor: Visitor) -> None:
    """For a known and an unknown node id the refusals are the same, word for word."""
    await visitor.join()
    answers: list[list[Refusal]] = []
    for node_id in (NODE, "nobody"):
        stranger = Visitor(gateway, node_id=node_id, identity=an_identity(2), nonces=100)
        answers.append([])
        for change in ({}, {"node_proof": None}):
            with pytest.raises(Refusal) as caught:
                await stranger.ticket(**change)
            answers[-1].append(caught.value)
    assert [answer.to_wire() for answer in answers[0]] == [answer.to_wire() for answer in answers[1]]


@pytest.mark.req("ROOM-6", "AUTH-7")
async def test_a_revoked_node_is_told_so_once_it_has_proven_itself(gateway: Gateway, visitor: Visitor) -> None:
    """Its key still proves who it is, and opens nothing."""
    await visitor.join()
    await gateway.joining.revoke(NODE)
    with refused(Code.NODE_REVOKED):
        await visitor.ticket()
    with refused(Code.NODE_PROOF_INVALID):
        await Visitor(gateway, identity=an_identity(2), nonces=100).ticket()


@pytest.mark.req("ROOM-6")
async def test_a_revoked_node_needs_an_invite_that_was_made_afterwards(gateway: Gateway, visitor: Visitor) -> None:
    """The one made before is void; the new one lets it in again, with a new key, and the old key is worth nothing."""
    await visitor.join()
    before = await gateway.invite()
    await gateway.joining.revoke(NODE)
    with refused(Code.NODE_REVOKED):
        await visitor.ticket(before.token)
    gateway.clock.step_back(10_000)
    renewed = Visitor(gateway, identity=an_identity(2), nonces=100)
    entry = await renewed.join()
    assert entry.signing_public == renewed.identity.signing_public
    with refused(Code.NODE_PROOF_INVALID):
        await visitor.ticket()
    await gateway.redeem(await renewed.ticket())


@pytest.mark.req("AUTH-5", "AUTH-8")
async def test_the_same_nonce_is_refused_with_a_new_challenge_too(gateway: Gateway, visitor: Visitor) -> None:
    """A nonce belongs to its invite, or to the node that comes back; elsewhere it is another nonce."""
    invite, other = await gateway.invite(), await gateway.invite()
    await visitor.ticket(invite.token, nonce="same")
    with refused(Code.REPLAY_DETECTED):
        await visitor.ticket(invite.token, nonce="same")
    await gateway.redeem(await visitor.ticket(other.token, nonce="same"))
    await visitor.ticket(nonce="same")
    with refused(Code.REPLAY_DETECTED):
        await visitor.ticket(nonce="same")


@pytest.mark.req("AUTH-8")
async def test_a_challenge_is_good_for_one_exchange(gateway: Gateway, visitor: Visitor) -> None:
    """A second proof over it, with another nonce, is a replay."""
    invite = await gateway.invite()
    challenge = visitor.challenge()
    await visitor.ticket(invite.token, challenge=challenge)
    with refused(Code.REPLAY_DETECTED):
        await visitor.ticket(invite.token, challenge=challenge)


@pytest.mark.req("AUTH-8")
async def test_a_whole_request_that_was_overheard_is_refused(gateway: Gateway, visitor: Visitor) -> None:
    """Played back, with an invite or without, it gives no second ticket."""
    invite = await gateway.invite()
    joining = visitor.request(invite.token)
    await gateway.redeem((await gateway.exchange(joining)).ws_ticket)
    with refused(Code.TOKEN_ALREADY_USED):
        await gateway.exchange(joining)
    back = visitor.request()
    await gateway.exchange(back)
    with refused(Code.REPLAY_DETECTED):
        await gateway.exchange(back)


@pytest.mark.req("AUTH-3")
async def test_only_the_control_room_is_granted(gateway: Gateway, visitor: Visitor) -> None:
    """Asking for it, for nothing or not at all is the same; another room beside it is refused."""
    invite = await gateway.invite()
    for rooms in (None, (), (ROOM,), (ROOM, ROOM)):
        assert (await gateway.exchange(visitor.request(invite.token, requested_rooms=rooms))).rooms == (ROOM,)
    with refused(Code.ROOM_DENIED):
        await visitor.ticket(invite.token, requested_rooms=(ROOM, "another-room"))


@pytest.mark.parametrize(
    "change",
    [{"node_id": ""}, {"node_id": "a b"}, {"node_id": "a\nb"}, {"nonce": ""}, {"nonce": "a\nb"}, {"nonce": "x" * 201}],
)
async def test_a_malformed_request_is_refused_before_anything_is_looked_up(
    gateway: Gateway, visitor: Visitor, change: dict[str, str]
) -> None:
    """The refusal names the field, and the invite is not touched."""
    request = replace(visitor.request((await gateway.invite()).token), **change)
    with refused(Code.INVALID_FIELD) as caught:
        await gateway.exchange(request)
    assert caught.value.field in {"nodeId", "nonce"}


class TestWithoutProofs:
    """A lab that runs with --insecure-no-proof."""

    @pytest.fixture
    def gateway(self) -> Gateway:
        return Gateway(MemoryStore(node_id=SEED, epoch="first"), options={"require_proof": False})

    @pytest.mark.req("AUTH-7")
    async def test_a_lab_takes_nodes_without_a_proof(self, gateway: Gateway, visitor: Visitor) -> None:
        """Such a node has no key, and it takes an invite each time."""
        invite = await gateway.invite()
        entry = await gateway.redeem(await visitor.ticket(invite.token, node_proof=None))
        assert entry.signing_public is None
        with refused(Code.INVALID_TOKEN):
            await visitor.ticket(node_proof=None)
        with refused(Code.NODE_PROOF_INVALID):
            await visitor.ticket()
        again = await gateway.invite()
        await gateway.redeem(await visitor.ticket(again.token, node_proof=None))

    @pytest.mark.req("AUTH-7")
    async def test_even_in_a_lab_a_pinned_key_must_be_proven(self, gateway: Gateway, visitor: Visitor) -> None:
        """A proof that is given is checked, and a node that has a key cannot be had without it."""
        invite = await gateway.invite()
        with refused(Code.NODE_PROOF_INVALID):
            request = visitor.request(invite.token)
            await gateway.exchange(_bad_proof(Scene(), request))
        await gateway.redeem(await visitor.ticket(invite.token))
        again = await gateway.invite()
        with refused(Code.NODE_PROOF_REQUIRED):
            await visitor.ticket(again.token, node_proof=None)

    @pytest.mark.req("AUTH-7")
    async def test_a_node_of_a_lab_gets_a_key_with_its_next_invite(self, gateway: Gateway, visitor: Visitor) -> None:
        """What was without a key may be pinned to one."""
        invite = await gateway.invite()
        await gateway.redeem(await visitor.ticket(invite.token, node_proof=None))
        await visitor.join()
        await gateway.redeem(await visitor.ticket())
