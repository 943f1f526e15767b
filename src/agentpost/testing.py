"""What a test of something built on agentpost needs: time and chance that it commands, a store, and valid events.

Nothing here asks the machine for the time or for a random number: the same test makes the same bytes every time.

    clock = FakeClock()
    store = MemoryStore(node_id="node-a", epoch="first")
    await store.append([a_message(1, body="hello")])
    clock.advance(20_000)
    assert store.head().seq == 1
"""

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from agentpost.protocol.envelope import AckEvent, Event, MessageEvent, ReplyEvent, Trace, check
from agentpost.protocol.ids import ENTROPY_BYTES, CorrId, EventId, UlidSource, corr_id_of
from agentpost.protocol.payloads import Ack, AckType, Message, Reply
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.memory import MemoryStore

if TYPE_CHECKING:
    from agentpost.store.interface import Store
    from agentpost.store.sqlite import SqliteStore
    from agentpost.world import Chance, Clock

__all__ = ["START_MS", "FakeClock", "SeededChance", "MemoryStore", "a_message", "an_ack", "a_reply", "an_event_id"]

START_MS: Final = 1_772_036_530_000  # 2026-02-25T16:22:10.000Z


class FakeClock:
    """A `Clock` that stands still until it is told to move.

    clock = FakeClock()
    clock.advance(250)
    assert clock.now_ms() == START_MS + 250
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        if ms < 0:
            raise ValueError("time does not run backwards; step_back sets the clock back")
        self._now_ms += ms
        self._monotonic_ms += ms

    def step_back(self, ms: int) -> None:
        """Set the time of day back, as NTP or an operator may. The monotonic time does not follow."""
        if ms < 0:
            raise ValueError("a step back is a number of milliseconds that is not negative")
        self._now_ms -= ms


class SeededChance:
    """A `Chance` whose draws are those of its seed, in order.

    assert SeededChance(7).fraction() == SeededChance(7).fraction()
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test wants the same draws again, not secrets

    def entropy(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def fraction(self) -> float:
        return self._random.random()


def an_event_id(*what: object, at_ms: int = START_MS) -> EventId:
    """The id of the event that `what` describes: the same description and time, the same id."""
    entropy = sha256(repr(what).encode()).digest()[:ENTROPY_BYTES]
    return UlidSource().make(EventId, now_ms=at_ms, entropy=entropy)


def a_message(
    number: int = 1,
    *,
    body: str = "",
    to_agents: Sequence[str] = ("bob",),
    source_node_id: str = "node-a",
    source_agent_id: str = "ada",
    seq: int = 0,
    attempt: int = 1,
    corr_id: CorrId | None = None,
    expires_at_ms: int | None = None,
    at_ms: int | None = None,
) -> MessageEvent:
    """Message number `number` of an agent. A later number has a later time and an id that sorts after.

    a_message(1) == a_message(1)
    a_message(1).event_id < a_message(2).event_id
    """
    at_ms = START_MS + number if at_ms is None else at_ms
    event_id = an_event_id("message", number, source_node_id, source_agent_id, at_ms=at_ms)
    event = MessageEvent(
        event_id=event_id,
        seq=seq,
        source_node_id=source_node_id,
        source_agent_id=source_agent_id,
        corr_id=corr_id or corr_id_of(event_id),
        created_at=format_ms(at_ms),
        expires_at=None if expires_at_ms is None else format_ms(expires_at_ms),
        trace=Trace(attempt=attempt),
        payload=Message(to_agents=tuple(to_agents), body=body),
    )
    check(event)
    return event


def an_ack(
    of: Event,
    ack_type: AckType = AckType.ACCEPTED,
    *,
    by_agent_id: str = "bob",
    by_node_id: str = "node-b",
    seq: int = 0,
    at_ms: int | None = None,
) -> AckEvent:
    """The acknowledgement that an agent's gateway gives for an event.

    an_ack(a_message(1), AckType.PROCESSED, by_agent_id="bob")
    """
    at_ms = _after(of) if at_ms is None else at_ms
    event = AckEvent(
        event_id=an_event_id("ack", of.event_id, ack_type, by_node_id, by_agent_id, at_ms=at_ms),
        seq=seq,
        source_node_id=by_node_id,
        source_agent_id=by_agent_id,
        to_agent_id=of.source_agent_id,
        corr_id=of.corr_id,
        created_at=format_ms(at_ms),
        payload=Ack(
            ref_event_id=of.event_id,
            ref_kind=of.kind,
            ack_type=ack_type,
            acked_by_node_id=by_node_id,
            acked_by_agent_id=by_agent_id,
            acked_at=format_ms(at_ms),
        ),
    )
    check(event)
    return event


def a_reply(
    to: Event,
    *,
    body: str = "",
    by_agent_id: str = "bob",
    by_node_id: str = "node-b",
    seq: int = 0,
    at_ms: int | None = None,
) -> ReplyEvent:
    """The answer of an agent to an event.

    a_reply(a_message(1, body="are you there?"), body="yes")
    """
    at_ms = _after(to) if at_ms is None else at_ms
    event = ReplyEvent(
        event_id=an_event_id("reply", to.event_id, by_node_id, by_agent_id, body, at_ms=at_ms),
        seq=seq,
        source_node_id=by_node_id,
        source_agent_id=by_agent_id,
        to_agent_id=to.source_agent_id,
        corr_id=to.corr_id,
        created_at=format_ms(at_ms),
        payload=Reply(ref_event_id=to.event_id, body=body),
    )
    check(event)
    return event


def _after(event: Event) -> int:
    return parse_ms(event.created_at, field="createdAt") + 1


if TYPE_CHECKING:
    # The type checker holds these to their interfaces; at run time there is nothing to check.
    _stores: tuple[type[Store], ...] = (MemoryStore, SqliteStore)
    _clock: type[Clock] = FakeClock
    _chance: type[Chance] = SeededChance
