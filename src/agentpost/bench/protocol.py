"""`agentpost bench protocol`: how fast events are read, checked, made and routed, on one core."""

from collections.abc import Callable

from msgspec.structs import replace

from agentpost.bench.events import make_events
from agentpost.bench.measure import Metric, Say, best_rate
from agentpost.protocol.codec import (
    decode_event,
    decode_json_event,
    encode_event,
    encode_json_event,
    frame_of,
    read_frame,
)
from agentpost.protocol.routing import RouteRequest, decide_route
from agentpost.protocol.snapshot import AgentRecord, NodeRecord, RoomSnapshot

__all__ = ["bench_protocol"]

_EVENTS = 20_000
_FRAME = 256


def bench_protocol(*, rounds: int, say: Say) -> list[Metric]:
    """The figures of the pure core."""
    say(f"making {_EVENTS} events")
    events = [replace(event, seq=place + 1) for place, event in enumerate(make_events(_EVENTS))]
    packed = [encode_event(event) for event in events]
    texts = [encode_json_event(event) for event in events]
    frames = [frame_of(packed[at : at + _FRAME]) for at in range(0, _EVENTS, _FRAME)]
    room = _room(nodes=50, agents=500)
    request = RouteRequest(to_agents=("agent-7", "agent-77", "agent-377"), source_agent_id="agent-1")

    works: list[tuple[str, Callable[[], object], int, str]] = [
        ("decode and validate, frames of 256", lambda: [read_frame(frame) for frame in frames], _EVENTS, "events/s"),
        ("decode and validate, one by one", lambda: [decode_event(raw) for raw in packed], _EVENTS, "events/s"),
        ("decode and validate JSON", lambda: [decode_json_event(raw) for raw in texts], _EVENTS, "events/s"),
        ("encode", lambda: [encode_event(event) for event in events], _EVENTS, "events/s"),
        ("make with a new id", lambda: make_events(_EVENTS), _EVENTS, "events/s"),
        (
            "route to 3 of 500 agents",
            lambda: [decide_route(request, room, now_ms=0) for _ in range(_EVENTS)],
            _EVENTS,
            "decisions/s",
        ),
    ]
    metrics = [Metric.of("event size on the wire", len(packed[0]), "bytes")]
    for name, work, count, unit in works:
        say(name)
        metrics.append(Metric.of(name, best_rate(work, count=count, rounds=rounds), unit))
    return metrics


def _room(*, nodes: int, agents: int) -> RoomSnapshot:
    return RoomSnapshot(
        nodes={f"node-{n}": NodeRecord(last_heartbeat_at=0) for n in range(nodes)},
        agents={f"agent-{n}": AgentRecord(owner_node_id=f"node-{n % nodes}") for n in range(agents)},
        routing_policy_version="rpv_1",
        capability_policy_version="cpv_1",
    )
