"""The gateway's own command, with a clock that can be set, shorter waits, and points at which it dies.

`python -m tests.processes.launch up …` is `agentpost up …`. AGENTPOST_TEST_CLOCK names a file with the milliseconds
that the time of day is off; it is read whenever somebody asks for the time. AGENTPOST_TEST_QUICK shortens how long
silence has to last before something is done about it. AGENTPOST_TEST_DIE_AT is a point of tests/faults/points.py at
which the process kills itself, as `kill -9` would. Nothing else is different.
"""

import functools
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from websockets.asyncio.client import connect

from agentpost.delivery import clocks, link, retry
from agentpost.delivery.frames import decode_frame
from agentpost.edges import seed_link
from agentpost.edges.cli.main import main
from agentpost.edges.http import guarded, server
from agentpost.edges.link import carry, dial
from agentpost.protocol import routing
from agentpost.protocol.backoff import RetryPolicy
from agentpost.room import host
from agentpost.store.sqlite import SqliteStore
from agentpost.world import SystemClock
from tests.faults.points import COMMITS, FRAMES

# Seconds. A beat is heard, or silence noticed, within a few of them, on a machine that is busy with other tests too.
BEAT, STALE, PING, SILENT = 0.5, 4.0, 1.0, 5.0


class SteppedClock(SystemClock):
    """The machine's clock, as if somebody had set it."""

    def __init__(self) -> None:
        self._file = Path(os.environ["AGENTPOST_TEST_CLOCK"])

    def now_ms(self) -> int:
        # Replaced as a whole, so that it is never read half written.
        return super().now_ms() + int(self._file.read_text())


def shorten_waits() -> None:
    routing.is_live.__defaults__ = (STALE * 1000,)
    routing.decide_route.__kwdefaults__["stale_after_ms"] = STALE * 1000
    again = RetryPolicy(base_seconds=0.2, factor=2.0, max_delay_seconds=1.0, max_attempts=1_000_000, jitter_share=0.5)
    for module, name, value in (
        (host, "_BEAT_SECONDS", BEAT),
        (carry, "PING_EVERY_SECONDS", PING),
        (link, "_SILENT_FOR_MS", round(SILENT * 1000)),
        (retry, "_LOOK_EVERY_MS", round(BEAT * 1000)),
        (clocks, "_LOOK_EVERY_SECONDS", BEAT),
        (dial, "_RECONNECT", again),
        (seed_link, "_RECONNECT", again),
        # The room's own connection has the pings of the WebSocket, at both of its ends.
        (seed_link, "connect", functools.partial(connect, ping_interval=PING, ping_timeout=SILENT - PING)),
        (guarded, "uvicorn", _Uvicorn),
    ):
        # What was renamed must not go on waiting for long.
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)


def die_at(point: str) -> None:
    """Die when the process comes by this point for the first time."""
    kind, name, when = point.split(":")
    if kind == "commit":
        assert name in COMMITS, point
        setattr(SqliteStore, name, _dying(getattr(SqliteStore, name), when))
        return
    assert (kind, name in FRAMES) == ("send", True), point
    write = carry.LinkConnection._write

    def dying_write(self: carry.LinkConnection, send: carry.SendFrames) -> Awaitable[None]:
        async def dying_send(frames: Sequence[bytes]) -> None:
            # One by one, so that those before it are sent and those after it are not.
            for frame in frames:
                is_it = decode_frame(frame).__struct_config__.tag == name
                if is_it and when == "before":
                    _die()
                await send((frame,))
                if is_it:
                    _die()

        return write(self, dying_send)

    carry.LinkConnection._write = dying_write


def _dying(operation: Callable[..., Any], when: str) -> Callable[..., Any]:
    def dying(*args: Any, **named: Any) -> Any:
        if when == "before":
            _die()
        committed = operation(*args, **named)
        # The first to hear, before whoever asked for it.
        committed.add_done_callback(lambda _: _die())
        return committed

    return dying


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Uvicorn:
    Server = uvicorn.Server

    @staticmethod
    def Config(*args: Any, **settings: Any) -> uvicorn.Config:
        return uvicorn.Config(*args, **settings, ws_ping_interval=PING, ws_ping_timeout=SILENT - PING)


if __name__ == "__main__":
    if "AGENTPOST_TEST_QUICK" in os.environ:
        shorten_waits()
    if "AGENTPOST_TEST_CLOCK" in os.environ:
        # Where the gateway is made. A clock that nobody reads would make every test of steps pass.
        assert hasattr(server, "SystemClock")
        server.SystemClock = SteppedClock
    if "AGENTPOST_TEST_DIE_AT" in os.environ:
        die_at(os.environ["AGENTPOST_TEST_DIE_AT"])
    main()
