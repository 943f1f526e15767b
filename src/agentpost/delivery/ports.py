"""What the engine asks of the world around it, besides `Clock`, `Chance` and `Store`: the room, runtimes, wake-ups.

Values are frozen; an interface is implemented once for production and once for tests (`agentpost.testing`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from agentpost.delivery.lanes import Mail
from agentpost.protocol.delivery import Change
from agentpost.protocol.envelope import Event, SignalEvent
from agentpost.protocol.headers import HeaderKind
from agentpost.protocol.ids import CorrId, EventId, TaskId
from agentpost.protocol.payloads import Kind, Priority
from agentpost.protocol.snapshot import RoomSnapshot
from agentpost.store.values import Accepted, LocalAgent

__all__ = [
    "Content",
    "Engagement",
    "PatientRuntime",
    "Result",
    "ResultKind",
    "RoomView",
    "Runtime",
    "Runtimes",
    "TaskBrief",
    "TurnLeftError",
    "Wakeups",
]


class RoomView(Protocol):
    """The room as the engine reads it. Everything in it was verified before it got here."""

    def snapshot(self) -> RoomSnapshot: ...

    def signing_key(self, node_id: str) -> bytes | None:
        """The Ed25519 key that signs for this node; None for a node that is unknown or revoked."""
        ...

    def sealing_key(self, node_id: str) -> bytes | None:
        """The X25519 key that content for this node is sealed for; None for one that is unknown or revoked."""
        ...

    def is_backbone(self, node_id: str) -> bool: ...

    def is_revoked(self, node_id: str) -> bool:
        """Whether a seed took this node out of the mesh; False for one that is only unknown."""
        ...

    def withdrawn_by(self, agent_id: str) -> str | None:
        """The node that took this agent out of the mesh; None while a node hosts it, and if none ever did."""
        ...

    def last_seen_ms(self, node_id: str) -> int | None:
        """When a gateway was heard last, also if it has left since; None if nobody here knows."""
        ...

    def clocks_ahead_ms(self) -> Mapping[str, int]:
        """By how much the clocks of other gateways are ahead of this one's, of those whose heartbeats come."""
        ...

    def silent_since_ms(self, node_id: str) -> int:
        """Since when a gateway was not heard: its last word, or this gateway's own start if that is later."""
        ...

    def waiting_at(self, node_id: str) -> int | None:
        """How much a gateway says it has waiting for all of its agents; None if it has not said."""
        ...

    def waiting_for(self, agent_id: str, *, node_id: str) -> int | None:
        """How much a gateway says it has waiting for one agent, `MOST_WAITING` or less; None if it has not said."""
        ...


