"""Contracts: JSON Schema, for what goes into a task and what comes out of it (CAP-5). Knows nothing of tasks.

A contract is a stranger's program: a short one can take hours and all memory. So the gateway never evaluates one
itself. Child processes do (`contract_process`), within limits on CPU time and memory, and a child that reaches a limit
is ended. A child starts when it is needed first, and stays until the gateway closes.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

import msgspec

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.plain import check_plain
from agentpost.work import contract_process
from agentpost.work.contract_process import HEAD, LENGTH, READY
from agentpost.world import Clock

__all__ = ["MAX_SCHEMA_BYTES", "ContractChecker"]

MAX_SCHEMA_BYTES: Final = 64 * 1024
_MOST_CHILDREN: Final = 2
# An ordinary check takes less than a millisecond. A value that is itself large may take more, in proportion.
_CPU_SECONDS: Final = 0.5
_CPU_SECONDS_PER_BYTE: Final = 1 / (16 * 1024 * 1024)
_MEMORY_BYTES: Final = 512 * 1024 * 1024
_MEMORY_BYTES_PER_BYTE: Final = 8
# A machine that has much to do gives a child little of its CPU. Beyond this the check is left for later.
_CLOCK_PER_CPU: Final = 60
# A process that stood still finds its timers due before it has read what has arrived meanwhile.
_LAST_LOOK_SECONDS: Final = 0.1
_START_SECONDS: Final = 30.0
# A contract that went over the budget is not tried again at once: each try would keep a child busy.
_PENALTY_MS: Final = 60_000
_MOST_REMEMBERED: Final = 256


class ContractChecker:
    """Validates in child processes. `close` ends them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots = asyncio.Semaphore(_MOST_CHILDREN)
        self._children = set[_Child]()
        self._idle = list[_Child]()
        # Until when a contract is not tried again, by its hash.
        self._refused_until_ms = OrderedDict[bytes, float]()
        self._is_closed = False

    async def check_schema(self, schema: Any, *, field: str = "schema") -> None:
        """Refuse what is not a JSON Schema, refers to something outside itself, is too large or costs too much."""
        await self._ask(_encoded(schema, field), b"", field)

    async def check(self, schema: Any, value: Any, *, field: str) -> None:
        """Refuse a value that is not what the schema describes; the refusal says where, and repeats nothing of it."""
        # What could not travel is no matter for the validator, which gives up on it.
        check_plain(value, field=field)
        problems = await self._ask(_encoded(schema, field), msgspec.json.encode(value), field)
        if problems:
            # The validator's own words would quote the value, and refusals are logged.
            told = "; ".join(f"/{place}: does not fit `{rule}`" for place, rule in problems)
            raise Refusal(Code.CONTRACT_MISMATCH, f"{field} breaks the contract: {told}", field=field)

    async def close(self) -> None:
        """End the children; a check that still runs is refused."""
        self._is_closed = True
        await asyncio.gather(*(child.end() for child in self._children))
        self._children.clear()

    async def _ask(self, schema: bytes, value: bytes, field: str) -> list[tuple[str, str]]:
        """The first places where the value breaks the schema; none if it fits."""
        key = hashlib.sha256(schema).digest()
        if self._refused_until_ms.get(key, 0) > self._clock.monotonic_ms():
            raise _over_budget(field, is_published=bool(value))
        async with self._slots:
            child, answer = await self._try(schema, value)
            if answer is None and child.was_killed:
                # By the system or a person, and not by a limit: that says nothing of the contract.
                _, answer = await self._try(schema, value)
        if self._is_closed:
            raise _closed()
        if answer is None:
            self._refused_until_ms[key] = self._clock.monotonic_ms() + _PENALTY_MS
            while len(self._refused_until_ms) > _MOST_REMEMBERED:
                self._refused_until_ms.popitem(last=False)
            raise _over_budget(field, is_published=bool(value))
        if answer.schema_problem is not None:
            problem = f"{field}: the contract is not a JSON Schema: {answer.schema_problem}"
            raise Refusal(Code.INVALID_FIELD, problem, field=field)
        return answer.problems

    async def _try(self, schema: bytes, value: bytes) -> "tuple[_Child, _Answer | None]":
        child = await self._take()
        try:
            return child, await child.ask(schema, value)
        finally:
            if child.is_idle:
                self._idle.append(child)
            else:
                self._children.discard(child)
                await child.end()

    async def _take(self) -> "_Child":
        while self._idle:
            child = self._idle.pop()
            if child.is_idle:
                return child
            self._children.discard(child)
        if self._is_closed:
            raise _closed()
        child = await _Child.start()
        if self._is_closed:
            await child.end()
            raise _closed()
        self._children.add(child)
        return child


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    problems: list[tuple[str, str]] = []
    schema_problem: str | None = None


