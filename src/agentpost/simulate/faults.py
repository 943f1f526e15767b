"""Faults that are put into a fleet on purpose, each one exactly what its rule says and nothing else.

A fault is a conversation, or a few signals, of its own. Nothing else is touched: the conversations of `talk` obey all
rules, so a checker that reports more than the faults of this file is wrong, and so is one that reports fewer. Signals
are delivered to nobody, which makes them what can be lost, damaged or forged without any other rule being broken.

The truth of a fault has `node`, `epoch` and `seq` of the evidence, and what else the table of integrity rules in
docs/pipeline.md has its rule name: `eventId` of the event that it is about, `agentId` of the recipient.
"""

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.simulate.arrays import Ints
from agentpost.simulate.plan import World
from agentpost.simulate.rows import ACCEPTED, PROCESSED, Rows, code
from agentpost.simulate.talk import CREATE, MESSAGE, Talk, ack, begin, placed, said, signals, skilled, taken

__all__ = ["ALL_RULES", "HARMLESS", "Fault", "SIGNALS_A_BURST", "chosen_rules", "make_faults"]

SIGNALS_A_BURST: Final = 12

_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_OVER_A_YEAR_MS: Final = 400 * 86_400_000
_RESENDS_US: Final = tuple(
    round(_SECOND * at) for at in (24, 52, 88, 138, 218, 358, 618, 1088, 1558)
)  # RTY-1: nine more tries within half an hour
_MAX_ATTEMPTS, _EXPIRED = 1, 2
DEAD, FAILED, COMPLETE, CLAIM = code("dead_letter"), code("task_failed"), code("task_complete"), code("task_accept")
# The spec's SLA for messages is a day and two minutes of grace; what must show it begins long enough before the end.
_SLA_SHOWS_HOURS: Final = 26


class Fault(Struct, frozen=True):
    """`variant` counts the faults of a rule, `agent` is the recipient that the fault is about, -1 if there is none."""

    number: int
    rule: str
    variant: int
    agent: int = -1
    names: Literal["event", "ref"] | None = None  # the event that it is about: the evidence, or what that refers to


