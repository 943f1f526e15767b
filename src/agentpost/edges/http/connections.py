"""How many connections a public port holds, and whose: nobody takes the place of all the others.

A connection is a stranger's until it proves who it is. Strangers have a part of the places, and one address has a part
of that part. When a part is full, the stranger that has asked for nothing longest is cut, so a newcomer always gets in:
a flood has to be faster than one request of an honest caller. Addresses at which a pinned peer proved itself have
places of their own. Once proven, a connection counts for its node, its session or its token alone.

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

_Idle = OrderedDict["Slot", None]


class ConnectionBudget:
    """`most` places: half for the proven, an eighth for strangers at addresses of peers, the rest for others."""

    def __init__(self, most: int) -> None:
        self.most_proven = most // 2
        self.known = _Part(most // 8)
        self.strangers = _Part(most - self.most_proven - most // 8)
        self.most_per_address = min(_MOST_PER_ADDRESS, self.strangers.most // 2)
        self.by_address: dict[str, _Part] = {}
        self.by_principal = Counter[str]()
        self.proven_count = 0
        self._known_addresses = OrderedDict[str, None]()

    def part_for(self, address: str) -> "_Part":
        """Where a new connection from this address counts."""
        has_place = address in self._known_addresses and self.known.count < self.known.most
        return self.known if has_place else self.strangers

    def remember(self, address: str) -> None:
        """A pinned peer has proved itself at this address."""
        self._known_addresses[address] = None
        self._known_addresses.move_to_end(address)
        if len(self._known_addresses) > _MOST_KNOWN_ADDRESSES:
            self._known_addresses.popitem(last=False)


class _Part:
    """Places, and which of those that are taken may be cut: the one that has been idle longest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.idle = _Idle()

    def make_place(self) -> bool:
        """Whether there is a place now, perhaps because an idle connection was cut."""
        if self.count >= self.most and self.idle:
            slot, _ = self.idle.popitem(last=False)
            slot.cut()
        return self.count < self.most


class Slot:
    """The place of one connection. `end` ends the connection; it may be called with the slot closed already."""

    def __init__(self, budget: ConnectionBudget, end: Callable[[], None]) -> None:
        self._budget = budget
        self._end = end
        self._address = ""
        # While it is a stranger: the part, and what its address has of it.
        self._parts: tuple[_Part, ...] = ()
        self._principal: str | None = None
        self.is_open = False

    @property
    def is_proven(self) -> bool:
        return self.is_open and not self._parts

    def open(self, address: str) -> bool:
        """Take a place; False if there is none."""
        budget, key = self._budget, address_key(address)
        own = budget.by_address.get(key)
        if own is None:
            own = budget.by_address[key] = _Part(budget.most_per_address)
        part = budget.part_for(key)
        self._address = key
        if own.make_place() and part.make_place():
            # Making a place may have ended the last connection of this address.
            own = budget.by_address.setdefault(key, own)
            self._parts, self.is_open = (part, own), True
            for each in self._parts:
                each.count += 1
            self.wait()
        elif own.count == 0:
            budget.by_address.pop(key, None)
        return self.is_open

    def wait(self) -> None:
        """It waits for a request, so that it may be cut for another stranger."""
        for part in self._parts:
            part.idle[self] = None
            part.idle.move_to_end(self)

    def work(self) -> None:
        """It has brought a whole request."""
        for part in self._parts:
            part.idle.pop(self, None)

    def prove(self, principal: str | None, *, is_peer: bool = False) -> None:
        """From now on it counts for a principal; None for one that is not counted. Refused if that has too many."""
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
        """End the connection; its place is free at once."""
        self.close()
        self._end()

    def close(self) -> None:
        """The connection has ended."""
        self._leave()
        self.is_open = False

    def _leave(self) -> None:
        if self.is_proven:
            self._budget.proven_count -= 1
        for part in self._parts:
            part.idle.pop(self, None)
            part.count -= 1
        if self._parts and self._parts[1].count == 0:
            self._budget.by_address.pop(self._address, None)
        self._parts = ()
        if self._principal is not None:
            left = self._budget.by_principal
            left[self._principal] -= 1
            if not left[self._principal]:
                del left[self._principal]
            self._principal = None


def proven(scope: Any, principal: str | None, *, is_peer: bool = False) -> None:
    """Whoever called over this connection has proved who he is. A connection without a budget is not counted."""
    slot = cast("dict[str, Any]", scope).get("state", {}).get(CONNECTION)
    if slot is not None:
        cast(Slot, slot).prove(principal, is_peer=is_peer)
