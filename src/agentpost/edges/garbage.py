"""The garbage collector of a process that runs for long: it need not look at what stays until the end."""

import gc
from typing import Final

__all__ = ["spare_what_stays"]

# A message makes some dozens of objects that are gone with it: a look after every few messages finds next to nothing.
_OBJECTS_A_LOOK: Final = 20_000


def spare_what_stays() -> None:
    """To be called once, when everything is loaded and has started: modules, classes and the parts of the gateway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_A_LOOK, 10, 10)
