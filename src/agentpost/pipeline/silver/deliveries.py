"""One row for each (event, recipient): when it was sent, accepted, answered or given up, how often, and by whom.

Three things speak of a delivery: the event itself, once for every send; what its recipient's gateway says of it (ACKs
and replies); and what its sender's gateway says of it (dead letters, and the status request that follows a missed SLA).
All of them have the hour of the event's id, so they meet in one hour whenever they come.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from agentpost.delivery.incidents import STATUS_REQUEST
from agentpost.pipeline.codes import (
    DEAD_REASONS,
    KINDS,
    OTHER_REASON,
    ROUTES,
    bit_of,
    bits_of,
    code_of,
    name_hash,
    place_of,
)
from agentpost.protocol.payloads import AckType, Kind

__all__ = ["COLUMNS", "merge", "partials"]

_NOT_DELIVERED: Final = (Kind.ACK, Kind.SIGNAL, Kind.DEAD_LETTER)
_ANSWERS: Final = (Kind.ACK, Kind.REPLY, Kind.SIGNAL, Kind.DEAD_LETTER)
_MOST_ATTEMPTS: Final = 62  # what the bits of a long can tell apart; all later ones share a bit

# Every column, how two values of it become one, and its type.
COLUMNS: Final = {
    # The event itself.
    "sends": ("sum", "bigint"),
    "attempt_bits": ("bit_or", "bigint"),  # bit n - 1: there was an attempt n
    "kind": ("max", "int"),
    "routes": ("bit_or", "int"),
    "source": ("max", "bigint"),  # hash of the sender's node
    "to_min": ("min", "bigint"),  # hashes of the gateways that it was sent to
    "to_max": ("max", "bigint"),
    "emitted_us": ("min", "bigint"),
    "last_sent_us": ("max", "bigint"),
    "expires_us": ("max", "bigint"),
    "deadline_us": ("max", "bigint"),
    "send_place": ("min", "bigint"),
    "last_send_place": ("max", "bigint"),
    # `accepted`.
    "accepts": ("sum", "bigint"),
    "accepted_us": ("min", "bigint"),
    "accepted_by_min": ("min", "bigint"),  # hashes of the gateways that said so, in their own outboxes
    "accepted_by_max": ("max", "bigint"),
    "accept_place": ("min", "bigint"),
    "last_accept_place": ("max", "bigint"),
    "eta_us": ("max", "bigint"),
    # `processed` and `failed_terminal`, then replies.
    "outcomes": ("sum", "bigint"),
    "failures": ("sum", "bigint"),
    "outcome_us": ("min", "bigint"),
    "outcome_place": ("min", "bigint"),
    "replies": ("sum", "bigint"),
    "replied_us": ("min", "bigint"),
    "reply_place": ("min", "bigint"),
    "outcome_by_min": ("min", "bigint"),  # of ACKs and replies
    "outcome_by_max": ("max", "bigint"),
    # ACKs in whose name another gateway spoke than the one in whose outbox they stand; they count for nothing else.
    "forged": ("sum", "bigint"),
    "forged_place": ("min", "bigint"),
    "forged_by": ("max", "bigint"),
    # What the sender's gateway says of the end.
    "dead_letters": ("sum", "bigint"),
    "dead_us": ("min", "bigint"),
    "dead_reason": ("max", "int"),
    "dead_place": ("min", "bigint"),
    "incident_us": ("min", "bigint"),
}
_KEY: Final = ("hour", "event_id", "recipient")


def partials(bronze: DataFrame) -> DataFrame:
    """What these events say of deliveries."""
    return merge(_sends(bronze).unionByName(_answers(bronze)))


def merge(rows: DataFrame) -> DataFrame:
    """One row for each delivery out of any number of rows for it."""
    return rows.groupBy(*_KEY).agg(*[_merged(name, how).alias(name) for name, (how, _) in COLUMNS.items()])


def _merged(name: str, how: str) -> Column:
    match how:
        case "sum":
            return F.sum(name)
        case "min":
            return F.min(name)
        case "max":
            return F.max(name)
        case _:
            return F.bit_or(name)


def _sends(bronze: DataFrame) -> DataFrame:
    place = place_of(F.col("node"), F.col("epoch"), F.col("seq"))
    sent = bronze.where(~F.col("kind").isin(*_NOT_DELIVERED)).select(
        F.col("event_hour").alias("hour"),
        "event_id",
        F.inline(F.arrays_zip("to_agents", "to_nodes")).alias("recipient", "to_node"),
        code_of(F.col("kind"), KINDS).alias("kind"),
        bit_of(F.least(F.col("attempt"), F.lit(_MOST_ATTEMPTS)) - 1).alias("attempt_bits"),
        bits_of(F.col("route_decision"), ROUTES).alias("routes"),
        name_hash(F.col("node")).alias("source"),
        "created_us",
        "expires_us",
        "deadline_us",
        place.alias("place"),
    )
    to_node = name_hash(F.col("to_node"))
    return _row(
        sent,
        sends=F.lit(1),
        attempt_bits=F.col("attempt_bits"),
        kind=F.col("kind"),
        routes=F.col("routes"),
        source=F.col("source"),
        to_min=to_node,
        to_max=to_node,
        emitted_us=F.col("created_us"),
        last_sent_us=F.col("created_us"),
        expires_us=F.col("expires_us"),
        deadline_us=F.col("deadline_us"),
        send_place=F.col("place"),
        last_send_place=F.col("place"),
    )


def _answers(bronze: DataFrame) -> DataFrame:
    kind, ack_type = F.col("kind"), F.col("ack_type")
    is_ack, is_reply, is_dead = kind == Kind.ACK, kind == Kind.REPLY, kind == Kind.DEAD_LETTER
    said = bronze.where(kind.isin(*_ANSWERS) & F.col("ref_event_id").isNotNull()).select(
        F.col("ref_hour").alias("hour"),
        F.col("ref_event_id").alias("event_id"),
        F.when(is_ack, F.col("acked_by_agent"))
        .when(is_reply, F.col("source_agent"))
        .otherwise(F.col("dead_for_agent"))
        .alias("recipient"),
        (is_ack & (F.col("acked_by_node") != F.col("node"))).alias("is_forged"),
        (is_ack & (ack_type == AckType.ACCEPTED)).alias("is_accepted"),
        (is_ack & (ack_type != AckType.ACCEPTED)).alias("is_outcome"),
        (is_ack & (ack_type == AckType.FAILED_TERMINAL)).alias("is_failure"),
        is_reply.alias("is_reply"),
        is_dead.alias("is_dead"),
        ((kind == Kind.SIGNAL) & (F.col("signal") == STATUS_REQUEST)).alias("is_incident"),
        F.coalesce("acked_us", "ended_us", "created_us").alias("at_us"),
        "eta_us",
        code_of(F.col("reason"), DEAD_REASONS, other=OTHER_REASON).alias("reason"),
        name_hash(F.col("node")).alias("by"),
        place_of(F.col("node"), F.col("epoch"), F.col("seq")).alias("place"),
    )
    said = said.where(F.col("recipient").isNotNull() & _is_counted())
    is_forged = F.col("is_forged")
    is_accepted = F.col("is_accepted") & ~is_forged
    is_outcome = F.col("is_outcome") & ~is_forged
    is_reply, is_dead = F.col("is_reply"), F.col("is_dead")
    at, by, place = F.col("at_us"), F.col("by"), F.col("place")
    return _row(
        said,
        accepts=F.when(is_accepted, F.lit(1)),
        accepted_us=F.when(is_accepted, at),
        accepted_by_min=F.when(is_accepted, by),
        accepted_by_max=F.when(is_accepted, by),
        accept_place=F.when(is_accepted, place),
        last_accept_place=F.when(is_accepted, place),
        eta_us=F.when(is_accepted, F.col("eta_us")),
        outcomes=F.when(is_outcome, F.lit(1)),
        failures=F.when(F.col("is_failure") & ~is_forged, F.lit(1)),
        outcome_us=F.when(is_outcome, at),
        outcome_place=F.when(is_outcome, place),
        replies=F.when(is_reply, F.lit(1)),
        replied_us=F.when(is_reply, at),
        reply_place=F.when(is_reply, place),
        outcome_by_min=F.when(is_outcome | is_reply, by),
        outcome_by_max=F.when(is_outcome | is_reply, by),
        forged=F.when(is_forged, F.lit(1)),
        forged_place=F.when(is_forged, place),
        forged_by=F.when(is_forged, by),
        dead_letters=F.when(is_dead, F.lit(1)),
        dead_us=F.when(is_dead, at),
        dead_reason=F.when(is_dead, F.col("reason")),
        dead_place=F.when(is_dead, place),
        incident_us=F.when(F.col("is_incident"), at),
    )


def _is_counted() -> Column:
    """Signals are many things; only the status request says what became of a delivery."""
    return F.col("is_accepted") | F.col("is_outcome") | F.col("is_reply") | F.col("is_dead") | F.col("is_incident")


def _row(rows: DataFrame, **values: Column) -> DataFrame:
    """The key and all columns; what is not given is null."""
    missing = F.lit(None)
    return rows.select(
        *_KEY, *[values.get(name, missing).cast(kind).alias(name) for name, (_, kind) in COLUMNS.items()]
    )
