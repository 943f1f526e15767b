"""What processes that share a mailbox file do: `python -m tests.mailboxes.sharing write-and-take FILE NUMBER`."""

import asyncio
import json
import os
import sys

from agentpost.mailbox.file import FileMailbox
from agentpost.mailbox.interface import MailboxPolicy
from tests.mailboxes.building import message

MESSAGES_EACH = 25
# In these tests who is silent for a moment is dead, and everything comes again until it is acked.
POLICY = MailboxPolicy(max_retries=10_000, base_backoff_seconds=0.001, in_flight_timeout_seconds=0.5)


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), (line + "\n").encode())


def write_and_take(path: str, number: int) -> None:
    """Enqueue messages of our own, and ids that others enqueue as well, then take and ack until nothing is left."""

    async def work() -> None:
        async with FileMailbox.open(path) as mailbox:
            for n in range(MESSAGES_EACH):
                await mailbox.enqueue(message(f"p{number}-{n}", sender=f"p{number}", created_at=n))
                ack = await mailbox.enqueue(message(f"shared-{n}", sender="all", created_at=n))
                if ack.queued:
                    say(json.dumps(["queued", f"shared-{n}"]))
            while got := await mailbox.dequeue_many("bob", 3, wait_seconds=1.0):
                await mailbox.ack_many("bob", [each.msg_id for each in got])
                for each in got:
                    say(json.dumps(["took", each.msg_id]))

    asyncio.run(work())


def work_until_killed(path: str, first: int) -> None:
    """Enqueue and handle messages, and say what was acknowledged, until somebody pulls the plug."""

    async def write(mailbox: FileMailbox) -> None:
        number = first
        while True:
            # More than the other one can handle, so that something is left whenever it ends.
            fresh = [message(f"m{number + n}", created_at=number + n) for n in range(1, 6)]
            number += len(fresh)
            await mailbox.enqueue_many(fresh)
            for each in fresh:
                say(json.dumps(["queued", each.msg_id]))

    async def handle(mailbox: FileMailbox) -> None:
        while True:
            for each in await mailbox.dequeue_many("bob", 2, wait_seconds=1.0):
                say(json.dumps(["took", each.msg_id]))
                await mailbox.ack("bob", each.msg_id)
                say(json.dumps(["acked", each.msg_id]))

    async def work() -> None:
        async with FileMailbox.open(path, policy=POLICY) as mailbox:
            say(json.dumps(["ready", ""]))
            await asyncio.gather(write(mailbox), handle(mailbox))

    asyncio.run(work())


if __name__ == "__main__":
    what, file, number = sys.argv[1:]
    {"write-and-take": write_and_take, "work-until-killed": work_until_killed}[what](file, int(number))
