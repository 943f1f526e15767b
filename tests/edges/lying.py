"""A member of the mesh that lies: admitted with a real invite, key and tickets, and then test code on a link.

It speaks the link's own frames over a real WebSocket to a real gateway process. What it says of its own outbox it signs
with its own key, as any gateway would; what it says beyond that is what the tests are about.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from agentpost.auth.wire import LINK_ROOM
from agentpost.delivery.frames import LINK_VERSION, Events, Frame, Hello, Ping, Pong, Refused, Subscribe
from agentpost.delivery.frames import decode_frame as read
from agentpost.delivery.frames import encode_frame as said
from agentpost.delivery.heads import sign_head
from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import AckEvent, Event, MessageEvent, ReplyEvent, Trace
from agentpost.protocol.heads import OutboxHead, StreamMark, chain_over
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.payloads import Ack, AckType, Kind, Message, PayloadRef, Reply
from agentpost.protocol.timestamps import format_ms
from agentpost.store.identity import Identity
from agentpost.world import IdMaker, SystemChance, SystemClock
from tests.edges.meshing import PATIENCE_SECONDS, Stranger, invite
from tests.edges.running import RunningGateway

AnyFrame = TypeVar("AnyFrame", bound=Frame)


class Liar(Stranger):
    """A node with a key that the victim has pinned, and no gateway behind it."""

    def __init__(self, node_id: str, folder: Path, victim: RunningGateway, *, tier: str = "edge") -> None:
        super().__init__(node_id, folder / node_id, victim.url)
        self.victim = victim.home.name
        self.epoch = f"epoch_of_{node_id}"
        self._ids = IdMaker(SystemClock(), SystemChance())
        token = invite(victim, node_id, tier=tier)
        with connect(
            self._address("/ansible/room/ansible-control"),
            additional_headers={"Authorization": f"Bearer {self.ticket(token)}"},
            compression=None,
            open_timeout=PATIENCE_SECONDS,
        ):
            pass  # the invite is used up and the key pinned: an honest member, as far as anybody can tell

    @contextlib.contextmanager
    def link(self) -> Iterator["LiarLink"]:
        """A link to the victim, opened as it should be."""
        answer = self.exchange(None, requestedRooms=[LINK_ROOM])
        assert answer.status_code == 200, answer.text
        with connect(
            self._address("/ansible/link"),
            additional_headers={"Authorization": f"Bearer {answer.json()['wsTicket']}"},
            compression=None,
            max_size=None,
            ping_interval=None,
            open_timeout=PATIENCE_SECONDS,
            close_timeout=1,
        ) as socket:
            link = LiarLink(self, socket)
            link.send(Hello(node=self.node_id, epoch=self.epoch, version=LINK_VERSION))
            yield link

    def new_id(self) -> EventId:
        return self._ids.make(EventId)

    def head_of(self, **changed: Any) -> dict[str, Any]:
        """The fields that all its events share, as they should be, except for the changes."""
        event_id = self.new_id()
        head: dict[str, Any] = {
            "event_id": event_id,
            "source_node_id": self.node_id,
            "source_agent_id": f"agent-of-{self.node_id}",
            "to_nodes": (self.victim,),
            "corr_id": corr_id_of(event_id),
            "created_at": format_ms(SystemClock().now_ms()),
            "trace": Trace(),
        }
        return head | changed

    def message(self, to: str, body: str = "a lie", *, payload_ref: PayloadRef | None = None, **changed: Any) -> Event:
        payload = Message(to_agents=(to,), body=None if payload_ref else body)
        return MessageEvent(**self.head_of(**changed), payload=payload, payload_ref=payload_ref)

    def reply(self, to: str, ref: str, **changed: Any) -> Event:
        payload = Reply(ref_event_id=EventId(ref), body="a lie")
        return ReplyEvent(**self.head_of(to_agent_id=to, **changed), payload=payload)

    def ack(self, ref: str, kind: AckType, *, by_node: str, by_agent: str) -> Event:
        head = self.head_of(source_agent_id=by_agent)
        payload = Ack(
            ref_event_id=EventId(ref),
            ref_kind=Kind.MESSAGE,
            ack_type=kind,
            acked_by_node_id=by_node,
            acked_by_agent_id=by_agent,
            acked_at=head["created_at"],
        )
        return AckEvent(**head, payload=payload)

    def _address(self, path: str) -> str:
        return self.url.replace("http", "ws", 1) + path


class LiarLink:
    """One link of a liar to its victim, after hello."""

    def __init__(self, liar: Liar, socket: ClientConnection) -> None:
        self.liar = liar
        self.socket = socket
        self.wishes: dict[tuple[str, bool], Subscribe] = {}
        self.seen: list[Frame] = []

    def send(self, *frames: Frame) -> None:
        for frame in frames:
            self.send_raw(said(frame))

    def send_raw(self, frame: bytes) -> None:
        self.socket.send(frame)

    def asked(self, source: str | None = None, *, whole: bool = False) -> Subscribe:
        """What the victim asked for: the liar's own outbox, or that of `source`.

        A victim that mirrors asks a gateway for the whole of its outbox, and finds its own mail in there.
        """
        source = source or self.liar.node_id
        keys = [(source, True)] if whole else [(source, False), (source, True)]
        self._read_until(lambda: any(key in self.wishes for key in keys), f"the victim to ask for {source}")
        return next(self.wishes[key] for key in keys if key in self.wishes)

    def expect(self, kind: type[AnyFrame]) -> AnyFrame:
        """The next frame of this kind."""
        seen = len(self.seen)
        self._read_until(lambda: any(isinstance(each, kind) for each in self.seen[seen:]), f"a {kind.__name__}")
        return next(each for each in self.seen[seen:] if isinstance(each, kind))

    def refusal(self) -> str:
        """Reads until the victim ends the link, and gives the code that it gives."""
        with contextlib.suppress(ConnectionClosed):
            self._read_until(lambda: False, "the end of the link")
        said_last = [each.code for each in self.seen if isinstance(each, Refused) and each.source is None]
        closed = self.socket.protocol.close_rcvd
        return said_last[-1] if said_last else ("" if closed is None else closed.reason)

    def sync(self) -> None:
        """Returns once the victim has read everything that was sent before, or has ended the link."""
        with contextlib.suppress(ConnectionClosed):
            self.send(Ping())
            self.expect(Pong)

    def _read_until(self, is_there: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            with contextlib.suppress(TimeoutError):
                frame = read(bytes(self.socket.recv(1)))  # type: ignore[arg-type]
                self.seen.append(frame)
                if isinstance(frame, Subscribe):
                    self.wishes[frame.source, frame.whole] = frame

    def batch(
        self,
        events: Sequence[Event | bytes],
        *,
        wish: Subscribe | None = None,
        reader: str | None = None,
        signer: Identity | None = None,
        first_seq: int | None = None,
        through_seq: int | None = None,
        source: str | None = None,
        epoch: str | None = None,
    ) -> Events:
        """What it would hand over next, where the victim asked it to go on, and signed. Each part can be a lie."""
        liar = self.liar
        wish = wish or self.asked()
        first = wish.after_seq + 1 if first_seq is None else first_seq
        raws = [
            event if isinstance(event, bytes) else encode_event(replace(event, seq=seq))
            for event, seq in zip(events, itertools.count(first), strict=False)
        ]
        end = wish.after_seq + len(raws) if through_seq is None else through_seq
        mark = StreamMark(seq=end, chain=chain_over(wish.after_chain, raws))
        epoch = epoch or wish.epoch or liar.epoch
        head = OutboxHead(
            node_id=source or wish.source,
            epoch=epoch,
            seq=end,
            chain=mark.chain,
            streams={reader or liar.victim: mark},
        )
        raw, signature = sign_head(head, (signer or liar.identity).signing)
        return Events(
            source=source or wish.source,
            epoch=epoch,
            after_seq=wish.after_seq,
            through_seq=end,
            head=raw,
            signature=signature,
            events=raws,
            whole=wish.whole,
        )

    def say(self, *events: Event | bytes, **lies: Any) -> Events:
        """Sends a batch of its own stream; a next one goes on behind it."""
        frame = self.batch(events, **lies)
        self.send(frame)
        self.go_on(frame)
        return frame

    def go_on(self, frame: Events) -> None:
        """From now on `batch` continues after this one, without waiting for the victim."""
        key = (frame.source, frame.whole)
        wish = self.wishes[key]
        self.wishes[key] = Subscribe(
            source=wish.source,
            epoch=frame.epoch,
            after_seq=frame.through_seq,
            after_chain=chain_over(wish.after_chain, frame.events),
            whole=wish.whole,
        )
