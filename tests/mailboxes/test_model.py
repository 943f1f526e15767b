"""Random walks through the life of a mailbox, against a model that fits on a page."""

import asyncio
import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Struct

from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxPolicy
from agentpost.protocol.errors import Refusal
from agentpost.testing import FakeClock
from tests.mailboxes.building import message

EXAMPLES = 25 * int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))
POLICY = MailboxPolicy(max_retries=2, base_backoff_seconds=5, in_flight_timeout_seconds=30, ttl_seconds=120)
SENDERS = st.sampled_from(["ada", "eve", "zoe"])
NUMBERS = st.integers(0, 12)


class Kept(Struct):
    """What the model knows of a message, living or ended."""

    sender: str
    rank: int
    arrival: int
    expires: int
    state: str = "pending"
    attempt: int = 0
    due: int = 0

    def nack(self, at: int) -> None:
        self.state = "dead" if self.attempt >= POLICY.max_retries else "pending"
        self.due = at + 5000 * 2**self.attempt
        self.attempt += 1


class MailboxAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.mailbox = self.opened()
        self.model: dict[str, Kept] = {}

    def opened(self) -> FileMailbox:
        async def open_it() -> FileMailbox:
            return FileMailbox.open(Path(self.folder.name) / "mail.db", policy=POLICY, clock=self.clock)

        return self.loop.run_until_complete(open_it())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.mailbox.close())
        self.loop.close()
        self.folder.cleanup()

    def living(self) -> dict[str, Kept]:
        return {key: each for key, each in self.model.items() if each.state in ("pending", "in_flight")}

    def sweep(self) -> None:
        now = self.clock.now_ms()
        for each in self.living().values():
            if each.expires <= now:
                each.state = "expired"
            elif each.state == "in_flight" and each.due <= now:
                each.nack(each.due)

    @rule(number=NUMBERS, sender=SENDERS, created_at=st.integers(0, 5))
    def enqueue(self, number: int, sender: str, created_at: int) -> None:
        msg_id, now = f"m{number}", self.clock.now_ms()
        ack = self.loop.run_until_complete(self.mailbox.enqueue(message(msg_id, sender=sender, created_at=created_at)))
        assert ack.queued is (msg_id not in self.model)
        if ack.queued:
            rank = max([created_at, *(each.rank for each in self.living().values() if each.sender == sender)])
            self.model[msg_id] = Kept(sender, rank, len(self.model), now + 120_000)

    @rule(limit=st.integers(1, 3))
    def dequeue(self, limit: int) -> None:
        self.sweep()
        now, held, expected = self.clock.now_ms(), set[str](), list[tuple[str, int]]()
        for msg_id, each in sorted(self.living().items(), key=lambda item: (item[1].rank, item[1].arrival)):
            if each.state == "pending" and each.sender not in held:
                if each.due > now:
                    held.add(each.sender)
                elif len(expected) < limit:
                    expected.append((msg_id, each.attempt))
        got = self.loop.run_until_complete(self.mailbox.dequeue_many("bob", limit))
        assert [(each.msg_id, each.attempt) for each in got] == expected
        for msg_id, _ in expected:
            self.model[msg_id].state, self.model[msg_id].due = "in_flight", now + 30_000

    @rule(number=NUMBERS, good=st.booleans())
    def settle(self, number: int, good: bool) -> None:
        self.sweep()
        msg_id = f"m{number}"
        each = self.model.get(msg_id)
        call = self.mailbox.ack("bob", msg_id) if good else self.mailbox.nack("bob", msg_id, "no")
        may = each is not None and (each.state == "in_flight" or each.state == ("acked" if good else "dead"))
        try:
            self.loop.run_until_complete(call)
        except Refusal:
            assert not may
            return
        assert may
        assert each is not None
        if each.state == "in_flight":
            if good:
                each.state = "acked"
            else:
                each.nack(self.clock.now_ms())

    @rule(seconds=st.sampled_from([1, 5, 10, 29, 30, 60]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds * 1000)

    @rule()
    def purge(self) -> None:
        for each in self.living().values():
            each.state = "purged"
        self.loop.run_until_complete(self.mailbox.purge("bob"))

    @rule()
    def restart(self) -> None:
        self.loop.run_until_complete(self.mailbox.close())
        self.mailbox = self.opened()

    @invariant()
    def both_see_the_same(self) -> None:
        self.sweep()
        peeked = self.loop.run_until_complete(self.mailbox.peek("bob"))
        assert {each.msg_id: (each.state.value, each.attempt) for each in peeked} == {
            key: (each.state, each.attempt) for key, each in self.living().items()
        }
        dead = self.loop.run_until_complete(self.mailbox.peek_dead_letter("bob"))
        assert {each.msg_id for each in dead} == {key for key, each in self.model.items() if each.state == "dead"}


MailboxAgainstModel.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
TestMailboxAgainstModel = MailboxAgainstModel.TestCase
