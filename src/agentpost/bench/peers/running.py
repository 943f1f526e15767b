"""Servers and receivers of the comparison: on loopback, on free ports, ended by their own process ids."""

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from typing import Final

from agentpost.protocol.errors import Code, Refusal

__all__ = ["find_program", "free_port", "receiver", "server"]

_START_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 10.0
# Where Debian puts servers that are not for everybody's PATH.
_MORE_PLACES: Final = "/usr/sbin:/usr/local/sbin"


def find_program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_MORE_PLACES)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(command: Sequence[str], *, port: int) -> Generator[None]:
    """A server that listens on `port`, for the length of a `with`."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port, process)
            yield
        finally:
            _end(process)


@contextlib.contextmanager
def receiver(module: str, port: int, *more: str) -> Generator[None]:
    """The other side of a round trip, in a process of its own. It says `ready` on stdout once it listens."""
    command = [sys.executable, "-m", module, str(port), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise Refusal(Code.UNAVAILABLE, f"{module} did not start")
            yield
        finally:
            _end(process)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise Refusal(Code.UNAVAILABLE, f"the server on port {port} did not start")


def _end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
