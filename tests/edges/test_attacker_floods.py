"""A member that sends too much, of everything. It is cut off, and honest mail does not wait for it."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from agentpost.auth.wire import LINK_ROOM
from agentpost.delivery.frames import (
    MAX_FRAME_BYTES,
    Chunk,
    Credit,
    GetChunk,
    Ping,
    Refused,
    Subscribe,
    Unsubscribe,
)
from agentpost.protocol.payloads import PayloadRef
from agentpost.store.database import Database
from agentpost.store.home import Home
from agentpost.store.values import CHAIN_START
from tests.edges.attacked import AttackedMesh, attacked_mesh
from tests.edges.lying import Liar, LiarLink, said
from tests.edges.meshing import PATIENCE_SECONDS, eventually


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedMesh]:
    folder: Path = tmp_path_factory.mktemp("floods")
    with attacked_mesh(folder) as attacked:
        yield attacked


@contextlib.contextmanager
def honest_mail(mesh: AttackedMesh) -> Iterator[None]:
    """Mail of the third gateway, one after the other, for as long as the attack lasts; at least one gets through."""
    is_over = threading.Event()

    def send() -> None:
        mesh.send_honestly()
        while not is_over.is_set():
            mesh.send_honestly()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


def flood(link: LiarLink, make: Callable[[int], bytes], *, count: int) -> None:
    """Send until the victim has had enough. Nothing that it says meanwhile is read."""
    with contextlib.suppress(ConnectionClosed, OSError):
        for number in range(count):
            link.send_raw(make(number))


def _unknown(number: int) -> str:
    return f"node-{number}"


SMALL = {
    "pings": lambda _: said(Ping()),
    "wishes for nodes that nobody knows": lambda number: said(
        Subscribe(source=_unknown(number), after_seq=0, after_chain=CHAIN_START)
    ),
    "wishes for one outbox, again and again": lambda number: said(
        Subscribe(source="vps-jane", after_seq=number, after_chain=CHAIN_START)
    ),
    "takings back": lambda number: said(Unsubscribe(source=_unknown(number))),
    "credit": lambda number: said(Credit(source="vps-jane", through_seq=number, bytes=0)),
    "chunks that nobody asked for": lambda number: said(Chunk(sha256=f"{number:064x}", part=number, data=b"x" * 1000)),
    "refusals of what was not asked": lambda number: said(
        Refused(code="sequence_gap", message="no", source=_unknown(number))
    ),
    "wishes for chunks": lambda number: said(GetChunk(sha256=f"{number:064x}", part=number)),
}


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("what", list(SMALL))
def test_a_flood_of_small_frames_ends_the_link_and_nothing_else(mesh: AttackedMesh, what: str) -> None:
    """A hundred thousand frames that bring nothing, from somebody who does not listen: cut off with `rate_limited`."""
    liar = mesh.liar()
    with honest_mail(mesh), liar.link() as link:
        link.asked()
        flood(link, SMALL[what], count=100_000)
        # Who does not listen may miss the last word; the audit has it.
        assert link.refusal() in ("rate_limited", "")
    mesh.expect_audited(liar, "rate_limited")
    mesh.expect_unharmed()


@pytest.mark.req("OPS-3")
def test_refusing_its_own_outbox_for_ever_is_a_flood(mesh: AttackedMesh) -> None:
    """ "I have pruned that", to every wish: each answer costs the victim a write, so there is an end to it."""
    liar = mesh.liar()
    with honest_mail(mesh), liar.link() as link:
        link.asked(whole=True)
        lie = said(Refused(code="sequence_gap", message="pruned", source=liar.node_id, whole=True))
        flood(link, lambda _: lie, count=100_000)
        assert link.refusal() == "rate_limited"
    mesh.expect_audited(liar, "rate_limited")
    mesh.expect_unharmed()


@pytest.mark.req("OPS-3")
def test_more_events_than_it_was_given_credit_for_end_the_link(mesh: AttackedMesh) -> None:
    """A hundred megabytes of events at once, where four were asked for: cut off before they are in memory."""
    liar = mesh.liar()
    with honest_mail(mesh), liar.link() as link:
        link.asked()
        body = "x" * 400_000
        frames: list[bytes] = []
        for _ in range(100):
            frame = link.batch([liar.message("nobody", body), liar.message("nobody", body)])
            frames.append(said(frame))
            link.go_on(frame)
        flood(link, frames.__getitem__, count=len(frames))
        assert link.refusal() == "rate_limited"
    mesh.expect_audited(liar, "rate_limited")
    mesh.expect_unharmed()


@pytest.mark.req("OPS-3")
def test_the_same_large_batch_again_and_again_ends_the_link(mesh: AttackedMesh) -> None:
    """What is known already costs the victim bandwidth and a look: for so many megabytes, and then no more."""
    liar = mesh.liar()
    with honest_mail(mesh), liar.link() as link:
        frame = said(link.say(liar.message("nobody", "x" * 900_000)))
        flood(link, lambda _: frame, count=200)
        assert link.refusal() == "rate_limited"
    mesh.expect_audited(liar, "rate_limited")
    mesh.expect_unharmed()


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("size_bytes", [MAX_FRAME_BYTES + 1, 5 * MAX_FRAME_BYTES])
def test_a_frame_that_is_too_large_ends_the_link(mesh: AttackedMesh, size_bytes: int) -> None:
    """One byte beyond the limit, or far beyond it: refused by its length, and nobody looks inside."""
    liar = mesh.liar()
    with honest_mail(mesh), liar.link() as link:
        link.asked()
        with contextlib.suppress(ConnectionClosed, OSError):
            link.send_raw(bytes(size_bytes))
        # Far beyond the limit the WebSocket itself says so, in its own words.
        refusal = link.refusal()
        assert refusal in ("too_large", "") or "exceeds limit" in refusal
    mesh.expect_audited(liar, "too_large")
    mesh.expect_unharmed()


# What the buffers of two sockets hold, and some.
MOST_SENT_BYTES = 64 * 1024 * 1024


def _raw_link(liar: Liar) -> socket.socket:
    """A WebSocket without a library behind it: nobody reads what comes back."""
    ticket = liar.exchange(None, requestedRooms=[LINK_ROOM]).json()["wsTicket"]
    host, _, port = liar.url.removeprefix("http://").partition(":")
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
    raw.sendall(
        f"GET /ansible/link HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {ticket}\r\n\r\n".encode()
    )
    assert raw.recv(1).startswith(b"H")
    return raw


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize(
    "frames",
    [b"\x89\xfd" + bytes(4) + b"x" * 125, b"\x00\x80" + bytes(4)],
    ids=["pings of the socket itself", "pieces of a message, all empty"],
)
def test_a_socket_that_only_sends_is_cut_off(mesh: AttackedMesh, frames: bytes) -> None:
    """Below the frames of a link, too, nobody can make a gateway hold on to more and more for them."""
    liar = mesh.liar()
    with honest_mail(mesh), _raw_link(liar) as raw:
        raw.sendall(b"\x02\x80" + bytes(4))
        sent_bytes = 0
        # However the end shows: reset, broken pipe, or nobody who reads.
        with contextlib.suppress(OSError):
            while sent_bytes < MOST_SENT_BYTES:
                sent_bytes += raw.send(frames * 1_000)
        assert sent_bytes < MOST_SENT_BYTES
    mesh.expect_unharmed()


@pytest.mark.req("OPS-3")
def test_many_links_of_one_member_are_bounded(mesh: AttackedMesh) -> None:
    """A member that opens link after link loses the oldest: it cannot use up the victim's memory that way."""
    liar = mesh.liar()
    with contextlib.ExitStack() as links:
        opened = [links.enter_context(liar.link()) for _ in range(12)]
        opened[-1].sync()
        for link in opened[:-4]:
            assert link.refusal() == "unavailable"
    mesh.expect_unharmed()


