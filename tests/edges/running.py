"""Real gateway processes for tests: on loopback, on free ports, in homes of their own, ended by their process id."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentpost.edges.operator_client import OperatorClient

TIMEOUT_SECONDS = 60


class RunningGateway:
    """A gateway process that said that it is up."""

    def __init__(self, process: subprocess.Popen[str], home: Path, url: str) -> None:
        self.process = process
        self.home = home
        self.url = url
        self.operator = OperatorClient(home)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; gives the exit code."""
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
        return self.process.wait(TIMEOUT_SECONDS)


def start_gateway(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "agentpost", "up", "-o", "json", "--home", str(home), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def running_gateway(
    home: Path, *, node: str = "vps-jane", tier: str = "backbone", listen: str = "127.0.0.1:0"
) -> Iterator[RunningGateway]:
    """A gateway that is up, for the length of a `with`."""
    process = start_gateway(home, "--node", node, "--tier", tier, "--listen", listen)
    with process:
        try:
            yield RunningGateway(process, home, _url_of(process))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(TIMEOUT_SECONDS)


def _url_of(process: subprocess.Popen[str]) -> str:
    """The URL that the gateway prints once it is up."""
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the gateway has no output to read")
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            return json.loads(text)["url"]
    raise AssertionError(f"the gateway did not come up: {process.stderr.read()}")
