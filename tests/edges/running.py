"""Real gateways for tests: on loopback, on free ports, in homes of their own.

`running_gateway` is a process and ends by its id; `served_gateway` is a thread of the test, with a clock of its own.
"""

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from agentpost.auth.wire import Whois
from agentpost.config import Settings
from agentpost.delivery.ports import Runtime
from agentpost.edges.http.server import serve
from agentpost.edges.operator_client import OperatorClient
from agentpost.edges.runtimes.registry import make_runtime
from agentpost.gateway import Gateway
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import LocalAgent
from agentpost.testing import FakeClock, SeededChance
from tests.warm.client import WarmProcess, run_warm, start_warm

T = TypeVar("T")
Process = subprocess.Popen[str] | WarmProcess
TIMEOUT_SECONDS = 120
_ROOT = Path(__file__).parents[2]
# For tests that make more attempts than any node would.
NO_LIMITS = ("--attempts-per-address", "1000000000", "--attempts-per-token", "1000000000")


class RunningGateway:
    """A gateway process that said that it is up."""

    def __init__(self, process: Process, home: Path, url: str) -> None:
        self.process = process
        self.home = home
        self.url = url
        self.operator = OperatorClient(home, timeout_seconds=TIMEOUT_SECONDS)

    @property
    def log(self) -> str:
        """All that gateways of this home have logged so far."""
        return _log_of(self.home).read_text()

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; gives the exit code."""
        self.process.send_signal(how)
        return self.process.wait(TIMEOUT_SECONDS)


def agentpost(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return run_warm(*words, timeout=TIMEOUT_SECONDS)


def start_gateway(
    home: Path,
    *words: str,
    log: IO[str] | int = subprocess.PIPE,
    module: str = "agentpost",
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> Process:
    """`module` is what is run, `within` a command that runs it somewhere else: in a network namespace, say."""
    up = ("up", "-o", "json", "--home", str(home), *words)
    if not within:
        return start_warm(*up, module=module, stderr=log, environment=environment)
    command = [*within, sys.executable, "-m", module, *up]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=_ROOT, env={**os.environ, **(environment or {})}
    )


@contextmanager
def running_gateway(
    home: Path,
    *words: str,
    node: str = "vps-jane",
    tier: str = "backbone",
    listen: str = "127.0.0.1:0",
    module: str = "agentpost",
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> Iterator[RunningGateway]:
    """A gateway that is up, for the length of a `with`. More settings are words, as on the command line."""
    # Into a file: a pipe that nobody reads would stop a gateway that has much to say.
    with _log_of(home).open("a") as log:
        said = ("--node", node, "--tier", tier, "--listen", listen, *words)
        process = start_gateway(home, *said, log=log, module=module, environment=environment, within=within)
    with process:
        try:
            yield RunningGateway(process, home, _url_of(process, home))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(TIMEOUT_SECONDS)


def _log_of(home: Path) -> Path:
    return home.with_name(f"{home.name}.log")


def _url_of(process: Process, home: Path) -> str:
    """The URL that the gateway prints once it is up."""
    if process.stdout is None:
        raise RuntimeError("the gateway has no output to read")
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            return json.loads(text)["url"]
    raise AssertionError(f"the gateway did not come up: {_log_of(home).read_text()}")


class ServedGateway:
    """A gateway whose doors are open, in a thread of this process."""

    def __init__(self, gateway: Gateway, clock: FakeClock, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.gateway = gateway
        self.clock = clock
        self.url = url
        self.operator = OperatorClient(gateway.settings.home, timeout_seconds=TIMEOUT_SECONDS)
        self._loop = loop

    def run(self, what: Callable[[], T | Awaitable[T]]) -> T:
        """Do something inside the gateway, on the one thread that its room and its engine are used by."""

        async def do() -> T:
            done = what()
            return await done if isinstance(done, Awaitable) else done

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(TIMEOUT_SECONDS)


@contextmanager
def served_gateway(
    home: Path,
    *,
    clock: FakeClock,
    seed: int = 1,
    whois: Whois | None = None,
    runtimes: Callable[[LocalAgent], Runtime] = make_runtime,
    **settings: Any,
) -> Iterator[ServedGateway]:
    """A gateway on real sockets that lives by the test's clock, for the length of a `with`."""
    told: queue.Queue[str | BaseException] = queue.Queue()
    loops: queue.Queue[asyncio.AbstractEventLoop] = queue.Queue()
    given = {"node_id": "vps-jane", "tier": NodeTier.BACKBONE, "listen_port": 0} | settings
    chance = SeededChance(seed)
    gateway = Gateway(Settings(home=home, **given), clock=clock, chance=chance, runtimes=runtimes, whois=whois)

    async def live() -> None:
        loops.put(asyncio.get_running_loop())
        await serve(gateway, on_ready=told.put)

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the URL is told instead
            told.put(error)

    thread = threading.Thread(target=run, name="served-gateway", daemon=True)
    thread.start()
    url = told.get(timeout=TIMEOUT_SECONDS)
    if isinstance(url, BaseException):
        raise url
    loop = loops.get()
    try:
        yield ServedGateway(gateway, clock, url, loop)
    finally:
        loop.call_soon_threadsafe(gateway.request_stop)
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive(), "the gateway did not stop"
