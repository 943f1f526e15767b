"""Every move of a task, allowed and forbidden, as both sides fold it: generated from the states and the kinds."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import (
    Event,
    SignalEvent,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
    check,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import TaskId, corr_id_of
from agentpost.protocol.payloads import (
    AckType,
    Signal,
    TaskAccept,
    TaskComplete,
    TaskCreate,
    TaskFailed,
    TaskUpdate,
)
from agentpost.protocol.taskbook import CANCELED_BY, TASK_WITHDRAWN, TaskRecord, Verdict, heard, said
from agentpost.protocol.tasks import TASK, TaskState
from agentpost.protocol.timestamps import format_ms
from agentpost.testing import START_MS, an_ack, an_event_id

TASK_ID = TaskId("tsk_01JV3Q9A1V7M4R3N8E2W0D6Y5U")
AT = format_ms(START_MS)
REQUESTER, WORKER = "node-a", "node-b"
KINDS = ("create", "accept", "update", "complete", "fail")
# How a task gets into each of its states.
WAYS = {
    TaskState.CREATED: ("create",),
    TaskState.ACCEPTED: ("create", "accept"),
    TaskState.IN_PROGRESS: ("create", "accept", "update"),
    TaskState.COMPLETED: ("create", "accept", "complete"),
    TaskState.FAILED: ("create", "accept", "update", "fail"),
}
# All moves that there are (TASK-5), written down once more and by hand. Everything else is forbidden.
ALLOWED = {
    (TaskState.CREATED, "accept"): TaskState.ACCEPTED,
    (TaskState.ACCEPTED, "update"): TaskState.IN_PROGRESS,
    (TaskState.ACCEPTED, "complete"): TaskState.COMPLETED,
    (TaskState.ACCEPTED, "fail"): TaskState.FAILED,
    (TaskState.IN_PROGRESS, "update"): TaskState.IN_PROGRESS,
    (TaskState.IN_PROGRESS, "complete"): TaskState.COMPLETED,
    (TaskState.IN_PROGRESS, "fail"): TaskState.FAILED,
    # Another round, which only the requester can open, and only before the end.
    (TaskState.CREATED, "create"): TaskState.CREATED,
    (TaskState.ACCEPTED, "create"): TaskState.CREATED,
    (TaskState.IN_PROGRESS, "create"): TaskState.CREATED,
}


def an_event(
    kind: str,
    *,
    by: str = "bob",
    number: int = 0,
    source: str = WORKER,
    at_ms: int = START_MS,
    to: tuple[str, ...] = ("bob",),
) -> Event:
    source = REQUESTER if kind == "create" else source
    event_id = an_event_id(kind, by, number, source)
    head = {
        "event_id": event_id,
        "source_node_id": source,
        "source_agent_id": "ada" if kind == "create" else by,
        "corr_id": corr_id_of(an_event_id("task")),
        "created_at": format_ms(at_ms),
        "to_agent_id": None if kind == "create" else "ada",
    }
    event: Event
    match kind:
        case "create":
            offer = TaskCreate(
                task_id=TASK_ID, to_agents=to, requester_agent_id="ada", title="Build", description="All of it."
            )
            event = TaskCreateEvent(**head, payload=offer)  # type: ignore[arg-type]
        case "accept":
            accept = TaskAccept(task_id=TASK_ID, accepted_by_agent_id=by, eta_seconds=60)
            event = TaskAcceptEvent(**head, payload=accept)  # type: ignore[arg-type]
        case "update":
            event = TaskUpdateEvent(**head, payload=TaskUpdate(task_id=TASK_ID, progress=50))  # type: ignore[arg-type]
        case "complete":
            done = TaskComplete(task_id=TASK_ID, completed_by_agent_id=by, completed_at=AT, result_summary="Built.")
            event = TaskCompleteEvent(**head, payload=done)  # type: ignore[arg-type]
        case _:
            failed = TaskFailed(
                task_id=TASK_ID, failed_by_agent_id=by, failed_at=AT, failure_class="failed", error_summary="No."
            )
            event = TaskFailedEvent(**head, payload=failed)  # type: ignore[arg-type]
    check(event)
    assert encode_event(event)
    return event


def fold(record: TaskRecord | None, event: Event, *, side: str) -> TaskRecord:
    """The event as one side folds it: the requester hears what the worker says, and the other way round."""
    says = REQUESTER if side == "requester" else WORKER
    if event.source_node_id == says:
        return said(record, event, at_ms=START_MS)
    return heard(record, event, at_ms=START_MS, node_id=says)


def in_state(state: TaskState, *, side: str) -> TaskRecord:
    record: TaskRecord | None = None
    for number, kind in enumerate(WAYS[state]):
        record = fold(record, an_event(kind, number=number), side=side)
    assert record is not None
    assert record.state is state
    return record


@pytest.mark.req("TASK-5")
@pytest.mark.parametrize("side", ["requester", "worker"])
@pytest.mark.parametrize(("state", "kind"), list(product(TaskState, KINDS)))
def test_every_move_is_allowed_or_refused(state: TaskState, kind: str, side: str) -> None:
    """From every state every event leads where the table says, or is refused with 409 and changes nothing."""
    record = in_state(state, side=side)
    event = an_event(kind, number=99)
    expected = ALLOWED.get((state, kind))
    if expected is not None:
        after = fold(record, event, side=side)
        assert after.state is expected
        assert after.round == record.round + (kind == "create")
        return
    if kind == "accept" and side == "requester":
        # A claim that comes too late is noted, and lost. Who has the task already has it.
        after = fold(record, event, side=side)
        assert (after.state, after.accepted_by_agent_id) == (record.state, record.accepted_by_agent_id)
        assert after.claims[-1].verdict == ("won" if record.is_open else "lost")
        return
    with pytest.raises(Refusal) as caught:
        fold(record, event, side=side)
    assert caught.value.code is Code.INVALID_TRANSITION
    assert caught.value.status == 409


@pytest.mark.req("TASK-5")
@pytest.mark.parametrize("kind", ["update", "complete", "fail"])
@pytest.mark.parametrize("side", ["requester", "worker"])
@pytest.mark.parametrize("state", [TaskState.ACCEPTED, TaskState.IN_PROGRESS])
def test_only_the_accepting_agent_moves_a_task(state: TaskState, kind: str, side: str) -> None:
    """A move by anybody but the agent that accepted the task is refused, on both sides."""
    record = in_state(state, side=side)
    with pytest.raises(Refusal) as caught:
        fold(record, an_event(kind, by="eve", number=99), side=side)
    assert caught.value.code is Code.INVALID_TRANSITION


def winners(record: TaskRecord) -> list[tuple[str, str]]:
    return [(each.agent_id, each.node_id) for each in record.claims if each.verdict is Verdict.WON]


@pytest.mark.req("TASK-6")
@pytest.mark.parametrize("second_ms", [START_MS - 3_600_000, START_MS, START_MS + 3_600_000])
def test_the_claim_that_is_read_first_wins_whatever_the_clocks_say(second_ms: int) -> None:
    """The second claim was made an hour earlier or later by its own clock, and is read a while after: it is lost."""
    record = said(None, an_event("create", to=("bob", "cid")), at_ms=START_MS)
    first = an_event("accept", by="bob")
    second = an_event("accept", by="cid", source="node-c", at_ms=second_ms)
    record = heard(record, first, at_ms=START_MS + 10_000, node_id=REQUESTER)
    for read_ms in (START_MS + 20_000, START_MS + 5_000):
        record = heard(record, second, at_ms=read_ms, node_id=REQUESTER)
        assert winners(record) == [("bob", WORKER)]
        assert (record.accepted_by_agent_id, record.accepted_by_node_id) == ("bob", WORKER)
        assert {each.agent_id: each.verdict for each in record.claims} == {"bob": Verdict.WON, "cid": Verdict.LOST}


@pytest.mark.req("TASK-5", "TASK-6", "ROUTE-2")
@pytest.mark.parametrize("to", [("bob",), ("bob", "cid")])
def test_an_agent_of_the_same_name_at_another_gateway_is_another_worker(to: tuple[str, ...]) -> None:
    """A stand-in has a copy of bob. Its claim is lost once bob has the task, and it moves nothing."""
    record = said(None, an_event("create", to=to), at_ms=START_MS)
    record = heard(record, an_event("accept"), at_ms=START_MS, node_id=REQUESTER)
    record = heard(record, an_event("accept", number=1, source="node-c"), at_ms=START_MS + 1, node_id=REQUESTER)
    assert winners(record) == [("bob", WORKER)]
    assert record.is_held_by("bob", WORKER)
    assert not record.is_held_by("bob", "node-c")
    for kind in ("update", "complete", "fail"):
        with pytest.raises(Refusal) as caught:
            heard(record, an_event(kind, source="node-c"), at_ms=START_MS, node_id=REQUESTER)
        assert caught.value.code is Code.INVALID_TRANSITION
        with pytest.raises(Refusal):
            # The copy may live at the requester's own gateway.
            said(record, an_event(kind, source=REQUESTER), at_ms=START_MS)
        assert heard(record, an_event(kind, number=2), at_ms=START_MS, node_id=REQUESTER).state != record.state


@pytest.mark.req("TASK-5", "TASK-6")
def test_only_its_requester_offers_a_task_again() -> None:
    """A task_create with the id of somebody else's task is a conflict, and changes nothing."""
    record = in_state(TaskState.ACCEPTED, side="worker")
    event = an_event("create", number=99)
    foreign = type(event)(
        **{name: getattr(event, name) for name in event.__struct_fields__ if name not in ("source_node_id", "unknown")},
        source_node_id="node-c",
    )
    with pytest.raises(Refusal) as caught:
        heard(record, foreign, at_ms=START_MS, node_id=WORKER)
    assert caught.value.code is Code.CONFLICT


