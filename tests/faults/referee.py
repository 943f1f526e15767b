"""Says what a scenario must lead to, and whether what a disk has kept is that.

The measure is a good disk: the states that the acknowledged operations lead to there, one after the other. What
survives a fault must be one of them, none of the earlier ones, and none in between.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from agentpost.protocol.errors import Code, Refusal
from agentpost.store.database import Database
from agentpost.store.home import Home
from agentpost.store.integrity import check_home
from agentpost.store.values import Appended
from tests.faults.disk import Disk, Keep, Point
from tests.faults.playing import Operation, Run, Scenario, open_store, play
from tests.faults.words import message

__all__ = ["HALF", "LOST", "Referee", "State", "Survivor", "check_told", "read_state"]

LOST: Final = "something acknowledged is missing"
HALF: Final = "something is half there"


class State(NamedTuple):
    """Everything that a database says, as SQL sees it."""

    application_id: int
    version: int
    schema: tuple[tuple[Any, ...], ...]
    rows: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...]


def read_state(home: Path) -> State:
    """What the database of a home says; nothing if it has none yet."""
    file = Home(home).database
    if not file.exists():
        return State(application_id=0, version=0, schema=(), rows=())
    with closing(Database.open_reader(file)) as database:
        database.run("PRAGMA synchronous = OFF")
        return _state_of(database)


def _state_of(database: Database) -> State:
    schema = database.rows("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
    tables = [row[1] for row in schema if row[0] == "table"]
    return State(
        application_id=database.value("PRAGMA application_id"),
        version=database.schema_version(),
        schema=tuple(schema),
        rows=tuple((name, tuple(database.rows(f'SELECT * FROM "{name}"'))) for name in tables),  # noqa: S608
    )


def check_told(run: Run, struck: Point) -> None:
    """The caller of a store whose disk broke for good at this point was told so, once, and nothing untrue."""
    for operation, answer in run.acknowledged:
        assert answer == operation.answer, operation.name
    for operation, refusal in run.refused:
        assert refusal.code in (Code.STORAGE_FAILED, operation.answer), operation.name
    if run.opened_at is None or run.closing_at is None:
        assert _is_failed(run.opening)
        assert run.failures == []
    elif struck.index < run.closing_at:
        assert run.failures == [run.failure]
        assert _is_failed(run.failure)
        assert _is_failed(run.after_failure)
        assert run.closing is None
    else:
        # All was done and is in the log. Closing says what went wrong, except that a log cannot be deleted.
        assert run.failures == []
        assert _is_failed(run.closing) or struck.op == "delete"


def _is_failed(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.code is Code.STORAGE_FAILED


class Course(NamedTuple):
    """What happens on a good disk: the states up to the opened store, and after each operation from there."""

    states: tuple[State, ...]
    opened: int
    """The number of the state in which the store is open and nothing was done with it."""
    answers: tuple[Any, ...]

    def after(self, operations: int) -> State:
        return self.states[self.opened + operations]

    def same(self, state: State) -> State:
        """The state, as the object that is here already, so that a thousand survivors do not keep a thousand copies."""
        return next((each for each in self.states if each == state), state)


class Survivor(NamedTuple):
    """A database after a restart: what it said, and what was wrong with it."""

    state: State | None
    """None if it could not be read."""
    problems: tuple[str, ...]


class Referee:
    """Judges the runs of one scenario. Used within its settings."""

    def __init__(self, scenario: Scenario, root: Path) -> None:
        self._scenario = scenario
        self._root = root
        self._courses: dict[tuple[Operation, ...], Course] = {}
        self._survivors: dict[bytes, Survivor] = {}

    async def home(self, name: str = "home") -> Path:
        """A home as the scenario finds it. It takes the place of the last one of this name."""
        template = self._root / "template"
        before = self._scenario.before
        if before is not None and not template.exists():
            await self._prepare(template, before)
        path = self._emptied(name)
        if before is not None:
            shutil.copy(Home(template).database, path)
        return path

    def _emptied(self, name: str) -> Path:
        """A directory without a database. Making one anew each time would take longer than the tests in it."""
        path = self._root / name
        path.mkdir(mode=0o700, exist_ok=True)
        for file in path.glob(f"{Home(path).database.name}*"):
            file.unlink()
        return path

    async def _prepare(self, path: Path, before: Sequence[Operation]) -> None:
        earlier = Scenario(name="before", before=None, groups=tuple((operation,) for operation in before))
        with earlier.settings():
            run = await play(earlier, path, synchronous="OFF")
        assert [answer for _, answer in run.acknowledged] == [operation.answer for operation in before]

    async def course(self, order: Sequence[Operation] | None = None) -> Course:
        """What these operations, one by one, lead to on a good disk; all of the scenario's if none are given."""
        operations = self._scenario.operations if order is None else tuple(order)
        if operations not in self._courses:
            self._courses[operations] = await self._take_course(operations, as_written=order is None)
        return self._courses[operations]

    async def _take_course(self, operations: Sequence[Operation], *, as_written: bool) -> Course:
        home = await self.home("course")
        states = [read_state(home)]
        with closing(Database.open_writer(Home(home).database, synchronous="OFF")) as database:
            if database.schema_version() < len(self._scenario.migrations):
                database.migrate(self._scenario.migrations)
                states.append(read_state(home))
        store = open_store(home, synchronous="OFF")
        if (opened := read_state(home)) != states[-1]:
            states.append(opened)
        at = len(states) - 1
        answers: list[Any] = []
        for operation in operations:
            try:
                answers.append(await operation.submit(store))
            except Refusal as refusal:
                answers.append(refusal.code)
            if as_written:
                assert answers[-1] == operation.answer, operation.name
                operation.leaves(store)
            states.append(_state_of(store._reader()))
        await store.close()
        return Course(states=tuple(states), opened=at, answers=tuple(answers))

    async def problems(self, run: Run, disk: Disk, keep: Keep, seed: int = 0) -> list[str]:
        """What is wrong with the home after a restart, given what the caller was told."""
        course = await self.course()
        survivor = await self.survivor(disk, keep, seed)
        least = course.opened if run.opened_at is not None else 0
        if run.acknowledged:
            last, _ = run.acknowledged[-1]
            done = self._scenario.operations[: self._scenario.operations.index(last) + 1]
            assert [operation for operation, _ in run.acknowledged] == [each for each in done if not each.is_refused]
            least += len(done)
        most = course.opened + run.attempted
        problems = list(survivor.problems)
        if survivor.state not in course.states[least : most + 1]:
            problems.append(LOST if survivor.state in course.states[:least] else HALF)
        return problems

    async def survivor(self, disk: Disk, keep: Keep, seed: int = 0) -> Survivor:
        """What the disk has kept, after a restart. Equal databases are looked at once."""
        disk.survive(recovered := self._emptied("recovered"), keep=keep, seed=seed)
        digest = _digest_of_database(recovered)
        if digest not in self._survivors:
            disk.survive(kept := self._emptied("kept"), keep=keep, seed=seed)
            self._survivors[digest] = await self._restart(kept)
        return self._survivors[digest]

    async def _restart(self, kept: Path) -> Survivor:
        course = await self.course()
        home = self._emptied("restarted")
        shutil.copytree(kept, home, dirs_exist_ok=True)
        # Opening ends what an interrupted opening has begun, so what that left has to be read apart.
        found = read_state(kept) if course.opened else None
        try:
            store = open_store(home, synchronous="OFF")
        except Refusal as refusal:
            return Survivor(found, (f"the home does not open: {refusal.message}",))
        opened = _state_of(store._reader())
        problems: list[str] = []
        if found is not None and opened != (course.after(0) if found in course.states[: course.opened] else found):
            problems.append("opening the home has changed it")
        problems += check_home(home).problems
        following = store.head().seq + 1
        if await store.append([message(1000)]) != Appended(first_seq=following, last_seq=following):
            problems.append("the next event does not get the next seq")
        await store.close()
        return Survivor(course.same(found or opened), tuple(problems))


def _digest_of_database(directory: Path) -> bytes:
    """A digest of the database that SQLite finds in these files, which it tidies up.

    The files themselves are never equal: a log begins with a number drawn by lot.
    """
    file = Home(directory).database
    if file.exists():
        # What cannot be opened is compared as it is.
        with contextlib.suppress(apsw.Error), closing(apsw.Connection(str(file))) as database:
            database.execute("PRAGMA synchronous = OFF")
            # The last one to close a database moves its log over.
            database.execute("SELECT count(*) FROM sqlite_schema")
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.digest()
