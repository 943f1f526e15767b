"""The machine's own time and chance."""

import subprocess
import sys

from agentpost.protocol.ids import EventId, TaskId, mark_in, mark_of, ulid_time_ms
from agentpost.testing import START_MS, FakeClock, SeededChance
from agentpost.world import IdMaker, SystemChance


def test_no_byte_of_chance_is_given_out_twice() -> None:
    """Draws of any size are as long as asked for, and none is like another."""
    chance = SystemChance()
    sizes = (10, 32, 56, 4000, 100, 10_000, 16) * 40
    drawn = [chance.entropy(size) for size in sizes]
    assert [len(each) for each in drawn] == list(sizes)
    starts = [each[:10] for each in drawn]
    assert len(set(starts)) == len(starts)
    # No draw is a part of another one: each byte is used once.
    whole = b"".join(drawn)
    assert all(whole.count(start) == 1 for start in starts)


def test_a_process_that_forks_draws_its_own_chance() -> None:
    """Parent and child do not give out the same bytes, which would be the same keys and ids."""
    script = """
import os
from agentpost.world import SystemChance
chance = SystemChance()
chance.entropy(16)
os.fork()
os.write(1, chance.entropy(16).hex().encode() + b" ")
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    # The child may outlive the parent, but not its output: the pipe is read to its end.
    first, second = shown.stdout.split()
    assert first != second


def test_ids_of_one_moment_have_its_time() -> None:
    """Ids that are made together say the same time, and sort among all others in the order of their making."""
    clock = FakeClock()
    ids = IdMaker(clock, SeededChance(1))
    moment = ids.of_one_moment(EventId)
    made = [next(moment) for _ in range(3)]
    clock.advance(5)
    made += [next(moment), ids.make(EventId), ids.make(EventId)]
    assert made == sorted(set(made))
    assert [ulid_time_ms(each) - START_MS for each in made] == [0, 0, 0, 0, 5, 5]


def test_the_ids_of_a_node_have_its_mark() -> None:
    """Whatever kind of id it is, and however many are made at once, they tell which node made them."""
    ids = IdMaker(FakeClock(), SeededChance(1), node_id="lab-jane")
    moment = ids.of_one_moment(EventId)
    made = [ids.make(EventId), ids.make(TaskId), next(moment), next(moment)]
    assert {mark_in(each) for each in made} == {mark_of("lab-jane")}
    assert len(set(made)) == len(made)
