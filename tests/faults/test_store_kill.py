"""A gateway process is killed in the middle of its work, again and again, and its home stays whole."""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import IO

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.delivery import Delivery
from agentpost.store import writer
from agentpost.store.integrity import check_home
from agentpost.store.sqlite import SqliteStore
from tests.faults.playing import open_store
from tests.faults.words import message

LIVES = 10 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
LONGEST_LIFE_SECONDS = 0.15
EVENTS_A_LIFE = 1_000_000
CALLERS = 8
CHECKPOINT_AT_PAGES = 50
ROOT = Path(__file__).parents[2]
OPENING = "opening\n"


def work_until_killed(home: str, first_number: int) -> None:
    """Append from several callers at once, and say the number and the seq of each event once it is acknowledged."""

    async def work() -> None:
        say(OPENING)
        store = open_store(Path(home))
        await asyncio.gather(*(append_forever(store) for _ in range(CALLERS)))

    async def append_forever(store: SqliteStore) -> None:
        for number in numbers:
            event = message(number)
            delivery = Delivery(event_id=event.event_id, to_agent_id="worker")
            appended = await store.append([event], deliveries=[delivery])
            say(f"{number} {appended.first_seq}\n")

    numbers = itertools.count(first_number)
    writer._CHECKPOINT_AT_PAGES = CHECKPOINT_AT_PAGES
    writer._COMMITS_A_LOOK_AT_THE_LOG = 1
    asyncio.run(work())


def say(line: str) -> None:
    # In one piece, and not in a buffer that dies with the process.
    os.write(sys.stdout.fileno(), line.encode())


def live_and_die(home: Path, life: int, random: Random) -> dict[int, int]:
    """The seq of each event that was acknowledged in one life of the gateway."""
    call = f"work_until_killed({str(home)!r}, {life * EVENTS_A_LIFE})"
    command = [sys.executable, "-c", f"from tests.faults.test_store_kill import work_until_killed; {call}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as gateway:
        try:
            output: IO[str] | None = gateway.stdout
            assert output is not None
            assert output.readline() == OPENING
            # Every other life may end before it has done anything, even within the recovery from the one before.
            first = output.readline() if life % 2 else ""
            time.sleep(random.uniform(0, LONGEST_LIFE_SECONDS))
        finally:
            gateway.kill()
        lines = [line for line in [first, *output.readlines()] if line]
    return {int(number): int(seq) for number, seq in (line.split() for line in lines)}


@pytest.mark.req("PIPE-3", "ENV-2")
def test_a_killed_gateway_has_everything_that_it_acknowledged(tmp_path: Path) -> None:
    """However often the process is killed, each event that it acknowledged is in its place, with its delivery."""
    home = tmp_path / "home"
    random = Random()
    acknowledged: dict[int, int] = {}
    for life in range(LIVES):
        new = live_and_die(home, life, random)
        acknowledged |= new
        asyncio.run(check_life(home, new))
    assert len(set(acknowledged.values())) == len(acknowledged) >= LIVES // 2


async def check_life(home: Path, acknowledged: dict[int, int]) -> None:
    store = open_store(home)
    try:
        assert check_home(home).problems == ()
        for number, seq in acknowledged.items():
            stored = store.find_event(message(number).event_id)
            assert stored is not None
            assert (stored.seq, stored.raw) == (seq, encode_event(replace(message(number), seq=seq)))
        places = store._reader().rows("SELECT seq, event_id FROM outbox ORDER BY seq")
        assert places == store._reader().rows("SELECT seq, event_id FROM deliveries ORDER BY seq")
        assert [seq for seq, _ in places] == list(range(1, len(places) + 1))
    finally:
        await store.close()
