"""Bytes from anywhere: a refusal, or nothing; never an exception of another kind, never a change, never memory kept."""

import contextlib
import gc
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from agentpost.protocol.errors import Refusal
from agentpost.room.guard import client_tag
from agentpost.room.wire import read_update
from tests.room.building import OTHER_SEED, a_populated_room, visible
from tests.room.fuzzing import Fuzz

ROOT = Path(__file__).parent.parent.parent
ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
CASES = 10_000 * ROUNDS
# What is kept of a case would be a session, a frame or a document: hundreds of bytes at the very least.
MOST_KEPT_BYTES_A_CASE = 50
# A document for each of the cases that get as far as the scratch copy would be more than 10 MB.
MOST_NATIVE_GROWTH_BYTES = 6_000_000


@pytest.mark.req("ROOM-3")
def test_mutated_updates_change_nothing() -> None:
    """Ten thousand updates with a few bytes changed raise only refusals, and what gets in is what was signed."""
    fuzz = Fuzz(3)
    for _ in range(CASES):
        fuzz.send_update()
    assert fuzz.refusals > 0.9 * CASES


@pytest.mark.req("ROOM-3")
def test_mutated_frames_end_sessions_and_nothing_else() -> None:
    """Ten thousand frames of every kind with a few bytes changed end their own session, and nobody hears of them."""
    fuzz = Fuzz(5)
    for _ in range(CASES):
        fuzz.send_frame()
    assert fuzz.refusals > 0.5 * CASES
    assert fuzz.hub.sessions == (fuzz.bystander,)


@pytest.mark.req("ROOM-3")
def test_a_room_that_was_fuzzed_is_the_room_it_was() -> None:
    """After thousands of cases of which none was merged every record, value and root is as before."""
    fuzz = Fuzz(6)
    before, merges = visible(fuzz.room), 0
    for _ in range(2_000):
        fuzz.send_update()
        fuzz.send_frame()
        if fuzz.merges > merges:
            before, merges = visible(fuzz.room), fuzz.merges
    assert visible(fuzz.room) == before


@pytest.mark.req("ROOM-3")
def test_random_bytes_are_never_an_update() -> None:
    """Noise is refused."""
    chance = random.Random(4)
    room = a_populated_room()
    before = visible(room)
    for _ in range(CASES):
        noise = chance.randbytes(chance.randrange(64))
        with contextlib.suppress(Refusal):
            read_update(noise)
        with contextlib.suppress(Refusal):
            assert room.receive(noise, peer=OTHER_SEED) == []
    assert visible(room)["values"] == before["values"]


def kept_bytes(work: Callable[[], None]) -> int:
    """How many bytes of Python's memory are held after the work and were not before it."""

    def held() -> int:
        # A cache of names has its own bound; full or empty says nothing about leaks.
        client_tag.cache_clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = held()
        work()
        return held() - before
    finally:
        tracemalloc.stop()


def test_nonsense_leaves_nothing_in_memory() -> None:
    """Thousands of cases more, and Python holds no more than before; a case that is kept on purpose is noticed."""
    fuzz, cases = Fuzz(7), 4_000
    fuzz.run(cases)
    assert kept_bytes(lambda: fuzz.run(cases)) < MOST_KEPT_BYTES_A_CASE * cases
    kept: list[object] = []
    leaked = kept_bytes(lambda: kept.extend(fuzz.send_frame() for _ in range(cases)))
    assert leaked > 4 * MOST_KEPT_BYTES_A_CASE * cases


def test_nonsense_leaves_nothing_in_the_library_either() -> None:
    """The memory of a process that does nothing else levels off: what pycrdt holds outside of Python is let go too."""
    command = [sys.executable, "-m", "tests.room.fuzzing", str(CASES // 2), "4"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600 * ROUNDS)
    assert done.returncode == 0, done.stderr
    held = [int(line) for line in done.stdout.split()]
    assert len(held) == 4
    assert held[-1] - held[0] < MOST_NATIVE_GROWTH_BYTES
