"""Links between real gateways that are cut, half open, lossy one way, slow, or repeat and reorder what they carry."""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentpost.delivery.frames import Events, Frame
from tests.processes.machines import FaultyMachine, eventually, faulty_mesh, is_over
from tests.processes.proxy import DOWN, UP, Meddle

pytestmark = pytest.mark.waits

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
IN_LONG = pytest.mark.skipif(ROUNDS == 1, reason="`make test-long` runs it")
# How long a half-open link may go unnoticed at most, dialling anew included, with the waits that people have.
_NOTICED_SECONDS = 90


class Post:
    """A laptop that sends, and a lab whose agent counts what it gets, each behind a proxy of its own."""

    def __init__(self, sender: FaultyMachine, lab: FaultyMachine) -> None:
        self.sender = sender
        self.lab = lab
        lab.add_counting_agent("builder")
        eventually(lambda: sender.knows("builder"))
        self._before = 0

    def send(self, *texts: object) -> list[str]:
        return [self.sender.send("builder", str(text), sender="architect")["eventId"] for text in texts]

    def heal(self) -> None:
        for machine in (self.sender, self.lab):
            machine.proxy.meddle, machine.proxy.delay_seconds = None, 0.0
            machine.proxy.bytes_per_second = None
            machine.proxy.release()

    def all_came_once_and_in_order(self, sent: list[str], *, patience_seconds: float = 180) -> None:
        eventually(lambda: all(is_over(self.sender, each) for each in sent), patience_seconds=patience_seconds)
        mine = [each for each in self.lab.counted() if each in set(sent)]
        assert mine == sent


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    with faulty_mesh(tmp_path_factory.mktemp("links"), "mbp-jane", "lab-jane") as (_, sender, lab):
        yield Post(sender, lab)


@pytest.mark.req("CUR-1", "CUR-2", "RTY-3")
def test_links_that_are_cut_again_and_again_lose_and_double_nothing(post: Post) -> None:
    """Connections end in the middle of whatever they carry, at both machines; all mail comes once, in order."""
    chance = random.Random(11)
    sent: list[str] = []
    for number in range(12 * ROUNDS):
        sent += post.send(*(f"cut {number}.{each}" for each in range(chance.randint(1, 4))))
        time.sleep(chance.random() * 0.1)
        for machine in chance.sample([post.sender, post.lab], chance.randint(1, 2)):
            machine.proxy.cut()
    post.all_came_once_and_in_order(sent, patience_seconds=180 + 10 * ROUNDS)


@pytest.mark.req("CUR-1", "RTY-3")
@pytest.mark.parametrize("who", ["lab", pytest.param("sender", marks=IN_LONG)])
def test_a_half_open_link_is_noticed_and_dialled_anew(post: Post, who: str) -> None:
    """A connection that went silent without a word is given up by both ends, and the mail takes the next one."""
    machine: FaultyMachine = getattr(post, who)
    sent = post.send("while it was well")
    post.all_came_once_and_in_order(sent)
    dialled = machine.proxy.dialled
    machine.proxy.abandon()
    sent = post.send("into the silence", "and more")
    post.all_came_once_and_in_order(sent)
    assert machine.proxy.dialled > dialled


@pytest.mark.req("CUR-1", "RTY-3", "ACK-2")
@pytest.mark.parametrize(
    ("who", "direction"),
    [
        ("lab", UP),
        ("sender", UP),
        pytest.param("lab", DOWN, marks=IN_LONG),
        pytest.param("sender", DOWN, marks=IN_LONG),
    ],
)
def test_a_link_that_loses_one_direction_delays_and_doubles_nothing(post: Post, who: str, direction: str) -> None:
    """Mail goes out and no answer comes, or the other way round; when the link is whole, each message came once."""
    machine: FaultyMachine = getattr(post, who)
    # There is a link: one that has yet to be dialled would not come about.
    post.all_came_once_and_in_order(post.send("while it was well"))
    # What is said of it goes to and fro for a moment. A feed sends two batches without credit, so the credit for all of
    # that has to be there before nothing comes back any more.
    time.sleep(1)
    machine.proxy.hold(direction)
    sent = post.send("one way", "and again")
    if (who, direction) in (("lab", UP), ("sender", DOWN)):
        # It reaches the agent, which does it, though the sender hears nothing of that.
        eventually(lambda: set(sent) <= set(post.lab.counted()))
    dialled = machine.proxy.dialled
    eventually(lambda: machine.proxy.dialled > dialled)
    assert not any(is_over(post.sender, each) for each in sent)
    post.heal()
    post.all_came_once_and_in_order(sent)


