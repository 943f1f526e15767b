"""One row for each (event, recipient), folded from its legs: only gateways that were asked are heard.

A gateway was asked if a send names it. Where no send names any, whoever answers is heard. How a delivery ended is told
by its sender's gateway alone.
"""

from collections.abc import Iterator
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from agentpost.pipeline.codes import outbox_of_place
from agentpost.pipeline.gold.lifecycle_sql import end_state, heard_us, sla_due_us
from agentpost.pipeline.params import Params

__all__ = ["KEY", "fold"]

KEY: Final = ("hour", "event_id", "recipient")
_FIRST: Final = "least(outcome_place, reply_place)"
# An outcome without an accept before it in the same outbox. In another outbox, places say nothing of before and after.
_UNACCEPTED: Final = (
    f"{_FIRST} is not null and (accept_place is null"
    f" or ({outbox_of_place('accept_place')} = {outbox_of_place(_FIRST)} and accept_place > {_FIRST}))"
)
_OF_SENDS: Final = {
    "sends": "sum(sends)",
    "attempt_bits": "bit_or(attempt_bits)",
    "kind": "max(kind)",
    "capability": "max(capability)",
    "routes": "bit_or(routes)",
    "source": "max(source)",
    "emitted_us": "min(emitted_us)",
    "expires_us": "max(expires_us)",
    "deadline_us": "max(deadline_us)",
    "send_place": "min(send_place)",
    "last_send_place": "max(last_send_place)",
    "to": "max_by(gateway, last_send_place) filter (where gateway is not null and sends is not null)",
}
_OF_FORGERS: Final = {
    "forged": "sum(forged)",
    "forged_us": "min(forged_us)",
    "forged_place": "min(forged_place)",
    "forged_by": "min_by(gateway, forged_place) filter (where forged_place is not null)",
}
# What is said by those who were asked, and by those who were not: value, and which legs have one.
_SAID: Final = {
    "accepts": ("sum(accepts)", "accepts is not null"),
    "accepted_us": ("min(accepted_us)", "accepts is not null"),
    "accepted_by": ("min_by(gateway, accepted_us)", "accepts is not null"),
    "accept_place": ("min_by(accept_place, accepted_us)", "accepts is not null"),
    "eta_us": ("max_by(eta_us, eta_said_us)", "eta_us is not null"),
    "failures": ("sum(failures)", "failures is not null"),
    "outcome_us": ("min(outcome_us)", "outcomes is not null"),
    "outcome_place": ("min_by(outcome_place, outcome_us)", "outcomes is not null"),
    "outcome_by": ("min_by(gateway, outcome_us)", "outcomes is not null"),
    "replied_us": ("min(replied_us)", "replies is not null"),
    "reply_place": ("min_by(reply_place, replied_us)", "replies is not null"),
    "reply_by": ("min_by(gateway, replied_us)", "replies is not null"),
    "unaccepted_place": (f"min({_FIRST})", _UNACCEPTED),
    "unaccepted_by": (f"min_by(gateway, {_FIRST})", _UNACCEPTED),
}
# The first word of those who were not asked, of whatever kind.
_WORD: Final = "least(accept_place, outcome_place, reply_place)"
_FIRST_WORDS: Final = {
    "u_first_place": f"min({_WORD}) filter (where sends is null)",
    "u_first_by": f"min_by(gateway, {_WORD}) filter (where sends is null and {_WORD} is not null)",
    "u_first_us": "min(least(accepted_us, outcome_us, replied_us)) filter (where sends is null)",
}
_ENDS: Final = ("dead_us", "dead_reason", "dead_place", "incident_us")


def fold(legs: DataFrame, params: Params, *key: str) -> DataFrame:
    """Every delivery that was sent, or spoken of. `key` are columns besides that the legs are distributed by."""
    by = [*key, *KEY]
    rows = legs.groupBy(*by).agg(*[sf.expr(text).alias(name) for name, text in _aggregates()])
    # The few legs that tell of an end. They count where their gateway is the sender's.
    ends = legs.where("dead_us is not null or incident_us is not null").selectExpr(
        *[f"{name} as end_{name}" for name in by], "gateway as ended_by", *_ENDS
    )
    same = " and ".join(f"{name} = end_{name}" for name in by) + " and source = ended_by"
    told = rows.join(ends.hint("shuffle_hash"), sf.expr(same), how="left")
    is_open = "sends is not null and asked = 0"
    heard = [f"if({is_open}, u_{name}, a_{name}) as {name}" for name in _SAID]
    strange = "sends is not null and asked > 0 and u_first_place is not null"
    chosen = told.selectExpr(
        *by, *_OF_SENDS, *_OF_FORGERS, *heard, f"{strange} as has_strangers", *_FIRST_WORDS, *_ENDS
    )
    return chosen.selectExpr(
        "*",
        f"{heard_us()} as heard_us",
        f"{sla_due_us(params)} as sla_due_us",
        f"{end_state(params)} as end_code",
    )


def _aggregates() -> Iterator[tuple[str, str]]:
    yield from _OF_SENDS.items()
    yield from _OF_FORGERS.items()
    yield "asked", "count(gateway) filter (where sends is not null)"
    for prefix, was_asked in (("a", "sends is not null"), ("u", "sends is null")):
        for name, (text, where) in _SAID.items():
            yield f"{prefix}_{name}", f"{text} filter (where {was_asked} and {where})"
    for name, text in _FIRST_WORDS.items():
        yield name, text
