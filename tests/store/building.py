"""What the tests of the store are made of: one gateway, one peer, and the shortest way to what they say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import Event, TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import next_chain
from agentpost.protocol.ids import TaskId, corr_id_of
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import Priority, TaskCreate
from agentpost.protocol.timestamps import format_ms
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import CHAIN_START, Acceptance, Inbound, Outcome, Settlement, Subscriber
from agentpost.testing import START_MS, a_message, a_reply, an_ack, an_event_id

NODE = "node-a"
PEER = "node-b"
EPOCH = "epoch-1"
PEER_EPOCH = "epoch-of-b"


def open_sqlite(home: Path, *, node_id: str = NODE, epoch: str = EPOCH, **options: Any) -> SqliteStore:
    return SqliteStore.open(home, node_id=node_id, epoch=epoch, now_ms=START_MS, **options)


def deliveries_of(event: Event, *to_agents: str, due_at_ms: int | None = None) -> tuple[Delivery, ...]:
    return tuple(
        Delivery(
            event_id=event.event_id,
            to_agent_id=agent,
            corr_id=event.corr_id,
            from_agent_id=event.source_agent_id,
            to_node_id=PEER,
            due_at_ms=due_at_ms,
            emitted_at_ms=START_MS,
        )
        for agent in to_agents
    )


def an_offer(number: int, *, by: str, at_ms: int) -> TaskCreateEvent:
    event_id = an_event_id("offer", number)
    return TaskCreateEvent(
        event_id=event_id,
        source_node_id=NODE,
        source_agent_id=by,
        corr_id=corr_id_of(event_id),
        created_at=format_ms(at_ms),
        payload=TaskCreate(
            task_id=TaskId(f"tsk_{number:026d}"),
            title="Do it",
            description="All of it.",
            to_agents=("bob",),
            priority=Priority.NORMAL,
            requester_agent_id=by,
            response_required=True,
        ),
    )


def a_change(event: Event, signal: DeliverySignal, *, agent: str = "bob", due_at_ms: int | None = None) -> Change:
    return Change(event_id=event.event_id, to_agent_id=agent, signal=signal, at_ms=START_MS + 500, due_at_ms=due_at_ms)


def incoming(event: Event, *to_agents: str) -> Inbound:
    """An event as it is read from the peer, with the ACK of this gateway for each local agent that gets it."""
    acks: dict[str, Event] = {
        agent: an_ack(event, by_agent_id=agent, by_node_id=NODE) for agent in to_agents or ("ada",)
    }
    return Inbound(event=event, raw=encode_event(event), acks=acks)


def from_peer(number: int, *, seq: int | None = None, attempt: int = 1) -> Event:
    """Message `number` of the peer, at the place of the same number in its outbox."""
    return a_message(
        number,
        seq=number if seq is None else seq,
        attempt=attempt,
        source_node_id=PEER,
        source_agent_id="bob",
        to_agents=("ada",),
    )


def a_batch(*events: Inbound, after: int = 0, through: int | None = None, **fields: Any) -> Acceptance:
    last = max([after, *(inbound.event.seq for inbound in events)])
    settings: dict[str, Any] = {"source_node_id": PEER, "source_epoch": PEER_EPOCH, "at_ms": START_MS + 1_000}
    return Acceptance(
        after_seq=after, through_seq=last if through is None else through, events=events, **settings | fields
    )


def a_settlement(
    event: Event,
    *,
    agent: str = "ada",
    outcome: Outcome = Outcome.PROCESSED,
    events: tuple[Event, ...] | None = None,
    at_ms: int = START_MS + 2_000,
) -> Settlement:
    reply = a_reply(event, by_agent_id=agent, by_node_id=NODE, body="done")
    return Settlement(
        event_id=event.event_id,
        to_agent_id=agent,
        outcome=outcome,
        at_ms=at_ms,
        events=(reply,) if events is None else events,
    )


def a_subscriber(last_seq: int, *, node_id: str = PEER, **fields: Any) -> Subscriber:
    settings: dict[str, Any] = {"epoch": EPOCH, "updated_at_ms": START_MS, "lease_expires_at_ms": START_MS + 300_000}
    return Subscriber(consumer_node_id=node_id, last_seq=last_seq, **settings | fields)


def to_nodes(event: Event, *nodes: str) -> Event:
    """The event as it is when these gateways have to hear of it."""
    return replace(event, to_nodes=nodes)


async def append_messages(store: Store, count: int, *, first: int = 1) -> list[Event]:
    events: list[Event] = [a_message(number) for number in range(first, first + count)]
    await store.append(events)
    return events


def outbox_seqs(store: Store) -> list[int]:
    return [stored.seq for stored in store.read_outbox(0, limit=100_000, max_bytes=1 << 40).events]


def chain_is_whole(store: Store) -> bool:
    """Whether the hash of every event covers all that came before it, from the start or the last compaction."""
    events = store.read_outbox(0, limit=100_000, max_bytes=1 << 40).events
    chain = CHAIN_START if events and events[0].seq == 1 else None
    for stored in events:
        if chain is not None and next_chain(chain, stored.raw) != stored.chain:
            return False
        chain = stored.chain
    return store.head().chain == (chain if chain is not None else CHAIN_START)


def visible(store: Store, *, events: Sequence[Event] = (), agents: Sequence[str] = ("ada", "eve")) -> dict[str, object]:
    """All that a store shows. Equal before and after means that nothing happened."""
    return {
        "head": store.head(),
        "outbox": store.read_outbox(0, limit=100_000, max_bytes=1 << 40),
        "found": [store.find_event(event.event_id) for event in events],
        "deliveries": [store.deliveries_of(event.event_id) for event in events],
        "due": store.due_deliveries(1 << 60, limit=100_000),
        "next due": store.next_due_at_ms(),
        "ledger": [store.ledger_entry(event.event_id, agent) for event in events for agent in agents],
        "backlog": [store.backlog(agent, limit=100_000) for agent in agents],
        "inbox": store.inbox_position(),
        "quarantine": [(each, store.quarantined_body(each.id)) for each in store.quarantined()],
        "quarantine by source": store.quarantine_sources(),
        "cursors": store.cursors(),
        "subscribers": store.subscribers(),
        "streams": [store.read_stream(node, 0, limit=100_000, max_bytes=1 << 40) for node in (NODE, PEER, "node-c")],
        "states": store.count_deliveries(),
        "inboxes": [store.inbox_items(agent, newest_first=True, limit=100_000) for agent in agents],
        "waiting": [store.backlog_size(agent) for agent in agents],
        "who waits": store.waiting_agents(),
        "engaged": store.engaged_entries(),
        "expired": store.expired_mail(now_ms=1 << 60, limit=100_000),
        "urgent": [store.urgent_unread(agent, limit=100_000) for agent in agents],
        "mirrors": store.mirrors(),
        "agents": store.local_agents(),
        "incidents": store.incidents(open_only=False),
        "open incidents": store.count_incidents(),
        "open gaps": store.open_incidents_of("gap"),
        "audit": store.audit_log(),
    }


class refused:  # noqa: N801 - reads as what is expected of the block
    """`with refused(Code.NOT_FOUND): ...`, and the refusal itself as `caught.value` afterwards."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._raises = pytest.raises(Refusal)

    def __enter__(self) -> "pytest.ExceptionInfo[Refusal]":
        return self._raises.__enter__()

    def __exit__(self, *details: Any) -> bool:
        matched = self._raises.__exit__(*details)
        if matched:
            assert details[1].code is self._code, f"{details[1].code} instead of {self._code}: {details[1].message}"
        return matched
