"""What this gateway itself answers to events about tasks (TASK-5, TASK-6). Decides nothing: the store picks the answer.

An acceptance, and an update that nobody asked to be told of, wake no agent: the gateway notes them and says `processed`
at once. Everything else goes to the agent as mail does. Whatever cannot be said of the task is answered with
`failed_terminal`, so that its sender hears of it.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.protocol.delivery import CLAIM_LOST, MOVE_REFUSED
from agentpost.protocol.envelope import Event, TaskAcceptEvent, TaskCreateEvent, TaskUpdateEvent
from agentpost.protocol.payloads import AckType
from agentpost.protocol.taskbook import CANCELED_BY, TASK_WITHDRAWN, TaskRecord
from agentpost.store.interface import Store
from agentpost.store.values import Desk

__all__ = ["TaskDesk", "cancellation", "withdrawals"]


class TaskDesk:
    def __init__(self, store: Store, *, maker: EventMaker) -> None:
        self._store = store
        self._maker = maker

    def answers(self, event: Event, accepted: Mapping[str, Event]) -> tuple[dict[str, Event], Desk]:
        """The ACKs for an event of a task, where `accepted` has those of ordinary mail, and the desk's part."""
        is_claim = isinstance(event, TaskAcceptEvent)
        refused = self._acks(event, accepted, AckType.FAILED_TERMINAL, CLAIM_LOST if is_claim else MOVE_REFUSED)
        if is_claim:
            noted = self._acks(event, accepted, AckType.PROCESSED)
            return noted, Desk(refused=refused, closes=True, tells=self._tells(event))
        if isinstance(event, TaskUpdateEvent) and not event.payload.notify:
            return self._acks(event, accepted, AckType.PROCESSED), Desk(refused=refused, closes=True)
        if isinstance(event, TaskCreateEvent) or event.trace.instead_of is None:
            return dict(accepted), Desk(refused=refused)
        # TASK-7: an end that arrived after its sender had given up is told once.
        return dict(accepted), Desk(refused=refused, repeated=self._acks(event, accepted, AckType.PROCESSED))

    def _acks(
        self, event: Event, agents: Mapping[str, Event], ack_type: AckType, reason: str | None = None
    ) -> dict[str, Event]:
        return {agent_id: self._maker.ack(event, ack_type, agent_id=agent_id, reason=reason) for agent_id in agents}

    def _tells(self, claim: TaskAcceptEvent) -> tuple[Event, ...]:
        """TASK-6: what the gateways of the other agents are told if this claim wins."""
        record = self._store.task(claim.payload.task_id)
        if record is None or record.is_sole:
            return ()
        nodes = {each.to_node_id for each in self._store.deliveries_of(record.create_event_id)}
        return withdrawals(self._maker, record, nodes - {claim.source_node_id}, taken_by=claim.source_agent_id)


def withdrawals(
    maker: EventMaker, record: TaskRecord, node_ids: Iterable[str | None], *, taken_by: str | None
) -> tuple[Event, ...]:
    """Tells gateways that the present offer of a task is not for them any more; nothing, where there is nobody to tell.

    This gateway itself, where the requester is, knows.
    """
    to_nodes = _others(maker, node_ids)
    return (_about(maker, record, to_nodes, {"acceptedByAgentId": taken_by}),) if to_nodes else ()


def cancellation(maker: EventMaker, record: TaskRecord, node_ids: Iterable[str | None]) -> Event:
    """Tells all who have it, this gateway's own book included, that the requester does not want a task any more."""
    return _about(maker, record, _others(maker, node_ids), {CANCELED_BY: record.requester_agent_id})


def _others(maker: EventMaker, node_ids: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({node_id for node_id in node_ids if node_id is not None} - {maker.node_id}))


def _about(maker: EventMaker, record: TaskRecord, to_nodes: tuple[str, ...], detail: dict[str, str | None]) -> Event:
    signal = maker.signal(TASK_WITHDRAWN, to_nodes=to_nodes, details={"taskId": record.task_id, **detail})
    about = replace(signal.payload, ref_event_id=record.create_event_id)
    return replace(signal, corr_id=record.corr_id, payload=about)