def _nested(depth: int, kind: bytes) -> bytes:
    return kind * depth + b"\xc0"


BAD = {
    "nothing": b"",
    "noise": bytes(range(256)) * 10,
    "half a frame": said(Ping())[:-1],
    "a frame and more": said(Ping()) + b"\x00",
    "no map": msgspec.msgpack.encode([1, 2, 3]),
    "an unknown frame": msgspec.msgpack.encode({"frame": "sudo"}),
    "no name of a frame": msgspec.msgpack.encode({"source": "vps-jane"}),
    "a wrong type": msgspec.msgpack.encode({"frame": "credit", "source": 7, "throughSeq": "all", "bytes": None}),
    "a negative number": msgspec.msgpack.encode({"frame": "credit", "source": "a", "throughSeq": -1, "bytes": 1}),
    "a number beyond 64 bits": msgspec.msgpack.encode(
        {"frame": "credit", "source": "a", "throughSeq": 2**64 - 1, "bytes": 1}
    ),
    "a name without end": msgspec.msgpack.encode({"frame": "unsubscribe", "source": "x" * 100_000}),
    "lists in lists": _nested(1_000_000, b"\x91"),
    "maps in maps": b"\x81\xa5frame" * 200_000 + b"\xc0",
    "a list that says it is huge": b"\xdd\xff\xff\xff\xff",
    "bytes that say they are huge": b"\x82\xa5frame\xa5chunk\xa4data\xc6\xff\xff\xff\xff",
    "a hundred thousand events": msgspec.msgpack.encode(
        {
            "frame": "events",
            "source": "a",
            "epoch": "e",
            "afterSeq": 0,
            "throughSeq": 1,
            "head": b"",
            "signature": bytes(64),
            "events": [b""] * 100_000,
        }
    ),
}


