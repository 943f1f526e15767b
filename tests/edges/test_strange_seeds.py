"""What is at the address of a seed may be anybody: a page of a hotel, or somebody on the way who makes answers up."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.testing import FakeClock
from tests.edges.meshing import eventually
from tests.edges.running import served_gateway

STRANGE = [
    (200, b'{"admission": ' + b"[" * 100_000),
    (200, b'{"nodeId": "\xff"}'),
    (401, b"[" * 100_000),
]


@contextmanager
def a_stranger(status: int, body: bytes) -> Iterator[tuple[str, list[str]]]:
    """A server that gives one answer to everything; and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library has it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.req("AUTH-7")
@pytest.mark.parametrize(("status", "body"), STRANGE)
def test_whatever_answers_for_a_seed_it_is_tried_again(tmp_path: Path, status: int, body: bytes) -> None:
    """An answer that nobody can read ends neither a join in a defect nor a link for good."""
    home = tmp_path / "home"
    with a_stranger(status, body) as (url, asked):
        with served_gateway(home, clock=FakeClock()) as served, pytest.raises(Refusal) as caught:
            served.operator.post("/operator/join", {"url": url, "token": "agp_x"})
        assert caught.value.code is Code.UNAVAILABLE
        (home / "seeds.json").write_bytes(msgspec.json.encode([{"url": url, "nodeId": "hub-jane"}]))
        asked.clear()
        with served_gateway(home, clock=FakeClock(), seed=2):
            eventually(lambda: len(asked) >= 2, patience_seconds=20)
