"""One entry of a legacy map: id, from, to, content, timestamp, readBy. Pure.

They were written by several programs over time, so they are read leniently: numbers or texts as times, a name or a list
as recipients. What cannot be read is told with its reason; nothing is passed over in silence.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import parse_ms

__all__ = ["EVERYONE", "LegacyEntry", "LegacyMap", "read_entry"]

EVERYONE: Final = "all"
_MAX_ID: Final = 200
_MAX_NAME: Final = 128
# Above this a number of seconds would lie in the year 5138: it counts milliseconds.
_MILLISECONDS_FROM: Final = 100_000_000_000
_OVER: Final = frozenset({"completed", "complete", "done", "failed", "cancelled", "canceled", "closed"})


class LegacyMap(StrEnum):
    MESSAGES = "messages"
    TASKS = "tasks"


class LegacyEntry(Struct, frozen=True, kw_only=True):
    """`to_agents` is `("all",)` for an entry that is for everybody. `is_over` is for tasks that have ended."""

    map: LegacyMap
    id: str
    sender: str
    to_agents: tuple[str, ...]
    title: str
    content: str
    created_at_ms: int
    read_by: tuple[str, ...] = ()
    is_over: bool = False


def read_entry(map_name: LegacyMap, key: str, value: object) -> LegacyEntry:
    """The entry that a value makes; a refusal that says what is wrong with it if it makes none."""
    if not isinstance(value, Mapping):
        raise _refused(map_name, key, "it is no object")
    said = cast("Mapping[str, Any]", value)
    entry_id = said.get("id", key)
    sender = said.get("from", said.get("createdBy"))
    if not isinstance(entry_id, str) or not 0 < len(entry_id) <= _MAX_ID:
        raise _refused(map_name, key, "its id is no text")
    if not isinstance(sender, str) or not 0 < len(sender) <= _MAX_NAME:
        raise _refused(map_name, key, "it does not say who it is from")
    content = said.get("content", said.get("description", ""))
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    title = said.get("title") or said.get("subject") or text.strip().split("\n", 1)[0]
    return LegacyEntry(
        map=map_name,
        id=entry_id,
        sender=sender,
        to_agents=_names(map_name, key, said.get("to", said.get("assignedTo"))) or (EVERYONE,),
        title=str(title)[:200],
        content=text,
        created_at_ms=_time(map_name, key, said.get("timestamp", said.get("createdAt"))),
        read_by=_names(map_name, key, said.get("readBy")),
        is_over=str(said.get("status", "")).lower() in _OVER,
    )


def _names(map_name: LegacyMap, key: str, value: object) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, Mapping):
        # Some writers kept a set as an object: the names are its keys.
        value = [name for name, is_in in cast("Mapping[str, object]", value).items() if is_in]
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple):
        raise _refused(map_name, key, "its names are no list")
    names = [str(each) for each in cast("list[object]", several)]
    if any(not 0 < len(name) <= _MAX_NAME for name in names):
        raise _refused(map_name, key, "one of its names is empty or too long")
    return (EVERYONE,) if EVERYONE in names or "*" in names else tuple(dict.fromkeys(names))


def _time(map_name: LegacyMap, key: str, value: object) -> int:
    if isinstance(value, bool) or value is None:
        raise _refused(map_name, key, "it has no time")
    if isinstance(value, int | float):
        if not 0 <= value < 1e15:
            raise _refused(map_name, key, "its time is out of range")
        return int(value if value >= _MILLISECONDS_FROM else value * 1000)
    try:
        return parse_ms(str(value))
    except Refusal:
        raise _refused(map_name, key, "its time cannot be read") from None


def _refused(map_name: LegacyMap, key: str, problem: str) -> Refusal:
    return Refusal(Code.INVALID_FIELD, f"{map_name}.{key[:80]}: {problem}", field=f"{map_name}.{key[:80]}")
