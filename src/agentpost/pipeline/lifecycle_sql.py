"""The state of a delivery (RTY-6) as expressions over the columns of `silver.deliveries`.

The sender's gateway walks `protocol.lifecycle.DELIVERY` with signals in the order in which it hears them, and its ends
stay. The lake has the signals and not that order, so it is put together again:

- A dead letter stands in the sender's own outbox, written with the move: it is the end, whatever was said elsewhere,
  before or after. The sender had not heard of it. The same holds for the status request of a missed SLA.
- `processed` and a reply stand in the outbox of the recipient's gateway, which the sender reads in the order of seq:
  the lower seq came first. If a restored gateway said them in two epochs, the time decides.
- An outcome that was said after the SLA had run out came too late: the sender's timer was first. Here the recipient's
  clock is held against the SLA, so for an outcome within a second or so of the limit the two may disagree.
- No event says that an ACK timed out, nor when a resend was made: what is older than the timeout and unanswered counts
  as RetryPending, also where the sender knows that the gateway is away and waits.
- What a gateway says that was never asked is not heard (`wrong_acker`).

A test walks the real table with every order of signals and compares.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import KINDS, ROUTES, STATES, is_any, outbox_of_place
from agentpost.pipeline.params import Params
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind

__all__ = ["end_state", "is_accepted", "was_asked", "is_answered", "is_ended_by_sender", "sla_due_us", "state_at"]

_ASKING: Final = tuple(KINDS[kind] for kind in (Kind.MESSAGE, Kind.TASK_CREATE, Kind.TASK_ACCEPT))
_LONGEST_ETA_US: Final = 365 * 86_400 * 1_000_000


def is_accepted() -> Column:
    """Whether a gateway that was asked has accepted it, or has said something that implies it."""
    return _is_heard("accepted_us", "accepted_by") | is_answered()


def is_answered() -> Column:
    return _is_heard("outcome_us", "outcome_by") | _is_heard("replied_us", "outcome_by")


def sla_due_us(params: Params) -> Column:
    """Until when an accepted delivery has to have an outcome (ACK-4): its ETA, its deadline, or the SLA, and grace.

    Null for what asks for nothing, as `delivery.policy.has_sla` says: answers, and what gateways themselves report.
    """
    accepted = sf.col("accepted_us")
    is_task = sf.col("kind") == KINDS[Kind.TASK_CREATE]
    promised = sf.coalesce(
        sf.col("eta_us"), sf.when(is_task, sf.col("deadline_us")), accepted + sf.lit(params.processed_sla_us)
    )
    bounded = sf.least(sf.greatest(promised, accepted), accepted + sf.lit(_LONGEST_ETA_US))
    is_report = sf.coalesce(sf.col("routes"), sf.lit(0)).bitwiseAND(sf.lit(ROUTES["report"])) != sf.lit(0)
    is_asking = is_any(sf.col("kind"), _ASKING) & ~is_report
    return sf.when(accepted.isNotNull() & is_asking, bounded + sf.lit(params.sla_grace_us))


def is_ended_by_sender() -> Column:
    """Whether the sender's own gateway gave it up, or asked for its status: nobody else can end a delivery."""
    return sf.col("source").isin(sf.col("ended_by_min"), sf.col("ended_by_max"))


def end_state(params: Params) -> Column:
    """The code of the end that it came to, as far as the lake knows; null while it is open."""
    outcome, reply = _heard("outcome_us"), _heard("replied_us")
    is_same_outbox = outbox_of_place(sf.col("outcome_place")) == outbox_of_place(sf.col("reply_place"))
    reply_was_first = sf.when(is_same_outbox, sf.col("reply_place") < sf.col("outcome_place")).otherwise(
        reply < outcome
    )
    return (
        sf.when(sf.col("dead_us").isNotNull() & is_ended_by_sender(), _code(DeliveryState.DEAD_LETTER))
        .when(sf.col("incident_us").isNotNull() & is_ended_by_sender(), _code(DeliveryState.INCIDENT))
        .when(sf.least(outcome, reply) > sla_due_us(params), _code(DeliveryState.INCIDENT))
        .when(outcome.isNull() & reply.isNotNull(), _code(DeliveryState.REPLIED))
        .when(outcome.isNotNull() & reply.isNull(), _code(DeliveryState.PROCESSED))
        .when(
            outcome.isNotNull(),
            sf.when(reply_was_first, _code(DeliveryState.REPLIED)).otherwise(_code(DeliveryState.PROCESSED)),
        )
    )


def state_at(params: Params) -> Column:
    """The state at `params.now_us`, over the columns of the gold table `lifecycle`."""
    now, accepted = sf.lit(params.now_us), sf.col("accepted_us").isNotNull()
    timed_out = sf.col("emitted_us") + sf.lit(params.ack_timeout_us) < now
    return (
        sf.when(sf.col("end_state").isNotNull(), sf.col("end_state"))
        .when(accepted & (sf.col("sla_due_us") < now), sf.lit(str(DeliveryState.INCIDENT)))
        .when(accepted, sf.lit(str(DeliveryState.ACCEPTED)))
        .when(timed_out, sf.lit(str(DeliveryState.RETRY_PENDING)))
        .otherwise(sf.lit(str(DeliveryState.EMITTED)))
    )


def _is_heard(at: str, by: str) -> Column:
    """Whether it was said by somebody who was asked. Where that is open, whoever answers first is right."""
    return sf.col(at).isNotNull() & (was_asked(sf.col(f"{by}_min")) | was_asked(sf.col(f"{by}_max")))


def was_asked(gateway: Column) -> Column:
    """Whether a send names this gateway, or none of them names any."""
    return sf.col("to_min").isNull() | gateway.isin(sf.col("to_min"), sf.col("to_max"))


def _heard(at: str) -> Column:
    return sf.when(_is_heard(at, "outcome_by"), sf.col(at))


def _code(state: DeliveryState) -> Column:
    return sf.lit(STATES[state])
