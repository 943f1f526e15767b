"""One sweep of this gateway (TASK-8): it looks after the tasks that its own agents asked for.

The requester's gateway decides about a task, so it is the one that asks, reassigns and calls for help; the coordinator
says when, and hears what came of it. What has been done about a task stands in the store: an incident says since when
it is asked for, the round of the task whether it was given to somebody else. So a sweep that is cut off is made up for
by the next one, and does nothing twice.

There is a budget. However many tasks are late, a sweep sends so many messages and no more: one to each agent that is
asked, and what does not fit is told in one summary to the requester.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

from agentpost.delivery.engine import Engine
from agentpost.delivery.ports import Content
from agentpost.protocol.codec import decode_event
from agentpost.protocol.coordination import CoordinationState
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.envelope import Event, TaskCompleteEvent, TaskFailedEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import TaskId
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.routing import is_live
from agentpost.protocol.snapshot import RoomSnapshot
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.timestamps import format_ms
from agentpost.store.values import Incident
from agentpost.work.notices import Notices
from agentpost.work.settings import WorkSettings
from agentpost.work.sweeping import Finding, Problem, Promise, Step, backups_for, find_problem, next_step
from agentpost.work.tasks import Tasks

__all__ = [
    "LOOP_OPEN",
    "TASK_LATE",
    "TASK_QUIET",
    "TASK_STUCK",
    "NoPromises",
    "NoReviews",
    "Promises",
    "ReviewSink",
    "SweepReport",
    "Sweeper",
]

TASK_LATE: Final = IncidentKind.TASK_LATE  # somebody was asked about it
TASK_QUIET: Final = IncidentKind.TASK_QUIET  # its worker does not say how it goes as often as it has promised
TASK_STUCK: Final = IncidentKind.TASK_NEEDS_ACTION  # nothing that the mesh can do has helped
LOOP_OPEN: Final = IncidentKind.LOOP_OPEN  # the end of a task lies unread
_PAGE: Final = 500
# A sweep is in no hurry: mail goes first. A few hundred tasks take some milliseconds, and so does the rest after them.
_TASKS_AT_ONCE: Final = 100
_REST_SECONDS: Final = 0.004
_MOST_TITLES: Final = 20
_REVIEWED: Final = frozenset({Problem.MISSED_ETA, Problem.MISSED_DEADLINE})


class ReviewSink(Protocol):
    """Where a task that is late becomes a review item (CAP-6)."""

    async def raise_late(self, record: TaskRecord) -> None: ...


class NoReviews:
    """For a gateway without capabilities."""

    async def raise_late(self, record: TaskRecord) -> None:
        pass


class Promises(Protocol):
    """What the executors of capabilities have promised (CAP-7)."""

    def of(self, record: TaskRecord) -> Promise: ...


class NoPromises:
    """For a gateway without capabilities."""

    def of(self, record: TaskRecord) -> Promise:
        return Promise()


class SweepReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a sweep of one gateway came to: numbers, no content."""

    node_id: str
    turn: int
    at_ms: int
    checked: int
    problems: dict[str, int]
    asked: int
    reassigned: int
    needs_action: int
    open_loops: int
    messages: int

    @property
    def is_worth_telling(self) -> bool:
        return bool(self.problems) or self.open_loops > 0


