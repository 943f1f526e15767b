"""Scenarios, and how they are played: on a real `SqliteStore`, whatever its disk does.

A scenario is a row of operations. Each is one call of the store's interface, with the answer that a good disk gives
and what can be read afterwards. `play` does them and notes what the caller was told, whatever happens on the way.
Operations of one group are handed in so that they share a commit, whatever the threads do: so every run has the same
write points.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from agentpost.protocol.errors import Code, Refusal
from agentpost.store import database, integrity, writer
from agentpost.store.home import Home
from agentpost.store.queries import migrations
from agentpost.store.sqlite import SqliteStore
from tests.faults.disk import Disk
from tests.faults.words import EPOCH, NODE, NOW_MS, message

__all__ = ["Operation", "Run", "Scenario", "open_store", "play"]

_SCHEMA: Final = migrations()
_PATIENCE_SECONDS: Final = 20
_NEVER: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One call of the store's interface: all of it or nothing of it."""

    name: str
    submit: Callable[[SqliteStore], "asyncio.Future[Any]"]
    answer: Any
    """What the store says on a good disk; a `Code` if it refuses even there."""
    leaves: Callable[[SqliteStore], None] = lambda store: None
    """Asserts what can be read once the operation has been answered."""

    @property
    def is_refused(self) -> bool:
        return isinstance(self.answer, Code)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Operations on a home that `before` has prepared; those of one group wait for the same commit."""

    name: str
    groups: tuple[tuple[Operation, ...], ...]
    before: tuple[Operation, ...] | None = ()
    """None for a home that is not there yet."""
    checkpoint_at_pages: int = _NEVER
    cache_pages: int | None = None
    """A cache so small that a transaction is written to the log before its commit."""
    new_migration: str | None = None
    """A step of the schema that the prepared home does not have yet."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation for group in self.groups for operation in group)

    @property
    def migrations(self) -> list[str]:
        return [*_SCHEMA, *([self.new_migration] if self.new_migration else [])]

    @contextmanager
    def settings(self) -> Iterator[None]:
        """The store as this scenario wants it: when it checkpoints, and which schema is its newest."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "_CHECKPOINT_AT_PAGES", self.checkpoint_at_pages)
            patch.setattr(writer, "_COMMITS_A_LOOK_AT_THE_LOG", 1)
            for module in (database, integrity):
                patch.setattr(module, "migrations", lambda: self.migrations)
            yield


@dataclass
class Run:
    """What the caller of a store was told."""

    opening: Refusal | None = None
    opened_at: int | None = None
    """The number of the disk's next write point when the store was open; None if it did not open."""
    acknowledged: list[tuple[Operation, Any]] = field(default_factory=list)
    """In the order in which they became durable, each with its answer."""
    refused: list[tuple[Operation, Refusal]] = field(default_factory=list)
    attempted: int = 0
    """How many operations, from the first on, were handed in before the store was known to have failed."""
    failures: list[Refusal] = field(default_factory=list)
    """What `on_failure` was told."""
    failure: Refusal | None = None
    """What the store itself says after its last operation."""
    after_failure: Refusal | None = None
    """The answer to one more operation on a failed store; it came without waiting."""
    closing_at: int | None = None
    """The number of the disk's next write point when the store was about to be closed."""
    closing: Refusal | None = None
    times_full: int = 0


def open_store(
    path: Path,
    *,
    vfs: str | None = None,
    synchronous: str = "FULL",
    on_failure: Callable[[Refusal], None] | None = None,
) -> SqliteStore:
    return SqliteStore.open(
        path, node_id=NODE, epoch=EPOCH, now_ms=NOW_MS, vfs=vfs, synchronous=synchronous, on_failure=on_failure
    )


