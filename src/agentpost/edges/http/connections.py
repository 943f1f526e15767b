"""Connection quotas of a public port: by address before authentication, by principal after it.

A connection is a stranger's until the caller has proved its identity. Strangers share a quota, and one address gets at
most half of it. When a quota is full, the stranger that has been idle longest is disconnected, and a new caller gets
in: a flood only succeeds if it is faster than one request of an honest caller. An address at which a pinned peer has
authenticated gets a quota of its own. An authenticated connection counts for its node, session or token alone.

The bytes of incomplete requests of strangers have one limit. Above it, the connection that holds most is disconnected.

Knows no sockets: a connection is an address and a function that ends it.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final, cast

from agentpost.auth.limits import address_key
from agentpost.protocol.errors import Code, Refusal

__all__ = ["CONNECTION", "ConnectionBudget", "Slot", "proven"]

# Where a scope's state has the slot of its connection.
CONNECTION: Final = "connection"
_MOST_PER_ADDRESS: Final = 1_024
_MOST_PER_PRINCIPAL: Final = 128
_MOST_KNOWN_ADDRESSES: Final = 4_096
_MOST_UNPROVEN_BYTES: Final = 64 * 1024 * 1024

_Idle = OrderedDict["Slot", None]


class ConnectionBudget:
    """`most` connections: half for principals, an eighth for strangers at addresses of peers, the rest for others."""

    def __init__(self, most: int) -> None:
        self.most_proven = most // 2
        self.known = _Quota(most // 8)
        self.strangers = _Quota(most - self.most_proven - most // 8)
        self.most_per_address = min(_MOST_PER_ADDRESS, self.strangers.most // 2)
        self.by_address: dict[str, _Quota] = {}
        self.by_principal = Counter[str]()
        self.proven_count = 0
        # The connections of strangers, and the bytes of their requests in memory.
        self.unproven = set[Slot]()
        self.unproven_bytes = 0
        self._known_addresses = OrderedDict[str, None]()

    def quota_for(self, address: str) -> "_Quota":
        """The quota that a new connection from this address counts for."""
        has_place = address in self._known_addresses and self.known.count < self.known.most
        return self.known if has_place else self.strangers

    def remember(self, address: str) -> None:
        """A pinned peer has authenticated at this address."""
        self._known_addresses[address] = None
        self._known_addresses.move_to_end(address)
        if len(self._known_addresses) > _MOST_KNOWN_ADDRESSES:
            self._known_addresses.popitem(last=False)


class _Quota:
    """A number of connections, and those of them that may be disconnected: the longest idle first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.idle = _Idle()

    def make_room(self) -> bool:
        """Disconnect the longest idle if the quota is full. Returns whether one more fits now."""
        if self.count >= self.most and self.idle:
            slot, _ = self.idle.popitem(last=False)
            slot.cut()
        return self.count < self.most


class Slot:
    """What one connection takes of the quotas. `end` ends the connection; the slot is closed by then."""

    def __init__(self, budget: ConnectionBudget, end: Callable[[], None]) -> None:
        self._budget = budget
        self._end = end
        self._address = ""
        # While it is a stranger: the quota of its kind, and that of its address.
        self._quotas: tuple[_Quota, ...] = ()
        self._principal: str | None = None
        self.is_open = False
        self._held_bytes = 0

    @property
    def is_proven(self) -> bool:
        return self.is_open and not self._quotas

    def open(self, address: str) -> bool:
        """Count a new connection from this address; False if no quota has room for it."""
        budget, key = self._budget, address_key(address)
        own = budget.by_address.get(key)
        if own is None:
            own = budget.by_address[key] = _Quota(budget.most_per_address)
        part = budget.quota_for(key)
        self._address = key
        if own.make_room() and part.make_room():
            # Making room may have ended the last connection of this address.
            own = budget.by_address.setdefault(key, own)
            self._quotas, self.is_open = (part, own), True
            for each in self._quotas:
                each.count += 1
            budget.unproven.add(self)
            self.note_idle()
        elif own.count == 0:
            budget.by_address.pop(key, None)
        return self.is_open

    def note_idle(self) -> None:
        """No request is under way: it may be disconnected in favour of another stranger."""
        for part in self._quotas:
            part.idle[self] = None
            part.idle.move_to_end(self)

    def note_busy(self) -> None:
        """A complete request has arrived: it is not disconnected before its answer."""
        for part in self._quotas:
            part.idle.pop(self, None)

    def add_bytes(self, size_bytes: int) -> None:
        """Count bytes of a request. This may end this connection, or another that holds more."""
        budget = self._budget
        if self.is_proven or not self.is_open:
            return
        self._held_bytes += size_bytes
        budget.unproven_bytes += size_bytes
        if budget.unproven_bytes > _MOST_UNPROVEN_BYTES:
            max(budget.unproven, key=lambda slot: slot._held_bytes).cut()

    def release_bytes(self) -> None:
        """The request is answered, and not in memory any more."""
        self._budget.unproven_bytes -= self._held_bytes
        self._held_bytes = 0

    def prove(self, principal: str | None, *, is_peer: bool = False) -> None:
        """Count it for this principal from now on; None for one without a limit. Refused if there are too many."""
        if not self.is_open or (principal == self._principal and self.is_proven):
            return
        budget = self._budget
        if principal is not None and budget.by_principal[principal] >= _MOST_PER_PRINCIPAL:
            problem = f"{principal} has {_MOST_PER_PRINCIPAL} connections open already"
            raise Refusal(Code.RATE_LIMITED, problem, hint="Close one of them, or wait until one ends.")
        if not self.is_proven and budget.proven_count >= budget.most_proven:
            raise Refusal(Code.UNAVAILABLE, "the gateway has too many connections", hint="Try again in a minute.")
        if is_peer:
            budget.remember(self._address)
        self._leave()
        self._principal = principal
        budget.proven_count += 1
        if principal is not None:
            budget.by_principal[principal] += 1

    def cut(self) -> None:
        """End the connection; the next one can have its place at once."""
        self.close()
        self._end()

    def close(self) -> None:
        """The connection has ended."""
        self._leave()
        self.is_open = False

    def _leave(self) -> None:
        self.release_bytes()
        self._budget.unproven.discard(self)
        if self.is_proven:
            self._budget.proven_count -= 1
        for part in self._quotas:
            part.idle.pop(self, None)
            part.count -= 1
        if self._quotas and self._quotas[1].count == 0:
            self._budget.by_address.pop(self._address, None)
        self._quotas = ()
        if self._principal is not None:
            left = self._budget.by_principal
            left[self._principal] -= 1
            if not left[self._principal]:
                del left[self._principal]
            self._principal = None


def proven(scope: Any, principal: str | None, *, is_peer: bool = False) -> None:
    """Note that the caller of this scope has authenticated. A connection without quotas is not counted."""
    slot = cast("dict[str, Any]", scope).get("state", {}).get(CONNECTION)
    if slot is not None:
        cast(Slot, slot).prove(principal, is_peer=is_peer)