class _Child:
    """One process, which does one check at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._is_busy = False
        # Whether something else than this object, or a limit, ended it.
        self.was_killed = False
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._requests, self._answers = process.stdin, process.stdout

    @staticmethod
    async def start() -> "_Child":
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", str(Path(contract_process.__file__))),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                # It finds what the gateway finds, and has nothing of the gateway's own.
                env={"PYTHONPATH": os.pathsep.join(sys.path)},
                cwd="/",
                # Ctrl-C is for the gateway, which drains before it ends its children.
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(error.strerror or str(error)) from None
        child = _Child(process)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await child._answers.readexactly(len(READY))
        except (TimeoutError, EOFError):
            await child.end()
            raise _not_started("it says nothing") from None
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def is_idle(self) -> bool:
        return not self._is_busy and self._process.returncode is None

    async def ask(self, schema: bytes, value: bytes) -> _Answer | None:
        """The answer; None if the child reached a limit. After a failed or cancelled call the caller ends the child."""
        cpu_seconds = _CPU_SECONDS + len(value) * _CPU_SECONDS_PER_BYTE
        memory_bytes = _MEMORY_BYTES + len(value) * _MEMORY_BYTES_PER_BYTE
        self._is_busy = True
        try:
            head = HEAD.pack(cpu_seconds, memory_bytes, len(schema), len(value))
            self._requests.writelines((head, schema, value))
            answer = await self._answer(within_seconds=_CLOCK_PER_CPU * cpu_seconds)
        except TimeoutError:
            raise _not_checked() from None
        except (EOFError, OSError):
            self.was_killed = await self._process.wait() == -signal.SIGKILL
            return None
        self._is_busy = False
        return answer

    async def _answer(self, *, within_seconds: float) -> _Answer:
        length: bytes | None = None
        for seconds in (within_seconds, _LAST_LOOK_SECONDS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    length = length or await self._answers.readexactly(LENGTH.size)
                    raw = await self._answers.readexactly(*LENGTH.unpack(length))
                    return msgspec.json.decode(raw, type=_Answer)
        raise TimeoutError

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._requests.close()


def _encoded(schema: Any, field: str) -> bytes:
    try:
        # In a fixed order, so that the same schema has the same hash.
        encoded = msgspec.json.encode(schema, order="deterministic")
    except (TypeError, ValueError, RecursionError):
        raise Refusal(Code.INVALID_FIELD, f"{field}: the contract is not JSON", field=field) from None
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise Refusal(
            Code.TOO_LARGE,
            f"{field}: its contract has {len(encoded)} bytes; {MAX_SCHEMA_BYTES} is the most",
            field=field,
        )
    return encoded


def _over_budget(field: str, *, is_published: bool) -> Refusal:
    budget = f"{_CPU_SECONDS:g} s of CPU time or {_MEMORY_BYTES // 2**20} MiB of memory"
    return Refusal(
        Code.CONTRACT_MISMATCH if is_published else Code.INVALID_FIELD,
        f"{field}: the contract cannot be checked with {budget}",
        field=field,
        hint="Ask the owner of the capability for a simpler contract, or name an agent in toAgents."
        if is_published
        else "Publish a simpler contract, e.g. with fewer references to one part and fewer nested alternatives.",
    )


def _not_started(why: str) -> Refusal:
    hint = "Look at the limits on processes and memory of the gateway's user, then try again."
    return Refusal(Code.UNAVAILABLE, f"the process that checks contracts did not start: {why}", hint=hint)


def _not_checked() -> Refusal:
    problem = "the contract was not checked in time: this machine has too much to do"
    return Refusal(Code.UNAVAILABLE, problem, hint="Try again later.")


def _closed() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the gateway stops")
