"""A place on loopback that notifications are posted to, which can be told to answer badly."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What was posted, in its order: headers in lower case, and the body. `answers` are the next statuses."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.answers: list[int] = []
        self.url = ""
        # Where a redirect leads, if not here; and every method that came in.
        self.elsewhere: str | None = None
        self.asked: list[str] = []

    def states(self, task_id: str) -> list[str]:
        return [body["task"]["status"]["state"] for _, body in self.got if body["task"]["id"] == task_id]


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver()

    class Posted(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            receiver.asked.append(self.path)
            self.send_error(404)

        def do_POST(self) -> None:
            receiver.asked.append(self.path)
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status = receiver.answers.pop(0) if receiver.answers else 200
            if status == 200:
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", receiver.elsewhere or receiver.url)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library has it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Posted)
    receiver.url = f"http://localhost:{server.server_port}/told?by=us"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
