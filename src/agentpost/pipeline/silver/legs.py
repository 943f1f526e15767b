"""One row for each (event, recipient, gateway): what was sent to that gateway, and what it said.

Three things speak of a delivery: the event itself, once for every send; what a recipient's gateway says of it (ACKs and
replies); and what the sender's gateway says of it (dead letters, and the status request that follows a missed SLA). A
send stands in the leg of the gateway that it asks (null where it leaves that open), words in the leg of the gateway that
says them. So what a gateway says that was not asked stays by itself, and each of three gateways that were asked has its
own leg. All rows have the hour of the event's id: they meet in one hour whenever they come.
"""

from typing import Final

from pyspark.sql import DataFrame

from agentpost.delivery.incidents import STATUS_REQUEST
from agentpost.pipeline.codes import (
    DEAD_REASONS,
    KINDS,
    OTHER_REASON,
    ROUTES,
    bits_of,
    code_of,
    name_hash,
    place_of,
    quoted,
)
from agentpost.pipeline.silver import merging
from agentpost.pipeline.silver.merging import Column
from agentpost.protocol.payloads import AckType, Kind

__all__ = ["COLUMNS", "KEY", "merge", "narrow", "partials"]

_MOST_ATTEMPTS: Final = 62  # what the bits of a long can tell apart; all later ones share a bit
KEY: Final = ("hour", "event_id", "recipient", "gateway")

# What one event says of a delivery; those that count together stand together.
_SENT, _ACCEPTED, _PROCESSED, _FAILED, _REPLIED, _FORGED, _DEAD, _INCIDENT = range(8)
_IS_SENT, _IS_ACCEPTED, _IS_FAILED, _IS_REPLIED, _IS_FORGED, _IS_DEAD, _IS_INCIDENT = (
    f"what = {what}" for what in (_SENT, _ACCEPTED, _FAILED, _REPLIED, _FORGED, _DEAD, _INCIDENT)
)
_IS_OUTCOME: Final = f"what between {_PROCESSED} and {_FAILED}"
_IS_ANSWER: Final = f"what between {_PROCESSED} and {_REPLIED}"

COLUMNS: Final[merging.Columns] = {
    # The event itself, sent to this gateway.
    "sends": Column("sum", "bigint", "1", _IS_SENT),
    "attempt_bits": Column("bit_or", "bigint", "shiftleft(1L, attempt - 1)", _IS_SENT),  # bit n - 1: an attempt n
    "kind": Column("max", "int", "code", _IS_SENT),
    "capability": Column("max", "bigint", "capability", _IS_SENT),  # hash of the capability that a task is for
    "routes": Column("bit_or", "int", "routes", _IS_SENT),
    "source": Column("max", "bigint", "source", _IS_SENT),  # hash of the sender's gateway
    "emitted_us": Column("min", "bigint", "at_us", _IS_SENT),
    "expires_us": Column("max", "bigint", "until_us", _IS_SENT),
    "deadline_us": Column("max", "bigint", "deadline_us", _IS_SENT),
    "send_place": Column("min", "bigint", "place", _IS_SENT),
    "last_send_place": Column("max", "bigint", "place", _IS_SENT),
    # What this gateway says: `accepted`, then `processed` and `failed_terminal`, and replies.
    "accepts": Column("sum", "bigint", "1", _IS_ACCEPTED),
    "accepted_us": Column("min", "bigint", "at_us", _IS_ACCEPTED),
    "accept_place": Column("min", "bigint", "place", _IS_ACCEPTED),
    "eta_us": Column("latest", "bigint", "until_us", _IS_ACCEPTED, by="eta_said_us"),
    "eta_said_us": Column("max", "bigint", "at_us", f"{_IS_ACCEPTED} and until_us is not null"),
    "outcomes": Column("sum", "bigint", "1", _IS_OUTCOME),
    "failures": Column("sum", "bigint", "1", _IS_FAILED),
    "outcome_us": Column("min", "bigint", "at_us", _IS_OUTCOME),
    "outcome_place": Column("min", "bigint", "place", _IS_OUTCOME),
    "replies": Column("sum", "bigint", "1", _IS_REPLIED),
    "replied_us": Column("min", "bigint", "at_us", _IS_REPLIED),
    "reply_place": Column("min", "bigint", "place", _IS_REPLIED),
    # ACKs that name another gateway than the one in whose outbox they stand; they count for nothing else.
    "forged": Column("sum", "bigint", "1", _IS_FORGED),
    "forged_us": Column("min", "bigint", "at_us", _IS_FORGED),
    "forged_place": Column("min", "bigint", "place", _IS_FORGED),
    # What a gateway says of the end of its own event; of another's it counts for nothing.
    "dead_letters": Column("sum", "bigint", "1", _IS_DEAD),
    "dead_us": Column("min", "bigint", "at_us", _IS_DEAD),
    "dead_reason": Column("max", "int", "code", _IS_DEAD),
    "dead_place": Column("min", "bigint", "place", _IS_DEAD),
    "incident_us": Column("min", "bigint", "at_us", _IS_INCIDENT),
}