class _Maker:
    """Makes conversations between nodes that are there all the time, and keeps count of the faults."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world = world
        self.rng = rng
        self.faults: list[Fault] = []
        self.rows: list[Rows] = []
        self.steady = np.flatnonzero(world.away_until_us == 0)

    def talk(self, count: int) -> Talk:
        agents = self.rng.choice(self.steady, count) + self.world.plan.nodes * self.rng.integers(
            0, self.world.agents_a_node, count
        )
        return Talk(agents=agents, at_us=self.moments(count), words=self.rng.integers(0, 2**64, count, dtype=np.uint64))

    def moments(self, count: int) -> Ints:
        span = self.world.end_us - self.world.start_us
        latest = span - _SLA_SHOWS_HOURS * _HOUR if span >= 30 * _HOUR else 0.6 * span
        return self.world.start_us + self.rng.uniform(0.03 * span, latest, count).astype(np.int64)

    def peers(self, talk: Talk) -> Ints:
        """For each conversation one recipient, at another steady node."""
        place = np.searchsorted(self.steady, self.world.node_of(talk.agents))
        step = self.rng.integers(1, len(self.steady), len(place))
        nodes = self.steady[(place + step) % len(self.steady)]
        return nodes + self.world.plan.nodes * self.rng.integers(0, self.world.agents_a_node, len(place))

    def begun(self, count: int, kind: int = MESSAGE) -> Rows:
        talk = self.talk(count)
        return begin(talk, kind, self.peers(talk)[:, None])

    def others(self, root: Rows) -> Ints:
        """For each conversation a steady node that has no part in it."""
        found = np.empty(len(root), dtype=np.int64)
        for place, both in enumerate(
            zip(self.world.node_of(root["agent"]), self.world.node_of(_peer(root)), strict=True)
        ):
            found[place] = self.rng.choice([node for node in self.steady if node not in both])
        return found

    def mark(
        self,
        rule: str,
        evidence: Rows,
        *,
        agents: Ints | None = None,
        names: Literal["event", "ref"] | None = None,
        every: int = 1,
    ) -> None:
        """Each of these rows shows a fault, or every so manyth of them."""
        first, count = len(self.faults) + 1, len(evidence) // every
        evidence["fault"][::every] = np.arange(first, first + count)
        for place in range(count):
            agent = -1 if agents is None else int(agents[place])
            self.faults.append(Fault(first + place, rule, place, agent, names))

    def keep(self, *rows: Rows) -> None:
        self.rows += rows

    def burst(self, rule: str, count: int) -> None:
        """For each fault a few signals in a row, in a segment that has nothing else."""
        nodes, at_us = self.rng.choice(self.steady[1:], count), self.moments(count)
        rows = signals(self.world, self.rng, np.repeat(nodes, SIGNALS_A_BURST), np.repeat(at_us, SIGNALS_A_BURST))
        self.mark(rule, rows, every=SIGNALS_A_BURST)
        rows["alone"] = np.repeat(rows["fault"][::SIGNALS_A_BURST], SIGNALS_A_BURST)
        # One more on each side: what is missing stands between others, even where an epoch ends there.
        self.keep(rows, *(signals(self.world, self.rng, nodes, at_us + aside) for aside in (-1, 1)))

    def signal(self, count: int) -> Rows:
        return signals(self.world, self.rng, self.rng.choice(self.steady[1:], count), self.moments(count))


def _peer(root: Rows) -> Ints:
    return root["peers"][:, 0].astype(np.int64)


def _accepted(root: Rows) -> Rows:
    return ack(root, _peer(root), root["t_us"] + 80_000, ACCEPTED, step=10)


def _processed(root: Rows, after_us: int = 2 * _SECOND) -> Rows:
    return ack(root, _peer(root), root["t_us"] + after_us, PROCESSED, step=30)


def _resent(root: Rows, tries: int) -> list[Rows]:
    found: list[Rows] = []
    for number, after_us in enumerate(_RESENDS_US[: tries - 1]):
        again = root.copy()
        again["t_us"] += after_us
        again["attempt"], again["fault"] = number + 2, 0
        found.append(again)
    return found


def _dead(root: Rows, after_us: int, reason: int, attempts: int) -> Rows:
    """The sender says in its own outbox that it gave up on the recipient."""
    rows = said(root, DEAD, root["agent"].astype(np.int64), root["t_us"] + after_us, step=70)
    rows["fan"], rows["peers"][:, 0], rows["peers"][:, 1] = 0, root["agent"], root["peers"][:, 0]
    rows["ref_ms"], rows["ref_word"], rows["ref_kind"] = root["made_ms"], root["word"], root["kind"]
    rows["reason"], rows["dead_attempts"] = reason, attempts
    return rows


def black_hole(make: _Maker, count: int) -> None:
    """Emitted to a node that is there, and then nothing: no ACK, no reply, no resend, no dead letter."""
    root = make.begun(count)
    make.mark("black_hole", root, agents=_peer(root), names="event")
    make.keep(root)


def sla_breach(make: _Maker, count: int) -> None:
    """Accepted, and no outcome within the SLA and its grace (24 h and 120 s): none at all, or one that comes later."""
    root = make.begun(count)
    make.mark("sla_breach", root, agents=_peer(root), names="event")
    make.keep(root, _accepted(root), _processed(root, 24 * _HOUR + 30 * _MINUTE)[::3])


def expired(make: _Maker, count: int) -> None:
    """Not accepted before `expiresAt`: tried three times, then a dead letter with the reason `expired`."""
    root = make.begun(count)
    root["expires_ms"] = root["made_ms"] + 120_000
    dead = _dead(root, 121 * _SECOND, _EXPIRED, 3)
    make.mark("expired", dead, agents=_peer(root), names="ref")
    make.keep(root, *_resent(root, 3), dead)


def dead_letter(make: _Maker, count: int) -> None:
    """Tried ten times without an ACK, then a dead letter with the reason `max_attempts`."""
    root = make.begun(count)
    dead = _dead(root, _RESENDS_US[-1] + 20 * _SECOND, _MAX_ATTEMPTS, 10)
    make.mark("dead_letter", dead, agents=_peer(root), names="ref")
    make.keep(root, *_resent(root, 10), dead)


def duplicate(make: _Maker, count: int) -> None:
    """The same event at two places of an outbox, with the same attempt. The second place is the evidence."""
    root = make.begun(count)
    again = root.copy()
    again["t_us"] += 2 * _SECOND
    make.mark("duplicate", again, names="event")
    make.keep(root, again, _accepted(root), _processed(root))


def orphan_ack(make: _Maker, count: int) -> None:
    """An ACK of an event that stands in no outbox. `eventId` is the missing event, `agentId` who acknowledged it."""
    root = make.begun(count)
    found = _accepted(root)
    make.mark("orphan_ack", found, agents=_peer(root), names="ref")
    make.keep(found)


def wrong_acker(make: _Maker, count: int) -> None:
    """One ACK more, of another node than the recipient's, in that node's outbox, in the name of the recipient."""
    root = make.begun(count)
    found = ack(root, _peer(root), root["t_us"] + _SECOND, ACCEPTED, step=80)
    found["node"] = found["source"] = make.others(root)
    make.mark("wrong_acker", found, agents=_peer(root), names="ref")
    make.keep(root, _accepted(root), _processed(root), found)


def accept_before_emit(make: _Maker, count: int) -> None:
    """Accepted ten minutes before it was emitted: an ACK without a durable predecessor."""
    root = make.begun(count)
    early = ack(root, _peer(root), root["t_us"] - 10 * _MINUTE, ACCEPTED, step=10)
    make.mark("accept_before_emit", early, agents=_peer(root), names="ref")
    make.keep(root, early, _processed(root))


def unaccepted_outcome(make: _Maker, count: int) -> None:
    """Processed, although nobody ever accepted it."""
    root = make.begun(count)
    done = _processed(root)
    make.mark("unaccepted_outcome", done, agents=_peer(root), names="ref")
    make.keep(root, done)


def double_injection(make: _Maker, count: int) -> None:
    """Accepted twice in one outbox, by two events, and processed twice: the agent got it twice."""
    root = make.begun(count)
    again = ack(root, _peer(root), root["t_us"] + 5 * _SECOND, ACCEPTED, step=81)
    done = ack(root, _peer(root), root["t_us"] + 9 * _SECOND, PROCESSED, step=82)
    make.mark("double_injection", root, agents=_peer(root), names="event")
    make.keep(root, _accepted(root), _processed(root), again, done)


def _claimed(make: _Maker, count: int) -> tuple[Rows, Ints]:
    """Tasks that were accepted with an ETA in twenty minutes."""
    root = make.begun(count, CREATE)
    plain = _peer(root)
    skilled(make.world, make.rng, root, root["agent"].astype(np.int64))
    # A capability's owner may be away; a task that goes wrong must not do so for that reason as well.
    away = ~np.isin(make.world.node_of(_peer(root)), make.steady)
    root["peers"][away, 0] = plain[away]
    root["capability"][away] = root["version"][away] = 0
    claim = said(root, CLAIM, _peer(root), root["t_us"] + _SECOND, step=40)
    claim["eta_ms"] = root["made_ms"] + 20 * 60_000
    make.keep(root, _accepted(root), _processed(root), claim, *taken(make.world, make.rng, claim))
    return root, root["t_us"] + 20 * _MINUTE


def eta_missed(make: _Maker, count: int) -> None:
    """A task whose end comes 45 minutes after its ETA, or never."""
    root, eta_us = _claimed(make, count)
    make.mark("eta_missed", root)
    done = said(root, COMPLETE, _peer(root), eta_us + 45 * _MINUTE, step=50)[::2]
    make.keep(done, *taken(make.world, make.rng, done))


def task_failed(make: _Maker, count: int) -> None:
    """A task that ends as failed, before its ETA."""
    root, eta_us = _claimed(make, count)
    end = said(root, FAILED, _peer(root), eta_us - 5 * _MINUTE, step=50)
    end["failure"] = 1 + np.arange(count) % 3
    make.mark("task_failed", end)
    make.keep(end, *taken(make.world, make.rng, end))


def foreign_source(make: _Maker, count: int) -> None:
    """An event whose `sourceNodeId` is not the owner of the outbox that it stands in."""
    rows = make.signal(count)
    rows["source"] = rows["agent"] = (rows["node"] + 1) % make.world.plan.nodes
    make.mark("foreign_source", rows, names="event")
    make.keep(rows)


def clock_off(make: _Maker, count: int) -> None:
    """`createdAt` more than a year after, or a year before, what the event's own ULID and its neighbours say."""
    rows = make.signal(count)
    rows["created_ms"] += np.where(np.arange(count) % 2 == 0, _OVER_A_YEAR_MS, -_OVER_A_YEAR_MS)
    make.mark("clock_off", rows, names="event")
    make.keep(rows)


