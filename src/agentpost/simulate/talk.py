"""What agents do all day: messages with answers, and tasks. Whole conversations at once, as columns of numbers.

Every conversation here obeys the rules: what is delivered is accepted, and has an outcome. `faults` makes the others.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from agentpost.simulate.arrays import Flags, Ints, Words
from agentpost.simulate.plan import CAPABILITIES, World
from agentpost.simulate.rows import ACCEPTED, ACKS, FAILED_TERMINAL, PROCESSED, Rows, code
from agentpost.simulate.text import mixed

__all__ = ["EVENTS_A_CONVERSATION", "Talk", "conversations", "placed", "signals"]

MESSAGE, REPLY, SIGNAL = code("message"), code("reply"), code("signal")
CREATE, ACCEPT, UPDATE, COMPLETE = (
    code("task_create"),
    code("task_accept"),
    code("task_update"),
    code("task_complete"),
)

# How many events a conversation of the mix below has on average, measured.
EVENTS_A_CONVERSATION: Final = 6.59

_FANS: Final = ((1, 0.62), (2, 0.1), (4, 0.06))
_TASKS: Final = 0.22
_RESEND_AFTER_US: Final = (24_000_000, 55_000_000, 96_000_000, 160_000_000)
_OWNER, _WAIT, _ANSWER = 1, 2, 3
_TURN_FAILED: Final = 4


class Talk(Struct, frozen=True, kw_only=True):
    """The head of some conversations: who began them, when, and the random word that their ids follow from."""

    agents: Ints
    at_us: Ints
    words: Words

    @property
    def at_ms(self) -> Ints:
        return self.at_us // 1000

    def only(self, which: Flags) -> "Talk":
        return Talk(agents=self.agents[which], at_us=self.at_us[which], words=self.words[which])


def conversations(world: World, rng: np.random.Generator, begun_us: Ints) -> list[Rows]:
    """The events of conversations that begin at these times, in no order."""
    kind = rng.random(len(begun_us))
    agents = rng.integers(0, world.agents_a_node * world.plan.nodes, len(begun_us))
    begun_us = world.when_back(rng, world.node_of(agents), begun_us)
    talk = Talk(agents=agents, at_us=begun_us, words=rng.integers(0, 2**64, len(begun_us), dtype=np.uint64))
    rows: list[Rows] = []
    floor = 0.0
    for fan, share in _FANS:
        rows += messages(
            world, rng, talk.only((kind >= floor) & (kind < floor + share)), min(fan, world.plan.nodes - 1)
        )
        floor += share
    return rows + tasks(world, rng, talk.only(kind >= floor))


def placed(world: World, rows: Sequence[Rows], *, every: int = 1, first: int = 0) -> Rows:
    """All of these as one; what does not say in whose outbox it stands is in that of its agent's node.

    With `every`, only those of every so manyth node, from `first` on.
    """
    kept: list[Rows] = []
    for block in rows:
        for name in ("node", "source"):
            block[name] = np.where(block[name] < 0, world.node_of(block["agent"]), block[name])
        kept.append(block if every == 1 else block.only(block["node"] % every == first))
    return Rows.joined(kept)


def messages(world: World, rng: np.random.Generator, talk: Talk, fan: int) -> list[Rows]:
    peers = recipients(world, rng, talk.agents, fan)
    expects = rng.random(len(talk.agents)) < 0.45
    root = begin(talk, MESSAGE, peers)
    root["expects_reply"] = expects
    root["priority"] = rng.choice(3, len(root), p=(0.85, 0.1, 0.05))
    rows = [root]
    for place in range(fan):
        peer = peers[:, place]
        accepted_us, waits = delivered(world, rng, world.node_of(peer), talk.at_us)
        if fan == 1:
            root["route"] = np.where(waits, _WAIT, _OWNER)
            rows += resends(root, accepted_us, ~waits)
        done_us = worked(world, rng, world.node_of(peer), accepted_us)
        rows.append(ack(root, peer, accepted_us, ACCEPTED, step=10 + place))
        answers = expects & (rng.random(len(root)) < (0.95 if fan == 1 else 0.5))
        answer = said(root, REPLY, peer, done_us, step=20 + place).only(answers)
        answer["ref_ms"], answer["ref_word"], answer["ref_kind"] = (
            root["made_ms"][answers],
            root["word"][answers],
            MESSAGE,
        )
        rows += [answer, *taken(world, rng, answer)]
        outcome = ack(root, peer, done_us + 1, PROCESSED, step=30 + place)
        failed = ~answers & (rng.random(len(root)) < 0.004)
        outcome["ack"][failed], outcome["reason"][failed] = FAILED_TERMINAL, _TURN_FAILED
        rows.append(outcome)
    return rows


def tasks(world: World, rng: np.random.Generator, talk: Talk) -> list[Rows]:
    peers = recipients(world, rng, talk.agents, 1)
    root = begin(talk, CREATE, peers)
    skilled(world, rng, root, talk.agents)
    peer = root["peers"][:, 0].astype(np.int64)
    nodes = world.node_of(peer)
    accepted_us, waits = delivered(world, rng, nodes, talk.at_us)
    root["route"] = np.where(waits, _WAIT, _OWNER)
    claimed_us = worked(world, rng, nodes, accepted_us)
    promised_us = (np.exp(rng.normal(np.log(1200), 0.7, len(root))) * 1e6).astype(np.int64)
    done_us = world.when_back(
        rng, nodes, claimed_us + (promised_us * rng.uniform(0.3, 0.95, len(root))).astype(np.int64)
    )
    # The promise is kept, whatever came in between; `faults` breaks some.
    eta_ms = np.maximum(claimed_us + promised_us, done_us + 60_000_000) // 1000
    root["deadline_ms"] = np.where(rng.random(len(root)) < 0.5, eta_ms + 3_600_000, 0)
    rows = [root, ack(root, peer, accepted_us, ACCEPTED, step=10), ack(root, peer, claimed_us + 1, PROCESSED, step=30)]
    claim = said(root, ACCEPT, peer, claimed_us, step=40)
    claim["eta_ms"] = eta_ms
    rows += [claim, *taken(world, rng, claim)]
    for number, share in ((1, 0.6), (2, 0.3)):
        at_us = world.when_back(rng, nodes, claimed_us + (done_us - claimed_us) * number // 3)
        some = (rng.random(len(root)) < share) & (at_us < done_us)
        update = said(root, UPDATE, peer, at_us, step=40 + number).only(some)
        update["progress"] = 33 * number
        rows += [update, *taken(world, rng, update)]
    done = said(root, COMPLETE, peer, done_us, step=50)
    return [*rows, done, *taken(world, rng, done)]


def signals(world: World, rng: np.random.Generator, nodes: Ints, at_us: Ints) -> Rows:
    """Hints between gateways. Nobody delivers or acknowledges them."""
    rows = Rows(len(nodes))
    rows["t_us"], rows["node"], rows["source"], rows["kind"], rows["agent"] = at_us, nodes, nodes, SIGNAL, nodes
    rows["made_ms"] = rows["created_ms"] = rows["corr_ms"] = at_us // 1000
    rows["word"] = rows["corr_word"] = rng.integers(0, 2**64, len(nodes), dtype=np.uint64)
    return rows


def recipients(world: World, rng: np.random.Generator, agents: Ints, fan: int) -> Ints:
    """For each agent `fan` others, each at another node than all the rest."""
    nodes = world.plan.nodes
    first = rng.integers(0, nodes - 1, len(agents))
    out = np.empty((len(agents), fan), dtype=np.int64)
    for place in range(fan):
        node = (world.node_of(agents) + 1 + (first + place) % (nodes - 1)) % nodes
        out[:, place] = node + nodes * rng.integers(0, world.agents_a_node, len(agents))
    return out


def skilled(world: World, rng: np.random.Generator, root: Rows, agents: Ints) -> None:
    """Make some of these tasks ones for a capability: they go to its owner, under the version of that time."""
    which = (rng.random(len(root)) < 0.4).astype(np.int64) * rng.integers(1, len(CAPABILITIES) + 1, len(root))
    # Capability c is agent c's; a task to an agent of the same node stays a plain one.
    which[world.node_of(agents) == which % world.plan.nodes] = 0
    some = which > 0
    root["capability"] = which
    root["peers"][some, 0] = which[some]
    root["version"][some] = 1 + (root["t_us"][some] >= world.version_changes_us[which[some] - 1])


def begin(talk: Talk, kind: int, peers: Ints) -> Rows:
    rows = Rows(len(talk.agents))
    rows["t_us"], rows["agent"], rows["kind"] = talk.at_us, talk.agents, kind
    rows["made_ms"] = rows["created_ms"] = rows["corr_ms"] = talk.at_ms
    rows["word"] = rows["corr_word"] = talk.words
    rows["fan"], rows["route"] = peers.shape[1], _OWNER
    rows["peers"][:, : peers.shape[1]] = peers
    return rows


def said(root: Rows, kind: int, agents: Ints, at_us: Ints, *, step: int) -> Rows:
    """What a recipient says to the agent that began: an event with a delivery of its own."""
    rows = _follow(root, kind, agents, at_us, step)
    rows["fan"] = 1
    return rows


def ack(event: Rows, agents: Ints, at_us: Ints, ack_type: int, *, step: int) -> Rows:
    rows = _follow(event, ACKS, agents, at_us, step)
    rows["ack"], rows["ref_ms"], rows["ref_word"], rows["ref_kind"] = (
        ack_type,
        event["made_ms"],
        event["word"],
        event["kind"],
    )
    return rows


def taken(world: World, rng: np.random.Generator, event: Rows) -> list[Rows]:
    """The acknowledgements of events with one recipient."""
    peer = event["peers"][:, 0].astype(np.int64)
    accepted_us, _ = delivered(world, rng, world.node_of(peer), event["t_us"])
    event["route"] = _ANSWER
    done_us = world.when_back(
        rng, world.node_of(peer), accepted_us + 1000 + (rng.random(len(event)) * 3e5).astype(np.int64)
    )
    # Which of several events of a conversation is meant is in the reference; the step only has to differ.
    return [
        ack(event, peer, accepted_us, ACCEPTED, step=60),
        ack(event, peer, done_us, PROCESSED, step=61),
    ]


def delivered(world: World, rng: np.random.Generator, nodes: Ints, at_us: Ints) -> tuple[Ints, Flags]:
    """When it is accepted there, and whether it had to wait for a node that is away."""
    usual = np.exp(rng.normal(np.log(0.09), 0.8, len(nodes))) * world.slowness[nodes]
    held = rng.random(len(nodes))
    usual = np.where(held < 0.004, 25 + held * 30_000, usual)
    there_us = at_us + 1000 + (usual * 1e6).astype(np.int64)
    waits = world.is_away(nodes, there_us)
    return world.when_back(rng, nodes, there_us), waits


def worked(world: World, rng: np.random.Generator, nodes: Ints, at_us: Ints) -> Ints:
    """When an agent that gets it then is done with its turn."""
    turn = np.exp(rng.normal(np.log(1.5), 1.0, len(nodes)))
    return world.when_back(rng, nodes, at_us + 1000 + (turn * 1e6).astype(np.int64))


def resends(root: Rows, accepted_us: Ints, tried: Flags) -> list[Rows]:
    """The same event again, each time that its acknowledgement has not come (RTY-1)."""
    found: list[Rows] = []
    for number, after_us in enumerate(_RESEND_AFTER_US):
        late = tried & (accepted_us > root["t_us"] + after_us)
        again = root.only(late)
        again["t_us"] += after_us
        again["attempt"] = number + 2
        found.append(again)
    return found


def _follow(event: Rows, kind: int, agents: Ints, at_us: Ints, step: int) -> Rows:
    rows = Rows(len(event))
    rows["t_us"], rows["agent"], rows["kind"] = at_us, agents, kind
    rows["made_ms"] = rows["created_ms"] = at_us // 1000
    rows["word"] = mixed(event["word"], step)
    rows["corr_ms"], rows["corr_word"] = event["corr_ms"], event["corr_word"]
    rows["peers"][:, 0], rows["route"] = event["agent"], _ANSWER
    return rows
