"""Tickets: what they claim, and that nothing but this gateway's own, unaltered and in time, passes for one."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agentpost.auth.tickets import Tickets
from agentpost.protocol.errors import Code
from agentpost.testing import START_MS, FakeClock, SeededChance
from tests.auth.building import NODE, ROOM, SEED, Gateway, Visitor, an_identity
from tests.store.building import refused

LIFE_MS = 45_000


def b64(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def opened(ticket: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = (base64.urlsafe_b64decode(part + "==") for part in ticket.split("."))
    return json.loads(header), json.loads(claims)


def signed(gateway: Gateway, header: dict[str, Any], claims: dict[str, Any], *, identity: Any = None) -> str:
    """A token with any content, signed with the gateway's own key or another."""
    text = f"{b64(header)}.{b64(claims)}"
    return f"{text}.{b64((identity or gateway.identity).signing.sign(text.encode()))}"


@pytest.fixture
async def ticket(gateway: Gateway, visitor: Visitor) -> str:
    return await visitor.ticket((await gateway.invite()).token)


@pytest.mark.req("AUTH-4")
async def test_a_ticket_claims_what_it_must(gateway: Gateway, visitor: Visitor) -> None:
    """Issuer, node, audience, rooms, invite, its own id, and its times; signed with EdDSA, with a type of its own."""
    invite = await gateway.invite()
    grant = await gateway.exchange(visitor.request(invite.token))
    header, claims = opened(grant.ws_ticket)
    assert (header["alg"], header["typ"], set(header)) == ("EdDSA", "ansible-ticket+jwt", {"alg", "typ", "kid"})
    assert (claims["iss"], claims["sub"], claims["aud"], claims["rooms"]) == (SEED, NODE, "ansible-yjs", [ROOM])
    assert (claims["inviteId"], claims["sessionId"]) == (invite.invite_id, grant.session_id)
    assert (claims["iat"], claims["exp"]) == (START_MS // 1000, (START_MS + LIFE_MS) // 1000)
    assert len(claims["jti"]) == 22
    assert jwt.decode(
        grant.ws_ticket,
        gateway.identity.signing.public_key(),
        algorithms=["EdDSA"],
        audience="ansible-yjs",
        options={"verify_exp": False, "verify_iat": False},
    )


@pytest.mark.req("AUTH-4")
async def test_the_ticket_of_a_known_node_names_no_invite(gateway: Gateway, visitor: Visitor) -> None:
    """The claim is there, and empty."""
    await visitor.join()
    assert opened(await visitor.ticket())[1]["inviteId"] is None


@pytest.mark.req("AUTH-3")
@pytest.mark.parametrize("seconds", [0, 29, 61, 3600])
def test_a_ticket_lives_for_30_to_60_seconds(seconds: int) -> None:
    """A gateway that was told otherwise does not start."""
    with refused(Code.INVALID_FIELD):
        Tickets(SEED, an_identity(1), clock=FakeClock(), chance=SeededChance(1), life_seconds=seconds)


@pytest.mark.req("AUTH-6")
async def test_a_ticket_expires(gateway: Gateway, ticket: str) -> None:
    """At its last millisecond it would do, one later it is expired."""
    gateway.clock.advance(LIFE_MS)
    with refused(Code.EXPIRED_TICKET):
        await gateway.redeem(ticket)
    gateway.clock.step_back(1)
    await gateway.redeem(ticket)


@pytest.mark.req("AUTH-6")
async def test_a_clock_that_steps_back_does_not_prolong_a_ticket(gateway: Gateway, ticket: str) -> None:
    """After a step of an hour it does not live for an hour."""
    gateway.clock.step_back(3_600_000)
    with refused(Code.EXPIRED_TICKET):
        await gateway.redeem(ticket)


@pytest.mark.req("AUTH-6")
async def test_a_small_step_back_does_not_harm_a_ticket(gateway: Gateway, ticket: str) -> None:
    """A ticket from a moment that is suddenly in the future is still good."""
    gateway.clock.step_back(5_000)
    await gateway.redeem(ticket)


def public_forms(gateway: Gateway) -> list[bytes]:
    """What an attacker would try as an HMAC secret: the public key in every form it has."""
    public = gateway.identity.signing.public_key()
    return [
        public.public_bytes(Encoding.Raw, PublicFormat.Raw),
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        gateway.identity.signing_public.encode(),
    ]


@pytest.mark.req("AUTH-6")
@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None])
async def test_a_ticket_without_a_signature_is_refused(gateway: Gateway, ticket: str, alg: str | None) -> None:
    """Whatever it calls its algorithm, and whatever stands where the signature belongs."""
    header, claims = opened(ticket)
    for end in ("", b64(b""), ticket.rpartition(".")[2]):
        with refused(Code.INVALID_TICKET):
            await gateway.redeem(f"{b64(header | {'alg': alg})}.{b64(claims)}.{end}")


@pytest.mark.req("AUTH-6")
@pytest.mark.parametrize("alg", ["HS256", "HS512", "EdDSA"])
async def test_the_public_key_is_no_secret_to_sign_with(gateway: Gateway, ticket: str, alg: str) -> None:
    """An HMAC made with what everybody knows is refused, also if it claims to be EdDSA."""
    header, claims = opened(ticket)
    text = f"{b64(header | {'alg': alg})}.{b64(claims)}"
    for key in public_forms(gateway):
        mac = hmac.new(key, text.encode(), hashlib.sha512 if alg == "HS512" else hashlib.sha256).digest()
        with refused(Code.INVALID_TICKET):
            await gateway.redeem(f"{text}.{b64(mac)}")


