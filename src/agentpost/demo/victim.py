"""The process that the demo kills: it appends messages as fast as it can, and says which ones it was told are safe.

Run as `python -m agentpost.demo.victim HOME`. Every line it prints is a seq that the store acknowledged.
"""

import asyncio
import sys
from pathlib import Path

from agentpost.demo.mail import SENDER, Postman

_CALLERS = 16


async def _append_until_killed(home: Path) -> None:
    postman = Postman(home, SENDER)

    async def call() -> None:
        while True:
            _, seq = await postman.send("status", "still working")
            sys.stdout.write(f"{seq}\n")
            sys.stdout.flush()

    await asyncio.gather(*(call() for _ in range(_CALLERS)))


if __name__ == "__main__":
    asyncio.run(_append_until_killed(Path(sys.argv[1])))
