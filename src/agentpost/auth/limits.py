"""How often somebody may try: token buckets for each address and each invite token. In memory, and of bounded size.

A failed attempt costs more than a good one, so guessing is slow and working is not. Buckets run on monotonic time:
setting the clock helps nobody.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.world import Clock

__all__ = [
    "DEFAULT_ATTEMPTS_PER_ADDRESS",
    "DEFAULT_ATTEMPTS_PER_TOKEN",
    "Limits",
    "Rate",
    "RateLimited",
    "address_key",
    "address_rate",
    "token_key",
    "token_rate",
]

DEFAULT_ATTEMPTS_PER_ADDRESS: Final = 120
DEFAULT_ATTEMPTS_PER_TOKEN: Final = 30
_ADDRESS_REFILL_SECONDS: Final = 30
_TOKEN_REFILL_SECONDS: Final = 60
_IPV6_NETWORK_BITS: Final = 64


class Rate(Struct, frozen=True, kw_only=True):
    """How many attempts may come at once, how many a second after that, and what a failed one costs on top."""

    burst: float
    per_second: float
    failure_cost: float = 4


def address_rate(attempts: int = DEFAULT_ATTEMPTS_PER_ADDRESS) -> Rate:
    """So many attempts of one address at once; whoever used them all has them back after half a minute."""
    return Rate(burst=attempts, per_second=attempts / _ADDRESS_REFILL_SECONDS)


def token_rate(attempts: int = DEFAULT_ATTEMPTS_PER_TOKEN) -> Rate:
    """So many attempts with one invite's token at once, from wherever; all are back after a minute."""
    return Rate(burst=attempts, per_second=attempts / _TOKEN_REFILL_SECONDS)


class RateLimited(Refusal):
    """The one refusal that says when to come back. `newly` is set for the first of a row of them."""

    def __init__(self, retry_after_seconds: int, *, newly: bool) -> None:
        super().__init__(Code.RATE_LIMITED, f"too many attempts; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds
        self.newly = newly


class _Bucket(Struct):
    level: float
    at_ms: int
    refusing: bool = False


def address_key(address: str, what: str = "") -> str:
    """The bucket of an address. A customer with IPv6 has a whole network, so that counts as one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"address {what} {address[:64]}"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"address {what} {parsed.ipv4_mapped}"
        parsed = ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False)
    return f"address {what} {parsed}"


def token_key(token_hash: bytes) -> str:
    """The bucket of an invite's token."""
    return f"token {token_hash.hex()}"


class Limits:
    """Buckets by key. The one that nobody has touched for longest goes when there are too many."""

    def __init__(
        self,
        clock: Clock,
        *,
        per_address: Rate = address_rate(),  # noqa: B008 - frozen
        per_token: Rate = token_rate(),  # noqa: B008 - frozen
        most_buckets: int = 10_000,
    ) -> None:
        self._clock = clock
        self._rates = {"address": per_address, "token": per_token}
        self._most_buckets = most_buckets
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def attempt(self, keys: Iterable[str]) -> None:
        """Take one from each bucket, or refuse if one of them has none left; then none is taken."""
        found = [(self._rate(key), self._bucket(key)) for key in keys]
        waits = [((1 - bucket.level) / rate.per_second, bucket) for rate, bucket in found if bucket.level < 1]
        if waits:
            newly = not all(bucket.refusing for _, bucket in waits)
            for _, bucket in waits:
                bucket.refusing = True
            raise RateLimited(max(1, -int(-max(wait for wait, _ in waits) // 1)), newly=newly)
        for _, bucket in found:
            bucket.level -= 1
            bucket.refusing = False

    def failed(self, keys: Iterable[str]) -> None:
        """An attempt that was let through was refused later: it costs more, down to an empty bucket's debt."""
        for key in keys:
            rate, bucket = self._rate(key), self._bucket(key)
            bucket.level = max(bucket.level - rate.failure_cost, -rate.burst)

    def _rate(self, key: str) -> Rate:
        return self._rates[key.partition(" ")[0]]

    def _bucket(self, key: str) -> _Bucket:
        now_ms, rate = self._clock.monotonic_ms(), self._rate(key)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(rate.burst, now_ms)
            if len(self._buckets) > self._most_buckets:
                self._buckets.popitem(last=False)
            return bucket
        self._buckets.move_to_end(key)
        bucket.level = min(rate.burst, bucket.level + (now_ms - bucket.at_ms) / 1000 * rate.per_second)
        bucket.at_ms = now_ms
        return bucket
