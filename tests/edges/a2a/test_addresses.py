"""Where a peer may have the gateway call: public addresses alone, whatever a name means the second time."""

import socket
from typing import Any

import pytest

from agentpost.edges.a2a.addresses import find_target
from agentpost.protocol.errors import Code, Refusal

# One of each range of IANA's registries of special-purpose addresses, and what only looks public.
NOT_PUBLIC = """
0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.0.8 192.0.0.9 192.0.2.1 192.31.196.1 192.52.193.1
192.88.99.1 192.168.0.1 192.175.48.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255
::1 :: ::10.0.0.1 ::ffff:10.0.0.1 ::ffff:0:10.0.0.1 64:ff9b::a00:1 64:ff9b:1::1 100::1 100:0:0:1::1 2001::1 2001:1::1
2001:2::1 2001:3::1 2001:4:112::1 2001:10::1 2001:20::1 2001:30::1 2001:db8::1 2002:a00:1::1 2620:4f:8000::1 3fff::1
3fff:fff:ffff::1 5f00::1 4000::1 8000::1 fc00::1 fd00::1 fe80::1 fec0::1 feff::1 ff02::1
""".split()  # noqa: SIM905 - fifty quoted words are harder to read
PUBLIC = ["8.8.8.8", "192.0.1.1", "192.88.98.1", "2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888", "3ffe::1"]


def in_url(address: str) -> str:
    return f"https://[{address}]/x" if ":" in address else f"https://{address}/x"


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_an_address_that_is_not_public_is_never_called(address: str) -> None:
    """Private, link-local, site-local, documentation, tunnels, relays: refused, in IPv4, in IPv6 and in mixtures."""
    with pytest.raises(Refusal, match="not at a public address") as refused:
        await find_target(in_url(address), allowed=())
    assert refused.value.code is Code.INVALID_FIELD


@pytest.mark.parametrize("address", PUBLIC)
async def test_a_public_address_is_called(address: str) -> None:
    """Also those beside a range that is not public."""
    assert (await find_target(in_url(address), allowed=())).address == address


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "localhost", "LOCALHOST", "127.0.0.1.", "[::ffff:7f00:1]"],
)
async def test_an_address_that_is_written_otherwise_is_the_same(host: str) -> None:
    """Decimal, hexadecimal, octal, short: what the resolver makes of it is judged, not how it looks."""
    with pytest.raises(Refusal):
        await find_target(f"https://{host}/x", allowed=())


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """A name server of an attacker: each look-up gets the next answer. Gives what was looked up."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        given = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in given]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


async def test_a_name_that_changes_its_address_is_called_where_it_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: public at the first look-up, loopback at the next. The target is the address, not the name."""
    asked = resolver(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    target = await find_target("https://rebind.example/x", allowed=())
    assert (target.host, target.address, asked) == ("rebind.example", "8.8.8.8", ["rebind.example"])
    with pytest.raises(Refusal, match="not at a public address"):
        await find_target("https://rebind.example/x", allowed=())


async def test_a_name_with_one_private_address_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """All addresses of a name are judged, so that none can be picked later."""
    resolver(monkeypatch, ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(Refusal, match="not at a public address"):
        await find_target("https://both.example/x", allowed=())
