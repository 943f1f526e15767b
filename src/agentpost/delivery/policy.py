"""How long the engine waits, how often it tries and how much it keeps: the numbers of the rules, in one value.

Pure. A policy comes from somebody's configuration, so a senseless one is refused by field.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from agentpost.protocol.backoff import ACCEPTED_ACK_TIMEOUT_SECONDS, SENDER_RESEND, RetryPolicy
from agentpost.protocol.delivery import Change, Delivery
from agentpost.protocol.envelope import AckEvent, Event, TaskAcceptEvent, TaskCreateEvent, TaskUpdateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import Kind
from agentpost.protocol.timestamps import parse_ms

__all__ = [
    "GATEWAY_SENDER",
    "DeliveryPolicy",
    "GapPolicy",
    "ack_due_at_ms",
    "earliest_due_ms",
    "has_sla",
    "in_time",
    "sla_due_at_ms",
]

_DAY_SECONDS: Final = 86_400
_NEVER_MS: Final = 1 << 62
# The name under which gateways write to agents.
GATEWAY_SENDER: Final = "postmaster"
_ASKING: Final = frozenset({Kind.MESSAGE, Kind.TASK_CREATE, Kind.TASK_ACCEPT})
# An ETA is what another node says: one beyond a year is a black hole with a date on it.
_LONGEST_ETA_MS: Final = 365 * _DAY_SECONDS * 1000


class GapPolicy(StrEnum):
    """What a reader does about events that are gone, once somebody was told (CUR-4)."""

    WAIT = "wait"  # nothing more is read from that source until an operator decides
    SKIP = "skip"  # it goes on with what the source has
    TOMBSTONE = "tombstone"  # the same, and the audit log keeps what is missing


class DeliveryPolicy(Struct, frozen=True, kw_only=True, rename="camel"):
    """The defaults are those of the spec where it has any."""

    # RTY-1
    accepted_ack_timeout_seconds: Annotated[
        float, Meta(description="Without `accepted` for so long, an event is sent again.")
    ] = ACCEPTED_ACK_TIMEOUT_SECONDS
    resend: RetryPolicy = SENDER_RESEND  # RTY-1, RTY-2
    processed_sla_seconds: Annotated[
        int, Meta(description="Accepted and without an outcome for so long, plus the grace: an incident.")
    ] = _DAY_SECONDS
    # ACK-4
    processed_sla_grace_seconds: Annotated[int, Meta(description="How much later than promised an outcome may be.")] = (
        120
    )
    away_check_seconds: Annotated[
        int,
        Meta(description="How often mail for a gateway that is away is looked at, in case its return goes unnoticed."),
    ] = 900

    # PIPE-7
    retention_events: Annotated[
        int, Meta(description="How many events outbox and inbox keep beyond what is needed.")
    ] = 10_000
    settled_retention_seconds: Annotated[
        int,
        Meta(description="How long what is settled is remembered; never less than repeats of it can come."),
    ] = 30 * _DAY_SECONDS
    mirror_retention_events: Annotated[
        int, Meta(description="How many events a mirror keeps for readers that do not come.")
    ] = 100_000
    payload_grace_seconds: Annotated[
        int,
        Meta(description="How long a large payload stays after the last event that names it has gone, at least 60."),
    ] = _DAY_SECONDS
    record_retention_seconds: Annotated[
        int,
        Meta(
            description="How long closed incidents, used or expired invites, ended sessions of agents outside the mesh "
            "and events in the quarantine are kept, at least 3600."
        ),
    ] = 30 * _DAY_SECONDS
    keep_every_seconds: Annotated[int, Meta(description="How often what is no longer needed is pruned.")] = 300
    room_copy_every_seconds: Annotated[
        int, Meta(description="How often, at most, the state of the outbox is told in the room.")
    ] = 10
    # ROOM-4: unlike the record of the node itself, a cursor that is copied again leaves a trace in the room for ever.
    cursor_copy_every_seconds: Annotated[
        int, Meta(description="How often, at most, cursors are copied into the room.")
    ] = 900
    cursors_a_copy: Annotated[int, Meta(description="How many cursors are copied at a time.")] = 1
    # CUR-5
    cursor_lease_seconds: Annotated[
        int, Meta(description="How long a reader that is silent counts as active, so that events are kept for it.")
    ] = 300
    # CUR-3
    gap_timeout_seconds: Annotated[
        int, Meta(description="How long a reader waits for events that nobody has, before it is an incident.")
    ] = 30
    # CUR-4
    gap_policy: Annotated[
        GapPolicy,
        Meta(
            description="What it does then: `wait` for an operator, `skip` them, or `tombstone`: skip them, and keep "
            "in the audit log what is missing."
        ),
    ] = GapPolicy.TOMBSTONE

    @property
    def repeats_seconds(self) -> float:
        """For how long an event may come again: a sender's tries, and a day for one that slept between two of them.

        What other senders do is not known here; their policy is taken to be like this one.
        """
        resend = self.resend
        return resend.max_attempts * (resend.max_delay_seconds + self.accepted_ack_timeout_seconds) + _DAY_SECONDS

    @property
    def offered_again_seconds(self) -> float:
        """How old an event may be that is offered to its readers once more: a day less than they remember it."""
        return max(self.settled_retention_seconds, self.repeats_seconds) - _DAY_SECONDS

    def __post_init__(self) -> None:
        for field, value, least in (
            ("acceptedAckTimeoutSeconds", self.accepted_ack_timeout_seconds, 0.001),
            ("processedSlaSeconds", self.processed_sla_seconds, 1),
            ("processedSlaGraceSeconds", self.processed_sla_grace_seconds, 0),
            ("awayCheckSeconds", self.away_check_seconds, 1),
            ("retentionEvents", self.retention_events, 0),
            ("settledRetentionSeconds", self.settled_retention_seconds, 0),
            ("mirrorRetentionEvents", self.mirror_retention_events, 0),
            ("payloadGraceSeconds", self.payload_grace_seconds, 60),
            ("recordRetentionSeconds", self.record_retention_seconds, 3_600),
            ("keepEverySeconds", self.keep_every_seconds, 1),
            ("roomCopyEverySeconds", self.room_copy_every_seconds, 1),
            ("cursorCopyEverySeconds", self.cursor_copy_every_seconds, 1),
            ("cursorsACopy", self.cursors_a_copy, 1),
            ("cursorLeaseSeconds", self.cursor_lease_seconds, 1),
            ("gapTimeoutSeconds", self.gap_timeout_seconds, 1),
        ):
            # Written so that NaN, which compares false with everything, is refused too.
            if not least <= value < 2**40:
                raise Refusal(Code.INVALID_FIELD, f"delivery policy: {field} must be at least {least:g}", field=field)


def ack_due_at_ms(event: Event, *, now_ms: int, policy: DeliveryPolicy) -> int:
    """When an event that is sent now and not accepted is looked at: after the ACK timeout, or once it expires."""
    return in_time(event, now_ms + round(policy.accepted_ack_timeout_seconds * 1000), now_ms=now_ms)


def earliest_due_ms(timers: Iterable[Delivery | Change]) -> int:
    """When the first of these timers runs out; never, if none of them is set."""
    return min((each.due_at_ms for each in timers if each.due_at_ms is not None), default=_NEVER_MS)


def in_time(event: Event | None, due_at_ms: int, *, now_ms: int) -> int:
    """`due_at_ms`, or the expiry of the event if that comes first (ENV-7): it is noticed when it happens."""
    if event is None or event.expires_at is None:
        return due_at_ms
    return min(due_at_ms, max(parse_ms(event.expires_at, field="expiresAt"), now_ms))


def has_sla(kind: str, from_agent_id: str | None) -> bool:
    """Whether an outcome has to follow once an event is accepted (ACK-4).

    An answer, and what is said of a task that is under way, ask for nothing: whoever gets them may read them whenever
    it likes. So do the gateways' own messages.
    """
    return kind in _ASKING and from_agent_id != GATEWAY_SENDER


def sla_due_at_ms(event: Event, *, accepted_at_ms: int, policy: DeliveryPolicy) -> int:
    """When an outcome has to be there, grace included (ACK-4).

    `event` is whatever says most about it: the ACK, `task_accept` or `task_update` with an ETA, or else the event that
    was accepted. A task has until its ETA, then until its deadline; everything else has the SLA.
    """
    promised_ms = _promised_ms(event, accepted_at_ms)
    if promised_ms is None:
        promised_ms = accepted_at_ms + policy.processed_sla_seconds * 1000
    # An ETA in the past is no reason to call for help before the agent has had its grace.
    promised_ms = min(max(promised_ms, accepted_at_ms), accepted_at_ms + _LONGEST_ETA_MS)
    return promised_ms + policy.processed_sla_grace_seconds * 1000


def _promised_ms(event: Event, accepted_at_ms: int) -> int | None:
    match event:
        case AckEvent(payload=said) | TaskAcceptEvent(payload=said):
            at, seconds = said.eta_at, said.eta_seconds
        case TaskUpdateEvent(payload=update):
            at, seconds = update.revised_eta_at, None
        case TaskCreateEvent(payload=create):
            at, seconds = create.required_by or create.deadline_at, None
        case _:
            return None
    if at is not None:
        return parse_ms(at, field="etaAt")
    return None if seconds is None else accepted_at_ms + seconds * 1000