def test_the_hand_written_list_has_every_arrow_of_the_table() -> None:
    """The list above and the table of the protocol say the same, apart from rounds."""
    words = {"task_accept": "accept", "task_update": "update", "task_complete": "complete", "task_failed": "fail"}
    table = {
        (state, words[signal.value]): path[-1] if path else state for (state, signal), path in TASK.signals.items()
    }
    assert table == {move: end for move, end in ALLOWED.items() if move[1] != "create"}


# Second rounds: what an earlier offer, an earlier claim or an earlier word still counts for, which is nothing.

R2: dict[str, Any] = {"number": 2}


def withdrawal(offer: Event, *, number: int = 0, canceled: bool = False) -> SignalEvent:
    """The requester's gateway takes back this offer; with `canceled` the whole task."""
    details: dict[str, str | int | float | bool | None] = {"taskId": TASK_ID}
    event = SignalEvent(
        event_id=an_event_id("withdrawal", offer.event_id, number, canceled),
        source_node_id=REQUESTER,
        source_agent_id="gateway",
        corr_id=offer.corr_id,
        created_at=AT,
        payload=Signal(
            signal=TASK_WITHDRAWN,
            ref_event_id=offer.event_id,
            details=details | ({CANCELED_BY: "ada"} if canceled else {}),
        ),
    )
    check(event)
    return event


