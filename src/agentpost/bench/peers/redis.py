"""Redis Streams with `appendfsync always`: a stream for messages, a stream for accepted and processed records."""

# The client's type stubs leave the answers of commands open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from agentpost.bench.peers.running import free_port, receiver, server
from agentpost.bench.peers.trip import BODY, Trip, median_ms

__all__ = ["redis_peer", "redis_trip"]

_MAIL: Final = "mail"
_RECORDS: Final = "records"
_GROUP: Final = "receiver"
_BATCH: Final = 256
_BLOCK_MS: Final = 5_000


def _connect(port: int) -> Any:
    import redis

    return redis.Redis(host="127.0.0.1", port=port, protocol=2)


@contextlib.contextmanager
def redis_peer(program: str, folder: Path) -> Generator[int]:
    """A server and a receiver; gives the port."""
    port = free_port()
    options = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync always --save".split()
    with server([program, *options, "", "--dir", str(folder), "--daemonize", "no"], port=port):
        connection = _connect(port)
        connection.xgroup_create(_MAIL, _GROUP, id="0", mkstream=True)
        with receiver(__name__, port):
            yield port
        connection.close()


def redis_trip(port: int, *, window: int, messages: int) -> Trip:
    """Send with `window` messages under way until all are seen as processed."""
    connection = _connect(port)
    last = connection.xinfo_stream(_RECORDS)["last-generated-id"] if connection.exists(_RECORDS) else "0"
    sent_at: dict[bytes, float] = {}
    took: list[float] = []
    sent = 0
    start = time.perf_counter()
    while len(took) < messages:
        wanted = min(window - len(sent_at), messages - sent)
        if wanted:
            pipeline = connection.pipeline(transaction=False)
            for _ in range(wanted):
                pipeline.xadd(_MAIL, {"body": BODY})
            now = time.perf_counter()
            sent_at.update(dict.fromkeys(pipeline.execute(), now))
            sent += wanted
        for _, records in connection.xread({_RECORDS: last}, count=4 * _BATCH, block=_BLOCK_MS):
            now = time.perf_counter()
            took += [now - sent_at.pop(fields[b"of"]) for _, fields in records if fields[b"what"] == b"processed"]
            last = records[-1][0]
    seconds = time.perf_counter() - start
    connection.close()
    return Trip(window=window, messages=messages, seconds=seconds, p50_ms=median_ms(took))


def _receive(port: int) -> None:
    connection = _connect(port)
    print("ready", flush=True)  # noqa: T201 - this is what the parent waits for
    while True:
        for _, mail in connection.xreadgroup(_GROUP, "one", {_MAIL: ">"}, count=_BATCH, block=_BLOCK_MS):
            accepted = connection.pipeline(transaction=False)
            for message_id, _fields in mail:
                accepted.xadd(_RECORDS, {"what": "accepted", "of": message_id})
            accepted.execute()
            processed = connection.pipeline(transaction=False)
            for message_id, _fields in mail:
                processed.xadd(_RECORDS, {"what": "processed", "of": message_id})
            processed.xack(_MAIL, _GROUP, *(message_id for message_id, _fields in mail))
            processed.execute()


if __name__ == "__main__":
    _receive(int(sys.argv[1]))
