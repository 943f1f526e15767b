"""What Spark, or the disk under it, says when it fails, as a refusal: one sentence, not the stacks of two languages."""

import contextlib
import errno
import re
from collections.abc import Generator
from typing import Final

from agentpost.protocol.errors import Code, Refusal

__all__ = ["cause_of", "in_our_words"]

# In what Spark says the causes come last, those of Python workers as well.
_CAUSE: Final = re.compile(
    r"^(?:Caused by: )?((?:[\w$]+\.)*[\w$]*(?:Error|Exception|Refusal|Killed)\b.*)$", re.MULTILINE
)
_LONGEST: Final = 300
_AGAIN: Final = (
    "Nothing was changed: run it again. `agentpost pipeline run --full` builds all tables anew from the lake."
)


@contextlib.contextmanager
def in_our_words() -> Generator[None]:
    """Turns what goes wrong inside a `with` into a refusal."""
    from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.errors import PySparkException

    try:
        yield
    except BrokenPipeError:
        # Whoever read the output went away.
        raise
    except (Py4JError, PySparkException) as problem:
        said = cause_of(str(problem))
        if "No space left on device" in said:
            raise _full(said) from None
        raise Refusal(Code.INTERNAL, f"Spark failed: {said}", hint=_AGAIN) from None
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            raise _full(str(problem)) from None
        raise Refusal(Code.STORAGE_FAILED, str(problem)[:_LONGEST], hint=_AGAIN) from None


def cause_of(text: str) -> str:
    """The last cause that a failure names; its first line, if it names none."""
    causes = [match[1] for match in _CAUSE.finditer(text)]
    first = text.strip().partition("\n")[0]
    return (causes[-1] if causes else first)[:_LONGEST]


def _full(said: str) -> Refusal:
    return Refusal(Code.STORAGE_FULL, said, hint=f"Make room. {_AGAIN}")