class Sweeper:
    def __init__(self, engine: Engine, tasks: Tasks, settings: WorkSettings) -> None:
        self._engine = engine
        self._store = engine.store
        self._tasks = tasks
        self._settings = settings
        self._notices = Notices(engine)
        self.reviews: ReviewSink = NoReviews()
        self.promises: Promises = NoPromises()

    async def sweep(self, turn: int, state: CoordinationState) -> SweepReport:
        """Look at every task of this gateway's agents that is not over, and do what is due."""
        checked, findings = await self._look()
        known = await self._close_what_is_well(findings)
        steps: list[tuple[Finding, Step]] = []
        room, now_ms = self._engine.room.snapshot(), self._engine.clock.now_ms()
        for finding in findings:
            asked = known[_kind(finding)].get(finding.record.task_id)
            step = next_step(
                finding,
                asked_at_ms=None if asked is None else asked.at_ms,
                has_backup=bool(self._backups_for(finding, room, state)),
                now_ms=now_ms,
                settings=self._settings,
            )
            steps.append((finding, step))
        reassigned = [finding for finding, step in steps if step is Step.REASSIGN]
        moved = [finding for finding in reassigned if await self._reassign(finding, state)]
        stuck = [finding for finding, step in steps if step is Step.ESCALATE]
        late = [finding for finding, step in steps if step is Step.ASK]
        for finding in late:
            if finding.problem in _REVIEWED and finding.record.capability_id is not None:
                await self.reviews.raise_late(finding.record)
        loops = await self._open_loops(now_ms)
        messages = await self._tell(late, [each for each in stuck if each.record.task_id not in known[TASK_STUCK]])
        return SweepReport(
            node_id=self._store.node_id,
            turn=turn,
            at_ms=now_ms,
            checked=checked,
            problems=dict(Counter(finding.problem.value for finding in findings)),
            asked=len(late),
            reassigned=len(moved),
            needs_action=len(stuck),
            open_loops=loops,
            messages=messages,
        )

    async def _look(self) -> tuple[int, list[Finding]]:
        checked, after = 0, ""
        findings: list[Finding] = []
        now_ms, room = self._engine.clock.now_ms(), self._engine.room.snapshot()
        silent: dict[str, int | None] = {}

        def silent_since_ms(node_id: str) -> int | None:
            if node_id not in silent:
                is_here = self._is_here(room, node_id, now_ms)
                silent[node_id] = None if is_here else self._engine.room.silent_since_ms(node_id)
            return silent[node_id]

        while page := self._store.tasks(after=after, limit=_TASKS_AT_ONCE, open_only=True):
            after = page[-1].task_id
            for record in page:
                if record.requester_node_id != self._store.node_id:
                    continue
                checked += 1
                finding = find_problem(
                    record,
                    promise=self.promises.of(record),
                    now_ms=now_ms,
                    silent_since_ms=silent_since_ms,
                    has_offer_ended=lambda late: self._tasks.offering.why_ended(late) is not None,
                    settings=self._settings,
                )
                if finding is not None:
                    findings.append(finding)
            if len(page) < _TASKS_AT_ONCE:
                break
            await asyncio.sleep(_REST_SECONDS)
        findings.sort(key=lambda finding: finding.since_ms)
        return checked, findings

    def _is_here(self, room: RoomSnapshot, node_id: str | None, now_ms: int) -> bool:
        return node_id == self._store.node_id or is_live(room.nodes.get(node_id or ""), now_ms)

    def _backups_for(self, finding: Finding, room: RoomSnapshot, state: CoordinationState) -> Sequence[str]:
        """The agents that may have the task instead.

        A task of a silent gateway goes only to an agent whose gateway is heard: a gateway that hears nobody is itself
        the one that is cut off, and the workers it cannot hear go on working.
        """
        backups = backups_for(finding.record, room, state.backups)
        if finding.problem is not Problem.WORKER_GONE:
            return backups
        now_ms = self._engine.clock.now_ms()
        return [each for each in backups if self._is_here(room, room.agents[each].owner_node_id, now_ms)]

    def open_incidents(self, kind: IncidentKind) -> dict[str, Incident]:
        """The open incidents of this kind, by what they are about."""
        return {incident.subject: incident for incident in self._store.open_incidents_of(kind)}

    async def _close_what_is_well(self, findings: Sequence[Finding]) -> dict[IncidentKind, dict[str, Incident]]:
        """Close the incidents that do not hold any more. Gives those that do, by kind and task.

        What was asked in an earlier round of a task was asked of another agent, and counts for nothing in this one.
        """
        at_ms = self._engine.clock.now_ms()
        offered = {(_kind(finding), finding.record.task_id): finding.record.offered_at_ms for finding in findings}
        offered |= {(TASK_STUCK, finding.record.task_id): finding.record.offered_at_ms for finding in findings}
        holding: dict[IncidentKind, dict[str, Incident]] = {}
        ended: list[tuple[IncidentKind, str]] = []
        for kind in (TASK_LATE, TASK_QUIET, TASK_STUCK):
            holding[kind] = {}
            for task_id, incident in self.open_incidents(kind).items():
                offered_at_ms = offered.get((kind, TaskId(task_id)))
                if offered_at_ms is None or incident.at_ms < offered_at_ms:
                    ended.append((kind, task_id))
                else:
                    holding[kind][task_id] = incident
        await asyncio.gather(*(self._store.close_incident(kind, task_id, at_ms=at_ms) for kind, task_id in ended))
        return holding

    def _incident(self, kind: IncidentKind, finding: Finding) -> Incident:
        return Incident(
            kind=kind,
            subject=finding.record.task_id,
            at_ms=self._engine.clock.now_ms(),
            corr_id=finding.record.corr_id,
            detail={"problem": finding.problem.value, "agentId": finding.asks, "sinceMs": finding.since_ms},
        )

    async def _reassign(self, finding: Finding, state: CoordinationState) -> bool:
        room = self._engine.room.snapshot()
        try:
            # What was said of it while this sweep was busy with others may have put it right.
            record = self._tasks.get(finding.record.task_id)
            if record != finding.record:
                return False
            await self._tasks.offering.offer_again(record, self._backups_for(finding, room, state))
        except Refusal:
            # The next sweep tries again, or calls a person.
            return False
        return True

    async def _open_loops(self, now_ms: int) -> int:
        """Ends of tasks that their requesters have not dealt with."""
        before_ms = now_ms - self._settings.loop_sla_seconds * 1000
        loops, known = 0, self.open_incidents(LOOP_OPEN)
        for agent in self._store.local_agents():
            items = self._store.backlog(agent.agent_id, limit=_PAGE)
            old = [item for item in items if item.entry.accepted_at_ms <= before_ms]
            ends = [item for item in old if isinstance(decode_event(item.raw), TaskCompleteEvent | TaskFailedEvent)]
            loops += len(ends)
            if ends:
                detail: dict[str, str | int | bool | None] = {"waiting": len(ends)}
                await self._store.raise_incident(
                    Incident(kind=LOOP_OPEN, subject=agent.agent_id, at_ms=now_ms, detail=detail)
                )
            elif agent.agent_id in known:
                await self._store.close_incident(LOOP_OPEN, agent.agent_id, at_ms=now_ms)
            await asyncio.sleep(0)
        for agent_id in known.keys() - self._store.local_agent_ids():
            # It was removed, and its open ends with it.
            await self._store.close_incident(LOOP_OPEN, agent_id, at_ms=now_ms)
        return loops

    async def _tell(self, late: Sequence[Finding], stuck: Sequence[Finding]) -> int:
        """Ask each worker once for all its late tasks, tell each requester once what is stuck, within the budget.

        The incidents that remember it are raised in the same transaction: nobody is asked twice, or not at all.
        """
        said: list[tuple[Finding, Content, str]] = []
        for agent_id, findings in _by(late, lambda finding: finding.asks).items():
            said.append((findings[0], _question(findings), agent_id))
        for agent_id, findings in _by(stuck, lambda finding: finding.record.requester_agent_id).items():
            said.append((findings[0], _call(findings), agent_id))
        said.sort(key=lambda each: each[0].since_ms)
        budget = self._settings.message_budget
        if len(said) > budget:
            left_out = said[budget - 1 :]
            about = left_out[0][0]
            said = [*said[: budget - 1], (about, _summary(len(left_out)), about.record.requester_agent_id)]
        made = [self._notices.make(to, content, corr_id=about.record.corr_id) for about, content, to in said]
        events: list[Event] = [each[0] for each in made if each is not None]
        deliveries: list[Delivery] = [each[1] for each in made if each is not None]
        incidents = [self._incident(_kind(finding), finding) for finding in late]
        incidents += [self._incident(TASK_STUCK, finding) for finding in stuck]
        if events or incidents:
            await self._engine.outbox.append(events, deliveries=deliveries, incidents=incidents)
        return len(events)


