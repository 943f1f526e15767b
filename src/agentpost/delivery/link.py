"""One link as a session without I/O: frames in, frames out, one session for each connection. `hub` has all of them.

Either side may have dialled; both subscribe to what they want of the other. A session exists for a peer that proved
who it is. A frame that breaks a rule ends it: `refusal` says why, `frames_to_send` has the last word for the peer,
`audit` the entry to record. What was under way is asked for again, from the cursor, on the next link.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from agentpost.delivery.chunk_desk import ChunkDesk
from agentpost.delivery.feed import MAX_UNDER_WAY, Feed, MirrorFeed, OutboxFeed, WholeFeed
from agentpost.delivery.fetch import may_read
from agentpost.delivery.frames import (
    LINK_VERSION,
    Chunk,
    Credit,
    Events,
    Frame,
    GetChunk,
    Hello,
    Ping,
    Pong,
    Refused,
    Subscribe,
    Unsubscribe,
    decode_frame,
    encode_frame,
)
from agentpost.delivery.joint import JointReader
from agentpost.delivery.mirror import MirrorKeeper
from agentpost.delivery.reader import StreamReader, Verdict
from agentpost.delivery.subscription import Subscription
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.store.values import CHAIN_START, AuditEntry

if TYPE_CHECKING:
    from agentpost.delivery.hub import LinkHub

__all__ = ["PING_EVERY_SECONDS", "Key", "LinkSession"]

PING_EVERY_SECONDS: Final = 10.0
_SILENT_FOR_MS: Final = 30_000
# A peer that is there writes what it gets to its disk, and says so. Who does not in this time has not got it.
_UNCONFIRMED_FOR_MS: Final = 60_000
# How much of one subscription may be under way to us.
_CREDIT_BYTES: Final = 4 * 1024 * 1024
# An honest peer has at most its credit under way, and the rest of the event that goes beyond it.
_MOST_LANE_BYTES: Final = 2 * _CREDIT_BYTES
# What says that the other side is at fault, and not this gateway's disk.
_BLAMED: Final = frozenset(
    {Code.CONFLICT, Code.FOREIGN_SOURCE, Code.NODE_PROOF_INVALID, Code.MALFORMED, Code.SEQUENCE_GAP}
)

# What a peer may say in the time between two pings that brings nothing: pings, wishes, repeats. An honest one needs a
# few for each node of the mesh. A large frame counts for several.
_MOST_IDLE_FRAMES: Final = 16_384
_IDLE_FRAME_BYTES: Final = 4_096
# Short frames that wait for a peer that does not read.
_MOST_QUEUED_FRAMES: Final = 16_384

# The outbox of a node, and whether all of it is meant or only what is for the reader.
Key = tuple[str, bool]


class _Lane(Struct, kw_only=True):
    """Batches of one subscription that wait for the disk, and how much that is with the one that is being written."""

    frames: deque[tuple[Events, int]] = field(default_factory=deque[tuple[Events, int]])
    size_bytes: int = 0
    work: asyncio.Task[None] | None = None


class LinkSession:
    """One connection of one peer. Made by `LinkHub.open`."""

    def __init__(
        self, hub: "LinkHub", peer: str, on_wake: Callable[[], None], on_wake_soon: Callable[[], None]
    ) -> None:
        self.peer = peer
        # Whether the peer has said hello, and the session has not ended.
        self.is_open = False
        self.refusal: Refusal | None = None
        # What to record when the session was refused; nothing for one whose peer is only gone.
        self.audit: AuditEntry | None = None
        self._hub = hub
        self._on_wake = on_wake
        # For what is in no hurry, and may go with what follows.
        self._on_wake_soon = on_wake_soon
        self._queue: list[bytes] = []
        self._chunks = ChunkDesk(hub.store, peer)
        self._feeds: dict[Key, Feed] = {}
        # The feeds that may have something to send: their outbox grew, or the peer gave credit. In the order of that.
        self._awake: dict[Key, None] = {}
        # How far the peer was, and since when, where something has been under way to it.
        self._unconfirmed: dict[Key, tuple[int, int]] = {}
        self._reading: dict[Key, Subscription] = {}
        # What was asked for over this link, also if somebody else has it now.
        self._asked_for: set[Key] = set()
        self._idle_frames = 0
        # What was taken since the peer last got credit for it: how many batches.
        self._owed: dict[Key, int] = {}
        # Events that came and are not on the disk yet.
        self._lanes: dict[Key, _Lane] = {}
        self._heard_at_ms = hub.clock.monotonic_ms()
        self._peer_epoch: str | None = None
        self._said = Ping()
        self._is_closed = False

    def start(self) -> list[bytes]:
        """The first frame: who this is."""
        store = self._hub.store
        return [encode_frame(Hello(node=store.node_id, epoch=store.epoch, version=LINK_VERSION))]

    async def take(self, frame: bytes) -> None:
        """Take a frame of the peer, and leave it to `frames_to_send` what follows. A refusal ends the session.

        For edges that read and write independently: whoever waits to send before it reads on waits for a peer that
        may be waiting in the same way. For the same reason events wait for the disk in a lane of their own, one for
        each subscription, and hold up nothing else; how much can be in a lane is bounded by the credit that was given.
        `drained` waits for the lanes. Events that are refused there end the session later, without a raise here.
        """
        if self._is_closed:
            raise self.refusal or Refusal(Code.UNAVAILABLE, "the session is closed")
        self._heard_at_ms = self._hub.clock.monotonic_ms()
        try:
            self._charge(len(frame))
            if await self._receive(decode_frame(frame), len(frame)):
                self._give_back(len(frame))
        except Refusal as refusal:
            self.refuse(refusal)
            raise

    async def drained(self) -> None:
        """Wait until all events that were taken so far are on the disk, or are refused."""
        while lanes := [lane.work for lane in self._lanes.values() if lane.work is not None]:
            await asyncio.wait(lanes)

    def _charge(self, size_bytes: int) -> None:
        """Count a frame as one that brings nothing, until it has; see `_give_back`."""
        self._idle_frames += 1 + size_bytes // _IDLE_FRAME_BYTES
        if self._idle_frames > _MOST_IDLE_FRAMES or len(self._queue) > _MOST_QUEUED_FRAMES:
            raise Refusal(Code.RATE_LIMITED, f"{self.peer} says too much that brings nothing, or does not listen")

    def _give_back(self, size_bytes: int) -> None:
        self._idle_frames -= 1 + size_bytes // _IDLE_FRAME_BYTES

    def _check_asked(self, key: Key) -> None:
        """What was under way when somebody else was asked is passed over. What nobody asked for is a lie (PIPE-1)."""
        if key not in self._asked_for:
            raise Refusal(Code.FOREIGN_SOURCE, f"{self.peer} was not asked for the outbox of {key[0]}", field="source")

    def _put_in_lane(self, frame: Events, size_bytes: int) -> None:
        key = (frame.source, frame.whole)
        if key not in self._reading:
            self._check_asked(key)
            return
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            lane.work = self._hub.tasks.spawn(self._work_lane(key, lane), name=f"{frame.source} from {self.peer}")
        lane.size_bytes += size_bytes
        if lane.size_bytes > _MOST_LANE_BYTES:
            raise Refusal(Code.RATE_LIMITED, f"{self.peer} sends more of {frame.source} than it was asked for")
        lane.frames.append((frame, size_bytes))

    async def _work_lane(self, key: Key, lane: "_Lane") -> None:
        try:
            while lane.frames and not self._is_closed:
                frame, size_bytes = lane.frames.popleft()
                if await self._take(frame):
                    self._give_back(size_bytes)
                lane.size_bytes -= size_bytes
        except Refusal as refusal:
            self.refuse(refusal)
        except Exception:
            # The cursor stands before this frame: the next link asks for it again.
            self.refuse(Refusal(Code.UNAVAILABLE, f"what {self.peer} sent could not be taken"))
            raise
        finally:
            del self._lanes[key]

    def frames_to_send(self) -> list[bytes]:
        """What can be sent now: what is queued, then as much of the subscribed outboxes as the peer has room for.

        There may be more right after: ask again until there is nothing.
        """
        if not self._is_closed:
            self._queue += self._chunks.frames()
            awake, self._awake = self._awake, {}
            for key in awake:
                feed = self._feeds.get(key)
                try:
                    self._queue += feed.frames() if feed is not None else []
                except Refusal as refusal:
                    del self._feeds[key]
                    self._queue_refused(refusal, key)
            # Last: the peer has something to do with the events, and waits for credit only if it has sent much.
            owed, self._owed = self._owed, {}
            self._queue += [encode_frame(self._credit_for(key)) for key in owed if key in self._reading]
        frames, self._queue = self._queue, []
        return frames

    async def tick(self) -> None:
        """To be called every `PING_EVERY_SECONDS`: asks whether the peer is there, and ends a link that is silent."""
        if self._is_closed:
            return
        if self._hub.clock.monotonic_ms() - self._heard_at_ms >= _SILENT_FOR_MS:
            self.refuse(Refusal(Code.UNAVAILABLE, f"{self.peer} has been silent for too long"))
            return
        stuck = self._stuck_feed()
        if stuck is not None:
            # It is made anew, and begins where the peer is.
            self.refuse(Refusal(Code.UNAVAILABLE, f"{self.peer} has confirmed nothing of {stuck[0]} for too long"))
            return
        self._idle_frames = 0
        for key, subscription in self._reading.items():
            if subscription.asked_anew_at is not None:
                # What was asked for after a gap has not come. Asked for once only, it would be missing for good.
                self._ask(key)
        self._send(self._ping())
        await self._hub.tick()

    def _stuck_feed(self) -> Key | None:
        """What the peer has been sent and has not confirmed for so long that it cannot have come."""
        now_ms, before = self._hub.clock.monotonic_ms(), self._unconfirmed
        self._unconfirmed = {}
        for key, feed in self._feeds.items():
            at_seq, since_ms = before.get(key, (None, now_ms))
            if not feed.is_awaiting or at_seq != feed.durable_seq:
                since_ms = now_ms
            elif now_ms - since_ms >= _UNCONFIRMED_FOR_MS:
                return key
            self._unconfirmed[key] = (feed.durable_seq, since_ms)
        return None

    def _ping(self) -> Ping:
        store = self._hub.store
        at = store.cursor(self.peer)
        if at is None or at.epoch != self._peer_epoch:
            return Ping()
        return Ping(
            read_seq=at.last_seq, said_seq=store.read_stream(self.peer, store.head().seq, limit=1).last_event_seq
        )

    def read_through(self) -> int:
        """How far the peer has read the own outbox for certain, and has had its answers taken here (ROUTE-2).

        It writes its `accepted` together with its cursor, but the cursor may be heard of first.
        """
        said, at = self._said, self._hub.store.cursor(self.peer)
        has_all = said.said_seq == 0 or (
            at is not None and at.epoch == self._peer_epoch and at.last_seq >= said.said_seq
        )
        return said.read_seq if said.read_seq is not None and has_all else 0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """The connection is gone."""
        if not self._is_closed:
            self._is_closed, self.is_open = True, False
            self._feeds, self._reading = {}, {}
            self._hub.drop(self)

    def refuse(self, refusal: Refusal) -> None:
        """End the session for a reason, which the peer is told."""
        if self._is_closed:
            return
        self.refusal = refusal
        if refusal.code is not Code.UNAVAILABLE:
            self.audit = AuditEntry(
                at_ms=self._hub.clock.now_ms(),
                actor=self.peer,
                action="link.refused",
                subject=self._hub.store.node_id,
                detail={"code": refusal.code.value, "reason": refusal.message[:500], "field": refusal.field},
            )
        self._queue = []
        self._queue_refused(refusal, None)
        self.close()
        self._on_wake()

    # What the hub asks of it

    def subscribe(self, key: Key, *, skip: bool = False) -> None:
        """Read an outbox over this link from now on."""
        self._reading[key] = Subscription(reader=self._hub.reader(key[0], is_whole=key[1]))
        self._ask(key, skip=skip)

    def subscribe_jointly(self, source: str) -> None:
        """Read the whole outbox of the peer from now on, for both of its readers."""
        self.unsubscribe((source, False))
        self._reading[source, True] = Subscription(reader=self._hub.joint_reader(source))
        self._ask((source, True))

    def reads_jointly(self, source: str) -> bool:
        subscription = self._reading.get((source, True))
        return subscription is not None and isinstance(subscription.reader, JointReader)

    def unsubscribe(self, key: Key) -> None:
        if self._reading.pop(key, None) is not None:
            self._send(Unsubscribe(source=key[0], whole=key[1]))

    def wake(self, source: str, *, is_for_reader: bool = True, in_hurry: bool = True) -> None:
        """The outbox of `source`, or the mirror of it, grew."""
        for key in ((source, False), (source, True)):
            feed = self._feeds.get(key)
            if feed is not None and (key[1] or is_for_reader):
                feed.wake()
                self._awake[key] = None
                (self._on_wake if in_hurry else self._on_wake_soon)()

    def turn_away(self, source: str) -> None:
        """Stop feeding the peer from a mirror that does not grow, if it has all of it: others may have more."""
        for key in ((source, False), (source, True)):
            feed = self._feeds.get(key)
            if feed is not None and feed.is_at_end:
                del self._feeds[key]
                self._queue_refused(Refusal(Code.UNAVAILABLE, f"the mirror of {source} here was left behind"), key)
                self._on_wake()

    def ask(self, request: GetChunk) -> None:
        self._send(request)

    def blob_came(self, sha256: str) -> None:
        """A payload is here now that the peer may have asked for."""
        if self._chunks.came(sha256):
            self._on_wake()

    # Frames

    async def _receive(self, frame: Frame, size_bytes: int) -> bool:
        """Deal with a frame. True if it brought something, False for what a peer could say for ever.

        Whether events bring something is known once they are taken; see `_work_lane`.
        """
        if isinstance(frame, Hello):
            self._hello(frame)
            return False
        if not self.is_open and not isinstance(frame, Refused):
            raise Refusal(Code.MALFORMED, "a link begins with hello", field="frame")
        match frame:
            case Events():
                self._put_in_lane(frame, size_bytes)
            case Credit():
                return await self._credit(frame)
            case Subscribe():
                self._feed(frame)
            case Unsubscribe():
                self._feeds.pop((frame.source, frame.whole), None)
            case Ping():
                self._said = frame
                self._send(Pong())
                await self._note()
            case Pong():
                pass
            case GetChunk():
                return await self._serve(frame)
            case Chunk():
                return await self._hub.fetcher.receive(self, frame)
            case Refused():
                await self._refused(frame)
        return False

    def _hello(self, hello: Hello) -> None:
        if self.is_open:
            raise Refusal(Code.MALFORMED, "hello is said once", field="frame")
        if hello.node != self.peer:
            raise Refusal(Code.NODE_MISMATCH, f"{self.peer} says that it is {hello.node!r}", field="node")
        if hello.version.partition(".")[0] != LINK_VERSION.partition(".")[0]:
            raise Refusal(
                Code.INVALID_FIELD,
                f"links of version {hello.version!r} and {LINK_VERSION!r} do not understand each other",
                field="version",
                hint="Upgrade the older of the two gateways.",
            )
        self.is_open, self._peer_epoch = True, hello.epoch
        self._hub.opened()

    def _feed(self, wish: Subscribe) -> None:
        hub, key = self._hub, (wish.source, wish.whole)
        if hub.room.signing_key(self.peer) is None:
            raise Refusal(Code.NODE_REVOKED, f"the node {self.peer} is not in this mesh, or was revoked")
        if wish.whole and not hub.room.is_backbone(self.peer):
            # A reader gets what is for it; all of it is for gateways that keep it for others.
            self._queue_refused(Refusal(Code.WRITE_DENIED, "only a backbone gateway keeps mirrors"), key)
        elif wish.source != hub.store.node_id:
            if hub.room.signing_key(wish.source) is None:
                self._queue_refused(Refusal(Code.NOT_FOUND, f"there is no node {wish.source!r}"), key)
            else:
                self._feeds[key] = MirrorFeed(wish, consumer=self.peer, store=hub.store)
        else:
            hub.check_own_past(wish, shown_by=self.peer)
            kind = WholeFeed if wish.whole else OutboxFeed
            self._feeds[key] = kind(wish, consumer=self.peer, store=hub.store, signing=hub.signing)

    async def _serve(self, request: GetChunk) -> bool:
        """True if the peer may have it: what it costs to serve is bounded by what the peer takes."""
        self._chunks.check_room()
        if not may_read(self._hub.store, self._hub.room, request.sha256, self.peer):
            # PIPE-5: who is no reader of it learns nothing of it, not even whether it is here.
            self._send(Chunk(sha256=request.sha256, part=request.part, code=Code.SCOPE_DENIED.value))
            await self._hub.deny_payload(self.peer, request.sha256)
            return False
        self._chunks.ask(request, is_awaited=self._hub.fetcher.is_awaited(request.sha256))
        self._on_wake()
        return True

    async def _credit(self, credit: Credit) -> bool:
        """True if the peer has got further by it."""
        feed = self._feeds.get((credit.source, credit.whole))
        if feed is None:
            return False
        before = feed.durable_seq
        if feed.grant(credit):
            self._awake[credit.source, credit.whole] = None
            self._on_wake()
        if credit.source == self._hub.store.node_id:
            await self._note()
        return feed.durable_seq > before

    async def _note(self) -> None:
        """Write down how far the peer has read the own outbox (CUR-5): it counts what it has on its disk."""
        own = self._hub.store.node_id
        read = [feed.durable_seq for (source, _), feed in self._feeds.items() if source == own]
        if read:
            await self._hub.notes.note(self.peer, min(read))

    async def _take(self, frame: Events) -> bool:
        """True if there was something new in it."""
        key = (frame.source, frame.whole)
        subscription = self._reading.get(key)
        if subscription is None:
            self._check_asked(key)
            return False
        try:
            verdict = await subscription.reader.take(frame, is_direct=frame.source == self.peer)
        except Refusal as refusal:
            if refusal.code in _BLAMED:
                self._hub.distrust(self, frame.source)
            raise
        if self._reading.get(key) is not subscription:
            return verdict is Verdict.TAKEN
        match verdict:
            case Verdict.TAKEN | Verdict.KNOWN:
                subscription.note_progress()
                self._owe_credit(key)
            case Verdict.GAP:
                # CUR-3: the cursor stops; what is missing is asked for, once, and again with the next tick.
                at = subscription.seq
                subscription.pass_over(frame)
                if subscription.asked_anew_at != at:
                    subscription.asked_anew_at = at
                    self._ask(key)
            case Verdict.STALE:
                pass
            case Verdict.APART:
                self._read_apart(frame.source)
            case Verdict.REGRESSED | Verdict.UNKNOWN | Verdict.CONTRADICTED:
                self._hub.distrust(self, frame.source)
        return verdict is Verdict.TAKEN

    async def _refused(self, refused: Refused) -> None:
        code = Code(refused.code) if refused.code in set(Code) else Code.UNAVAILABLE
        if refused.source is None and code is Code.EPOCH_MISMATCH:
            # It has seen the end that it signed itself, and does not have it any more (CUR-6).
            at = self._hub.store.cursor(self.peer)
            read_through = 0 if at is None else at.last_seq
            await self._hub.intake.report(IncidentKind.SOURCE_REGRESSED, self.peer, readThrough=read_through)
        if refused.source is None:
            # What others say is quoted: it ends up in a log.
            raise Refusal(code, f"{self.peer} ended the link: {refused.message!r}")
        key = (refused.source, refused.whole)
        subscription = self._reading.get(key)
        if subscription is None:
            return
        reader = subscription.reader
        if code is Code.SEQUENCE_GAP and isinstance(reader, JointReader):
            self._read_apart(refused.source)
            return
        if code is Code.SEQUENCE_GAP and isinstance(reader, MirrorKeeper) and refused.source == self.peer:
            await reader.start_over()
            self._ask(key)
            return
        if code is Code.SEQUENCE_GAP and isinstance(reader, StreamReader):
            reader.note_gap()
        self._hub.distrust(self, refused.source)
        if code is Code.SEQUENCE_GAP and isinstance(reader, MirrorKeeper):
            await self._hub.begin_mirror_anew(self, refused.source)

    def _read_apart(self, source: str) -> None:
        """The two readers of the outbox go on by themselves, each from where it is."""
        self.subscribe((source, True))
        self.subscribe((source, False))

    def _ask(self, key: Key, *, skip: bool = False) -> None:
        at = self._reading[key].reader.position()
        source, is_whole = key
        self._asked_for.add(key)
        end = self._hub.store.signed_end(source) if source == self.peer else None
        self._send(
            Subscribe(
                source=source,
                epoch=None if at is None else at.epoch,
                after_seq=0 if at is None else at.last_seq,
                after_chain=CHAIN_START if at is None else at.last_chain,
                whole=is_whole,
                skip=skip,
                head=None if end is None else end.head,
                signature=None if end is None else end.signature,
            )
        )
        self._send(self._credit_for(key))

    def _owe_credit(self, key: Key) -> None:
        owed = self._owed[key] = self._owed.get(key, 0) + 1
        lane = self._lanes.get(key)
        # The answers to what was taken follow, mostly, and it goes with them. Who has sent all that it may waits.
        in_hurry = owed >= MAX_UNDER_WAY or lane is None or bool(lane.frames)
        (self._on_wake if in_hurry else self._on_wake_soon)()

    def _credit_for(self, key: Key) -> Credit:
        return Credit(source=key[0], through_seq=self._reading[key].seq, bytes=_CREDIT_BYTES, whole=key[1])

    def _send(self, frame: Frame) -> None:
        if not self._is_closed:
            self._queue.append(encode_frame(frame))
            self._on_wake()

    def _queue_refused(self, refusal: Refusal, key: Key | None) -> None:
        source, is_whole = key or (None, False)
        message = refusal.message[:500]
        self._queue.append(
            encode_frame(Refused(code=refusal.code.value, message=message, source=source, whole=is_whole))
        )
