"""NATS JetStream with file storage. It acknowledges what it has stored, and syncs that in the background."""

# The client's types leave much open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import contextlib
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from agentpost.bench.peers.running import free_port, receiver, server
from agentpost.bench.peers.trip import BODY, Trip, median_ms

__all__ = ["nats_peer", "nats_trip"]

_BATCH: Final = 256
_WAIT_SECONDS: Final = 5.0


async def _connect(port: int) -> tuple[Any, Any]:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    return connection, connection.jetstream(publish_async_max_pending=8192)


@contextlib.contextmanager
def nats_peer(program: str, folder: Path) -> Generator[int]:
    """A server and a receiver; gives the port."""
    port = free_port()
    with server([program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)], port=port):
        asyncio.run(_make_streams(port))
        with receiver(__name__, port):
            yield port


async def _make_streams(port: int) -> None:
    connection, stream = await _connect(port)
    await stream.add_stream(name="mail", subjects=["mail"])
    await stream.add_stream(name="records", subjects=["records"])
    await connection.close()


def nats_trip(port: int, *, window: int, messages: int) -> Trip:
    """Send with `window` messages under way until all are seen as processed."""
    return asyncio.run(_trip(port, window, messages))


async def _trip(port: int, window: int, messages: int) -> Trip:
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    connection, stream = await _connect(port)
    config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW, ack_policy=AckPolicy.NONE)
    records = await stream.pull_subscribe("records", stream="records", config=config)
    sent_at: dict[int, float] = {}
    took: list[float] = []
    sent = 0
    start = time.perf_counter()
    while len(took) < messages:
        wanted = min(window - len(sent_at), messages - sent)
        if wanted:
            now = time.perf_counter()
            stored = await asyncio.gather(*(stream.publish("mail", BODY.encode()) for _ in range(wanted)))
            sent_at.update((each.seq, now) for each in stored)
            sent += wanted
        # Nothing yet: the client says so with an error of its own, or with asyncio's.
        with contextlib.suppress(TimeoutError):
            for record in await records.fetch(4 * _BATCH if window > 1 else 2, timeout=_WAIT_SECONDS):
                what, _, of = record.data.decode().partition(" ")
                if what == "processed":
                    took.append(time.perf_counter() - sent_at.pop(int(of)))
    seconds = time.perf_counter() - start
    await connection.close()
    return Trip(window=window, messages=messages, seconds=seconds, p50_ms=median_ms(took))


async def _receive(port: int) -> None:
    connection, stream = await _connect(port)
    mail = await stream.pull_subscribe("mail", durable="receiver", stream="mail")
    print("ready", flush=True)  # noqa: T201 - this is what the parent waits for
    while connection.is_connected:
        with contextlib.suppress(TimeoutError):
            batch = await mail.fetch(_BATCH, timeout=_WAIT_SECONDS)
            seqs = [message.metadata.sequence.stream for message in batch]
            await asyncio.gather(*(stream.publish("records", f"accepted {seq}".encode()) for seq in seqs))
            await asyncio.gather(*(stream.publish("records", f"processed {seq}".encode()) for seq in seqs))
            await asyncio.gather(*(message.ack() for message in batch))


if __name__ == "__main__":
    asyncio.run(_receive(int(sys.argv[1])))
