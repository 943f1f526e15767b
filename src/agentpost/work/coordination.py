"""Who says when to sweep, and what came of it (OPS-4, TASK-8).

Every gateway asks itself who leads: the coordinator, or, while that is silent, whom most nodes prefer. The one that
leads says so once in the room, with a number higher than all before (a *term*), and calls a sweep for every turn. Each
gateway sweeps its own tasks, once for a turn, whoever called it: the turn is remembered in the store. A call of an
earlier term, from somebody who was away and does not know, is not followed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from agentpost.delivery.engine import Engine
from agentpost.protocol.coordination import CoordinationState, Preference, acting_node, most_terms, turn_of
from agentpost.protocol.envelope import SignalEvent
from agentpost.protocol.errors import Refusal
from agentpost.protocol.incidents import IncidentKind
from agentpost.protocol.routing import is_live
from agentpost.store.values import AuditEntry, Incident
from agentpost.tasks import TaskOwner
from agentpost.work.sweep import Sweeper, SweepReport

__all__ = ["SWEEP", "SWEEP_REPORT", "Board", "Coordination", "CoordinationView"]

_log = logging.getLogger(__name__)

SWEEP: Final = "sweep"
SWEEP_REPORT: Final = "sweep_report"
NEEDS_ACTION: Final = IncidentKind.SWEEP_NEEDS_ACTION
POLICY: Final = IncidentKind.DELEGATION_POLICY
_LONGEST_MESSAGE: Final = 500
_REMEMBERED_MS: Final = 86_400_000
# A call that is older is one of several that waited for a gateway that slept; the next one comes soon.
_TURNS_LATE: Final = 2
# The clock of a caller may be ahead by some hours.
_TERMS_AHEAD: Final = 1_000


class PolicyProblem(Protocol):
    """Something that needs action, as the delegation directory sees it."""

    @property
    def subject(self) -> str: ...

    @property
    def message(self) -> str: ...


class Board(Protocol):
    """The part of the room where coordination stands."""

    def state(self) -> CoordinationState: ...

    def appoint(self, coordinator: str, *, confirm_last_resort: bool) -> None: ...

    def check_appointment(self, coordinator: str, *, confirm_last_resort: bool) -> None: ...

    def set_cadence(self, sweep_every_seconds: int) -> None: ...

    def prefer(self, preference: Preference) -> None: ...

    def begin_term(self, term: int) -> None: ...


class CoordinationView(Struct, frozen=True, kw_only=True, rename="camel"):
    """Who coordinates, who acts, and what the latest sweeps came to as far as this gateway heard."""

    coordinator: str | None
    acting: str | None
    sweep_every_seconds: int
    term: int
    preferences: dict[str, Preference]
    last_sweep: SweepReport | None
    reports: tuple[SweepReport, ...]


class Coordination:
    """`start` it once the engine runs; `tick` is what happens at the beginning of every turn."""

    def __init__(self, engine: Engine, board: Board, sweeper: Sweeper) -> None:
        self._engine = engine
        self._board = board
        self._sweeper = sweeper
        self._tasks = TaskOwner("coordination")
        self._sweeping = asyncio.Lock()
        # The highest term of each caller that was followed.
        self._heard_terms: dict[str, int] = {}
        self._last: SweepReport | None = None
        self._reports: dict[str, SweepReport] = {}
        # OPS-8: what is wrong with the delegation policy, for whoever leads to report.
        self.policy_problems: Callable[[], Sequence[PolicyProblem]] = tuple
        engine.wakeups.listen(signals=self._signals_heard)

    def start(self) -> None:
        self._tasks.spawn(self._lead(), name="sweeps")

    async def close(self) -> None:
        await self._tasks.close()

    def show(self) -> CoordinationView:
        state = self._board.state()
        return CoordinationView(
            coordinator=state.coordinator,
            acting=self._acting(state),
            sweep_every_seconds=state.sweep_every_seconds,
            term=max(state.highest_term, self._heard_term()),
            preferences=dict(state.preferences),
            last_sweep=self._last,
            reports=tuple(self._reports[node_id] for node_id in sorted(self._reports)),
        )

    async def set(
        self,
        *,
        coordinator: str | None = None,
        sweep_every_seconds: int | None = None,
        confirm_last_resort: bool = False,
    ) -> CoordinationView:
        """Appoint a coordinator, or set how often it sweeps. The audit log has who did."""
        before = self._board.state()
        if coordinator is not None:
            self._board.check_appointment(coordinator, confirm_last_resort=confirm_last_resort)
        # Once another node is the coordinator, only that one says how often.
        if sweep_every_seconds is not None:
            self._board.set_cadence(sweep_every_seconds)
        if coordinator is not None:
            self._board.appoint(coordinator, confirm_last_resort=confirm_last_resort)
        await self._engine.store.record_audit(
            [
                AuditEntry(
                    at_ms=self._engine.clock.now_ms(),
                    actor="operator",
                    action="coordination.set",
                    subject=coordinator,
                    detail={
                        "before": before.coordinator,
                        "sweepEverySeconds": sweep_every_seconds,
                        "confirmLastResort": confirm_last_resort,
                    },
                )
            ]
        )
        return self.show()

    def prefer(self, preference: Preference) -> CoordinationView:
        """Say what this node would like."""
        self._board.prefer(preference)
        return self.show()

    async def tick(self) -> SweepReport | None:
        """If this gateway leads, call the sweep of this turn and do its own part. None if there was nothing to do."""
        state = self._board.state()
        own = self._engine.store.node_id
        if self._acting(state) != own:
            return None
        now_ms = self._engine.clock.now_ms()
        turn = turn_of(now_ms, state.sweep_every_seconds)
        if not await self._is_first("sweep-call", turn, now_ms):
            return None
        term = self._term(state)
        others = sorted(node_id for node_id in self._engine.room.snapshot().nodes if node_id != own)
        if others:
            signal = self._engine.maker.signal(
                SWEEP, to_nodes=tuple(others), details={"turn": turn, "term": term, "every": state.sweep_every_seconds}
            )
            await self._engine.outbox.append((signal,))
        await self._report_policy(now_ms)
        return await self._sweep(turn)

    async def _report_policy(self, now_ms: int) -> None:
        """Keep one incident open for each problem of the delegation policy, as long as there is one."""
        found = {problem.subject: problem.message for problem in self.policy_problems()}
        known = self._sweeper.open_incidents(POLICY)
        for subject, message in found.items():
            if subject not in known:
                detail: dict[str, str | int | bool | None] = {"problem": message[:_LONGEST_MESSAGE]}
                await self._engine.store.raise_incident(
                    Incident(kind=POLICY, subject=subject, at_ms=now_ms, detail=detail)
                )
        for subject in known.keys() - found.keys():
            await self._engine.store.close_incident(POLICY, subject, at_ms=now_ms)

    def _term(self, state: CoordinationState) -> int:
        """The number under which this gateway leads. A new one if somebody else led meanwhile, or has the same.

        Two that had not met yet may have begun with the same number.
        """
        node_id = self._engine.store.node_id
        own = state.terms.get(node_id, 0)
        others = max((term for other, term in state.terms.items() if other != node_id), default=0)
        if own <= max(others, self._heard_term()):
            own = max(others, self._heard_term()) + 1
            self._board.begin_term(own)
        return own

    def _heard_term(self) -> int:
        """The highest term that was followed; one of a node that was revoked since does not count."""
        is_backbone = self._engine.room.is_backbone
        return max((term for caller, term in self._heard_terms.items() if is_backbone(caller)), default=0)

    async def _lead(self) -> None:
        while True:
            # To the beginning of the next turn: after a start, others have to be heard before it is clear who leads.
            every_seconds = self._board.state().sweep_every_seconds
            into_turn_ms = self._engine.clock.now_ms() % (every_seconds * 1000)
            await asyncio.sleep(every_seconds - into_turn_ms / 1000)
            try:
                await self.tick()
            except Refusal as refusal:
                _log.warning("a sweep could not be called: %s", refusal.message)

    def _signals_heard(self, signals: Sequence[SignalEvent]) -> None:
        if any(signal.payload.signal in (SWEEP, SWEEP_REPORT) for signal in signals):
            self._tasks.spawn(self.hear(signals), name="signals")

    async def hear(self, signals: Sequence[SignalEvent]) -> None:
        """Follow a call, or note what another gateway's sweep came to."""
        for signal in signals:
            if signal.payload.signal == SWEEP and self._is_to_be_followed(signal):
                await self._follow(signal)
            elif signal.payload.signal == SWEEP_REPORT:
                await self._note(signal)

    def _is_to_be_followed(self, signal: SignalEvent) -> bool:
        caller, (turn, term, every) = signal.source_node_id, _numbers(signal, "turn", "term", "every")
        if caller == self._engine.store.node_id or not self._engine.room.is_backbone(caller):
            return False
        now_ms = self._engine.clock.now_ms()
        if not max(self._board.state().highest_term, self._heard_term()) <= term <= most_terms(now_ms) + _TERMS_AHEAD:
            return False
        return now_ms < turn + (_TURNS_LATE + 1) * max(every, 1) * 1000

    async def _follow(self, signal: SignalEvent) -> None:
        turn, term = _numbers(signal, "turn", "term")
        self._heard_terms[signal.source_node_id] = term
        report = await self._sweep(turn)
        if report is None or not report.is_worth_telling:
            return
        answer = self._engine.maker.signal(
            SWEEP_REPORT, to_nodes=(signal.source_node_id,), ref=signal, details=_details(report)
        )
        await self._engine.outbox.append((answer,))

    async def _sweep(self, turn: int) -> SweepReport | None:
        """This gateway's part of a turn, which it does once."""
        async with self._sweeping:
            if not await self._is_first("sweep", turn, self._engine.clock.now_ms()):
                return None
            self._last = await self._sweeper.sweep(turn, self._board.state())
        return self._last

    async def _note(self, signal: SignalEvent) -> None:
        checked, asked, reassigned, needs_action, loops, messages, turn = _numbers(
            signal, "checked", "asked", "reassigned", "needsAction", "openLoops", "messages", "turn"
        )
        node_id, at_ms = signal.source_node_id, self._engine.clock.now_ms()
        problems = {
            name.removeprefix("problem."): value
            for name, value in signal.payload.details.items()
            if name.startswith("problem.") and isinstance(value, int)
        }
        self._reports[node_id] = SweepReport(
            node_id=node_id,
            turn=turn,
            at_ms=at_ms,
            checked=checked,
            problems=problems,
            asked=asked,
            reassigned=reassigned,
            needs_action=needs_action,
            open_loops=loops,
            messages=messages,
        )
        if needs_action:
            detail: dict[str, str | int | bool | None] = {"tasks": needs_action}
            await self._engine.store.raise_incident(
                Incident(kind=NEEDS_ACTION, subject=node_id, at_ms=at_ms, detail=detail)
            )
        else:
            await self._engine.store.close_incident(NEEDS_ACTION, node_id, at_ms=at_ms)

    async def _is_first(self, scope: str, turn: int, now_ms: int) -> bool:
        return await self._engine.store.remember_once(
            scope, str(turn), now_ms=now_ms, expires_at_ms=now_ms + _REMEMBERED_MS
        )

    def _acting(self, state: CoordinationState) -> str | None:
        room, own, now_ms = self._engine.room, self._engine.store.node_id, self._engine.clock.now_ms()
        nodes = room.snapshot().nodes
        backbone = {node_id: record for node_id, record in nodes.items() if room.is_backbone(node_id)}
        return acting_node(state, backbone, lambda node_id: node_id == own or is_live(nodes.get(node_id), now_ms))


def _numbers(signal: SignalEvent, *names: str) -> list[int]:
    """What a signal says under these names; 0 for what is no number."""
    found = [signal.payload.details.get(name) for name in names]
    return [value if type(value) is int else 0 for value in found]


def _details(report: SweepReport) -> dict[str, str | int | float | bool | None]:
    return {
        "turn": report.turn,
        "checked": report.checked,
        "asked": report.asked,
        "reassigned": report.reassigned,
        "needsAction": report.needs_action,
        "openLoops": report.open_loops,
        "messages": report.messages,
        **{f"problem.{name}": count for name, count in report.problems.items()},
    }
