"""What a peer that has seen more can tell a seed that was away, or lost its room (ROOM-5): records, not structs.

A node that is no backbone node may not bring the structs of others (see `guard`), but records are signed by their
owners, so anybody may pass them on. What such a peer sends goes into a copy of its own; of what becomes visible there,
every record that is newer than the one here and would be believed is written anew into the room. Nothing else of the
copy ever leaves it, and it goes with the session, or when the room has caught up with it.
"""

from typing import Final

from agentpost.protocol.errors import Code, Refusal
from agentpost.room.crdt import Replica
from agentpost.room.document import Room
from agentpost.room.schema import MAPS
from agentpost.room.wire import EMPTY_UPDATE, read_update

__all__ = ["MAX_RELAY_BYTES", "Relay"]

MAX_RELAY_BYTES: Final = 8 * 1024 * 1024


class Relay:
    """One for a session whose peer is ahead of this room. Close it, or it is told of every update for ever."""

    def __init__(self, room: Room, peer: str) -> None:
        self._room = room
        self._peer = peer
        self._copy = Replica(room.update_since())
        self._brought_bytes = 0
        self._end = room.subscribe(self._on_update)

    def receive(self, update: bytes) -> None:
        """Take the records of an update. A refusal means that the peer itself wrote what it may not."""
        if update == EMPTY_UPDATE:
            return
        self._brought_bytes += len(update)
        if self._brought_bytes > MAX_RELAY_BYTES:
            raise Refusal(Code.TOO_LARGE, f"more than {MAX_RELAY_BYTES} bytes of what others wrote")
        for root in read_update(update).roots:
            if root not in MAPS:
                raise Refusal(Code.WRITE_DENIED, f"the room has no map {root[:40]!r}")
        self._room.adopt(self._copy.apply(update).touched, peer=self._peer)

    def is_covered(self) -> bool:
        """Whether the room has got all that the peer has seen by another way."""
        return self._room.has_seen(self._copy.clocks())

    def close(self) -> None:
        self._end()

    def _on_update(self, update: bytes, _origin: str) -> None:
        # The peer hears of it too, and what it writes next may build on it.
        self._copy.apply(update)