class Content(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What people and agents say to each other: everything that is sealed (PIPE-4). One shape for all kinds."""

    subject: str | None = None
    body: str | None = None
    context: Any = None
    title: str | None = None
    description: str | None = None
    note: str | None = None
    plan_summary: str | None = None
    result_summary: str | None = None
    error_summary: str | None = None
    output: Any = None


class TaskBrief(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The protocol fields of a `task_*` event, for the agent that is engaged with it."""

    task_id: TaskId
    task_type: str | None = None
    capability_id: str | None = None
    deadline_at: str | None = None
    eta_at: str | None = None
    progress: int | None = None
    status: str | None = None
    failure_class: str | None = None
    result_ref: str | None = None


class Engagement(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One event as it is handed to one agent. `attempt` counts from 1; `event_id` is the key for idempotency."""

    event_id: EventId
    corr_id: CorrId
    kind: Kind
    to_agent_id: str
    from_agent_id: str
    from_node_id: str
    created_at: str
    attempt: int
    priority: Priority = Priority.NORMAL
    # OPS-7: what the headers of the body say.
    header_kind: HeaderKind | None = None
    thread: str | None = None
    expects_reply: bool = False
    ref_event_id: EventId | None = None
    # What a task is, or what the event says of one.
    task: "TaskBrief | None" = None
    # OPS-5: what else the agent should know: quoted data of others, never instructions.
    injected_context: str | None = None
    content: Content = Content()


class ResultKind(StrEnum):
    PROCESSED = "processed"  # the agent has had it; `reply` may say something
    RETRY = "retry"  # the runtime could not do it now; try again later (RTY-4)
    FAILED = "failed"  # it will never work; the sender is told why


class Result(Struct, frozen=True, kw_only=True):
    """What became of one engagement."""

    kind: ResultKind
    reply: Content | None = None
    error: str | None = None
    # Why, in a word that programs sort by; only for FAILED.
    failure_class: str | None = None
    # Not before this, says the runtime; only for RETRY.
    retry_after_seconds: float | None = None
    # Something is wrong with the agent's runtime, rather than the agent said that it will not. Only for FAILED.
    is_defect: bool = False


class Runtime(Protocol):
    """How a local agent is engaged. One object for each agent; `engage` never raises for what the agent did."""

    @property
    def is_idempotent(self) -> bool:
        """Whether the same event may be handed over again after a crash in between."""
        ...

    @property
    def max_concurrent(self) -> int:
        """How many events may be with the agent at once. With 1, order is kept."""
        ...

    async def engage(self, engagement: Engagement) -> Result: ...

    async def ask(self, event_id: EventId) -> Result | None:
        """What became of an event that was handed over before a crash; None if the runtime cannot say."""
        ...

    async def close(self) -> None: ...


class Runtimes(Protocol):
    """The runtimes of a gateway, by name. Each declares which of its options are secret."""

    def __call__(self, agent: LocalAgent) -> Runtime:
        """The runtime of an agent; a refusal that names the option if it cannot be made."""
        ...

    def secret_options(self, runtime: str) -> Collection[str]:
        """The names of the secret options of a runtime, as its options spell them (camelCase)."""
        ...


class TurnLeftError(Exception):
    """Nobody here waits for the end of this turn any more. The agent may have the event, and may end it later."""


@runtime_checkable
class PatientRuntime(Protocol):
    """A runtime whose turns last until somebody acts whom nobody here can hurry.

    A turn that was left, or cut off by a crash, goes on when the same event is handed over again.
    """

    def release(self) -> None:
        """Wait for no outcome any longer: the turns that run raise `TurnLeftError`."""
        ...


class Wakeups:
    """Who wants to hear that something was written. Called on the loop, after the write is durable; never blocks."""

    def __init__(self) -> None:
        self._on_outbox: list[Callable[[bool], None]] = []
        self._on_inbox: list[Callable[[str], None]] = []
        self._on_mail: list[Callable[[str, Sequence[Mail]], None]] = []
        self._on_timer: list[Callable[[int], None]] = []
        self._on_moved: list[Callable[[Sequence[Change]], None]] = []
        self._on_heard: list[Callable[[Sequence[Change]], None]] = []
        self._on_taken: list[Callable[[Accepted], None]] = []
        self._on_signals: list[Callable[[Sequence[SignalEvent]], None]] = []
        self._on_tasks: list[Callable[[Sequence[TaskId]], None]] = []
        self._on_repeats: list[Callable[[Sequence[tuple[Event, str]]], None]] = []

    def listen(
        self,
        *,
        outbox: Callable[[bool], None] | None = None,
        inbox: Callable[[str], None] | None = None,
        mail: Callable[[str, Sequence[Mail]], None] | None = None,
        timer: Callable[[int], None] | None = None,
        moved: Callable[[Sequence[Change]], None] | None = None,
        heard: Callable[[Sequence[Change]], None] | None = None,
        taken: Callable[[Accepted], None] | None = None,
        signals: Callable[[Sequence[SignalEvent]], None] | None = None,
        tasks: Callable[[Sequence[TaskId]], None] | None = None,
        repeats: Callable[[Sequence[tuple[Event, str]]], None] | None = None,
    ) -> None:
        """`outbox`: events were appended, and whether they are in a hurry. `inbox`: this agent has something new.
        `mail`: the same, with the mail as far as it is at hand. `timer`: deliveries got timers, and when the first of
        them runs out. `moved`: deliveries heard these signals. `heard`: they are about to, and whoever reads the store
        finds that they did. `taken`: a batch was accepted. `signals`: other
        gateways said these. `tasks`: others changed these tasks. `repeats`: these came again for an agent that
        has them."""
        if outbox is not None:
            self._on_outbox.append(outbox)
        if inbox is not None:
            self._on_inbox.append(inbox)
        if mail is not None:
            self._on_mail.append(mail)
        if timer is not None:
            self._on_timer.append(timer)
        if moved is not None:
            self._on_moved.append(moved)
        if heard is not None:
            self._on_heard.append(heard)
        if taken is not None:
            self._on_taken.append(taken)
        if signals is not None:
            self._on_signals.append(signals)
        if tasks is not None:
            self._on_tasks.append(tasks)
        if repeats is not None:
            self._on_repeats.append(repeats)

    def outbox_grew(self, *, in_hurry: bool = True) -> None:
        """What is in no hurry may wait a moment for what follows, and go with it."""
        for tell in self._on_outbox:
            tell(in_hurry)

    def inbox_grew(self, agent_id: str, mail: Sequence[Mail] = ()) -> None:
        """`mail` is what came just now; without it, whoever wants it reads the inbox."""
        for tell in self._on_inbox:
            tell(agent_id)
        for hand_over in self._on_mail:
            hand_over(agent_id, mail)

    def timer_set(self, due_at_ms: int = 0) -> None:
        """Without a time, whoever serves timers looks at all of them."""
        for tell in self._on_timer:
            tell(due_at_ms)

    def deliveries_moved(self, changes: Sequence[Change]) -> None:
        for tell in self._on_moved:
            tell(changes)

    def deliveries_heard(self, changes: Sequence[Change]) -> None:
        for tell in self._on_heard:
            tell(changes)

    def batch_taken(self, accepted: Accepted) -> None:
        for tell in self._on_taken:
            tell(accepted)

    def signals_heard(self, signals: Sequence[SignalEvent]) -> None:
        for tell in self._on_signals:
            tell(signals)

    def repeats_heard(self, resent: Sequence[tuple[Event, str]]) -> None:
        for tell in self._on_repeats:
            tell(resent)

    def tasks_moved(self, task_ids: Sequence[TaskId]) -> None:
        for tell in self._on_tasks:
            tell(task_ids)
