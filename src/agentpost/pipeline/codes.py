"""Kinds, states and reasons as small numbers, and where an event stands as one number.

The aggregates over all events touch nothing but numbers: a minimum of texts would cost Spark its hash aggregate, and
two to three times the time. Codes are written into tables: they may be added to, never changed.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from agentpost.pipeline.places import OUTBOX_MASK, SEQ_BITS, SEQ_MASK
from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind
from agentpost.protocol.routing import Decision

__all__ = [
    "DEAD_REASONS",
    "KINDS",
    "OTHER_REASON",
    "ROUTES",
    "STATES",
    "bits_of",
    "code_of",
    "is_any",
    "name_hash",
    "outbox_code",
    "outbox_of_place",
    "place_of",
    "seq_of_place",
    "text_of",
    "texts_of_bits",
]

KINDS: Final[Mapping[str, int]] = {
    Kind.MESSAGE: 1,
    Kind.ACK: 2,
    Kind.REPLY: 3,
    Kind.TASK_CREATE: 4,
    Kind.TASK_ACCEPT: 5,
    Kind.TASK_UPDATE: 6,
    Kind.TASK_COMPLETE: 7,
    Kind.TASK_FAILED: 8,
    Kind.SIGNAL: 9,
    Kind.DEAD_LETTER: 10,
}
STATES: Final[Mapping[str, int]] = {
    DeliveryState.EMITTED: 1,
    DeliveryState.RETRY_PENDING: 2,
    DeliveryState.ACCEPTED: 3,
    DeliveryState.PROCESSED: 4,
    DeliveryState.REPLIED: 5,
    DeliveryState.INCIDENT: 6,
    DeliveryState.DEAD_LETTER: 7,
}
DEAD_REASONS: Final[Mapping[str, int]] = {"max_attempts": 1, "expired": 2, "no_route": 3, "event_missing": 4}
OTHER_REASON: Final = 9
# Bits: an event with several recipients may have been routed in several ways.
ROUTES: Final[Mapping[str, int]] = {
    Decision.OWNER: 1,
    Decision.FALLBACK: 2,
    Decision.WAIT: 4,
    Decision.UNROUTABLE: 8,
    "answer": 16,
    "report": 32,
}


def code_of(text: Column, codes: Mapping[str, int], *, other: int | None = None) -> Column:
    """The number of a text; null for null, `other` for one that is not known."""
    chosen = sf.when(text.isNull(), sf.lit(None).cast("int"))
    for name, code in codes.items():
        chosen = chosen.when(text == sf.lit(str(name)), sf.lit(code))
    return chosen.otherwise(sf.lit(other).cast("int"))


def text_of(code: Column, codes: Mapping[str, int], *, other: str | None = None) -> Column:
    """The text of a number; null for null, `other` for one that is not known."""
    chosen = sf.when(code.isNull(), sf.lit(None).cast("string"))
    for name, number in codes.items():
        chosen = chosen.when(code == sf.lit(number), sf.lit(str(name)))
    return chosen.otherwise(sf.lit(other).cast("string"))


def is_any(value: Column, wanted: Iterable[str | int]) -> Column:
    """Whether it is one of a few: compared one by one. `isin` would look into a set of objects, for every row."""
    return reduce(lambda one, other: one | other, [value == sf.lit(each) for each in wanted])


def bits_of(texts: Column, codes: Mapping[str, int]) -> Column:
    """The bits of all names that a text holds, as `fallback,owner`; null for null."""
    bits = sf.lit(0)
    for name, bit in codes.items():
        bits = bits.bitwiseOR(sf.when(texts.contains(str(name)), sf.lit(bit)).otherwise(sf.lit(0)))
    return sf.when(texts.isNotNull(), bits)


def texts_of_bits(bits: Column, codes: Mapping[str, int]) -> Column:
    """The names of all bits that are set, joined by commas."""
    names = [sf.when(bits.bitwiseAND(sf.lit(bit)) != 0, sf.lit(str(name))) for name, bit in sorted(codes.items())]
    # Nearly always it is one.
    return sf.coalesce(text_of(bits, codes), sf.when(bits.isNotNull(), sf.concat_ws(",", *names)))


def name_hash(name: Column) -> Column:
    """A node, an agent or another short name as a number; null for null and for the empty name."""
    return sf.when(name != sf.lit(""), sf.xxhash64(name))


def place_of(node: Column, epoch: Column, seq: Column) -> Column:
    """Where an event stands: its outbox and its seq."""
    return sf.shiftleft(outbox_code(node, epoch), SEQ_BITS).bitwiseOR(seq)


def outbox_code(node: Column, epoch: Column) -> Column:
    return sf.xxhash64(node, epoch).bitwiseAND(sf.lit(OUTBOX_MASK))


def outbox_of_place(place: Column) -> Column:
    return sf.shiftright(place, SEQ_BITS)


def seq_of_place(place: Column) -> Column:
    return place.bitwiseAND(sf.lit(SEQ_MASK))