@pytest.mark.req("OPS-3")
@pytest.mark.parametrize("what", list(BAD))
def test_what_is_no_frame_ends_the_link(mesh: AttackedMesh, what: str) -> None:
    """Noise, halves, wrong types, nesting, lengths that lie: `malformed`, and no traceback."""
    liar = mesh.liar()
    with liar.link() as link:
        link.asked()
        link.send_raw(BAD[what])
        assert link.refusal() == "malformed"
    mesh.expect_audited(liar, "malformed")
    mesh.expect_unharmed()


def test_text_ends_the_link(mesh: AttackedMesh) -> None:
    """Frames are binary."""
    liar = mesh.liar()
    with liar.link() as link:
        link.asked()
        link.socket.send("hello")
        assert link.refusal() == "malformed"
    mesh.expect_audited(liar, "malformed")
    mesh.expect_unharmed()


@pytest.mark.req("ENV-6")
def test_events_that_cannot_be_read_are_set_aside_in_bounds(mesh: AttackedMesh) -> None:
    """Rubbish in its own signed stream, nested, mistyped, of unknown kinds: no agent hears of it."""
    liar = mesh.liar()
    deep = {"kind": "message", "payload": {"context": None}}
    for _ in range(200):
        deep = {"context": deep}
    with honest_mail(mesh), liar.link() as link:
        link.say(
            b"",
            bytes(100),
            _nested(900_000, b"\x91"),
            msgspec.msgpack.encode(deep),
            msgspec.msgpack.encode({"kind": "sudo", "eventId": liar.new_id(), "seq": 5}),
            msgspec.msgpack.encode({"kind": "message", "eventId": 7, "seq": "six"}),
        )
        link.sync()
    mesh.expect_unharmed()


def _ref(number: int, size_bytes: int) -> PayloadRef:
    return PayloadRef(sha256=f"{number:064x}", size_bytes=size_bytes, suite="none", keys={})


@pytest.mark.req("PIPE-5")
def test_payloads_without_end_are_not_fetched(mesh: AttackedMesh) -> None:
    """Events whose payloads are said to be exabytes, or come in pieces of one byte: not asked for, or given up."""
    liar = mesh.liar()
    mesh.victim.add_agent("reader")
    with honest_mail(mesh), liar.link() as link:
        huge, crumbs = _ref(1, 2**62), _ref(2, 60_000_000)
        link.say(liar.message("reader", payload_ref=huge), liar.message("reader", payload_ref=crumbs))
        asked = link.expect(GetChunk)
        assert asked.sha256 == crumbs.sha256
        link.send(Chunk(sha256=crumbs.sha256, part=0, size_bytes=crumbs.size_bytes, chunk_bytes=1, data=b"x"))
        link.sync()
        assert [each.sha256 for each in link.seen if isinstance(each, GetChunk)].count(huge.sha256) == 0
        assert [each for each in link.seen if isinstance(each, GetChunk) and each.part > 0] == []
    mesh.victim.post("/ansible/agents/reader/pause")
    mesh.expect_unharmed()


@pytest.mark.req("PIPE-5")
def test_the_payload_of_others_is_not_given_to_it(mesh: AttackedMesh) -> None:
    """A member that knows the address of a payload, and is no reader of it, gets a refusal and a line in the audit."""
    body = "not for mallory " * 50_000
    sent = mesh.victim.send("architect", body, sender="builder")["eventId"]
    database = Database.open_reader(Home(mesh.victim.home).database)
    (address,) = (row[0] for row in database.rows("SELECT sha256 FROM blobs WHERE complete"))
    database.close()
    liar = mesh.liar()
    with liar.link() as link:
        link.asked()
        link.send(GetChunk(sha256=address, part=0))
        answer = link.expect(Chunk)
        assert (answer.code, answer.data) == ("scope_denied", None)
    mesh.expect_audited(liar, "scope_denied")
    path = f"/ansible/agents/architect/inbox/{sent}"
    eventually(lambda: mesh.third.get(path).get("content", {}).get("body") == body)
    mesh.expect_unharmed()


@pytest.mark.req("PIPE-5")
def test_a_flood_of_payload_references_is_bounded(mesh: AttackedMesh) -> None:
    """Fifty thousand events with payloads that never come: they wait on the disk, not in memory."""
    liar = mesh.liar()
    with honest_mail(mesh), liar.link() as link:
        link.asked()
        number = 10
        # Who goes on without credit is shown the door before the flood is over.
        with contextlib.suppress(ConnectionClosed):
            for _ in range(100):
                frame = link.say(*(liar.message("reader", payload_ref=_ref(number + n, 1_000)) for n in range(500)))
                number += len(frame.events)
                link.sync()
    eventually(lambda: mesh.victim.get("/operator/status")["phase"] == "ready")
    mesh.expect_unharmed()
