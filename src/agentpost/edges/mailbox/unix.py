"""A mailbox on a Unix socket: one JSON-RPC message a line. Who may open the socket may use the mailbox."""

import asyncio
import contextlib
import fcntl
import os
import select
import socket
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from agentpost.edges.mailbox.rpc import MAX_REQUEST_BYTES, RpcConnection
from agentpost.mailbox.interface import ServedMailbox
from agentpost.protocol.errors import Code, Refusal

__all__ = ["serve_unix"]


@contextlib.asynccontextmanager
async def serve_unix(mailbox: ServedMailbox, path: Path) -> AsyncGenerator[None]:
    """Serve the mailbox on a socket that only its owner can open, as long as the context lasts."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
            task.add_done_callback(connections.discard)
        # Whoever stops the server cancels this; asyncio would print that.
        with contextlib.suppress(asyncio.CancelledError):
            await _serve_one(mailbox, reader, writer)

    with _listening(path) as listening:
        server = await asyncio.start_unix_server(connected, sock=listening, limit=MAX_REQUEST_BYTES)
        try:
            yield
        finally:
            server.close()
            for task in tuple(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)


@contextlib.contextmanager
def _listening(path: Path) -> Generator[socket.socket]:
    """A socket at `path`. One whose server died is replaced; a server that lives, or a file, is not."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(listening):
        try:
            with _alone_in(path.parent):
                _make_room(path)
                _bind(listening, path)
        except OSError as error:
            raise Refusal(Code.UNAVAILABLE, f"cannot listen on {path}: {error.strerror or error}") from None
        try:
            yield listening
        finally:
            with _alone_in(path.parent):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Nobody else starts or stops a server in the folder meanwhile: of two, one would remove the other's socket."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make_room(path: Path) -> None:
    if path.exists() and not path.is_socket():
        raise Refusal(Code.CONFLICT, f"{path} is there and is no socket")
    if path.exists() and _is_served(path):
        raise Refusal(Code.CONFLICT, f"somebody serves a mailbox on {path} already")
    path.unlink(missing_ok=True)


def _bind(listening: socket.socket, path: Path) -> None:
    # With this mask nobody else can open it, not even in the moment before a chmod.
    mask = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(mask)
    listening.listen()


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


async def _serve_one(mailbox: ServedMailbox, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def write(data: bytes) -> bool:
        if _has_gone(writer):
            return False
        try:
            writer.write(data + b"\n")
            await writer.drain()
        except ConnectionError:
            return False
        return True

    connection = RpcConnection(mailbox, write)
    try:
        while line := await reader.readline():
            await connection.receive(line)
        if not _has_gone(writer):
            # It may have ended only what it says, and still listen.
            await connection.finish()
    except ValueError:
        # There is no telling where the next line starts.
        await connection.refuse(
            Refusal(Code.TOO_LARGE, f"a call may have {MAX_REQUEST_BYTES} bytes", hint="Send fewer messages at a time.")
        )
    except ConnectionError:
        pass
    finally:
        try:
            await connection.close()
        finally:
            writer.close()


def _has_gone(writer: asyncio.StreamWriter) -> bool:
    """Whether the other side is closed altogether. The kernel knows before any write fails."""
    if writer.is_closing():
        return True
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return bool(poll.poll(0))
