"""Errors in words that can be kept and sent on, whatever somebody's program raised or said. Pure."""

from typing import Final

__all__ = ["MAX_ERROR", "as_text", "told"]

# An error is for a person: its beginning says it.
MAX_ERROR: Final = 2000


def told(error: BaseException) -> str:
    """What was raised, in words; somebody's exception may not even be printable."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its name has to do
        return type(error).__name__


def as_text(said: str) -> str:
    """The beginning of it, in Unicode: the name of a file, say, may come with half surrogate pairs, which are not."""
    text = said if len(said) <= MAX_ERROR else said[: MAX_ERROR - 1] + "…"
    return text.encode("utf-8", errors="replace").decode("utf-8")
