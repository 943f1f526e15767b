"""The numbers that the tables are computed with: the spec's, unless somebody says otherwise."""

from typing import Final

from msgspec import Struct

__all__ = ["Params"]

_SECOND: Final = 1_000_000
_HOUR: Final = 3600 * _SECOND


class Params(Struct, frozen=True, kw_only=True):
    """`now_us` is when the tables speak of; everything else is how long something may take."""

    now_us: int
    ack_timeout_us: int = 20 * _SECOND  # RTY-1
    max_attempts: int = 10  # RTY-2
    processed_sla_us: int = 24 * _HOUR
    sla_grace_us: int = 120 * _SECOND  # ACK-4
    eta_grace_us: int = 120 * _SECOND  # TASK-8
    # An ACK whose event is not in the lake yet may only be ahead of it: outboxes are exported each in its own time.
    orphan_grace_us: int = _HOUR
    # Longer than ten tries take (half an hour): who is there and has said nothing by then will not.
    black_hole_us: int = _HOUR
    # A segment that cannot be read is tried again with each batch; from so long on it is a finding.
    retry_grace_us: int = 2 * _HOUR
    clock_skew_us: int = 60 * _SECOND  # how far two gateways' clocks may be apart before order by time is doubted
    backlog_alert_us: int = 600 * _SECOND  # OBS-3
    delivery_objective_us: int = 5 * _SECOND  # OBS-3
    delivery_objective_share: float = 0.95
    routing_misses: int = 3  # CAP-6: from how many on a miss is repeated
    retention_events: int = 10_000  # PIPE-7
