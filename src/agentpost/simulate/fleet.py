"""Write a lake for a fleet that never ran.

Time is cut into slices. Conversations that begin in a slice are made together; what they say later waits for its
slice. Worker processes share the nodes: each makes all conversations, from the same random numbers, and writes the
outboxes of its own nodes, so that nothing has to be handed from one to the other and the lake does not depend on how
many there are. As numbers, conversations cost a thirtieth of what their events cost as bytes.

A plan with several parts is written to `parts/` below the lake, and `release_part` brings one part after the other
into the lake, in any order: late and out-of-order data, as a pipeline gets to see them.
"""

import json
import math
import operator
import os
import shutil
from collections.abc import Callable, Iterator, MutableSequence
from concurrent.futures import ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.simulate.damage import write_burst
from agentpost.simulate.facts import Heads, Sessions, sessions_of, write_facts
from agentpost.simulate.faults import HARMLESS, LATE_ARRIVAL, Fault, make_faults
from agentpost.simulate.plan import FleetPlan, World
from agentpost.simulate.rows import Rows
from agentpost.simulate.segments import Outbox
from agentpost.simulate.talk import EVENTS_A_CONVERSATION, conversations, placed
from agentpost.simulate.text import ulids

__all__ = ["Simulated", "part_directory", "release_part", "write_fleet"]

_EVENTS_A_SLICE: Final = 1_000_000
_TOLD_EVERY_SECONDS: Final = 0.2


class Slice(Struct, frozen=True):
    """A stretch of time: its conversations begin between two shares of all work."""

    number: int
    part: int
    until_us: int
    conversations: int
    shares: tuple[float, float]


