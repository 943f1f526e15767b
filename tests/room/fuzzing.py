"""A room under bytes from anywhere: valid updates and frames with a few things wrong, one after the other.

`python -m tests.room.fuzzing 10000 4` does so many cases that many times, and prints after each time how much memory
the process has, in bytes.
"""

import gc
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from agentpost.protocol.errors import Refusal
from agentpost.room.awareness import Entry
from agentpost.room.sync import RoomSession, awareness_frame, step_1, step_2, update_frame
from agentpost.testing import FakeClock
from tests.room.building import (
    EDGE,
    OTHER_EDGE,
    OTHER_SEED,
    SEED,
    TIERS,
    a_cursor,
    a_hub,
    a_node,
    a_populated_room,
    signed,
    written,
)


def mutated(chance: random.Random, data: bytes) -> bytes:
    """The bytes with one to four things wrong."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(6):
            case 0:
                out[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del out[at : at + chance.randint(1, 8)]
            case 2:
                out[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3 if out:
                at = min(at, len(out) - 1)
                out[at] ^= 1 << chance.randrange(8)
            case 4:
                del out[at:]
            case _:
                start = chance.randrange(len(out) + 1)
                out[at:at] = out[start : start + chance.randint(1, 20)]
    return bytes(out)


class Fuzz:
    """A populated room with a bystander who watches, and peers who send nonsense. The same seed, the same cases."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cases = self.refusals = self.merges = 0
        self._begin()

    def _begin(self) -> None:
        clock = FakeClock()
        self.room = a_populated_room(clock=clock)
        self.hub = a_hub(self.room, clock)
        self.hub.beat()
        self.bystander = self.hub.open(SEED)
        self.bystander.receive(step_1(b"\x00"))
        self.bystander.frames_to_send()
        records = [
            (EDGE, "delivery", EDGE, {"inboxCursorAcked": 1, "epoch": "epoch-1"}),
            (EDGE, "delivery.cursors", f"{EDGE}/{SEED}", a_cursor(EDGE, SEED)),
            (OTHER_SEED, "nodes", OTHER_SEED, a_node(OTHER_SEED, status="degraded")),
            (OTHER_SEED, "coordination", "coordinator", {"value": OTHER_SEED}),
        ]
        made = [(key, name, signed(who, name, key, fields, rev=1 << 41)) for who, name, key, fields in records]
        self.updates = [written(self.room, name, key, record) for key, name, record in made]
        self.updates.append(self.room.update_since())
        self.frames = [
            *map(update_frame, self.updates),
            *map(step_2, self.updates),
            step_1(self.room.state()),
            b"\x03",
            *(awareness_frame([Entry(9_000, 1, {"nodeId": name, "heartbeatAt": 1})]) for name in TIERS),
            awareness_frame([Entry(9_000, 2, None)]),
        ]
        self._honest = {record["sig"] for _, _, record in made} | self._signatures()
        self._merged = False
        self.room.subscribe(self._on_update)

    def _on_update(self, _update: bytes, _origin: str) -> None:
        self._merged = True

    def _signatures(self) -> set[str]:
        return {record["sig"] for _, _, record in self.room._table}  # pyright: ignore[reportPrivateUsage]

    def send_update(self) -> None:
        """One update with something wrong, or noise, straight to the room."""
        update = mutated(self.chance, self.chance.choice(self.updates))
        if self.chance.random() < 0.1:
            update = self.chance.randbytes(self.chance.randrange(64))
        peer, is_sync = self.chance.choice((EDGE, OTHER_EDGE, OTHER_SEED)), self.chance.random() < 0.5
        self._try(lambda: self.room.receive(update, peer=peer, is_sync=is_sync))

    def send_frame(self) -> RoomSession:
        """One frame with something wrong, on a session of its own."""
        session = self.hub.open(self.chance.choice((EDGE, OTHER_EDGE, OTHER_SEED)))
        frame = mutated(self.chance, self.chance.choice(self.frames))
        self._try(lambda: session.receive(frame))
        assert (session.audit is None) == (session.refusal is None)
        session.close()
        return session

    def _try(self, attempt: Callable[[], object]) -> None:
        self.cases += 1
        try:
            attempt()
        except Refusal:
            self.refusals += 1
            assert not self._merged, "what was refused was merged"
        told = self.bystander.frames_to_send()
        if not self._merged:
            assert all(frame[0] != 0 for frame in told), "what was not merged was passed on"
            return
        # The same record in another envelope is still the same record; nothing else gets in.
        self.merges += 1
        assert self._signatures() <= self._honest
        self._begin()

    def run(self, cases: int) -> None:
        for _ in range(cases // 2):
            self.send_update()
            self.send_frame()


def resident_bytes() -> int:
    """The memory of this process, whoever holds it: Python or a library."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    # Elsewhere there is only the peak. On Linux that would not do: a child begins with the one of its parent.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(cases: int, times: int) -> None:
    fuzz = Fuzz(11)
    for _ in range(times):
        fuzz.run(cases)
        print(resident_bytes(), flush=True)  # noqa: T201 - its only output


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
