"""A task as a scenario: offered with its delivery, claimed, late with an incident and a question, ended, made anew."""

from typing import Final

from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.payloads import AckType
from agentpost.protocol.tasks import TaskState
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import Acceptance, Accepted, Appended, Desk, Inbound, Incident, TasksRebuilt
from agentpost.testing import START_MS, an_ack
from tests.faults.playing import Operation, Scenario
from tests.faults.words import message
from tests.protocol.test_taskbook import REQUESTER, TASK_ID, WORKER, an_event

__all__ = ["TASKS"]

_OFFER: Final = replace(an_event("create"), to_nodes=(WORKER,))
_REQUESTER: Final = "ada"
_LATE: Final = "task_late"


def _state(store: SqliteStore) -> TaskState | None:
    record = store.task(TASK_ID)
    return None if record is None else record.state


def _offer() -> Operation:
    delivery = Delivery(
        event_id=_OFFER.event_id,
        to_agent_id="bob",
        corr_id=_OFFER.corr_id,
        from_agent_id=_REQUESTER,
        to_node_id=WORKER,
        route_decision="owner",
        due_at_ms=START_MS + 1000,
        emitted_at_ms=START_MS,
    )

    def check(store: SqliteStore) -> None:
        assert _state(store) is not None
        assert [each.to_agent_id for each in store.deliveries_of(_OFFER.event_id)] == ["bob"]

    return Operation(
        name="offer",
        submit=lambda store: store.append([_OFFER], deliveries=[delivery]),
        answer=Appended(first_seq=1, last_seq=1),
        leaves=check,
    )


def _hear(kind: str, seq: int, *, leads_to: TaskState, inbox_seq: int, is_closed: bool) -> Operation:
    """A move of the worker: what it changes, its row in the inbox, its ACK and the cursor are one."""
    event = replace(an_event(kind, number=seq), seq=seq)
    pair = (event.event_id, _REQUESTER)
    ack_type = AckType.PROCESSED if is_closed else AckType.ACCEPTED
    ack = replace(an_ack(event, ack_type, by_agent_id=_REQUESTER, by_node_id=REQUESTER), to_nodes=(WORKER,))
    batch = Acceptance(
        source_node_id=WORKER,
        source_epoch="epoch-1",
        after_seq=seq - 1,
        through_seq=seq,
        events=(Inbound(event=event, raw=encode_event(event), acks={_REQUESTER: ack}, desk=Desk(closes=is_closed)),),
        at_ms=START_MS,
    )
    answer = Accepted(
        new=() if is_closed else (pair,),
        inbox_seqs=() if is_closed else (inbox_seq,),
        closed=(pair,) if is_closed else (),
        tasks=(TASK_ID,),
        repeated=(),
        orphans=(),
        cursor_seq=seq,
    )

    def check(store: SqliteStore) -> None:
        assert _state(store) is leads_to
        assert store.find_event(ack.event_id) is not None

    return Operation(name=kind, submit=lambda store: store.accept(batch), answer=answer, leaves=check)


def _ask(seq: int) -> Operation:
    """What a sweep says about a late task, with the incident that remembers it."""
    incident = Incident(kind=_LATE, subject=TASK_ID, at_ms=START_MS, corr_id=_OFFER.corr_id)

    def check(store: SqliteStore) -> None:
        assert [each.kind for each in store.incidents()] == [_LATE]

    return Operation(
        name="ask",
        submit=lambda store: store.append([message(seq)], incidents=[incident]),
        answer=Appended(first_seq=seq, last_seq=seq),
        leaves=check,
    )


def _close_incident() -> Operation:
    def check(store: SqliteStore) -> None:
        assert store.incidents() == []

    return Operation(
        name="close the incident",
        submit=lambda store: store.close_incident(_LATE, TASK_ID, at_ms=START_MS + 1),
        answer=True,
        leaves=check,
    )


def _rebuild() -> Operation:
    def check(store: SqliteStore) -> None:
        assert _state(store) is TaskState.COMPLETED

    return Operation(
        name="rebuild",
        submit=lambda store: store.rebuild_tasks(),
        answer=TasksRebuilt(tasks=1, events=4, recovered_events=0, differing=()),
        leaves=check,
    )


TASKS: Final = Scenario(
    name="tasks",
    before=(),
    groups=(
        (_offer(),),
        (_hear("accept", 1, leads_to=TaskState.ACCEPTED, inbox_seq=1, is_closed=True),),
        (_ask(3), _hear("update", 2, leads_to=TaskState.IN_PROGRESS, inbox_seq=2, is_closed=True)),
        (_hear("complete", 3, leads_to=TaskState.COMPLETED, inbox_seq=3, is_closed=False), _close_incident()),
        (_rebuild(),),
    ),
    checkpoint_at_pages=20,
)
