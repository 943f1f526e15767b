"""What one gateway can say about its own mail: lags, latencies, rates, and the same as text for Prometheus.

Reads the store and writes nothing. OBS-1 and OBS-2 as far as one gateway sees; the pipeline does it for the fleet.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from agentpost.protocol.codec import decode_event
from agentpost.protocol.delivery import Delivery
from agentpost.protocol.errors import Refusal
from agentpost.protocol.ids import EventId, UlidSource
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.snapshot import RoomSnapshot
from agentpost.store.interface import Store
from agentpost.store.values import Accepted

__all__ = ["DeliveryMetrics", "Latency", "Meter", "Tally", "to_prometheus"]

_WINDOW_MS: Final = 15 * 60_000
_MOST_SAMPLES: Final = 5_000
_PAGE: Final = 1_000
_UNKNOWN_KIND: Final = "unknown"


class Tally:
    """What nobody writes down: how much was taken, and how much of it was a repeat. Counts from the start."""

    def __init__(self) -> None:
        self.new = 0
        self.repeated = 0

    def took(self, accepted: Accepted) -> None:
        """Count one batch that was accepted."""
        self.new += len(accepted.new)
        self.repeated += len(accepted.repeated)


class Latency(Struct, frozen=True, kw_only=True, rename="camel"):
    """Over `count` deliveries; the nearest rank, so every value is one that happened."""

    count: int
    p50_ms: int
    p95_ms: int
    p99_ms: int


class DeliveryMetrics(Struct, frozen=True, kw_only=True, rename="camel"):
    """One reading. Rates and latencies are of what was sent in the window; latencies are by kind of event.

    `ack_lag` is how much in the inbox is without an outcome, counted from the first. `retry_rate` is the share of sends
    that were resends, `duplicate_share` that of events taken which were here already.
    """

    at_ms: int
    window_ms: int
    outbox_seq: int
    latest_seq: int
    acked_seq: int
    ack_lag: int
    dead_letters: int
    open_incidents: int
    quarantined: int
    payloads: int
    payload_bytes: int
    deliveries: dict[str, int]
    retry_rate: float
    taken: int
    repeated: int
    duplicate_share: float
    accepted_latency: dict[str, Latency]
    closed_latency: dict[str, Latency]
    throughput_per_second: dict[str, float]
    heartbeat_age_ms: dict[str, int]


class Meter:
    """Takes readings of one store. It remembers the kinds of the events in the window, and nothing else."""

    def __init__(self, store: Store, *, tally: Tally | None = None, window_ms: int = _WINDOW_MS) -> None:
        self._store = store
        self._tally = tally or Tally()
        self._window_ms = window_ms
        self._kinds: dict[EventId, str] = {}

    def read(self, *, now_ms: int, room: RoomSnapshot | None = None) -> DeliveryMetrics:
        since_ms = now_ms - self._window_ms
        sent = self._sent_since(since_ms)
        # A window with more than can be looked at is as long as what was.
        span_ms = self._window_ms if len(sent) < _MOST_SAMPLES else max(sent[-1].emitted_at_ms - since_ms, 1)
        sends = sum(delivery.attempts for delivery in sent)
        taken = self._tally.new + self._tally.repeated
        counts = self._store.count_deliveries()
        position = self._store.inbox_position()
        usage = self._store.payload_usage()
        return DeliveryMetrics(
            at_ms=now_ms,
            window_ms=self._window_ms,
            outbox_seq=self._store.head().seq,
            latest_seq=position.latest_seq,
            acked_seq=position.acked_seq,
            ack_lag=position.latest_seq - position.acked_seq,
            dead_letters=counts.get(DeliveryState.DEAD_LETTER, 0),
            open_incidents=sum(self._store.count_incidents().values()),
            quarantined=sum(source.events for source in self._store.quarantine_sources()),
            payloads=usage.payloads,
            payload_bytes=usage.size_bytes,
            deliveries={state.value: counts.get(state, 0) for state in DeliveryState},
            retry_rate=(sends - len(sent)) / sends if sends else 0.0,
            taken=taken,
            repeated=self._tally.repeated,
            duplicate_share=self._tally.repeated / taken if taken else 0.0,
            accepted_latency=self._latencies((each, each.accepted_at_ms) for each in sent),
            closed_latency=self._latencies((each, each.closed_at_ms) for each in sent if _arrived(each)),
            throughput_per_second=_throughput(sent, span_ms),
            heartbeat_age_ms=_heartbeat_ages(room, now_ms),
        )

    def _sent_since(self, since_ms: int) -> list[Delivery]:
        # Event ids sort by time (ENV-1), so the window is a range of them.
        first = UlidSource().make(EventId, now_ms=max(since_ms, 0), entropy=bytes(10))
        after: tuple[str, str] = (first, "")
        sent: list[Delivery] = []
        while page := self._store.deliveries_in(DeliveryState, after=after, limit=_PAGE):
            sent.extend(each for each in page if each.emitted_at_ms >= since_ms)
            if len(sent) >= _MOST_SAMPLES:
                break
            after = (page[-1].event_id, page[-1].to_agent_id)
        self._learn_kinds({each.event_id for each in sent})
        return sent

    def _learn_kinds(self, event_ids: set[EventId]) -> None:
        self._kinds = {
            event_id: self._kinds[event_id] if event_id in self._kinds else self._kind(event_id)
            for event_id in event_ids
        }

    def _kind(self, event_id: EventId) -> str:
        stored = self._store.find_event(event_id)
        if stored is None:
            return _UNKNOWN_KIND
        try:
            return decode_event(stored.raw).kind.value
        except Refusal:
            return _UNKNOWN_KIND

    def _latencies(self, ended: Iterable[tuple[Delivery, int | None]]) -> dict[str, Latency]:
        by_kind: dict[str, list[int]] = {}
        for delivery, at_ms in ended:
            if at_ms is not None:
                took_ms = max(at_ms - delivery.emitted_at_ms, 0)  # the time of day may be set back
                by_kind.setdefault(self._kinds[delivery.event_id], []).append(took_ms)
        return {kind: _latency(sorted(values)) for kind, values in sorted(by_kind.items())}


def to_prometheus(metrics: DeliveryMetrics) -> str:
    """The reading in the text format that Prometheus scrapes (version 0.0.4)."""
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> None:
        if not samples:
            return
        lines.append(f"# HELP {name} {_escaped(text)}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples)

    family("agentpost_outbox_seq", "gauge", "Last seq of the outbox.", [({}, metrics.outbox_seq)])
    family("agentpost_inbox_latest_seq", "gauge", "Last seq of the inbox.", [({}, metrics.latest_seq)])
    family(
        "agentpost_inbox_acked_seq",
        "gauge",
        "Inbox seq up to which everything has an outcome.",
        [({}, metrics.acked_seq)],
    )
    family("agentpost_ack_lag_events", "gauge", "latestSeq - ackedSeq of the inbox.", [({}, metrics.ack_lag)])
    family("agentpost_dead_letters", "gauge", "Dead letters that are kept.", [({}, metrics.dead_letters)])
    family("agentpost_open_incidents", "gauge", "Incidents that nobody has closed.", [({}, metrics.open_incidents)])
    family("agentpost_quarantined", "gauge", "Events that could not be read.", [({}, metrics.quarantined)])
    family("agentpost_payloads", "gauge", "Large payloads that are kept.", [({}, metrics.payloads)])
    family("agentpost_payload_bytes", "gauge", "What large payloads take up.", [({}, metrics.payload_bytes)])
    family(
        "agentpost_deliveries",
        "gauge",
        "Deliveries that are kept, by state.",
        [({"state": state}, count) for state, count in metrics.deliveries.items()],
    )
    family("agentpost_retry_ratio", "gauge", "Share of sends that were resends.", [({}, metrics.retry_rate)])
    family(
        "agentpost_events_taken_total",
        "counter",
        "Events taken for local agents since the start, repeats included.",
        [({}, metrics.taken)],
    )
    family(
        "agentpost_events_repeated_total",
        "counter",
        "Events taken that were here already, since the start.",
        [({}, metrics.repeated)],
    )
    family(
        "agentpost_delivery_latency_seconds",
        "gauge",
        "From emitted to accepted, or to the outcome, over the window.",
        [
            ({"kind": kind, "stage": stage, "quantile": quantile}, value_ms / 1000)
            for stage, latencies in (("accepted", metrics.accepted_latency), ("closed", metrics.closed_latency))
            for kind, latency in latencies.items()
            for quantile, value_ms in (("0.5", latency.p50_ms), ("0.95", latency.p95_ms), ("0.99", latency.p99_ms))
        ],
    )
    family(
        "agentpost_sends_per_second",
        "gauge",
        "Events sent to a node, over the window.",
        [({"node": node_id}, rate) for node_id, rate in metrics.throughput_per_second.items()],
    )
    family(
        "agentpost_heartbeat_age_seconds",
        "gauge",
        "How long ago a node was heard.",
        [({"node": node_id}, age_ms / 1000) for node_id, age_ms in metrics.heartbeat_age_ms.items()],
    )
    return "\n".join(lines) + "\n"


def _arrived(delivery: Delivery) -> bool:
    return delivery.state in (DeliveryState.PROCESSED, DeliveryState.REPLIED)


def _latency(values: Sequence[int]) -> Latency:
    return Latency(count=len(values), p50_ms=_rank(values, 0.5), p95_ms=_rank(values, 0.95), p99_ms=_rank(values, 0.99))


def _rank(values: Sequence[int], share: float) -> int:
    return values[max(math.ceil(share * len(values)), 1) - 1]


def _throughput(sent: Iterable[Delivery], span_ms: int) -> dict[str, float]:
    counts: dict[str, int] = {}
    for delivery in sent:
        if delivery.to_node_id is not None:
            counts[delivery.to_node_id] = counts.get(delivery.to_node_id, 0) + 1
    return {node_id: count * 1000 / span_ms for node_id, count in sorted(counts.items())}


def _heartbeat_ages(room: RoomSnapshot | None, now_ms: int) -> dict[str, int]:
    if room is None:
        return {}
    return {
        node_id: max(round(now_ms - node.last_heartbeat_at), 0)
        for node_id, node in sorted(room.nodes.items())
        if node.last_heartbeat_at is not None
    }


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items()) + "}"


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