_NOT_DELIVERED: Final = ", ".join(quoted(str(kind)) for kind in (Kind.ACK, Kind.SIGNAL, Kind.DEAD_LETTER))
_PLACE: Final = place_of("node", "epoch", "seq")
_WHAT: Final = f"""case
  when kind = '{Kind.ACK}' then case
    when ack_type is null or acked_by_node is null then null
    when acked_by_node <> node then {_FORGED}
    when ack_type = '{AckType.ACCEPTED}' then {_ACCEPTED}
    when ack_type = '{AckType.FAILED_TERMINAL}' then {_FAILED}
    else {_PROCESSED} end
  when kind = '{Kind.REPLY}' then {_REPLIED}
  when kind = '{Kind.DEAD_LETTER}' then {_DEAD}
  when kind = '{Kind.SIGNAL}' and signal = {quoted(STATUS_REQUEST)} then {_INCIDENT} end"""
_WHO: Final = f"""case
  when kind = '{Kind.ACK}' then acked_by_agent
  when kind = '{Kind.REPLY}' then source_agent
  else dead_for_agent end"""


def narrow(bronze: DataFrame) -> DataFrame:
    """A narrow row for each recipient of each send, and for each event that says what became of a delivery."""
    return _sends(bronze).unionByName(_answers(bronze))


def partials(rows: DataFrame, *key: str) -> DataFrame:
    """One row for each leg out of narrow rows. `key` are columns besides that belong to the key."""
    return merging.gather(rows, (*key, *KEY), COLUMNS)


def merge(rows: DataFrame, *key: str) -> DataFrame:
    """One row for each leg out of any number of rows for it."""
    return merging.merge(rows, (*key, *KEY), COLUMNS)


def _sends(bronze: DataFrame) -> DataFrame:
    sent = bronze.where(f"kind not in ({_NOT_DELIVERED})")
    return sent.selectExpr("*", "posexplode(to_agents) as (nth, recipient)").selectExpr(
        "event_hour as hour",
        "event_id",
        "recipient",
        f"{name_hash('get(to_nodes, nth)')} as gateway",
        f"{_SENT} as what",
        "created_us as at_us",
        f"{name_hash('node')} as source",
        f"{_PLACE} as place",
        f"{code_of('kind', KINDS)} as code",
        "expires_us as until_us",
        "deadline_us",
        f"least(attempt, {_MOST_ATTEMPTS}) as attempt",
        f"{bits_of('route_decision', ROUTES)} as routes",
        f"{name_hash('capability_id')} as capability",
    )


def _answers(bronze: DataFrame) -> DataFrame:
    kinds = ", ".join(quoted(str(kind)) for kind in (Kind.ACK, Kind.REPLY, Kind.SIGNAL, Kind.DEAD_LETTER))
    said = bronze.where(f"kind in ({kinds}) and ref_event_id is not null").selectExpr(
        "ref_hour as hour",
        "ref_event_id as event_id",
        f"{_WHO} as recipient",
        f"{name_hash('node')} as gateway",
        f"{_WHAT} as what",
        "coalesce(acked_us, ended_us, created_us) as at_us",
        "cast(null as bigint) as source",
        f"{_PLACE} as place",
        f"{code_of('reason', DEAD_REASONS, other=OTHER_REASON)} as code",
        "eta_us as until_us",
        "cast(null as bigint) as deadline_us",
        "cast(null as int) as attempt",
        "cast(null as int) as routes",
        "cast(null as bigint) as capability",
    )
    return said.where("recipient is not null and what is not null")
