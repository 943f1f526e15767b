"""The state of a delivery (RTY-6) as SQL text over the columns of `gold.deliveries`.

The sender's gateway walks `protocol.lifecycle.DELIVERY` with signals in the order in which it hears them, and its ends
stay. The lake has the signals and not that order, so it is put together again:

- A dead letter stands in the sender's own outbox, written with the move: it is the end, whatever was said elsewhere,
  before or after. The sender had not heard of it. The same holds for the status request of a missed SLA.
- `processed` and a reply stand in the outbox of the recipient's gateway, which the sender reads in the order of seq:
  the lower seq came first. If two gateways said them, the time decides.
- An outcome that was said after the SLA had run out came too late: the sender's timer was first. Here the recipient's
  clock is held against the SLA, so for an outcome within a second or so of the limit the two may disagree.
- No event says that an ACK timed out, nor when a resend was made: what is older than the timeout and unanswered counts
  as RetryPending, also where the sender knows that the gateway is away and waits.
- What a gateway says that was never asked is not heard (`wrong_acker`).

A test walks the real table with every order of signals and compares.
"""

from typing import Final

from agentpost.pipeline.codes import KINDS, STATES, outbox_of_place, quoted
from agentpost.pipeline.params import Params
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind

__all__ = ["UNKNOWN", "end_state", "heard_us", "sla_due_us", "state_at"]

# Neither open nor late: what the recipient's gateway said by then is not in the lake yet.
UNKNOWN: Final = "Unknown"
_LONGEST_ETA_US: Final = 365 * 86_400 * 1_000_000


def heard_us() -> str:
    """When a gateway that was asked accepted it, or said something that implies it."""
    return "coalesce(accepted_us, outcome_us, replied_us)"


def sla_due_us(params: Params) -> str:
    """Until when an accepted delivery has to have an outcome (ACK-4): its ETA, its deadline, or the SLA, and grace."""
    deadline = f"if(kind = {KINDS[Kind.TASK_CREATE]}, deadline_us, null)"
    promised = f"coalesce(eta_us, {deadline}, accepted_us + {params.processed_sla_us}L)"
    bounded = f"least(greatest({promised}, accepted_us), accepted_us + {_LONGEST_ETA_US}L)"
    return f"if(accepted_us is not null, {bounded} + {params.sla_grace_us}L, null)"


def end_state(params: Params) -> str:
    """The code of the end that it came to, as far as the lake knows; null while it is open."""
    is_same_outbox = f"{outbox_of_place('outcome_place')} = {outbox_of_place('reply_place')}"
    reply_was_first = f"if({is_same_outbox}, reply_place < outcome_place, replied_us < outcome_us)"
    return f"""case
      when dead_us is not null then {_code(DeliveryState.DEAD_LETTER)}
      when incident_us is not null then {_code(DeliveryState.INCIDENT)}
      when least(outcome_us, replied_us) > {sla_due_us(params)} then {_code(DeliveryState.INCIDENT)}
      when outcome_us is null and replied_us is not null then {_code(DeliveryState.REPLIED)}
      when outcome_us is not null and replied_us is null then {_code(DeliveryState.PROCESSED)}
      when outcome_us is not null then
        if({reply_was_first}, {_code(DeliveryState.REPLIED)}, {_code(DeliveryState.PROCESSED)}) end"""


def state_at(params: Params, complete_us: str) -> str:
    """The state at `params.now_us`, over the columns of the table `lifecycle`.

    `complete_us` is through when the outbox of the recipient's gateway is in the lake: what may have been answered
    after that is unknown, and not late.
    """
    timeout, now = f"emitted_us + {params.ack_timeout_us}L", f"{params.now_us}L"
    horizon = f"least({now}, coalesce({complete_us}, {now}))"
    return f"""case
      when end_state is not null then end_state
      when accepted_us is not null and sla_due_us < {horizon} then {_name(DeliveryState.INCIDENT)}
      when accepted_us is not null and sla_due_us < {now} then '{UNKNOWN}'
      when accepted_us is not null then {_name(DeliveryState.ACCEPTED)}
      when {timeout} < {horizon} then {_name(DeliveryState.RETRY_PENDING)}
      when {timeout} < {now} then '{UNKNOWN}'
      else {_name(DeliveryState.EMITTED)} end"""


def _code(state: DeliveryState) -> str:
    return str(STATES[state])


def _name(state: DeliveryState) -> str:
    return quoted(str(state))