async def play(
    scenario: Scenario,
    path: Path,
    *,
    disk: Disk | None = None,
    synchronous: str = "FULL",
    when_full: Callable[[], None] | None = None,
    before_close: Callable[[], Awaitable[None]] | None = None,
) -> Run:
    """Do the operations, group by group, and close the store.

    With `when_full`, whatever was refused for want of room is tried again after a call of it.
    """
    run = Run()
    store = _open(run, path, disk=disk, synchronous=synchronous, when_full=when_full)
    if store is None:
        return run
    run.opened_at = _next_point(disk)
    if scenario.cache_pages is not None:
        store._database.run(f"PRAGMA cache_size = {scenario.cache_pages}")
    for group in scenario.groups:
        if store.failure is None:
            run.attempted += len(group)
        waiting = group
        while waiting:
            waiting = await _do(store, run, waiting, when_full)
    await _finish_checkpoint(store)
    run.failure, run.closing_at = store.failure, _next_point(disk)
    if store.failure is not None:
        refused = store.append([message(999)])
        await asyncio.wait((refused,), timeout=_PATIENCE_SECONDS)
        run.after_failure = _refusal_of(refused)
    if before_close is not None:
        await before_close()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await store.close()
    except Refusal as refusal:
        run.closing = refusal
    _check_unlocked(path)
    return run


def _open(
    run: Run, path: Path, *, disk: Disk | None, synchronous: str, when_full: Callable[[], None] | None
) -> SqliteStore | None:
    while True:
        try:
            return open_store(
                path, vfs=disk.name if disk else None, synchronous=synchronous, on_failure=run.failures.append
            )
        except Refusal as refusal:
            _check_unlocked(path)
            if when_full is None or refusal.code is not Code.STORAGE_FULL:
                run.opening = refusal
                return None
            run.times_full += 1
            when_full()


def _next_point(disk: Disk | None) -> int:
    return len(disk.points) if disk else 0


async def _do(
    store: SqliteStore, run: Run, operations: Sequence[Operation], when_full: Callable[[], None] | None
) -> list[Operation]:
    """Do the operations in one commit, and note the answers; gives back those to try again."""
    answers = await asyncio.gather(*_submit_together(store, operations), return_exceptions=True)
    again: list[Operation] = []
    for operation, answer in zip(operations, answers, strict=True):
        match answer:
            case Refusal(code=Code.STORAGE_FULL) if when_full is not None:
                again.append(operation)
            case Refusal():
                run.refused.append((operation, answer))
            case BaseException():
                raise answer
            case _:
                run.acknowledged.append((operation, answer))
    if again and when_full is not None:
        run.times_full += 1
        when_full()
    return again


def _submit_together(store: SqliteStore, operations: Sequence[Operation]) -> "list[asyncio.Future[Any]]":
    """Hand the operations in while the writer is busy, so that it takes all of them at once."""
    if len(operations) == 1:
        return [operations[0].submit(store)]
    is_busy, may_go_on = threading.Event(), threading.Event()

    def keep_busy(_transaction: object) -> None:
        is_busy.set()
        may_go_on.wait(_PATIENCE_SECONDS)

    # If the store has failed by now, this is refused, and nobody has to hear of it twice.
    store._writer.submit(keep_busy).add_done_callback(lambda done: done.exception())
    while not is_busy.wait(0.005) and store.failure is None:
        # It may still be in a checkpoint, which may fail.
        assert store._writer._thread.is_alive()
    futures = [operation.submit(store) for operation in operations]
    may_go_on.set()
    return futures


async def _finish_checkpoint(store: SqliteStore) -> None:
    """Wait until the writer has come back for more; an empty transaction writes nothing.

    The first may share a commit with what asks for a checkpoint, which follows it; the second comes after that.
    """
    for _ in range(2):
        await asyncio.gather(store._writer.submit(lambda transaction: None), return_exceptions=True)


def _refusal_of(future: "asyncio.Future[Any]") -> Refusal | None:
    error = future.exception()
    assert error is None or isinstance(error, Refusal)
    return error


def _check_unlocked(path: Path) -> None:
    home = Home(path)
    home.lock()
    home.unlock()
