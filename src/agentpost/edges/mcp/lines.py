"""Lines of stdin that have an end: what a model's client sends is read into memory line by line."""

from io import TextIOWrapper
from typing import Final

from agentpost.protocol.errors import Code, Refusal

__all__ = ["LONGEST_LINE", "BoundedLines"]

# Far more than a model says at once.
LONGEST_LINE: Final = 32 * 1024 * 1024


class BoundedLines(TextIOWrapper):
    """Text that ends with a line that is too long: there is no telling where the next one starts.

    `refusal` says so. It is not raised: who reads is a task of the SDK, and ends well at the end of its input.
    """

    refusal: Refusal | None = None

    def readline(self, size: int = -1, /) -> str:
        if self.refusal is not None:
            return ""
        line = super().readline(LONGEST_LINE + 1 if size < 0 else size)
        if len(line) > LONGEST_LINE:
            self.refusal = Refusal(
                Code.TOO_LARGE,
                f"a line on stdin has more than {LONGEST_LINE} characters",
                hint="Each line is one message of MCP; a client starts this command by itself.",
            )
            return ""
        return line
