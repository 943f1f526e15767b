"""Times on the data plane: RFC 3339 in UTC with milliseconds, and epoch milliseconds inside.

Pure: nothing here asks for the time. Text of this form sorts like the times it stands for.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from agentpost.protocol.errors import Code, Refusal

__all__ = ["format_ms", "is_timestamp", "parse_ms"]

_LATEST_MS: Final = 253_402_300_799_999  # the last millisecond of the year 9999


@lru_cache(maxsize=1024)
def _second_text(epoch_seconds: int) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def format_ms(epoch_ms: int) -> str:
    """`1772036530123` as `2026-02-25T16:22:10.123Z`."""
    if not 0 <= epoch_ms <= _LATEST_MS:
        raise Refusal(Code.INVALID_FIELD, "a time must lie between 1970 and 9999")
    return f"{_second_text(epoch_ms // 1000)}.{epoch_ms % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _parse(text: str) -> datetime | None:
    # What comes together was mostly said in the same few milliseconds.
    # The form is checked here because the parser of the standard library also reads week dates, offsets and, in
    # later versions, the hour 24. Times before 1970 have no epoch ms that `format_ms` would write.
    if len(text) != 24 or text[7] != "-" or text[10] != "T" or text[19] != "." or text[23] != "Z":
        return None
    if text < "1970" or (text[11] == "2" and text[12] == "4"):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def is_timestamp(text: str) -> bool:
    """Whether `text` is a time of the data plane, the calendar included (no 30th of February)."""
    return _parse(text) is not None


def parse_ms(text: str, *, field: str = "time") -> int:
    """The epoch ms of a time; a refusal that names the field if it is not one."""
    moment = _parse(text)
    if moment is None:
        raise Refusal(Code.INVALID_FIELD, f"{field} must be a time like 2026-02-25T16:22:10.123Z, in UTC", field=field)
    return round(moment.timestamp() * 1000)
