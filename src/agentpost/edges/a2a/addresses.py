"""Where this gateway may send something because somebody outside asked for it: not into its own network.

A name is looked up, all of its addresses are judged, and the one that was judged is the one that is connected to, so
that no second look-up can give another.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal

__all__ = ["Target", "find_target"]

_LONGEST_URL: Final = 2_048
_PORTS: Final = {"http": 80, "https": 443}
_LOOKUP_SECONDS: Final = 10.0

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


# All of IPv6 that is given out to networks. What is outside, e.g. site-local addresses and NAT64, is never called.
_UNICAST: Final = ipaddress.ip_network("2000::/3")
# Inside, and in IPv4: what IANA's registries of special-purpose addresses list, and no service is found at. Python's
# `is_global` knows a part, depending on its version.
_SPECIAL: Final = tuple(
    ipaddress.ip_network(each)
    for each in (
        *("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24"),
        # Protocol assignments, with Teredo; documentation; 6to4, which carries an IPv4 address; AS112.
        *("2001::/23", "2001:db8::/32", "3fff::/20", "2002::/16", "2620:4f:8000::/48"),
    )
)


class Target(Struct, frozen=True, kw_only=True):
    """A URL that may be called, at the address that was judged."""

    url: str
    host: str
    address: str


async def find_target(url: str, *, allowed: Sequence[str]) -> Target:
    """The place to call. Refused if any address of the host is neither public nor in one of the `allowed` networks."""
    scheme, host, port = _parts(url)
    addresses = await _look_up(host, port)
    networks = [ipaddress.ip_network(each) for each in allowed]
    ours = [_is_within(address, networks) for address in addresses]
    if not all(is_ours or _is_public(address) for address, is_ours in zip(addresses, ours, strict=True)):
        raise _refused("it is not at a public address", hint="The operator can allow networks: `[a2a] push_networks`.")
    if scheme != "https" and not all(ours):
        raise _refused("a public address is called over https only", hint="Use a URL with https://.")
    return Target(url=url, host=host, address=str(addresses[0]))


def _parts(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("it is not a URL") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= _LONGEST_URL
    if not is_plain or parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        raise _refused("it must be an http or https URL, without a user", hint="Use a URL with https://.")
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


async def _look_up(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [_plain(ipaddress.ip_address(str(each[4][0]).partition("%")[0])) for each in found]
    except (OSError, ValueError, TimeoutError):
        addresses = []
    if not addresses:
        raise _refused("its host cannot be found")
    return addresses


def _plain(address: Address) -> Address:
    """An IPv4 address that was put into an IPv6 one is judged as what it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _is_within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _is_public(address: Address) -> bool:
    is_global = address.is_global and not address.is_multicast and not address.is_reserved
    is_unicast = address.version == 4 or address in _UNICAST
    return is_global and is_unicast and not _is_within(address, _SPECIAL)


def _refused(why: str, *, hint: str = "Check the URL.") -> Refusal:
    return Refusal(Code.INVALID_FIELD, f"the URL for notifications cannot be used: {why}", field="url", hint=hint)
