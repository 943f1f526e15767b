"""Kinds, states and reasons as small numbers, and where an event stands as one number: SQL text for all of it.

The aggregates over all events touch nothing but numbers: a minimum of texts would cost Spark its hash aggregate, and
two to three times the time. Codes are written into tables: they may be added to, never changed.
"""

from collections.abc import Mapping
from typing import Final

from agentpost.protocol.lifecycle import DeliveryState
from agentpost.protocol.payloads import Kind
from agentpost.protocol.routing import Decision

__all__ = [
    "DEAD_REASONS",
    "KINDS",
    "OTHER_REASON",
    "ROUTES",
    "SEQ_BITS",
    "STATES",
    "bits_of",
    "code_of",
    "name_hash",
    "outbox_code",
    "outbox_of_place",
    "place_of",
    "quoted",
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
}

# Where an event stands, as one number: 23 bits of a hash over (node, epoch), 40 of the seq. It sorts by seq within an
# outbox. Turned back into names, the outbox is looked up among those of the node in question, so that two of them would
# have to share a node and 23 bits to be taken for each other.
SEQ_BITS: Final = 40
_SEQ_MASK: Final = (1 << SEQ_BITS) - 1
_OUTBOX_MASK: Final = (1 << 23) - 1


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def code_of(text: str, codes: Mapping[str, int], *, other: int | None = None) -> str:
    """The number of a text; null for null, `other` for one that is not known."""
    chosen = " ".join(f"when {text} = {quoted(str(name))} then {code}" for name, code in codes.items())
    return f"case when {text} is null then null {chosen} else {'null' if other is None else other} end"


def text_of(code: str, codes: Mapping[str, int], *, other: str | None = None) -> str:
    """The text of a number; null for null, `other` for one that is not known."""
    chosen = " ".join(f"when {number} then {quoted(str(name))}" for name, number in codes.items())
    last = "" if other is None else f"else case when {code} is not null then {quoted(other)} end"
    return f"case {code} {chosen} {last} end"


def bits_of(texts: str, codes: Mapping[str, int]) -> str:
    """The bits of all names that a text holds, e.g. `fallback,owner`; null for null."""
    bits = " | ".join(f"if(contains({texts}, {quoted(str(name))}), {bit}, 0)" for name, bit in codes.items())
    return f"case when {texts} is not null then {bits} end"


def texts_of_bits(bits: str, codes: Mapping[str, int]) -> str:
    """The names of all bits that are set, joined by commas."""
    names = ", ".join(f"if({bits} & {bit} != 0, {quoted(str(name))}, null)" for name, bit in sorted(codes.items()))
    # Nearly always it is one.
    return f"coalesce({text_of(bits, codes)}, case when {bits} is not null then concat_ws(',', {names}) end)"


def name_hash(name: str) -> str:
    """A node, an agent or another short name as a number; null for null and for the empty name."""
    return f"case when {name} <> '' then xxhash64({name}) end"


def place_of(node: str, epoch: str, seq: str) -> str:
    """Where an event stands: its outbox and its seq."""
    return f"(shiftleft({outbox_code(node, epoch)}, {SEQ_BITS}) | {seq})"


def outbox_code(node: str, epoch: str) -> str:
    return f"(xxhash64({node}, {epoch}) & {_OUTBOX_MASK}L)"


def outbox_of_place(place: str) -> str:
    return f"shiftright({place}, {SEQ_BITS})"


def seq_of_place(place: str) -> str:
    return f"({place} & {_SEQ_MASK}L)"