def _kind(finding: Finding) -> IncidentKind:
    return TASK_QUIET if finding.problem is Problem.MISSED_CADENCE else TASK_LATE


def _by(findings: Sequence[Finding], key: "Key") -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(key(finding), []).append(finding)
    return groups


class Key(Protocol):
    def __call__(self, finding: Finding, /) -> str: ...


def _question(findings: Sequence[Finding]) -> Content:
    return Content(
        subject=f"How is it going? {len(findings)} of your tasks are late",
        body=(
            f"{_listed(findings)}\n\nSay how each is going with `agentpost task update` (a new ETA helps), or end it "
            "with `task complete` or `task fail`. What stays silent goes to somebody else."
        ),
        context={"report": "tasks_late", "taskIds": [finding.record.task_id for finding in findings[:_MOST_TITLES]]},
    )


def _call(findings: Sequence[Finding]) -> Content:
    return Content(
        subject=f"{len(findings)} of your tasks need a decision",
        body=(
            f"{_listed(findings)}\n\nTheir agents were asked, or could not be reached, and nobody else can take them. "
            "Ask somebody else, or do without."
        ),
        context={"report": "tasks_stuck", "taskIds": [finding.record.task_id for finding in findings[:_MOST_TITLES]]},
    )


def _summary(left_out: int) -> Content:
    return Content(
        subject="More tasks are late than can be asked about at once",
        body=f"{left_out} agents were not written to. See `agentpost incidents list` and `agentpost task list --open`.",
        context={"report": "sweep_summary", "leftOut": left_out},
    )


def _listed(findings: Sequence[Finding]) -> str:
    lines = [
        f"{finding.record.task_id}: {finding.problem.value.replace('_', ' ')} since {format_ms(finding.since_ms)}"
        for finding in findings[:_MOST_TITLES]
    ]
    more = len(findings) - _MOST_TITLES
    return "\n".join(lines) + (f"\nand {more} more" if more > 0 else "")
