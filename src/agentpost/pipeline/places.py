"""Where an event stands, as one number: 23 bits of a hash over (node, epoch), 40 of the seq. Pure.

It sorts by seq within an outbox. Whoever turns it back into names looks the outbox up among those of the node in
question, so that two of them would have to share a node and 23 bits to be taken for each other.
"""

from typing import Final

__all__ = ["OUTBOX_MASK", "SEQ_BITS", "SEQ_MASK"]

SEQ_BITS: Final = 40
SEQ_MASK: Final = (1 << SEQ_BITS) - 1
OUTBOX_MASK: Final = (1 << 23) - 1
