"""One row for each (event, recipient): when it was sent, accepted, answered or given up, how often, and by whom.

Three things speak of a delivery: the event itself, once for every send; what its recipient's gateway says of it (ACKs
and replies); and what its sender's gateway says of it (dead letters, and the status request that follows a missed SLA).
All of them have the hour of the event's id, so they meet in one hour whenever they come.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

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
from agentpost.pipeline.silver import merging
from agentpost.pipeline.silver.merging import rows_of
from agentpost.protocol.payloads import AckType, Kind

__all__ = ["COLUMNS", "merge", "partials"]

_NOT_DELIVERED: Final = (Kind.ACK, Kind.SIGNAL, Kind.DEAD_LETTER)
_ANSWERS: Final = (Kind.ACK, Kind.REPLY, Kind.SIGNAL, Kind.DEAD_LETTER)
_MOST_ATTEMPTS: Final = 62  # what the bits of a long can tell apart; all later ones share a bit

COLUMNS: Final[merging.Columns] = {
    # The event itself.
    "sends": ("sum", "bigint"),
    "attempt_bits": ("bit_or", "bigint"),  # bit n - 1: there was an attempt n
    "kind": ("max", "int"),
    "capability": ("max", "bigint"),  # hash of the capability that a task is for
    "routes": ("bit_or", "int"),
    "source": ("max", "bigint"),  # hash of the sender's node
    "to_min": ("min", "bigint"),  # hashes of the gateways that it was sent to
    "to_max": ("max", "bigint"),
    "emitted_us": ("min", "bigint"),
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
    "last_outcome_place": ("max", "bigint"),  # of replies too
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
    "ended_by_min": ("min", "bigint"),  # hashes of the gateways that said so: only the sender's may
    "ended_by_max": ("max", "bigint"),
}
_KEY: Final = ("hour", "event_id", "recipient")


def partials(bronze: DataFrame) -> DataFrame:
    """What these events say of deliveries."""
    return merge(_sends(bronze).unionByName(_answers(bronze)))


def merge(rows: DataFrame) -> DataFrame:
    """One row for each delivery out of any number of rows for it."""
    return merging.merge(rows, _KEY, COLUMNS)


def _sends(bronze: DataFrame) -> DataFrame:
    place = place_of(sf.col("node"), sf.col("epoch"), sf.col("seq"))
    sent = bronze.where(~sf.col("kind").isin(*_NOT_DELIVERED)).select(
        sf.col("event_hour").alias("hour"),
        "event_id",
        sf.inline(sf.arrays_zip("to_agents", "to_nodes")).alias("recipient", "to_node"),
        code_of(sf.col("kind"), KINDS).alias("kind"),
        bit_of(sf.least(sf.col("attempt"), sf.lit(_MOST_ATTEMPTS)) - 1).alias("attempt_bits"),
        bits_of(sf.col("route_decision"), ROUTES).alias("routes"),
        name_hash(sf.col("capability_id")).alias("capability"),
        name_hash(sf.col("node")).alias("source"),
        "created_us",
        "expires_us",
        "deadline_us",
        place.alias("place"),
    )
    to_node = name_hash(sf.col("to_node"))
    return rows_of(
        sent,
        _KEY,
        COLUMNS,
        sends=sf.lit(1),
        attempt_bits=sf.col("attempt_bits"),
        kind=sf.col("kind"),
        routes=sf.col("routes"),
        capability=sf.col("capability"),
        source=sf.col("source"),
        to_min=to_node,
        to_max=to_node,
        emitted_us=sf.col("created_us"),
        expires_us=sf.col("expires_us"),
        deadline_us=sf.col("deadline_us"),
        send_place=sf.col("place"),
        last_send_place=sf.col("place"),
    )


def _answers(bronze: DataFrame) -> DataFrame:
    kind, ack_type = sf.col("kind"), sf.col("ack_type")
    is_ack, is_reply, is_dead = kind == Kind.ACK, kind == Kind.REPLY, kind == Kind.DEAD_LETTER
    said = bronze.where(kind.isin(*_ANSWERS) & sf.col("ref_event_id").isNotNull()).select(
        sf.col("ref_hour").alias("hour"),
        sf.col("ref_event_id").alias("event_id"),
        sf.when(is_ack, sf.col("acked_by_agent"))
        .when(is_reply, sf.col("source_agent"))
        .otherwise(sf.col("dead_for_agent"))
        .alias("recipient"),
        (is_ack & (sf.col("acked_by_node") != sf.col("node"))).alias("is_forged"),
        (is_ack & (ack_type == AckType.ACCEPTED)).alias("is_accepted"),
        (is_ack & (ack_type != AckType.ACCEPTED)).alias("is_outcome"),
        (is_ack & (ack_type == AckType.FAILED_TERMINAL)).alias("is_failure"),
        is_reply.alias("is_reply"),
        is_dead.alias("is_dead"),
        ((kind == Kind.SIGNAL) & (sf.col("signal") == STATUS_REQUEST)).alias("is_incident"),
        sf.coalesce("acked_us", "ended_us", "created_us").alias("at_us"),
        "eta_us",
        code_of(sf.col("reason"), DEAD_REASONS, other=OTHER_REASON).alias("reason"),
        name_hash(sf.col("node")).alias("by"),
        place_of(sf.col("node"), sf.col("epoch"), sf.col("seq")).alias("place"),
    )
    said = said.where(sf.col("recipient").isNotNull() & _is_counted())
    is_forged = sf.col("is_forged")
    is_accepted = sf.col("is_accepted") & ~is_forged
    is_outcome = sf.col("is_outcome") & ~is_forged
    is_reply, is_dead = sf.col("is_reply"), sf.col("is_dead")
    at, by, place = sf.col("at_us"), sf.col("by"), sf.col("place")
    return rows_of(
        said,
        _KEY,
        COLUMNS,
        accepts=sf.when(is_accepted, sf.lit(1)),
        accepted_us=sf.when(is_accepted, at),
        accepted_by_min=sf.when(is_accepted, by),
        accepted_by_max=sf.when(is_accepted, by),
        accept_place=sf.when(is_accepted, place),
        last_accept_place=sf.when(is_accepted, place),
        eta_us=sf.when(is_accepted, sf.col("eta_us")),
        outcomes=sf.when(is_outcome, sf.lit(1)),
        failures=sf.when(sf.col("is_failure") & ~is_forged, sf.lit(1)),
        outcome_us=sf.when(is_outcome, at),
        outcome_place=sf.when(is_outcome, place),
        last_outcome_place=sf.when(is_outcome | is_reply, place),
        replies=sf.when(is_reply, sf.lit(1)),
        replied_us=sf.when(is_reply, at),
        reply_place=sf.when(is_reply, place),
        outcome_by_min=sf.when(is_outcome | is_reply, by),
        outcome_by_max=sf.when(is_outcome | is_reply, by),
        forged=sf.when(is_forged, sf.lit(1)),
        forged_place=sf.when(is_forged, place),
        forged_by=sf.when(is_forged, by),
        dead_letters=sf.when(is_dead, sf.lit(1)),
        dead_us=sf.when(is_dead, at),
        dead_reason=sf.when(is_dead, sf.col("reason")),
        dead_place=sf.when(is_dead, place),
        incident_us=sf.when(sf.col("is_incident"), at),
        ended_by_min=sf.when(is_dead | sf.col("is_incident"), by),
        ended_by_max=sf.when(is_dead | sf.col("is_incident"), by),
    )


def _is_counted() -> Column:
    """Signals are many things; only the status request says what became of a delivery."""
    return sf.col("is_accepted") | sf.col("is_outcome") | sf.col("is_reply") | sf.col("is_dead") | sf.col("is_incident")
