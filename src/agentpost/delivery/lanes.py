"""Which mail of an agent is next: the oldest that is due, in the order of its lane. Knows no store, clock or runtime.

A lane is what keeps its order. For an agent that takes one event at a time it is everything from one sender: a message
that waits for its retry holds back what follows from the same sender and nothing else, as in the mailbox. For an agent
that takes several at once there is no order to keep, and each event is a lane of its own.
"""

import heapq
from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from agentpost.protocol.envelope import Event
from agentpost.protocol.ids import EventId

__all__ = ["Lanes", "Mail"]


class Mail(Struct, frozen=True, kw_only=True):
    """One open ledger row with its event. `is_unclear`: it was handed over before a crash, and nobody noted an end.

    `is_fresh`: it came while this gateway ran, so no crash can have happened with it. `is_leased`: the agent fetched it
    before it was engaged from here, and has it until `due_at_ms` (`leased_until_ms` in the ledger); it is in no
    order with the rest.
    """

    inbox_seq: int
    event: Event
    attempts: int = 0
    due_at_ms: int = 0
    error: str | None = None
    is_unclear: bool = False
    is_fresh: bool = False
    is_leased: bool = False
    leased_until_ms: int = 0


class Lanes:
    """The mail of one agent that is in memory. What `take` gives is out until `done` or `put_back` says more of it."""

    def __init__(self, *, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        # Where there is an order: a lane is here while its first mail is ready, waiting or out; the list is what stands
        # behind that one.
        self._behind: dict[tuple[str, str], deque[Mail]] = {}
        self._ready: list[tuple[int, str, Mail]] = []
        self._waiting: dict[str, Mail] = {}
        self._timers: list[tuple[int, int, str]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, mail: Mail) -> None:
        """Put mail at the end of its lane."""
        self._size += 1
        if self._is_ordered and not mail.is_leased:
            behind = self._behind.get(lane := _sender_of(mail))
            if behind is not None:
                behind.append(mail)
                return
            self._behind[lane] = deque()
        self._place(mail)

    def take(self, now_ms: int) -> Mail | None:
        """The oldest mail that is first in its lane and due; None if there is none."""
        self._wake(now_ms)
        if not self._ready:
            return None
        self._size -= 1
        return heapq.heappop(self._ready)[2]

    def done(self, mail: Mail) -> None:
        """The lane of mail that was taken goes on with what is behind it."""
        if not self._is_ordered or mail.is_leased:
            return
        lane = _sender_of(mail)
        behind = self._behind[lane]
        if behind:
            self._place(behind.popleft())
        else:
            del self._behind[lane]

    def put_back(self, mail: Mail) -> None:
        """Mail that was taken stands first in its lane again, and waits for its `due_at_ms`."""
        self._size += 1
        self._place(mail)

    def hurry(self, event_id: str) -> bool:
        """Make mail that waits due at once. False if it does not wait."""
        mail = self._waiting.pop(event_id, None)
        if mail is not None:
            heapq.heappush(self._ready, (mail.inbox_seq, event_id, mail))
        return mail is not None

    def event_ids(self) -> Iterator[EventId]:
        """Of all mail that is here and not out."""
        yield from (mail.event.event_id for _, _, mail in self._ready)
        for behind in (self._waiting.values(), *self._behind.values()):
            yield from (mail.event.event_id for mail in behind)

    def waiting(self) -> list[Mail]:
        return list(self._waiting.values())

    def next_due_at_ms(self) -> int | None:
        """When the next mail becomes due; 0 if one is ready now."""
        if self._ready:
            return 0
        while self._timers and not self._is_current(self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _wake(self, now_ms: int) -> None:
        while self._timers and (self._timers[0][0] <= now_ms or not self._is_current(self._timers[0])):
            timer = heapq.heappop(self._timers)
            if self._is_current(timer):
                self.hurry(timer[2])

    def _is_current(self, timer: tuple[int, int, str]) -> bool:
        mail = self._waiting.get(timer[2])
        return mail is not None and mail.due_at_ms == timer[0]

    def _place(self, mail: Mail) -> None:
        event_id = mail.event.event_id
        if mail.due_at_ms <= 0:
            heapq.heappush(self._ready, (mail.inbox_seq, event_id, mail))
        else:
            self._waiting[event_id] = mail
            heapq.heappush(self._timers, (mail.due_at_ms, mail.inbox_seq, event_id))


def _sender_of(mail: Mail) -> tuple[str, str]:
    return mail.event.source_node_id, mail.event.source_agent_id
