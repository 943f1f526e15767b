"""The way to a log: each record is one line, with nothing in it that a terminal obeys. A traceback is indented below.

Reasons of peers, names and errors are logged where they come up. They are made harmless here and nowhere else: as the
record is made, so that every handler gets it so, that of a program which has a gateway inside as well.
"""

import logging
import traceback
from typing import Any, Final

from agentpost.protocol.visible import in_one_line, visible

__all__ = ["make_logs_safe"]

# A reason is a sentence. What is longer is no reason to fill the disk.
_LONGEST: Final = 4_000
_LONGEST_TRACEBACK: Final = 40_000
_INDENT: Final = "    "


def make_logs_safe(*, of_all: bool = False) -> None:
    """From now on our records are safe; with `of_all` those of all libraries in this process. Again is no harm."""
    make, covers_all = logging.getLogRecordFactory(), of_all
    if isinstance(make, _SafeRecords):
        make.covers_all = make.covers_all or of_all
    else:
        logging.setLogRecordFactory(_SafeRecords(make, covers_all=covers_all))


class _SafeRecords:
    """Makes records as they were made before, and then makes them safe."""

    def __init__(self, make: Any, *, covers_all: bool) -> None:
        self._make = make
        self.covers_all = covers_all

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **more)
        if self.covers_all or record.name.partition(".")[0] == "agentpost":
            record.msg, record.args = _message_of(record), None
            if record.exc_info and record.exc_info[0] is not None:
                # Formatters take the text that is there. Every line is indented, so none passes for a record.
                record.exc_text = _indented("".join(traceback.format_exception(*record.exc_info)))
            if record.stack_info:
                record.stack_info = _indented(record.stack_info)
        return record


def _message_of(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - a log line that is put together wrongly must not stop what it tells of
        text = f"{record.msg} {record.args!r}"
    text = text.rstrip("\n")
    return in_one_line(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)")


def _indented(text: str) -> str:
    cut = text if len(text) <= _LONGEST_TRACEBACK else f"…\n{text[-_LONGEST_TRACEBACK:]}"
    lines = visible(cut).rstrip("\n").replace("\r\n", "\n").split("\n")
    return "\n".join(_INDENT + line for line in lines)
