"""One row for each (event, recipient): when it was sent, accepted, answered or given up, how often, and by whom.

Three things speak of a delivery: the event itself, once for every send; what its recipient's gateway says of it (ACKs
and replies); and what its sender's gateway says of it (dead letters, and the status request that follows a missed SLA).
All of them have the hour of the event's id, so they meet in one hour whenever they come.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.delivery.incidents import STATUS_REQUEST
from agentpost.pipeline.codes import (
    DEAD_REASONS,
    KINDS,
    OTHER_REASON,
    ROUTES,
    bits_of,
    code_of,
    is_any,
    name_hash,
    place_of,
)
from agentpost.pipeline.silver import merging
from agentpost.protocol.payloads import AckType, Kind

__all__ = ["COLUMNS", "merge", "merge_rows", "partials"]

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
# What one event says of a delivery; those that count together stand together.
_SENT, _ACCEPTED, _PROCESSED, _FAILED, _REPLIED, _FORGED, _DEAD, _INCIDENT = range(8)
_IS_SENT, _IS_ACCEPTED, _IS_FAILED, _IS_REPLIED, _IS_FORGED, _IS_DEAD, _IS_INCIDENT = (
    f"what = {what}" for what in (_SENT, _ACCEPTED, _FAILED, _REPLIED, _FORGED, _DEAD, _INCIDENT)
)
_IS_OUTCOME: Final = f"what between {_PROCESSED} and {_FAILED}"
_IS_ANSWER: Final = f"what between {_PROCESSED} and {_REPLIED}"
_IS_END: Final = f"what between {_DEAD} and {_INCIDENT}"
# What a column is made of: a value of the narrow rows, and which of them have it.
_SAID: Final[Mapping[str, tuple[str, str]]] = {
    "sends": ("1", _IS_SENT),
    "attempt_bits": ("shiftleft(1L, attempt - 1)", _IS_SENT),
    "kind": ("code", _IS_SENT),
    "capability": ("capability", _IS_SENT),
    "routes": ("routes", _IS_SENT),
    "source": ("by", _IS_SENT),
    "to_min": ("to", _IS_SENT),
    "to_max": ("to", _IS_SENT),
    "emitted_us": ("at_us", _IS_SENT),
    "expires_us": ("until_us", _IS_SENT),
    "deadline_us": ("deadline_us", _IS_SENT),
    "send_place": ("place", _IS_SENT),
    "last_send_place": ("place", _IS_SENT),
    "accepts": ("1", _IS_ACCEPTED),
    "accepted_us": ("at_us", _IS_ACCEPTED),
    "accepted_by_min": ("by", _IS_ACCEPTED),
    "accepted_by_max": ("by", _IS_ACCEPTED),
    "accept_place": ("place", _IS_ACCEPTED),
    "last_accept_place": ("place", _IS_ACCEPTED),
    "eta_us": ("until_us", _IS_ACCEPTED),
    "outcomes": ("1", _IS_OUTCOME),
    "failures": ("1", _IS_FAILED),
    "outcome_us": ("at_us", _IS_OUTCOME),
    "outcome_place": ("place", _IS_OUTCOME),
    "last_outcome_place": ("place", _IS_ANSWER),
    "replies": ("1", _IS_REPLIED),
    "replied_us": ("at_us", _IS_REPLIED),
    "reply_place": ("place", _IS_REPLIED),
    "outcome_by_min": ("by", _IS_ANSWER),
    "outcome_by_max": ("by", _IS_ANSWER),
    "forged": ("1", _IS_FORGED),
    "forged_place": ("place", _IS_FORGED),
    "forged_by": ("by", _IS_FORGED),
    "dead_letters": ("1", _IS_DEAD),
    "dead_us": ("at_us", _IS_DEAD),
    "dead_reason": ("code", _IS_DEAD),
    "dead_place": ("place", _IS_DEAD),
    "incident_us": ("at_us", _IS_INCIDENT),
    "ended_by_min": ("by", _IS_END),
    "ended_by_max": ("by", _IS_END),
}
_OF_SENDS: Final = {
    "deadline_us": "bigint",
    "attempt": "int",
    "routes": "int",
    "capability": "bigint",
    "to": "bigint",
}


def partials(bronze: DataFrame) -> DataFrame:
    """What these events say of deliveries."""
    said = _sends(bronze).unionByName(_answers(bronze))
    # Who sent and who answered stand in different outboxes: to aggregate before the rows meet would only widen them.
    return merging.gather(said.repartition("event_id"), _KEY, COLUMNS, _SAID)


def merge(rows: DataFrame) -> DataFrame:
    """One row for each delivery out of any number of rows for it."""
    return merging.merge(rows, _KEY, COLUMNS)


def merge_rows(rows: pa.Table) -> pa.Table:
    """The same for what the driver has."""
    return merging.merge_rows(rows, _KEY, COLUMNS)


def _sends(bronze: DataFrame) -> DataFrame:
    """A narrow row for each recipient of what is delivered."""
    sent = bronze.where(~is_any(sf.col("kind"), _NOT_DELIVERED))
    return sent.select("*", sf.posexplode("to_agents").alias("nth", "recipient")).select(
        sf.col("event_hour").alias("hour"),
        "event_id",
        "recipient",
        sf.lit(_SENT).alias("what"),
        sf.col("created_us").alias("at_us"),
        name_hash(sf.col("node")).alias("by"),
        place_of(sf.col("node"), sf.col("epoch"), sf.col("seq")).alias("place"),
        code_of(sf.col("kind"), KINDS).alias("code"),
        sf.col("expires_us").alias("until_us"),
        "deadline_us",
        sf.least(sf.col("attempt"), sf.lit(_MOST_ATTEMPTS)).alias("attempt"),
        bits_of(sf.col("route_decision"), ROUTES).alias("routes"),
        name_hash(sf.col("capability_id")).alias("capability"),
        name_hash(sf.get("to_nodes", "nth")).alias("to"),
    )


def _answers(bronze: DataFrame) -> DataFrame:
    """A narrow row for each event that says what became of a delivery."""
    kind, ack_type = sf.col("kind"), sf.col("ack_type")
    is_ack, is_reply = kind == Kind.ACK, kind == Kind.REPLY
    acked = (
        sf.when(ack_type.isNull() | sf.col("acked_by_node").isNull(), sf.lit(None).cast("int"))
        .when(sf.col("acked_by_node") != sf.col("node"), sf.lit(_FORGED))
        .when(ack_type == AckType.ACCEPTED, sf.lit(_ACCEPTED))
        .when(ack_type == AckType.FAILED_TERMINAL, sf.lit(_FAILED))
        .otherwise(sf.lit(_PROCESSED))
    )
    what = (
        sf.when(is_ack, acked)
        .when(is_reply, sf.lit(_REPLIED))
        .when(kind == Kind.DEAD_LETTER, sf.lit(_DEAD))
        # Signals are many things; only the status request says what became of a delivery.
        .when((kind == Kind.SIGNAL) & (sf.col("signal") == STATUS_REQUEST), sf.lit(_INCIDENT))
    )
    said = bronze.where(is_any(kind, _ANSWERS) & sf.col("ref_event_id").isNotNull()).select(
        sf.col("ref_hour").alias("hour"),
        sf.col("ref_event_id").alias("event_id"),
        sf.when(is_ack, sf.col("acked_by_agent"))
        .when(is_reply, sf.col("source_agent"))
        .otherwise(sf.col("dead_for_agent"))
        .alias("recipient"),
        what.alias("what"),
        sf.coalesce("acked_us", "ended_us", "created_us").alias("at_us"),
        name_hash(sf.col("node")).alias("by"),
        place_of(sf.col("node"), sf.col("epoch"), sf.col("seq")).alias("place"),
        code_of(sf.col("reason"), DEAD_REASONS, other=OTHER_REASON).alias("code"),
        sf.col("eta_us").alias("until_us"),
        *[sf.lit(None).cast(kind).alias(name) for name, kind in _OF_SENDS.items()],
    )
    return said.where(sf.col("recipient").isNotNull() & sf.col("what").isNotNull())
