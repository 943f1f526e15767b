"""What a command writes to, and what it does once nobody reads that any more, as after `| head -1`."""

import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from agentpost.protocol.errors import Code, Refusal

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["NOBODY_READS", "end_when_nobody_reads"]

# 128 and the number of SIGPIPE: what a shell says of a program that ended so. Python ignores the signal itself, since
# it would also end a program whose socket was closed.
NOBODY_READS: Final = 141


class _Watched(io.FileIO):
    """A file whose reader may go away. The command ends then, without a word: there is nobody to hear one."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._go_nowhere()
            # Neither an error nor anybody's to catch: it passes through libraries and event loops as Ctrl-C does.
            raise SystemExit(NOBODY_READS) from None
        except OSError as error:
            self._go_nowhere()
            raise Refusal(
                Code.STORAGE_FULL,
                f"what the command has to say cannot be written: {error.strerror}",
                hint="Only that is lost; what it was to do is done. Free space where its output goes.",
            ) from None

    def _go_nowhere(self) -> None:
        """What is still to be written, at the end of the process at the latest, has to go somewhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def end_when_nobody_reads() -> None:
    """From now on a command ends quietly when the reader of its output has gone, whichever way it prints."""
    sys.stdout, sys.stderr = _watched(sys.stdout), _watched(sys.stderr)


def _watched(stream: TextIO) -> TextIO:
    # A program can be started without one of them; Python has none then.
    if stream is None:  # pyright: ignore[reportUnnecessaryComparison]
        return stream
    file = io.BufferedWriter(_Watched(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(
        file, encoding=stream.encoding, errors=stream.errors, line_buffering=getattr(stream, "line_buffering", False)
    )