def _in_burst(rule: str, doc: str) -> "Builder":
    def build(make: _Maker, count: int) -> None:
        make.burst(rule, count)

    build.__doc__ = doc
    return build


Builder = Callable[[_Maker, int], None]

# What `segments` does with the signals of a burst.
_BURSTS: Final[dict[str, str]] = {
    "regression": "The outbox begins again in another epoch, at `seq`, which the epoch before it has used already.",
    "gap": "Some seqs are in no segment; `seq` is the first of them. The chain goes on over them.",
    "fork": "A mirror exported some seqs with other events; `seq` is the first one that differs.",
    "chain_break": "From `seq` on, the chain column does not follow from the bodies; the rest of the segment is right.",
    "bad_signature": "A manifest that its signature does not fit, over a segment that is right; `seq` is its first.",
    "bad_segment": "A file that is truncated, bit-flipped, empty, of another schema or not there; `seq` is its first.",
}
HARMLESS: Final = "reexport"  # a mirror exported some seqs once more, with the same events: nobody's fault

_RARE: Final[dict[str, Builder]] = {
    build.__name__: build
    for build in (
        black_hole,
        duplicate,
        orphan_ack,
        wrong_acker,
        accept_before_emit,
        unaccepted_outcome,
        double_injection,
        foreign_source,
        clock_off,
    )
} | {rule: _in_burst(rule, doc) for rule, doc in _BURSTS.items()}
_USUAL: Final[dict[str, Builder]] = {
    build.__name__: build for build in (sla_breach, expired, dead_letter, eta_missed, task_failed)
}
LATE_ARRIVAL: Final = "late_arrival"  # a node's segments of one part come with a later one; made by `fleet`
ALL_RULES: Final = (*_RARE, *_USUAL, LATE_ARRIVAL)


