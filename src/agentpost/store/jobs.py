"""Pieces of work for the store, each of somebody who waits for it, and how many of them become one transaction."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import ConstraintViolated
from agentpost.store.rows import Append, Rows, UnknownAhead
from agentpost.store.transaction import Transaction
from agentpost.store.values import Appended

__all__ = ["FATAL", "LONG", "Batch", "Job", "Many", "append_many", "gather_ahead", "try_together"]

# After these nothing is written any more.
FATAL: Final = frozenset({Code.STORAGE_FAILED, Code.STORAGE_CORRUPT})
# After these SQLite may have ended the transaction by itself, with the work of the neighbours in it.
_SPOILS_ALL: Final = FATAL | {Code.STORAGE_FULL}
# The size of work that may take long.
LONG: Final = 1_000_000

# Does the same for many callers at once: an answer for each, which is a refusal for one that changed nothing.
Many = Callable[[Transaction, Sequence[Any]], Sequence[Any]]


class Job(Struct, eq=False):
    """A piece of work, the future of whoever waits for it, and what came of it.

    An error's traceback leads back to its job, a cycle that only the garbage collector ends: so no `gc=False` here.
    """

    future: "asyncio.Future[Any]"
    # What is asked of `many`, which takes neighbours who ask the same together; without it, a function to call.
    asked: Any
    many: Many | None = None
    # About how many events are written for it.
    size: int = LONG
    result: Any = None
    error: Exception | None = None

    def answer(self) -> None:
        """Tell the caller, unless it does not wait any more."""
        try:
            if self.error is None:
                self.future.set_result(self.result)
            else:
                self.future.set_exception(self.error)
        except (asyncio.InvalidStateError, RuntimeError):
            # It was cancelled, or its loop is closed.
            return


class Batch(Struct, eq=False):
    """Jobs in the order in which they were asked for; their rows, with an answer for each, if gathered ahead."""

    jobs: Sequence[Job]
    ahead: Rows | None = None
    answers: Sequence[Appended | Refusal] = ()


def gather_ahead(jobs: Sequence[Job], ahead: Rows) -> Batch | None:
    """The jobs with their rows in `ahead`, or None if only the transaction itself can tell what becomes of them."""
    if not _are_appends(jobs):
        return None
    try:
        return Batch(jobs, ahead, ahead.append_each([job.asked for job in jobs]))
    except UnknownAhead:
        return None


def try_together(batches: Sequence[Batch], transaction: Transaction) -> tuple[bool, Refusal | None]:
    """Run the jobs in one transaction. Gives whether each has its answer, and what ended all writing, if it did.

    A job that changed nothing may fail without spoiling the others. One that did spoils it: then nothing is written,
    and each has to be tried by itself.
    """
    is_of_one = True
    failure: Refusal | None = None
    try:
        transaction.begin(only_appends=all(batch.ahead is not None or _are_appends(batch.jobs) for batch in batches))
        for batch in batches:
            if batch.ahead is not None and transaction.take(batch.ahead):
                _give(batch.jobs, batch.answers)
            else:
                _do_batch(transaction, batch.jobs)
        is_of_one = False
        transaction.commit()
    except Exception as error:  # noqa: BLE001 - callers are told; a writer that ended would leave them waiting
        failure = _undo(transaction)
        jobs = [job for batch in batches for job in batch.jobs]
        if isinstance(error, Refusal) and error.code in FATAL:
            failure = error
        # A full disk is full for all of them; whatever else a commit fails for belongs to one of them.
        is_of_one = is_of_one or not isinstance(error, Refusal)
        if is_of_one and len(jobs) > 1 and failure is None:
            return False, None
        for each in jobs:
            each.error = each.error or failure or _as_refusal(error)
    return True, failure


def _undo(transaction: Transaction) -> Refusal | None:
    try:
        transaction.rollback()
    except Refusal as refusal:
        return refusal
    return None


def _do_batch(transaction: Transaction, jobs: Sequence[Job]) -> None:
    for many, group in groupby(jobs, key=_many_of):
        if many is not None:
            together = list(group)
            _give(together, many(transaction, [job.asked for job in together]))
            continue
        for job in group:
            _do(transaction, job)


def _are_appends(jobs: Sequence[Job]) -> bool:
    return all(job.many is append_many for job in jobs)


def _many_of(job: Job) -> Many | None:
    return job.many


def _do(transaction: Transaction, job: Job) -> None:
    before = transaction.database.writes
    try:
        job.result = job.asked(transaction)
    except Exception as error:
        job.error = _as_refusal(error)
        has_changed = transaction.database.writes != before
        if has_changed or not isinstance(error, Refusal) or error.code in _SPOILS_ALL:
            raise


def _give(jobs: Sequence[Job], answers: Sequence[Any]) -> None:
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, Refusal):
            if answer.code in _SPOILS_ALL:
                raise answer
            job.error = answer
        else:
            job.result = answer


def append_many(transaction: Transaction, appends: Sequence[Append]) -> list[Appended | Refusal]:
    return transaction.append_each(appends)


def _as_refusal(error: Exception) -> Exception:
    if isinstance(error, ConstraintViolated):
        return Refusal(Code.CONFLICT, f"the store refused it: {error}")
    return error