class Simulated(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was written."""

    events: int
    segments: int
    faults: int
    parts: int
    now_us: int


class _Share(Struct):
    """What one worker wrote."""

    events: int = 0
    segments: int = 0
    faults: list[dict[str, Any]] = []
    harmless: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    heads: dict[int, dict[int, Heads]] = {}  # part, node
    sessions: dict[int, Sessions] = {}


def write_fleet(
    plan: FleetPlan, lake: Path, *, workers: int | None = None, at: Callable[[int], None] | None = None
) -> Simulated:
    """Write the whole lake and its `truth.json`. The directory must be new or empty.

    `at` is told now and then how many events are written.
    """
    if lake.exists() and (not lake.is_dir() or any(lake.iterdir())):
        raise Refusal(Code.CONFLICT, f"{lake} is there already, and not empty", field="lake", hint="Name a new one.")
    try:
        lake.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{lake} cannot be made: {error.strerror}"
        raise Refusal(Code.INVALID_FIELD, problem, field="lake", hint="Name a place that you may write.") from None
    workers = min(workers or os.cpu_count() or 1, plan.nodes)
    shares = _write_shares(plan, lake, workers, at or (lambda _: None))
    world = World(plan)
    _write_all_facts(world, lake, shares)
    events = sum(share.events for share in shares)
    faults = _sorted(entry for share in shares for entry in share.faults)
    truth = {
        "seed": plan.seed,
        "events": events,
        "nowUs": world.end_us,
        "faults": faults,
        "late": _sorted(entry for share in shares for entry in share.late),
        "harmless": _sorted(entry for share in shares for entry in share.harmless),
    }
    (lake / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return Simulated(
        events=events,
        segments=sum(share.segments for share in shares),
        faults=len(faults),
        parts=len(plan.parts),
        now_us=world.end_us,
    )


def part_directory(lake: Path, part: int) -> Path:
    return lake / "parts" / f"{part:04d}"


def release_part(lake: Path, part: int) -> int:
    """Bring a part into the lake, data before manifests, as a gateway would. Gives how many segments came."""
    staged = part_directory(lake, part)
    if not staged.is_dir():
        problem, hint = f"{lake} has no part {part} that waits", "`simulate fleet --batches` makes parts."
        raise Refusal(Code.NOT_FOUND, problem, field="part", hint=hint)
    segments = 0
    for kind in ("outbox", "facts", "manifests"):
        for path in sorted((staged / kind).rglob("*")):
            if path.is_file():
                place = lake / path.relative_to(staged)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.rename(place)
                segments += kind == "manifests"
    shutil.rmtree(staged)
    return segments


def slices(world: World) -> list[Slice]:
    """All of the time, cut so that a slice fits into memory and belongs to one part."""
    plan, found = world.plan, list[Slice]()
    total, begun = sum(plan.parts), 0.0
    for part, weight in enumerate(plan.parts):
        pieces = max(1, math.ceil(plan.events * weight / total / _EVENTS_A_SLICE))
        for _ in range(pieces):
            until = min(1.0, begun + weight / total / pieces)
            if part == len(plan.parts) - 1 and _ == pieces - 1:
                until = 1.0
            first, last = (round(plan.events * share / EVENTS_A_CONVERSATION) for share in (begun, until))
            until_us = int(world.moment(np.array([until]))[0])
            found.append(Slice(len(found), part, until_us, last - first, (begun, until)))
            begun = until
    return found


def events_by_slice(world: World, waiting: Rows, *, every: int, first: int) -> Iterator[tuple[Slice, dict[int, Rows]]]:
    """The events of every so manyth node, slice by slice: by node, and in order of time. `waiting` are there anyway."""
    for piece in slices(world):
        rng = world.chance("conversations", piece.number)
        shares = np.sort(rng.uniform(*piece.shares, piece.conversations))
        begun = conversations(world, rng, world.moment(shares))
        rows = Rows.joined([waiting, placed(world, begun, every=every, first=first)])
        due = rows["t_us"] < piece.until_us
        waiting, now = rows.only(~due), rows.only(due)
        now = now.only(np.lexsort((now["t_us"], now["node"])))
        yield piece, dict(_runs(now, "node"))


def _runs(rows: Rows, name: str) -> Iterator[tuple[int, Rows]]:
    """The rows cut where the value of a column changes, each piece with its value."""
    values = rows[name]
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()] if len(rows) else []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=False):
        yield int(values[start]), rows[start:end]


def _write_shares(plan: FleetPlan, lake: Path, workers: int, at: Callable[[int], None]) -> list[_Share]:
    if workers == 1:
        return [_write_share(plan, lake, 0, 1, at)]
    context = get_context("spawn")
    written: Any = context.Array("q", workers)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_count_in, initargs=(written,)) as pool:
        tasks = [pool.submit(_write_counted, plan, lake, number, workers) for number in range(workers)]
        while wait(tasks, timeout=_TOLD_EVERY_SECONDS).not_done:
            at(sum(written))
        return [task.result() for task in tasks]


# In a worker: how many events each of them has written.
_written: MutableSequence[int] = []


def _count_in(written: MutableSequence[int]) -> None:
    global _written
    _written = written


def _write_counted(plan: FleetPlan, lake: Path, number: int, workers: int) -> _Share:
    return _write_share(plan, lake, number, workers, partial(operator.setitem, _written, number))


def _write_share(plan: FleetPlan, lake: Path, first: int, every: int, at: Callable[[int], None]) -> _Share:
    """The outboxes of every so manyth node."""
    world = World(plan)
    faults, rows = make_faults(world)
    rows = rows.only(rows["node"] % every == first)
    writer = _Writer(world, lake, range(first, plan.nodes, every), faults)
    for piece, found in events_by_slice(world, rows, every=every, first=first):
        for node, its in found.items():
            writer.write(piece, node, its)
            at(writer.done.events)
    return writer.done


class _Writer:
    def __init__(self, world: World, lake: Path, nodes: range, faults: list[Fault]) -> None:
        self._world = world
        self._lake = lake
        self._faults = faults
        self._outboxes = {node: Outbox(world, node) for node in nodes}
        self._epochs = dict.fromkeys(nodes, 1)
        self._late = _late_arrivals(world)
        self.done = _Share()

    def write(self, piece: Slice, node: int, rows: Rows) -> None:
        part = piece.part + ((node, piece.part) in self._late)
        root = self._lake if len(self._world.plan.parts) == 1 else part_directory(self._lake, part)
        if part != piece.part:
            self.done.late.append(self._entry(LATE_ARRIVAL, node, self._outboxes[node].seq + 1) | {"part": part})
        self._write_node(node, rows, root, self._world.chance("content", node, piece.number))
        self.done.sessions.setdefault(piece.part, []).extend(sessions_of(self._world, rows))
        self.done.events += len(rows)
        heads = self.done.heads.setdefault(piece.part, {})
        heads[node] = Heads(self._outboxes[node].epoch, self._outboxes[node].seq)

    def _write_node(self, node: int, rows: Rows, root: Path, rng: np.random.Generator) -> None:
        for alone, run in _runs(rows, "alone"):
            if alone:
                self._write_burst(node, run, root, rng)
                continue
            for start in range(0, len(run), self._world.plan.segment_events):
                some = run[start : start + self._world.plan.segment_events]
                first = self._outboxes[node].seq + 1
                self._outboxes[node].seal(rng, some, root)
                self.done.segments += 1
                for place in np.flatnonzero(some["fault"]).tolist():
                    fault = self._faults[int(some["fault"][place]) - 1]
                    self._report(fault, node, first + place, some[place : place + 1])

    def _write_burst(self, node: int, rows: Rows, root: Path, rng: np.random.Generator) -> None:
        fault = self._faults[int(rows["alone"][0]) - 1]
        before = self._outboxes[node]
        seq, chain = before.seq, before.chain
        shown = write_burst(self._world, before, rng, fault, rows, root)
        self.done.segments += 1 + (fault.rule in ("fork", HARMLESS)) - (fault.rule == "gap")
        if fault.rule == "regression":
            # As after a disk that was restored without its tail: the burst was lost, and its seqs are used again.
            self._epochs[node] += 1
            self._outboxes[node] = Outbox(self._world, node, self._epochs[node], seq=seq, chain=chain)
        self._report(fault, node, shown, rows[:1])

    def _report(self, fault: Fault, node: int, seq: int, row: Rows) -> None:
        entry = self._entry(fault.rule, node, seq)
        if fault.names is not None:
            made_ms, word = ("made_ms", "word") if fault.names == "event" else ("ref_ms", "ref_word")
            entry["eventId"] = f"evt_{bytes(ulids(row[made_ms], row[word])[0]).decode()}"
        if fault.agent >= 0:
            entry["agentId"] = self._world.agent_names[fault.agent]
        (self.done.harmless if fault.rule == HARMLESS else self.done.faults).append(entry)

    def _entry(self, rule: str, node: int, seq: int) -> dict[str, Any]:
        return {"rule": rule, "node": self._world.node_names[node], "epoch": self._outboxes[node].epoch, "seq": seq}


def _late_arrivals(world: World) -> set[tuple[int, int]]:
    """Which nodes' segments of which part come one part later."""
    parts = len(world.plan.parts)
    if LATE_ARRIVAL not in world.plan.faults or parts < 2:
        return set()
    rng = world.chance("late")
    count = max(1, parts // 4)
    return set(
        zip(
            rng.integers(1, world.plan.nodes, count).tolist(),
            rng.integers(0, parts - 1, count).tolist(),
            strict=True,
        )
    )


def _write_all_facts(world: World, lake: Path, shares: list[_Share]) -> None:
    ends: dict[int, int] = {}
    for piece in slices(world):
        ends[piece.part] = piece.until_us
    heads: dict[int, Heads] = {}
    begun_us = world.start_us
    for part, until_us in ends.items():
        for share in shares:
            heads |= share.heads.get(part, {})
        sessions = [entry for share in shares for entry in share.sessions.get(part, [])]
        root = lake if len(ends) == 1 else part_directory(lake, part)
        ordered = dict(sorted(heads.items()))
        write_facts(world, root, part, from_us=begun_us, until_us=until_us, heads=ordered, sessions=sessions)
        begun_us = until_us


def _sorted(entries: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: (entry["rule"], entry["node"], entry["epoch"], entry["seq"]))
