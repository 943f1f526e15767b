"""Several processes on one mailbox file: nobody loses or doubles a message, whoever is killed (MBX-9)."""

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from agentpost.edges.mailbox.connecting import connect_mailbox
from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxProtocol
from agentpost.protocol.errors import Code
from tests.mailboxes.building import message
from tests.mailboxes.sharing import MESSAGES_EACH, POLICY
from tests.warm.client import WarmProcess, start_warm

PROCESSES = 16
LIVES = 8 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))


def start(what: str, path: Path, number: int) -> WarmProcess:
    return start_warm(what, str(path), str(number), module="tests.mailboxes.sharing")


def lines_of(output: str) -> list[tuple[str, str]]:
    # The last line may have been cut off with its process; what it would have said is then unknown to us.
    complete = output[: output.rfind("\n") + 1]
    return [tuple(json.loads(line)) for line in complete.splitlines()]


@pytest.mark.req("MBX-9", "MBX-10")
def test_sixteen_processes_share_a_file(tmp_path: Path) -> None:
    """Each message is handed to one process, each shared id is queued once, and nobody hears of a locked database."""
    path = tmp_path / "mail.db"
    running = [start("write-and-take", path, number) for number in range(PROCESSES)]
    said: list[tuple[str, str]] = []
    for process in running:
        output, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
        said += lines_of(output)
    took = sorted(msg_id for what, msg_id in said if what == "took")
    own = [f"p{number}-{n}" for number in range(PROCESSES) for n in range(MESSAGES_EACH)]
    shared = [f"shared-{n}" for n in range(MESSAGES_EACH)]
    assert took == sorted(own + shared)
    assert sorted(msg_id for what, msg_id in said if what == "queued") == sorted(shared)


@pytest.mark.req("MBX-9", "MBX-3", "MBX-5")
def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Killed while it enqueues and acks: no acknowledged message is lost, no acked one comes again."""
    path = tmp_path / "mail.db"
    random = Random(7)
    queued: set[str] = set()
    acked: set[str] = set()
    in_doubt: set[str] = set()
    for life in range(LIVES):
        with start("work-until-killed", path, life * 1_000_000) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert json.loads(first)[0] == "ready"
            time.sleep(random.uniform(0.05, 0.3))
            process.kill()
            # Not with `communicate`, which passes over what was read ahead with the first line.
            output = process.stdout.read()
        last = ""
        for what, msg_id in lines_of(output):
            if what == "took":
                assert msg_id not in acked
                last = msg_id
            elif what == "queued":
                queued.add(msg_id)
            else:
                acked.add(msg_id)
        in_doubt |= {last} - acked
    left = asyncio.run(take_all(path))
    assert not left & acked
    # The one that was being acked when the plug was pulled may be gone without anybody having been told.
    assert queued - acked - left <= in_doubt
    assert acked
    assert left


async def take_all(path: Path) -> set[str]:
    """Everything that is still there, once those who were killed have been silent for long enough."""
    async with FileMailbox.open(path, policy=POLICY) as mailbox:
        taken: set[str] = set()
        while found := await mailbox.dequeue_many("bob", 100, wait_seconds=2.0):
            await mailbox.ack_many("bob", [each.msg_id for each in found])
            taken |= {each.msg_id for each in found}
        return taken


class Told:
    """What the client of a served mailbox knows."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.queued: set[str] = set()
        self.acked: set[str] = set()
        self.in_doubt: set[str] = set()


async def call_until_gone(address: str, server: WarmProcess, seconds: float, told: Told) -> None:
    """Enqueue and ack over one connection until the server is killed in the middle of it."""

    async def write(mailbox: MailboxProtocol) -> None:
        while True:
            fresh = [message(f"m{n}", created_at=n) for n in itertools.islice(told.numbers, 5)]
            await mailbox.enqueue_many(fresh)
            told.queued |= {each.msg_id for each in fresh}

    async def handle(mailbox: MailboxProtocol) -> None:
        while True:
            for each in await mailbox.dequeue_many("bob", 2, wait_seconds=1.0):
                assert each.msg_id not in told.acked
                told.in_doubt.add(each.msg_id)
                await mailbox.ack("bob", each.msg_id)
                told.in_doubt.remove(each.msg_id)
                told.acked.add(each.msg_id)

    async with await connect_mailbox(address) as mailbox:
        asyncio.get_running_loop().call_later(seconds, server.kill)
        ends = await asyncio.wait_for(asyncio.gather(write(mailbox), handle(mailbox), return_exceptions=True), 60)
    assert [getattr(end, "code", end) for end in ends] == [Code.UNAVAILABLE] * 2


@contextmanager
def server(path: Path, socket: Path) -> Iterator[WarmProcess]:
    """`mailbox serve` as a process, which may be killed inside; otherwise it is asked to stop."""
    words = ("mailbox", "serve", "--file", str(path), "--socket", str(socket), "-o", "json")
    with start_warm(*words) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.req("MBX-3", "MBX-9", "MBX-10")
def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    """Killed in the middle of calls, a served mailbox has all that it said it has, and so has the next server."""
    path, socket = tmp_path / "mail.db", tmp_path / "mail.sock"
    told, random = Told(), Random(7)
    for _ in range(2):
        with server(path, socket) as process:
            asyncio.run(call_until_gone(f"unix:{socket}", process, random.uniform(0.2, 0.6), told))
            assert process.wait(30) == -signal.SIGKILL
    assert told.acked

    async def look() -> None:
        async with await connect_mailbox(f"unix:{socket}") as mailbox:
            there: set[str] = set()
            last: str | None = None
            while page := await mailbox.peek("bob", after=last):
                there |= {each.msg_id for each in page}
                last = page[-1].msg_id
            assert not there & told.acked
            assert told.queued - told.acked - there <= told.in_doubt
            for msg_id in sorted(told.queued)[:20]:
                assert not (await mailbox.enqueue(message(msg_id))).queued

    # The first of these finds what the killed one left, the second what one left that was asked to stop.
    for _ in range(2):
        with server(path, socket) as process:
            asyncio.run(look())
        assert process.returncode == 0