@pytest.mark.req("CUR-1", "CUR-3", "RTY-3", "PIPE-9")
def test_batches_that_are_repeated_and_swapped_on_the_way_count_once(post: Post) -> None:
    """A link that repeats and reorders batches gives the same mail as a good one, once and in order."""
    seen: dict[str, int] = {"repeated": 0, "swapped": 0}
    for machine in (post.sender, post.lab):
        machine.proxy.meddle = repeat_and_swap(random.Random(5), seen)
    sent: list[str] = []
    while not (seen["repeated"] >= 10 and seen["swapped"] >= 10):
        sent += post.send(*(f"meddled {len(sent)}.{each}" for each in range(3)))
        assert len(sent) < 3000, seen
    post.heal()
    post.all_came_once_and_in_order(sent)


def repeat_and_swap(chance: random.Random, seen: dict[str, int]) -> Meddle:
    held: dict[str, list[bytes]] = {UP: [], DOWN: []}

    def meddle(direction: str, frame: Frame, raw: bytes) -> list[bytes]:
        behind, held[direction] = held[direction], []
        if not isinstance(frame, Events):
            return [raw, *behind]
        draw = chance.random()
        if draw < 0.3 and not behind:
            # It comes after whatever comes next.
            seen["swapped"] += 1
            held[direction] = [raw]
            return []
        if draw < 0.6:
            seen["repeated"] += 1
            return [raw, raw, *behind]
        return [raw, *behind]

    return meddle


@pytest.mark.req("RTY-3")
def test_a_slow_link_is_only_slow(post: Post) -> None:
    """On a link where every answer takes longer than the sender's patience, nothing is sent again for that."""
    # The sender is patient for two seconds (`machines._WAITS`); a ping may be under way for four.
    post.lab.proxy.delay_seconds = 1.2
    sent = post.send(*(f"slow {number}" for number in range(5)))
    eventually(lambda: set(sent) <= set(post.lab.counted()))
    post.heal()
    post.all_came_once_and_in_order(sent)
    assert {post.sender.attempts(each) for each in sent} == {1}


@pytest.mark.req("RTY-1", "RTY-2", "CUR-1")
def test_mail_that_waits_its_turn_on_a_narrow_line_is_sent_once(post: Post) -> None:
    """However long a backlog takes, it waits: no attempt is spent, the outbox does not grow, and its sender sees it."""
    post.all_came_once_and_in_order(post.send("while the line was wide"))
    outbox_seq = post.sender.get("/operator/status")["outboxSeq"]
    post.lab.proxy.bytes_per_second = 60_000
    # Seven seconds of the line, and the sender is patient for two.
    sent = post.send(*(f"narrow {number} {'x' * 4_000}" for number in range(100)))

    def is_told() -> bool:
        receipt = post.sender.send("builder", "one more", sender="architect")
        sent.append(receipt["eventId"])
        return receipt["recipients"][0]["notTaken"] >= 50

    eventually(is_told)
    (waiting,) = post.sender.get("/operator/status")["notTaken"]
    assert (waiting["nodeId"], waiting["isOnline"]) == (post.lab.node, True)
    post.all_came_once_and_in_order(sent)
    post.heal()
    assert {post.sender.attempts(each) for each in sent} == {1}
    # The messages, an ACK for each reply, and once in a while the question how far the lab is.
    assert post.sender.get("/operator/status")["outboxSeq"] - outbox_seq < 2 * len(sent) + 60
    assert "notTaken" not in post.sender.get("/operator/status")


@pytest.mark.req("CUR-1", "RTY-3")
@IN_LONG
@pytest.mark.parametrize(
    "break_link", [lambda lab: lab.proxy.abandon(), lambda lab: lab.proxy.hold()], ids=["half open", "held"]
)
def test_with_the_waits_that_people_have_a_silent_link_is_noticed_in_time(
    tmp_path: Path, break_link: Callable[[FaultyMachine], None]
) -> None:
    """Nothing is shortened here: within a minute and a half both ends have given a silent link up."""
    with faulty_mesh(tmp_path, "mbp-jane", "lab-jane", is_quick=False) as (_, sender, lab):
        post = Post(sender, lab)
        post.all_came_once_and_in_order(post.send("while it was well"))
        dialled = lab.proxy.dialled
        break_link(lab)
        sent = post.send("into the silence")
        eventually(lambda: lab.proxy.dialled > dialled, patience_seconds=_NOTICED_SECONDS)
        post.heal()
        post.all_came_once_and_in_order(sent, patience_seconds=2 * _NOTICED_SECONDS)
