"""The process that others are forked from: one for each process that runs tests.

It reads what to start from a socket, with the three files that a program has, and a pipe for what becomes of it: its
id at once, its exit code when it has ended. When the socket closes, the tests are over, and what still runs is ended.
"""

import contextlib
import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from typing import Final

import msgspec

from agentpost.edges.cli.app import make_app

__all__ = ["MAX_JOB_BYTES", "Job"]

MAX_JOB_BYTES: Final = 100_000
# What a gateway has imported when it is up, and a command that talks to it.
_IMPORTED: Final = (
    "agentpost.edges.http.server",
    "agentpost.edges.operator_client",
    "litestar.plugins.pydantic",
    "rich.table",
    "typer._adapters",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)


class Job(msgspec.Struct):
    """`python -m module words`, in a folder, with an environment."""

    module: str
    words: list[str]
    folder: str
    environment: dict[str, str]


def _serve(requests: socket.socket) -> Job | None:
    """Fork until nobody asks any more. Comes back in every process that was forked, with what it is to do."""
    running: dict[int, int] = {}
    ended_in, ended_out = os.pipe()
    os.set_blocking(ended_out, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ctrl-C is for the tests, which then go away.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(ended_out, warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(ended_in, selectors.EVENT_READ)
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if ended_in in ready:
            os.read(ended_in, 4096)
            _tell_of_the_ended(running)
        if requests.fileno() not in ready:
            continue
        text, files, _, _ = socket.recv_fds(requests, MAX_JOB_BYTES, 4)
        if not text:
            for process in running:
                os.kill(process, signal.SIGKILL)
            return None
        *streams, status = files
        process = os.fork()
        if not process:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            selector.close()
            requests.close()
            for file in (ended_in, ended_out, status, *running.values()):
                os.close(file)
            for to, file in enumerate(streams):
                os.dup2(file, to)
                os.close(file)
            return msgspec.msgpack.decode(text, type=Job)
        for file in streams:
            os.close(file)
        running[process] = status
        os.write(status, b"%d\n" % process)


def _tell_of_the_ended(running: dict[int, int]) -> None:
    while running:
        process, how = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        status = running.pop(process)
        # Whoever started it may have stopped listening.
        with contextlib.suppress(BrokenPipeError):
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(how))
        os.close(status)


if __name__ == "__main__":
    for name in _IMPORTED:
        # What is not installed is not imported by a gateway either.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    make_app()
    assert threading.active_count() == 1, "threads do not survive a fork"
    # Pages that nobody writes to are shared by all of them.
    gc.collect()
    gc.freeze()
    job = _serve(socket.socket(fileno=int(sys.argv[1])))
    if job is not None:
        os.chdir(job.folder)
        sys.path[0] = job.folder
        os.environ.clear()
        os.environ.update(job.environment)
        sys.argv = [job.module, *job.words]
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
