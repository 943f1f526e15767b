"""Who is there: heartbeats as they are heard, and the status that follows from how long ago that was.

Heartbeats ride on awareness and never enter the document (ROOM-4); a node writes its status into its own record, and
only when it changes. A heartbeat counts from when it was heard here: another machine's clock says nothing here, and
when the time of day is set on this one, nobody has been silent for longer or shorter because of that.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from agentpost.protocol.snapshot import NodeStatus
from agentpost.world import Clock

__all__ = ["DEGRADED_AFTER_MS", "OFFLINE_AFTER_MS", "Presence", "StatusChange"]

DEGRADED_AFTER_MS: Final = 30_000
OFFLINE_AFTER_MS: Final = 90_000
# Less than this is drift, and the next heartbeat makes up for it.
_STEP_MS: Final = 1_000
_BEATS_COMPARED: Final = 3
_FEWEST_BEATS: Final = 2


class StatusChange(Struct, frozen=True, kw_only=True):
    node_id: str
    before: NodeStatus | None
    after: NodeStatus


class Presence:
    def __init__(
        self, clock: Clock, *, degraded_after_ms: int = DEGRADED_AFTER_MS, offline_after_ms: int = OFFLINE_AFTER_MS
    ) -> None:
        self._clock = clock
        self._degraded_after_ms = degraded_after_ms
        self._offline_after_ms = offline_after_ms
        self._started_at = clock.monotonic_ms()
        # When each node was heard, in monotonic milliseconds; `_seen` also has those that have left since.
        self._heard: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._told: dict[str, NodeStatus] = {}
        # What the last heartbeats of each node said the time was, less the monotonic time when they came.
        self._said: dict[str, deque[int]] = {}
        self._version = 0
        self._ahead_ms = self._compared_ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()

    @property
    def version(self) -> int:
        """Grows with every heartbeat and every farewell, and when the time of day was set."""
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        if abs(ahead_ms - self._ahead_ms) > _STEP_MS:
            self._ahead_ms = ahead_ms
            self._version += 1
        return self._version

    def heard(self, node_id: str, *, said_ms: int | None = None) -> None:
        """A heartbeat of this node has arrived, or been made here. `said_ms` is the time that it says it is there."""
        if said_ms is not None:
            self._forget_clocks_if_set()
            said = self._said.setdefault(node_id, deque(maxlen=_BEATS_COMPARED))
            said.append(said_ms - self._clock.monotonic_ms())
        self._heard[node_id] = self._seen[node_id] = self._clock.monotonic_ms()
        self._version += 1

    def left(self, node_id: str) -> None:
        """The node said goodbye, or was cut off."""
        if self._heard.pop(node_id, None) is not None:
            self._version += 1

    def clocks_ahead_ms(self) -> Mapping[str, int]:
        """By how much the clocks of other nodes are ahead of this one's, of those whose heartbeats come.

        A heartbeat takes its time to get here, and the first may have been kept for a while by a seed: of several the
        one counts that was the quickest.
        """
        self._forget_clocks_if_set()
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        return {
            node_id: max(said) - ahead_ms
            for node_id, said in self._said.items()
            if len(said) >= _FEWEST_BEATS and self.status_of(node_id) is not NodeStatus.OFFLINE
        }

    def _forget_clocks_if_set(self) -> None:
        """When the own clock was set, or its machine slept, what was compared with it before says nothing any more."""
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        if abs(ahead_ms - self._compared_ahead_ms) > _STEP_MS:
            self._compared_ahead_ms = ahead_ms
            self._said.clear()

    def last_heard_ms(self) -> Mapping[str, int]:
        """When each node was heard last, in epoch ms of this clock as it is set now."""
        return {node_id: self._time_of_day_ms(at_ms) for node_id, at_ms in self._heard.items()}

    def last_seen_ms(self, node_id: str) -> int | None:
        """When the node was here last, also if it has left since; None if it was not since the start."""
        seen = self._seen.get(node_id)
        return None if seen is None else self._time_of_day_ms(seen)

    def was_heard_after(self, node_id: str, monotonic_ms: int) -> bool:
        """Whether a heartbeat of the node came after this moment, from the node itself or through another."""
        return self._seen.get(node_id, -1) > monotonic_ms

    def started_ms(self) -> int:
        """When this gateway began to listen for heartbeats."""
        return self._time_of_day_ms(self._started_at)

    def silent_since_ms(self, node_id: str) -> int:
        """Since when the node was not heard here. For one not heard since the start of this gateway, that start.

        TASK-8: what a node said before this gateway started is not known, so its silence counts from the start.
        """
        return self._time_of_day_ms(self._seen.get(node_id, self._started_at))

    def status_of(self, node_id: str) -> NodeStatus:
        heard = self._heard.get(node_id)
        if heard is None:
            return NodeStatus.OFFLINE
        silent_ms = self._clock.monotonic_ms() - heard
        if silent_ms >= self._offline_after_ms:
            return NodeStatus.OFFLINE
        return NodeStatus.DEGRADED if silent_ms >= self._degraded_after_ms else NodeStatus.ONLINE

    def changes(self) -> list[StatusChange]:
        """The nodes whose status is another than at the last call, each once."""
        changed: list[StatusChange] = []
        for node_id in sorted(self._heard.keys() | self._told.keys()):
            before, after = self._told.get(node_id), self.status_of(node_id)
            if before is not after:
                changed.append(StatusChange(node_id=node_id, before=before, after=after))
                self._told[node_id] = after
        return changed

    def _time_of_day_ms(self, monotonic_ms: int) -> int:
        """A moment in epoch ms of this clock as it is set now."""
        return monotonic_ms + self._clock.now_ms() - self._clock.monotonic_ms()
