"""Start programs from the warm process, and be told what became of them."""

import atexit
import contextlib
import functools
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from tests.warm.server import MAX_JOB_BYTES, Job

__all__ = ["WarmProcess", "run_warm", "start_warm"]

_ROOT: Final = Path(__file__).parents[2]


class WarmProcess:
    """As much of `subprocess.Popen` as the tests use."""

    def __init__(self, pid: int, status: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._status = status
        self._one_at_a_time = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            # It is the warm process that hears of its end first.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote until its end, from both of its pipes."""
        said: dict[str, str] = {}
        readers = [
            threading.Thread(target=lambda name=name, pipe=pipe: said.update({name: pipe.read()}))
            for name, pipe in (("stdout", self.stdout), ("stderr", self.stderr))
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self._close_pipes()
        return said.get("stdout", ""), said.get("stderr", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_pipes()
        self.wait()

    def _close_pipes(self) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def _look(self, timeout: float | None) -> int | None:
        with self._one_at_a_time:
            if self.returncode is not None:
                return self.returncode
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return None
            text = os.read(self._status, 64)
            os.close(self._status)
            assert text, f"the process that process {self.pid} was forked from is gone"
            self.returncode = int(text)
            return self.returncode


def start_warm(
    *words: str,
    module: str = "agentpost",
    stdout: IO[str] | int = subprocess.PIPE,
    stderr: IO[str] | int = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
    folder: Path = _ROOT,
) -> WarmProcess:
    """`python -m module words`, without the imports; `environment` is what differs from that of the tests."""
    job = Job(module, list(words), str(folder), {**os.environ, **(environment or {})})
    text = msgspec.msgpack.encode(job)
    assert len(text) < MAX_JOB_BYTES
    status_in, status_out = os.pipe()
    (stdout_file, stdout_pipe), (stderr_file, stderr_pipe) = _file_for(stdout), _file_for(stderr)
    nothing = os.open(os.devnull, os.O_RDONLY)
    server = _server()
    socket.send_fds(server, [text], [nothing, stdout_file, stderr_file, status_out])
    for file in (nothing, status_out):
        os.close(file)
    for file, pipe in ((stdout_file, stdout_pipe), (stderr_file, stderr_pipe)):
        if pipe is not None:
            os.close(file)
    process_id = b""
    while not process_id.endswith(b"\n"):
        read = os.read(status_in, 1)
        assert read, "the warm process has died"
        process_id += read
    return WarmProcess(int(process_id), status_in, stdout_pipe, stderr_pipe)


def run_warm(
    *words: str, timeout: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same to its end, as `subprocess.run` does."""
    with start_warm(*words, environment=environment) as process:
        try:
            said, complained = process.communicate(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(list(words), process.wait(), said, complained)


def _file_for(wanted: IO[str] | int) -> tuple[int, IO[str] | None]:
    """The file that the program writes to, and the other end of it if that is a pipe."""
    if wanted != subprocess.PIPE:
        return (wanted if isinstance(wanted, int) else wanted.fileno()), None
    here, there = os.pipe()
    return there, os.fdopen(here)


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.warm.server", str(theirs.fileno())]
        server = subprocess.Popen(command, pass_fds=(theirs.fileno(),), cwd=_ROOT)

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours
