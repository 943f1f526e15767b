"""y-protocols sync and awareness as sessions without I/O: frames in, frames out, one session for each connection.

A session exists for a peer whose ticket was already accepted; nothing is ever sent to anybody else. What a peer
brings, as an update or as the second step of a sync, passes the guard of the room. A frame that does not ends the
session: `receive` raises the refusal, `RoomSession.audit` has the entry to record, and the edge closes with 1008.

Only what the peer itself signed or forged ends its session. What a backbone node passes on is merged in any case. A
node that knows more than a seed that was away answers with what others wrote: its records are taken by a `Relay`.

Each session has a budget. A peer that sends more than it allows is read more slowly (`RoomSession.pause_seconds`), and
is answered with the room only so often.
"""

from collections.abc import Callable
from typing import Final

from agentpost.protocol.errors import Code, Refusal
from agentpost.room.awareness import Awareness, Entry, decode_awareness, encode_awareness
from agentpost.room.document import Room
from agentpost.room.guard import MAX_UPDATE_BYTES, ForeignStructs
from agentpost.room.relay import MAX_RELAY_BYTES, Relay
from agentpost.room.schema import ROOM_NAME, check_id
from agentpost.room.wire import Reader, var_uint
from agentpost.store.values import AuditEntry
from agentpost.world import Clock

__all__ = ["MAX_FRAME_BYTES", "RoomHub", "RoomSession", "awareness_frame", "step_1", "step_2", "update_frame"]

_SYNC, _AWARENESS, _QUERY_AWARENESS = 0, 1, 3
_STEP_1, _STEP_2, _UPDATE = 0, 1, 2

# A whole room has to fit into an answer.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
_MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
_MAX_WAITING_BYTES: Final = 2 * MAX_UPDATE_BYTES
_MAX_WAITING: Final = 64

# What one peer may send and ask for. An honest seed of a busy mesh stays far below.
_FRAMES_A_SECOND: Final = 1_000
_BYTES_A_SECOND: Final = 2 * 1024 * 1024
_SECONDS_AHEAD: Final = 10
_ANSWER_BYTES_A_MINUTE: Final = 8 * 1024 * 1024
_ANSWERS_AHEAD_MS: Final = 60_000
_LEAST_ANSWER_MS: Final = 100


def step_1(state: bytes) -> bytes:
    return bytes((_SYNC, _STEP_1)) + var_uint(len(state)) + state


def step_2(update: bytes) -> bytes:
    return bytes((_SYNC, _STEP_2)) + var_uint(len(update)) + update


def update_frame(update: bytes) -> bytes:
    return bytes((_SYNC, _UPDATE)) + var_uint(len(update)) + update


def awareness_frame(entries: list[Entry]) -> bytes:
    content = encode_awareness(entries)
    return bytes((_AWARENESS,)) + var_uint(len(content)) + content


class RoomHub:
    """The room and its open sessions. What one of them brings is passed on to the others."""

    def __init__(self, room: Room, awareness: Awareness, *, clock: Clock) -> None:
        self.room = room
        self.awareness = awareness
        self.clock = clock
        self._sessions: list[RoomSession] = []
        self._bringing: RoomSession | None = None
        room.subscribe(self._on_update)

    @property
    def sessions(self) -> tuple["RoomSession", ...]:
        return tuple(self._sessions)

    def open(self, peer: str, *, is_seed: bool = False, on_wake: Callable[[], None] | None = None) -> "RoomSession":
        """A session for a peer that is authorised. `is_seed`: this node dialled it, to have the room from it.

        `on_wake` is called when the session has something to send.
        """
        session = RoomSession(self, check_id(peer, field="nodeId"), on_wake or _nobody, is_seed=is_seed)
        self._sessions.append(session)
        return session

    def beat(self) -> None:
        """Tell every peer that this node is there, and give the answers that are due."""
        self.tell(self.awareness.beat(), but=None)
        for session in tuple(self._sessions):
            session.answer_late()

    def farewell(self) -> None:
        self.tell(self.awareness.farewell(), but=None)

    def tell(self, entries: list[Entry], *, but: "RoomSession | None") -> None:
        if entries:
            frame = awareness_frame(entries)
            for session in self._sessions:
                if session is not but:
                    session.queue(frame)

    def bring(self, session: "RoomSession", update: bytes, *, is_sync: bool, max_bytes: int) -> None:
        """Merge what a session's peer sent."""
        before, self._bringing = self._bringing, session
        try:
            self.room.receive(update, peer=session.peer, is_sync=is_sync, is_seed=session.is_seed, max_bytes=max_bytes)
        finally:
            self._bringing = before

    def retry_waiting(self) -> None:
        while True:
            merged = [session.retry() for session in tuple(self._sessions)]
            if not any(merged):
                return

    def drop(self, session: "RoomSession") -> None:
        if session in self._sessions:
            self._sessions.remove(session)

    def _on_update(self, update: bytes, origin: str) -> None:
        if origin != self.room.node_id and not self.room.keys.is_backbone(self.room.node_id):
            return  # what an edge node heard from one seed, another seed hears from that one
        frame = update_frame(update)
        for session in self._sessions:
            # What the room adds by itself while it takes an update is news to the one who brought it, too.
            if session is not self._bringing or origin != session.peer:
                session.queue_update(frame)


class RoomSession:
    """One connection of one peer. Made by `RoomHub.open`."""

    def __init__(self, hub: RoomHub, peer: str, on_wake: Callable[[], None], *, is_seed: bool = False) -> None:
        self.peer = peer
        self.is_seed = is_seed
        # What to record when the session was refused.
        self.audit: AuditEntry | None = None
        self.refusal: Refusal | None = None
        self._hub = hub
        self._on_wake = on_wake
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._must_resync = False
        self._waiting: list[tuple[bytes, bool]] = []
        # While the peer is ahead of this room and may not bring what others wrote.
        self._relay: Relay | None = None
        # Whether the peer has asked for the room: until then its answer will hold what is merged meanwhile.
        self._is_told = False
        self._has_asked_who_is_here = False
        self._closed = False
        # Until when what the peer has sent so far would have taken at the rate that it may send.
        self._paid_until_ms = 0.0
        # Until when the answers so far would have taken, and what the peer has seen, if it asked for more than that.
        self._answers_until_ms = 0.0
        self._asked: bytes | None = None

    def start(self) -> list[bytes]:
        """The first frames: what this side has seen, and who is here."""
        present = self._hub.awareness.present()
        frames = [step_1(self._hub.room.state())]
        return [*frames, awareness_frame(present)] if present else frames

    def receive(self, frame: bytes) -> list[bytes]:
        """Take a frame of the peer; gives the answers to it. A refusal ends the session."""
        if self._closed:
            raise self.refusal or Refusal(Code.UNAVAILABLE, "the session is closed")
        try:
            return self._receive(frame)
        except Refusal as refusal:
            self._refuse(refusal)
            raise

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the peer's next frame is read; 0 for one that keeps within its budget."""
        ahead_ms = self._paid_until_ms - self._hub.clock.monotonic_ms() - _SECONDS_AHEAD * 1000
        return max(ahead_ms / 1000, 0.0)

    @property
    def has_frames(self) -> bool:
        """Whether something waits to be sent to the peer."""
        return bool(self._queue) or self._must_resync

    def answer_late(self) -> None:
        """Answer a peer that asked for the room again before its time."""
        if self._asked is not None and not self._closed:
            answers = self._answer(self._asked)
            for frame in answers:
                self.queue(frame)

    def frames_to_send(self) -> list[bytes]:
        """What others brought since the last call. A peer that fell far behind gets the whole room instead."""
        frames, self._queue, self._queued_bytes = self._queue, [], 0
        if self._must_resync:
            self._must_resync = False
            return [step_2(self._hub.room.update_since())]
        return frames

    def close(self) -> None:
        """The connection is gone."""
        if not self._closed:
            self._closed = True
            self._end_relay()
            self._hub.drop(self)

    def queue_update(self, frame: bytes) -> None:
        if self._is_told:
            self.queue(frame)

    def queue(self, frame: bytes) -> None:
        self._queued_bytes += len(frame)
        if self._queued_bytes > _MAX_QUEUED_BYTES:
            self._queue, self._queued_bytes, self._must_resync = [], 0, True
        if not self._must_resync:
            self._queue.append(frame)
        self._on_wake()

    def retry(self) -> bool:
        """Whether something that waited could be merged now."""
        if self._relay is not None and self._relay.is_covered():
            self._end_relay()
        waiting, self._waiting = self._waiting, []
        merged = False
        for update, is_sync in waiting:
            if self._closed:
                break
            try:
                merged = self._merge(update, is_sync=is_sync) or merged
            except Refusal as refusal:
                self._refuse(refusal)
                self._on_wake()
        return merged

    def _receive(self, frame: bytes) -> list[bytes]:
        if len(frame) > MAX_FRAME_BYTES:
            raise Refusal(Code.TOO_LARGE, f"a frame of {len(frame)} bytes", hint="Send less at once.")
        self._pay(len(frame))
        reader = Reader(frame)
        kind = reader.uint()
        if kind == _QUERY_AWARENESS and not reader.rest:
            present = self._hub.awareness.present()
            self._pay(0, frames=len(present))
            return [awareness_frame(present)]
        step = reader.uint() if kind == _SYNC else None
        content = reader.sized()
        if reader.rest:
            raise Refusal(Code.MALFORMED, "there are bytes after the end of the frame")
        if kind == _AWARENESS:
            entries = decode_awareness(content)
            # Each may cost a check of a signature.
            self._pay(0, frames=len(entries))
            heard = self._hub.awareness.receive(entries, peer=self.peer)
            self._hub.tell(heard.news, but=self)
            self._hub.tell(heard.own, but=None)
            return [awareness_frame(heard.answer)] if heard.answer else []
        if kind != _SYNC or step not in (_STEP_1, _STEP_2, _UPDATE):
            raise Refusal(Code.MALFORMED, "a frame of a kind that y-protocols does not have")
        if step == _STEP_1:
            return self._answer(_checked_state(content))
        if self._merge(content, is_sync=step == _STEP_2):
            self._hub.retry_waiting()
        if step == _STEP_2 and self.is_seed and not self._has_asked_who_is_here:
            # What it said at first may have been signed by members that were not known here yet.
            self._has_asked_who_is_here = True
            return [bytes((_QUERY_AWARENESS,))]
        return []

    def _pay(self, size: int, *, frames: int = 1) -> None:
        cost_ms = 1000 * max(frames / _FRAMES_A_SECOND, size / _BYTES_A_SECOND)
        self._paid_until_ms = max(self._paid_until_ms, self._hub.clock.monotonic_ms()) + cost_ms

    def _answer(self, state: bytes) -> list[bytes]:
        """What the peer has not seen; later, if it was answered only just now."""
        now_ms = self._hub.clock.monotonic_ms()
        if self._answers_until_ms - now_ms > _ANSWERS_AHEAD_MS:
            self._asked = state
            return []
        self._asked, self._is_told = None, True
        answer = step_2(self._hub.room.update_since(state))
        cost_ms = max(len(answer) * 60_000 / _ANSWER_BYTES_A_MINUTE, _LEAST_ANSWER_MS)
        self._answers_until_ms = max(self._answers_until_ms, now_ms) + cost_ms
        return [answer]

    def _limit(self, *, is_sync: bool) -> int:
        if not is_sync:
            return MAX_UPDATE_BYTES
        is_large = self.is_seed or self._hub.room.keys.is_backbone(self.peer)
        return MAX_FRAME_BYTES if is_large else MAX_RELAY_BYTES

    def _merge(self, update: bytes, *, is_sync: bool) -> bool:
        """Whether it was merged. What came by a shorter way than that on which it builds waits for the other."""
        if self._relay is not None:
            self._relay.receive(update)
            if self._hub.room.keys.is_backbone(self.peer):
                # It has shown who it is: from now on its structs are taken as they are.
                self._end_relay()
                self.queue(step_1(self._hub.room.state()))
            return True
        try:
            self._hub.bring(self, update, is_sync=is_sync, max_bytes=self._limit(is_sync=is_sync))
        except ForeignStructs:
            if not is_sync:
                raise
            self._take_records(update)
        except Refusal as refusal:
            if refusal.code is not Code.SEQUENCE_GAP:
                raise
            size = sum(len(waiting) for waiting, _ in self._waiting) + len(update)
            if len(self._waiting) >= _MAX_WAITING or size > _MAX_WAITING_BYTES:
                raise
            self._waiting.append((update, is_sync))
            return False
        return True

    def _take_records(self, update: bytes) -> None:
        self._relay = Relay(self._hub.room, self.peer)
        self._merge(update, is_sync=True)

    def _end_relay(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.audit = AuditEntry(
            at_ms=self._hub.clock.now_ms(),
            actor=self.peer,
            action="room.refused",
            subject=ROOM_NAME,
            detail={"code": refusal.code.value, "reason": refusal.message[:500], "field": refusal.field},
        )
        self.close()


def _checked_state(state: bytes) -> bytes:
    """A state vector that is one, so that nothing else reaches the library."""
    reader = Reader(state)
    for _ in range(reader.uint()):
        reader.uint()
        reader.uint()
    if reader.rest:
        raise Refusal(Code.MALFORMED, "there are bytes after the end of the state vector")
    return state


def _nobody() -> None:
    pass
