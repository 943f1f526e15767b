"""Proofs, keys and nonces by themselves: the RFC's own example, and what a URL, a key and a time may be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentpost.auth.external.keys import client_key
from agentpost.auth.external.nonces import PERIOD_MS, ServerNonces
from agentpost.auth.external.proofs import (
    WINDOW_MS,
    Expected,
    Flaw,
    body_hash,
    check_proof,
    read_proof,
    url_key,
)

# RFC 9449, figure 2, and the thumbprint of its key in figure 10.
RFC_PROOF = (
    "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJo"
    "RjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19.eyJq"
    "dGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwiaWF0Ijox"
    "NTYyMjYyNjE2fQ.2-GxA6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg4PtFLbdLXiOSsX0x7NVY-FNyJK70nfbV37xRZT3Lg"
)
RFC_THUMBPRINT = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
RFC_TIME_MS = 1_562_262_616_000
EXPECTED = Expected(method="POST", urls=frozenset({"https://server.example.com/token"}))


@pytest.mark.req("EXT-3")
def test_the_proof_of_the_rfc_is_taken() -> None:
    """Its signature holds, its key has the thumbprint that the RFC gives, and it fits the request that it is for."""
    proof = read_proof(RFC_PROOF)
    assert proof.key.thumbprint == RFC_THUMBPRINT
    assert (proof.claims.jti, proof.claims.htm) == ("-BwC3ESc6acc2lTc", "POST")
    check_proof(proof, EXPECTED, now_ms=RFC_TIME_MS)


@pytest.mark.req("EXT-3")
@given(st.integers(min_value=0, max_value=len(RFC_PROOF) - 1), st.integers(min_value=1, max_value=63))
def test_no_letter_of_a_proof_can_be_changed(place: int, by: int) -> None:
    """Whatever is altered, the proof is refused or says the same; nothing else happens."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    letter = RFC_PROOF[place]
    other = "x" if letter == "." else alphabet[(alphabet.index(letter) + by) % 64]
    try:
        proof = read_proof(RFC_PROOF[:place] + other + RFC_PROOF[place + 1 :])
    except Flaw:
        return
    # The last letter of a part has bits that stand for nothing.
    assert proof.claims == read_proof(RFC_PROOF).claims


@pytest.mark.req("EXT-3")
@pytest.mark.parametrize(
    "changed",
    [
        {"method": "GET"},
        {"urls": frozenset({"https://server.example.com/other"})},
        {"urls": frozenset[str]()},
        {"token": "a token"},
        {"body": b""},
        {"is_nonce": lambda _: True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_proof_fits_one_request(changed: dict[str, Any]) -> None:
    """Another method or URL, or a token, body or nonce that it does not name."""
    with pytest.raises(Flaw):
        check_proof(read_proof(RFC_PROOF), replace(EXPECTED, **changed), now_ms=RFC_TIME_MS)


@pytest.mark.req("EXT-3")
@pytest.mark.parametrize(("off_ms", "is_good"), [(WINDOW_MS, True), (WINDOW_MS + 1, False), (-WINDOW_MS - 1, False)])
def test_a_proof_is_of_now(off_ms: int, is_good: bool) -> None:
    """Clocks may differ by two minutes, in either direction."""
    try:
        check_proof(read_proof(RFC_PROOF), EXPECTED, now_ms=RFC_TIME_MS + off_ms)
    except Flaw:
        assert not is_good
    else:
        assert is_good


@given(st.text())
def test_any_text_is_a_proof_or_none(text: str) -> None:
    """Nothing that somebody sends is a defect."""
    with pytest.raises(Flaw):
        read_proof(text)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("HTTPS://Server.Example.com:443/token?x=1#y", "https://server.example.com/token"),
        ("http://server.example.com:80/token", "http://server.example.com/token"),
        ("http://server.example.com:8080/token", "http://server.example.com:8080/token"),
        ("http://[::1]:80/token", "http://[::1]/token"),
        ("http://server.example.com", "http://server.example.com/"),
        ("http://user:pass@server.example.com/token", None),
        ("ftp://server.example.com/token", None),
        ("//server.example.com/token", None),
        ("http://server.example.com:x/token", None),
        ("http://[::1/token", None),
        ("", None),
    ],
)
def test_urls_are_compared_by_what_they_name(url: str, key: str | None) -> None:
    """Query, fragment, default ports and capital letters of the host do not count; the path does, letter by letter."""
    assert url_key(url) == key


@given(st.text())
def test_any_text_is_a_url_or_none(text: str) -> None:
    """Nothing that somebody writes into htu is a defect."""
    assert url_key(text) is None or "://" in text


@pytest.mark.req("EXT-3")
@pytest.mark.parametrize(
    "jwk",
    [
        None,
        "text",
        {},
        {"kty": "OKP", "crv": "Ed25519"},
        {"kty": "OKP", "crv": "Ed448", "x": "A" * 43},
        {"kty": "OKP", "crv": "Ed25519", "x": "A" * 42},
        {"kty": "OKP", "crv": "Ed25519", "x": 7},
        {"kty": "OKP", "crv": "Ed25519", "x": "A" * 43, "d": "A" * 43},
        {"kty": "OKP", "crv": "Ed25519", "x": "A" * 43, "kid": "one"},
        {"kty": "EC", "crv": "P-256", "x": "A" * 43, "y": "A" * 43},
        {"kty": "EC", "crv": "P-384", "x": "A" * 43, "y": "A" * 43},
        {"kty": "EC", "crv": ["P-256"], "x": "A" * 43, "y": "A" * 43},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "oct", "k": "AAAA"},
    ],
    ids=str,
)
def test_what_is_no_public_key_is_none(jwk: object) -> None:
    """Other kinds and curves, a private part, members that nobody asked for, a point that is not on the curve."""
    assert client_key(jwk) is None


@pytest.mark.req("EXT-4")
def test_a_nonce_is_good_for_its_period_and_the_next() -> None:
    """Known again by its making; neither the one before last nor one from the future, nor another gateway's."""
    nonces, now_ms = ServerNonces(b"secret"), 1_000 * PERIOD_MS
    nonce = nonces.current(now_ms)
    assert ServerNonces(b"secret").is_good(nonce, now_ms=now_ms)
    assert nonces.is_good(nonce, now_ms=now_ms + 2 * PERIOD_MS - 1)
    assert not nonces.is_good(nonce, now_ms=now_ms + 2 * PERIOD_MS)
    assert not nonces.is_good(nonce, now_ms=now_ms - 1)
    assert not ServerNonces(b"another").is_good(nonce, now_ms=now_ms)
    assert not nonces.is_good("\ud800", now_ms=now_ms)


def test_the_hash_of_a_body_is_what_the_page_says() -> None:
    """Base64url of SHA-256, without padding."""
    assert body_hash(b"") == "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
