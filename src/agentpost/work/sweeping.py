"""What is wrong with a task, and what to do about it (TASK-8). Pure: time and everything else are arguments.

nobody has it whom it was offered to
    → give it to the backup, once, or call a person
nobody has claimed it, the ETA or the deadline is missed, its worker is silent or gone
    → ask once; if that does not help, give it to the backup, once; if that does not help either, call a person
its worker does not say how it goes as often as its capability promises (CAP-7)
    → ask; the ETA decides about the rest
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from agentpost.protocol.snapshot import RoomSnapshot
from agentpost.protocol.taskbook import TaskRecord
from agentpost.protocol.tasks import TaskState
from agentpost.work.settings import WorkSettings

__all__ = ["Finding", "Problem", "Promise", "Step", "backups_for", "find_problem", "next_step"]


class Problem(StrEnum):
    MISSED_DEADLINE = "missed_deadline"
    MISSED_ETA = "missed_eta"
    WORKER_GONE = "worker_gone"
    OFFER_ENDED = "offer_ended"
    MISSED_CLAIM = "missed_claim"
    MISSED_CADENCE = "missed_cadence"
    STALE = "stale"


class Step(StrEnum):
    ASK = "ask"
    REASSIGN = "reassign"
    ESCALATE = "escalate"
    WAIT = "wait"


class Finding(Struct, frozen=True, kw_only=True):
    """One task that needs attention, and since when."""

    record: TaskRecord
    problem: Problem
    since_ms: int

    @property
    def asks(self) -> str:
        """The agent that can do something about it."""
        return self.record.accepted_by_agent_id or self.record.to_agents[0]


class Promise(Struct, frozen=True, kw_only=True):
    """What the executor of a capability has promised about a task; None where it has not."""

    accept_within_seconds: int | None = None
    progress_every_seconds: int | None = None


def find_problem(
    record: TaskRecord,
    *,
    promise: Promise,
    now_ms: int,
    silent_since_ms: Callable[[str], int | None],
    has_offer_ended: Callable[[TaskRecord], bool],
    settings: WorkSettings,
) -> Finding | None:
    """The worst that is wrong with an open task; None if all is well.

    `silent_since_ms` says since when a gateway is away, None while it is there.
    """

    def found(problem: Problem, since_ms: int) -> Finding | None:
        return Finding(record=record, problem=problem, since_ms=since_ms) if since_ms <= now_ms else None

    grace_ms = settings.eta_grace_seconds * 1000
    if record.deadline_at_ms is not None and record.deadline_at_ms + grace_ms <= now_ms:
        return found(Problem.MISSED_DEADLINE, record.deadline_at_ms + grace_ms)
    if record.state is TaskState.CREATED:
        within_seconds = promise.accept_within_seconds or settings.claim_sla_seconds
        late = found(Problem.MISSED_CLAIM, record.offered_at_ms + within_seconds * 1000)
        if late is not None and has_offer_ended(record):
            return found(Problem.OFFER_ENDED, late.since_ms)
        return late
    if record.eta_at_ms is not None and record.eta_at_ms + grace_ms <= now_ms:
        return found(Problem.MISSED_ETA, record.eta_at_ms + grace_ms)
    silent_ms = silent_since_ms(record.accepted_by_node_id or "")
    if silent_ms is not None and silent_ms + settings.claim_sla_seconds * 1000 <= now_ms:
        return found(Problem.WORKER_GONE, silent_ms + settings.claim_sla_seconds * 1000)
    if promise.progress_every_seconds is not None:
        return found(Problem.MISSED_CADENCE, record.updated_at_ms + promise.progress_every_seconds * 1000 + grace_ms)
    return found(Problem.STALE, record.updated_at_ms + settings.stale_after_seconds * 1000)


def next_step(
    finding: Finding, *, asked_at_ms: int | None, has_backup: bool, now_ms: int, settings: WorkSettings
) -> Step:
    """What to do about it now. `asked_at_ms` is when its worker was asked, None if that was not yet."""
    # TASK-8: once. What the backup cannot do either is for a person.
    otherwise = Step.REASSIGN if has_backup and finding.record.round == 1 else Step.ESCALATE
    if finding.problem is Problem.OFFER_ENDED:
        return otherwise
    if asked_at_ms is None:
        # Nobody is there to be asked: the claim has lapsed.
        is_lapsed = finding.problem is Problem.WORKER_GONE and otherwise is Step.REASSIGN
        return Step.REASSIGN if is_lapsed else Step.ASK
    if finding.problem is Problem.MISSED_CADENCE or now_ms < asked_at_ms + settings.reassign_after_seconds * 1000:
        return Step.WAIT
    return otherwise


def backups_for(record: TaskRecord, room: RoomSnapshot, named: Mapping[str, str]) -> Sequence[str]:
    """Who may have the task instead: the backup that the delegation table names, else others who can do it."""
    had_it = {record.accepted_by_agent_id} if record.accepted_by_agent_id else set(record.to_agents)
    backup = named.get(record.accepted_by_agent_id or record.to_agents[0])
    if backup is not None and backup not in had_it and _is_active(room, backup):
        return (backup,)
    able = set(record.to_agents)
    for place, capability_id in enumerate(record.required_capabilities):
        entry = room.index.get(capability_id)
        eligible = set(() if entry is None else entry.eligible_agent_ids)
        able = eligible if place == 0 else able & eligible
    return sorted(agent_id for agent_id in able - had_it if _is_active(room, agent_id))


def _is_active(room: RoomSnapshot, agent_id: str) -> bool:
    agent = room.agents.get(agent_id)
    return agent is not None and agent.is_active
