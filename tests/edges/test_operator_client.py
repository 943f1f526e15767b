"""A command's way to its gateway, against a server on the other end of the socket that behaves as it likes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest

from agentpost.edges.async_operator_client import AsyncOperatorClient
from agentpost.edges.operator_client import OperatorClient, path_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.home import Home

Answer = Callable[["Handler"], None]


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Answer

    def handle_call(self) -> None:
        type(self).answer(self)

    do_GET = do_POST = do_DELETE = handle_call  # noqa: N815 - the names that the base class looks for

    def address_string(self) -> str:
        return "a socket"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class has
        pass

    def say(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def say_chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()


@contextlib.contextmanager
def served(home: Path, answer: Answer) -> Iterator[OperatorClient]:
    """A client of a home whose gateway answers like this."""
    path = Home(home).operator_socket
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = type("OneHandler", (Handler,), {"answer": staticmethod(answer)})
    with Server(str(path), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield OperatorClient(home, timeout_seconds=30)
        finally:
            server.shutdown()


def refusal_of(call: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as refused:
        call()
    return refused.value


def test_a_call_says_what_it_wants_and_gets_the_answer(tmp_path: Path) -> None:
    """Names stay one part of the path, queries are spelled as the gateway reads them, and a body is JSON."""

    def echo(handler: Handler) -> None:
        size = int(handler.headers.get("content-length", 0))
        body = handler.rfile.read(size).decode()
        handler.say(f'{{"line": "{handler.requestline}", "body": {body or "null"}}}'.encode())

    with served(tmp_path, echo) as client:
        asked = client.get(path_of("agents", "a/b ä"), {"all": True, "limit": 3, "text": "x y"})
        assert asked["line"] == "GET /agents/a%2Fb%20%C3%A4?all=true&limit=3&text=x+y HTTP/1.1"
        assert client.post("/x", {"says": "ä"})["body"] == {"says": "ä"}
        assert client.delete("/x")["body"] is None


def test_a_refusal_comes_back_as_the_same_refusal(tmp_path: Path) -> None:
    """What the gateway refuses has its code, its sentence and its field on this side too."""
    error = b'{"error": {"code": "invalid_field", "message": "no", "field": "name"}}'
    with served(tmp_path, lambda handler: handler.say(error, status=400)) as client:
        for call in (lambda: client.get("/x"), lambda: list(client.lines("/x"))):
            refused = refusal_of(call)
            assert (refused.code, refused.message, refused.field) == (Code.INVALID_FIELD, "no", "name")


def test_who_is_not_a_gateway_is_named_as_such(tmp_path: Path) -> None:
    """An answer that no gateway gives is a refusal with a sentence, not a traceback."""
    for content, status in ((b"<html>", 200), (b"{}", 500), (b"", 502), (b"[]", 404)):
        home = tmp_path / f"{status}"
        with served(home, lambda handler, content=content, status=status: handler.say(content, status)) as client:
            refused = refusal_of(lambda client=client: client.get("/x"))
            assert refused.code is Code.UNAVAILABLE
            assert "not a gateway" in refused.message


def test_a_gateway_that_is_not_there_or_silent_is_told_apart(tmp_path: Path) -> None:
    """Without a gateway the command says how to start one; one that is silent does not answer."""
    assert "no gateway runs" in refusal_of(lambda: OperatorClient(tmp_path).get("/x")).message
    done = threading.Event()
    with served(tmp_path, lambda _: done.wait(30) and None) as client:
        client._timeout_seconds = 0.2  # pyright: ignore[reportPrivateUsage] - nobody else needs so little
        assert "does not answer" in refusal_of(lambda: client.get("/x")).message
        done.set()


def test_lines_come_as_they_are_told_and_their_end_is_noticed(tmp_path: Path) -> None:
    """Each line is there before the next one is told, and a gateway that dies in the middle is gone."""
    heard = threading.Event()

    def tell(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        handler.say_chunk(b'{"n": 1}\n')
        assert heard.wait(30)
        handler.say_chunk(b'\n{"n": ')
        time.sleep(0.01)
        handler.say_chunk(b"2}\n")
        handler.close_connection = True

    with served(tmp_path, tell) as client:
        lines = client.lines("/watch")
        assert next(lines) == {"n": 1}
        heard.set()
        assert next(lines) == {"n": 2}
        assert "is gone" in refusal_of(lambda: next(lines)).message


async def test_what_is_no_text_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 come from the command line as lone surrogates; JSON and a URL have no place for them."""
    client = OperatorClient(tmp_path)
    for call in (
        lambda: client.post("/x", {"body": "\udcff bad"}),
        lambda: client.get("/x", {"to": "\udcff"}),
        lambda: path_of("agents", "\udcff"),
    ):
        refused = refusal_of(call)
        assert (refused.code, refused.message) == (Code.MALFORMED, "the text is not UTF-8")
    async with AsyncOperatorClient(tmp_path) as at_once:
        with pytest.raises(Refusal, match="not UTF-8"):
            await at_once.post("/x", {"body": "\udcff bad"})