def chosen_rules(text: str) -> tuple[str, ...]:
    """The rules of `all`, `none` or `gap,fork,…`."""
    if text in ("all", "none"):
        return ALL_RULES if text == "all" else ()
    chosen = tuple(part.strip() for part in text.split(","))
    for rule in chosen:
        if rule not in ALL_RULES:
            raise Refusal(
                Code.INVALID_FIELD,
                f"{rule!r:.40} is no fault that can be simulated",
                field="faults",
                hint="Use all, none, or some of: " + ", ".join(ALL_RULES),
            )
    return chosen


def make_faults(world: World) -> tuple[list[Fault], Rows]:
    """All faults of the plan, and their events. A fault's number is its place in the list, from 1."""
    make = _Maker(world, world.chance("faults"))
    events, has_a_day = world.plan.events, world.plan.hours >= 30
    for rule in ALL_RULES:
        if rule not in world.plan.faults:
            continue
        # Fewer in a small fleet, where the rest of it must stay the larger part.
        if rule in _RARE:
            _RARE[rule](make, max(2, min(10 + events // 250_000, events // 2_000)))
        elif rule in _USUAL and (has_a_day or rule != "sla_breach"):
            _USUAL[rule](make, max(3, events // 5_000))
    if world.plan.faults:
        make.burst(HARMLESS, 2)
    return make.faults, placed(world, make.rows)