def at_worker(record: TaskRecord | None, *events: Event) -> TaskRecord:
    """The record at the worker's gateway after these events, said there or heard."""
    for event in events:
        record = fold(record, event, side="worker")
    assert record is not None
    return record


@pytest.mark.req("TASK-6", "TASK-8")
def test_a_new_round_begins_anew() -> None:
    """Of the round before nothing is left: no claim, no worker, no promise, no progress, and no withdrawal."""
    first, second = an_event("create"), an_event("create", **R2, to=("bob", "cid"))
    done = at_worker(None, first, an_event("accept"), an_event("update"), withdrawal(first))
    assert (done.is_withdrawn, done.progress, len(done.claims)) == (True, 50, 1)
    again = at_worker(done, second)
    fresh = at_worker(None, second)
    assert again == replace(fresh, round=2, create_event_id=second.event_id, created_at_ms=done.created_at_ms)
    assert again.is_work_of("bob", WORKER)


@pytest.mark.req("TASK-6")
@pytest.mark.parametrize("canceled", [False, True])
def test_a_withdrawal_takes_back_one_offer(canceled: bool) -> None:
    """One of the offer before, heard late, does not close the present one; that of the present one does."""
    first, second = an_event("create"), an_event("create", **R2)
    record = at_worker(None, first, second)
    assert at_worker(record, withdrawal(first, canceled=canceled)) == record
    closed = at_worker(record, withdrawal(second, canceled=canceled))
    assert (closed.is_open, closed.is_canceled) == (False, canceled)
    with pytest.raises(Refusal):
        at_worker(closed, an_event("accept", number=3))


@pytest.mark.req("TASK-6")
def test_a_verdict_counts_once() -> None:
    """A claim that was lost is not won later, one that was won is lost if its requester gave the task away."""
    offer = an_event("create", to=("bob", "cid"))
    claim = an_event("accept")
    pending = at_worker(None, offer, claim)
    won = an_ack(claim, AckType.PROCESSED, by_agent_id="ada", by_node_id=REQUESTER)
    lost = an_ack(claim, AckType.FAILED_TERMINAL, by_agent_id="ada", by_node_id=REQUESTER)
    verdicts = [at_worker(pending, *answers).claims[-1].verdict for answers in ((won,), (lost,), (lost, won))]
    assert verdicts == [Verdict.WON, Verdict.LOST, Verdict.LOST]
    after = at_worker(pending, lost, won)
    assert (after.accepted_by_agent_id, after.is_work_of("bob", WORKER)) == (None, False)
    assert at_worker(pending, won, won) == at_worker(pending, won)
    given_away = at_worker(pending, won, lost)
    assert (given_away.is_withdrawn, given_away.is_work_of("bob", WORKER)) == (True, False)