@pytest.mark.req("AUTH-6")
@pytest.mark.parametrize(
    "change",
    [
        {"typ": "JWT"},
        {"typ": "at+jwt"},
        {"typ": "ANSIBLE-TICKET+JWT"},
        {"typ": None},
        {"kid": "another"},
        {"kid": None},
        {"alg": "ES256"},
        {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}},
        {"jku": "https://example.org/keys"},
        {"x5u": "https://example.org/cert"},
        {"crit": ["b64"], "b64": False},
        {"crit": ["exp"]},
        {"zip": "DEF"},
        {"cty": "JWT"},
    ],
    ids=lambda change: " ".join(f"{name}={value}" for name, value in change.items())[:40],
)
async def test_a_header_that_is_not_ours_is_refused_even_under_our_signature(
    gateway: Gateway, ticket: str, change: dict[str, Any]
) -> None:
    """Another type, another key, or a field that would have a say in how the ticket is checked."""
    header, claims = opened(ticket)
    with refused(Code.INVALID_TICKET):
        await gateway.redeem(signed(gateway, header | change, claims))


@pytest.mark.req("AUTH-6")
async def test_a_header_without_a_type_or_a_key_is_refused(gateway: Gateway, ticket: str) -> None:
    """Nothing is assumed."""
    header, claims = opened(ticket)
    for name in header:
        with refused(Code.INVALID_TICKET):
            await gateway.redeem(signed(gateway, {k: v for k, v in header.items() if k != name}, claims))


@pytest.mark.req("AUTH-6")
async def test_a_key_that_comes_with_the_ticket_is_not_used(gateway: Gateway, ticket: str) -> None:
    """An attacker's signature is no better for having his key beside it."""
    header, claims = opened(ticket)
    thief = an_identity(66)
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": thief.signing_public}
    for forged in (header, header | {"jwk": jwk}):
        with refused(Code.INVALID_TICKET):
            await gateway.redeem(signed(gateway, forged, claims, identity=thief))


@pytest.mark.req("AUTH-4", "AUTH-6")
@pytest.mark.parametrize(
    "change",
    [
        {"iss": "lab-jane"},
        {"aud": "ansible-agent"},
        {"aud": ["ansible-yjs"]},
        {"aud": None},
        {"sub": None},
        {"sub": 7},
        {"rooms": "ansible-control"},
        {"exp": None},
        {"exp": "tomorrow"},
        {"iat": None},
        {"jti": None},
        {"tier": "king"},
    ],
    ids=str,
)
async def test_claims_that_are_not_a_tickets_are_refused_even_under_our_signature(
    gateway: Gateway, ticket: str, change: dict[str, Any]
) -> None:
    """What the same key signed for another purpose, or another gateway issued, opens nothing."""
    header, claims = opened(ticket)
    with refused(Code.INVALID_TICKET):
        await gateway.redeem(signed(gateway, header, claims | change))


@pytest.mark.req("AUTH-4", "AUTH-6")
async def test_a_ticket_needs_every_claim(gateway: Gateway, ticket: str) -> None:
    """One that lacks any of them is refused."""
    header, claims = opened(ticket)
    for name in claims:
        with refused(Code.INVALID_TICKET):
            await gateway.redeem(signed(gateway, header, {k: v for k, v in claims.items() if k != name}))


@pytest.mark.req("AUTH-6")
async def test_the_expiry_is_looked_at_before_audience_and_issuer(gateway: Gateway, ticket: str) -> None:
    """Of two things wrong with a ticket of ours, the earlier one is told."""
    header, claims = opened(ticket)
    old = claims | {"exp": claims["iat"] - 1, "aud": "ansible-agent", "iss": "lab-jane"}
    with refused(Code.EXPIRED_TICKET):
        await gateway.redeem(signed(gateway, header, old))


@pytest.mark.req("AUTH-6")
async def test_every_altered_character_spoils_a_ticket(gateway: Gateway, ticket: str) -> None:
    """No part of it can be changed."""
    for at in range(len(ticket)):
        altered = ticket[:at] + ("A" if ticket[at] != "A" else "B") + ticket[at + 1 :]
        with refused(Code.INVALID_TICKET):
            await gateway.redeem(altered)
    await gateway.redeem(ticket)


@pytest.mark.req("AUTH-6")
async def test_claims_cannot_be_exchanged_under_the_signature(gateway: Gateway, ticket: str) -> None:
    """Not the node, not the rooms, not the end."""
    header, claims = opened(ticket)
    signature = ticket.rpartition(".")[2]
    for change in ({"sub": "lab-jane"}, {"rooms": ["another"]}, {"exp": claims["exp"] + 9}, {"jti": "another"}):
        with refused(Code.INVALID_TICKET):
            await gateway.redeem(f"{b64(header)}.{b64(claims | change)}.{signature}")


@pytest.mark.req("AUTH-6")
@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "...", "a.b.c", "é.é.é", "\ud800", "null.null.null", "e30.e30.", "x" * 100_000, "W10.W10.W10"],
)
async def test_what_is_no_ticket_at_all_is_refused(gateway: Gateway, text: str) -> None:
    """Nothing that can stand in a header makes the gateway stumble."""
    with refused(Code.INVALID_TICKET):
        await gateway.redeem(text)


@pytest.mark.req("AUTH-6")
async def test_a_ticket_of_another_gateway_is_refused(gateway: Gateway, visitor: Visitor, ticket: str) -> None:
    """Each gateway takes its own tickets only, even one of the same name with another key."""
    stranger = Gateway(gateway.store, clock=gateway.clock, chance=SeededChance(2), identity=an_identity(200))
    foreign = await Visitor(stranger, nonces=500).ticket((await stranger.invite()).token)
    with refused(Code.INVALID_TICKET):
        await gateway.redeem(foreign)
    with refused(Code.INVALID_TICKET):
        await stranger.redeem(ticket)
