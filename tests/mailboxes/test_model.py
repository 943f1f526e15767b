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
SESSIONS = st.sampled_from(["bob", "eve"])


class Kept(Struct):
    """What the model knows of a message, living or ended."""

    sender: str
    rank: int
    arrival: int
    expires: int
    state: str = "pending"
    attempt: int = 0
    due: int = 0
    is_purged: bool = False

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
        self.model: dict[tuple[str, str], Kept] = {}

    def opened(self) -> FileMailbox:
        async def open_it() -> FileMailbox:
            return FileMailbox.open(Path(self.folder.name) / "mail.db", policy=POLICY, clock=self.clock)

        return self.loop.run_until_complete(open_it())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.mailbox.close())
        self.loop.close()
        self.folder.cleanup()

    def of(self, session: str, *states: str) -> dict[str, Kept]:
        """The messages of a session that are in one of these states."""
        return {key[1]: each for key, each in self.model.items() if key[0] == session and each.state in states}

    def living(self, session: str) -> dict[str, Kept]:
        return self.of(session, "pending", "in_flight")

    def sweep(self) -> None:
        now = self.clock.now_ms()
        for each in (*self.living("bob").values(), *self.living("eve").values()):
            if each.expires <= now:
                each.state = "expired"
            elif each.state == "in_flight" and each.due <= now:
                each.nack(each.due)

    @rule(session=SESSIONS, number=NUMBERS, sender=SENDERS, created_at=st.integers(0, 5))
    def enqueue(self, session: str, number: int, sender: str, created_at: int) -> None:
        self.sweep()
        msg_id, now = f"m{number}", self.clock.now_ms()
        sent = message(msg_id, sender=sender, to=session, created_at=created_at)
        ack = self.loop.run_until_complete(self.mailbox.enqueue(sent))
        assert ack.queued is ((session, msg_id) not in self.model)
        if ack.queued:
            rank = max([created_at, *(each.rank for each in self.living(session).values() if each.sender == sender)])
            self.model[session, msg_id] = Kept(sender, rank, len(self.model), now + 120_000)

    @rule(session=SESSIONS, limit=st.integers(1, 3))
    def dequeue(self, session: str, limit: int) -> None:
        self.sweep()
        now, held, expected = self.clock.now_ms(), set[str](), list[tuple[str, int]]()
        for msg_id, each in sorted(self.living(session).items(), key=lambda item: (item[1].rank, item[1].arrival)):
            if each.state == "pending" and each.sender not in held:
                if each.due > now:
                    held.add(each.sender)
                elif len(expected) < limit:
                    expected.append((msg_id, each.attempt))
        got = self.loop.run_until_complete(self.mailbox.dequeue_many(session, limit))
        assert [(each.msg_id, each.attempt) for each in got] == expected
        for msg_id, _ in expected:
            taken = self.model[session, msg_id]
            taken.state, taken.due = "in_flight", now + 30_000

    @rule(session=SESSIONS, number=NUMBERS, call=st.sampled_from(["ack", "nack", "extend"]))
    def answer(self, session: str, number: int, call: str) -> None:
        self.sweep()
        msg_id = f"m{number}"
        each = self.model.get((session, msg_id))
        calls = {
            "ack": lambda: self.mailbox.ack(session, msg_id),
            "nack": lambda: self.mailbox.nack(session, msg_id, "no"),
            "extend": lambda: self.mailbox.extend(session, msg_id, 40),
        }
        repeat = {"ack": "acked", "nack": "dead"}.get(call)
        may = each is not None and each.state in ("in_flight", repeat)
        try:
            self.loop.run_until_complete(calls[call]())
        except Refusal:
            assert not may
            return
        assert may
        assert each is not None
        now = self.clock.now_ms()
        match call if each.state == "in_flight" else None:
            case "ack":
                each.state = "acked"
            case "nack":
                each.nack(now)
            case "extend":
                each.due = min(now + 40_000, each.expires)
            case _:
                pass

    @rule(session=SESSIONS, number=NUMBERS, attempt=st.integers(0, 2))
    def give_back(self, session: str, number: int, attempt: int) -> None:
        self.sweep()
        each = self.model.get((session, f"m{number}"))
        self.loop.run_until_complete(self.mailbox.give_back(session, {f"m{number}": attempt}))
        if each is not None and each.state == "in_flight" and each.attempt == attempt:
            each.state, each.due = "pending", 0

    @rule(seconds=st.sampled_from([1, 5, 10, 29, 30, 60]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds * 1000)

    @rule(session=SESSIONS)
    def purge(self, session: str) -> None:
        for each in self.living(session).values():
            each.state = "purged"
        self.loop.run_until_complete(self.mailbox.purge(session))

    @rule(session=SESSIONS)
    def purge_dead_letter(self, session: str) -> None:
        self.sweep()
        for each in self.of(session, "dead").values():
            each.is_purged = True
        self.loop.run_until_complete(self.mailbox.purge_dead_letter(session))

    @rule()
    def restart(self) -> None:
        self.loop.run_until_complete(self.mailbox.close())
        self.mailbox = self.opened()

    @invariant()
    def both_see_the_same(self) -> None:
        self.sweep()
        for session in ("bob", "eve"):
            peeked = self.loop.run_until_complete(self.mailbox.peek(session))
            assert {each.msg_id: (each.state.value, each.attempt) for each in peeked} == {
                key: (each.state, each.attempt) for key, each in self.living(session).items()
            }
            dead = self.loop.run_until_complete(self.mailbox.peek_dead_letter(session))
            kept = {key for key, each in self.of(session, "dead").items() if not each.is_purged}
            assert {each.msg_id for each in dead} == kept


MailboxAgainstModel.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
TestMailboxAgainstModel = MailboxAgainstModel.TestCase