@pytest.mark.req("TASK-6")
def test_who_has_lost_claims_again_in_the_next_round_alone() -> None:
    """A second claim of one round is refused, pending or lost; a new offer is open to it again."""
    offer, again = an_event("create", to=("bob", "cid")), an_event("create", **R2, to=("bob", "cid"))
    claim, second = an_event("accept"), an_event("accept", number=1)
    pending = at_worker(None, offer, claim)
    lost = at_worker(pending, an_ack(claim, AckType.FAILED_TERMINAL, by_agent_id="ada", by_node_id=REQUESTER))
    for record in (pending, lost):
        with pytest.raises(Refusal) as caught:
            at_worker(record, second)
        assert caught.value.code is Code.INVALID_TRANSITION
    assert at_worker(lost, again, second).claims[-1].verdict is Verdict.PENDING
    answer = an_ack(claim, AckType.PROCESSED, by_agent_id="ada", by_node_id=REQUESTER)
    assert at_worker(lost, again, answer).claims == (), "an answer to a claim of the round before"


@pytest.mark.req("TASK-5")
def test_a_canceled_task_is_not_offered_again() -> None:
    """Nor canceled twice, nor by an offer that is not the present one."""
    first, second = an_event("create"), an_event("create", **R2)
    record = said(said(None, first, at_ms=START_MS), second, at_ms=START_MS)
    with pytest.raises(Refusal):
        said(record, withdrawal(first, canceled=True), at_ms=START_MS)
    canceled = said(record, withdrawal(second, canceled=True), at_ms=START_MS)
    for event in (an_event("create", number=3), withdrawal(second, canceled=True, number=1)):
        with pytest.raises(Refusal) as caught:
            said(canceled, event, at_ms=START_MS)
        assert caught.value.code is Code.INVALID_TRANSITION


@pytest.mark.req("TASK-6", "RTY-7")
def test_an_offer_that_is_sent_again_takes_the_task_from_nobody() -> None:
    """Only the present offer goes again, and only while no agent has the task."""
    first, second = an_event("create"), an_event("create", **R2)
    record = said(said(None, first, at_ms=START_MS), second, at_ms=START_MS)

    def resent(offer: Event) -> Event:
        again = an_event("create", number=9)
        return replace(again, trace=replace(again.trace, instead_of=offer.event_id))

    assert said(record, resent(second), at_ms=START_MS).round == 3
    with pytest.raises(Refusal):
        said(record, resent(first), at_ms=START_MS)
    taken = heard(record, an_event("accept"), at_ms=START_MS, node_id=REQUESTER)
    with pytest.raises(Refusal):
        said(taken, resent(second), at_ms=START_MS)


@pytest.mark.req("RTY-7")
def test_what_is_said_again_is_what_was_said_last() -> None:
    """Progress that was overtaken, an end that was not the end and a claim that was lost are not said again."""
    offer, claim = an_event("create", to=("bob", "cid")), an_event("accept")
    won = an_ack(claim, AckType.PROCESSED, by_agent_id="ada", by_node_id=REQUESTER)
    working = at_worker(None, offer, claim, won, an_event("update"))

    def again(event: Event, number: int = 9) -> Event:
        kind = {"accept": "accept", "update": "update", "complete": "complete"}[event.kind.removeprefix("task_")]
        made = an_event(kind, number=number)
        return replace(made, trace=replace(made.trace, instead_of=event.event_id))

    assert at_worker(working, again(an_event("update"))) == working
    further = an_event("update", number=1)
    further = replace(further, payload=replace(further.payload, progress=90))
    with pytest.raises(Refusal):
        at_worker(working, further, again(an_event("update")))
    done = at_worker(working, an_event("complete"))
    assert at_worker(done, again(an_event("complete"))).end_event_id == again(an_event("complete")).event_id
    with pytest.raises(Refusal):
        at_worker(done, again(an_event("complete", number=5)))
    lost = at_worker(
        None, offer, claim, an_ack(claim, AckType.FAILED_TERMINAL, by_agent_id="ada", by_node_id=REQUESTER)
    )
    with pytest.raises(Refusal):
        at_worker(lost, again(claim))
