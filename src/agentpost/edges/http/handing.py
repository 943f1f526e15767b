"""Answers that hand over mail: it is the caller's once it has the answer, and not before (`delivery.hand_over`)."""

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from litestar.response import Stream

from agentpost.delivery.hand_over import HandOver
from agentpost.edges.http.patience import Connection

__all__ = ["belongs_to", "held_answer"]

_LINES: Final = "application/x-ndjson"


def belongs_to(connection: Connection, handed: HandOver | None) -> None:
    """Tie mail to the answer of this request: it is taken when that was read, and given back when it was not."""
    if handed is not None and not handed.done.is_set():
        connection.tell(delivered=handed.took_all, lost=handed.connection_lost)


def held_answer(connection: Connection, answer: Any, handed: HandOver | None) -> Any:
    """The answer as one line of JSON. It stays open for as long as mail in it belongs to this connection."""
    if handed is not None:
        handed.is_held_open = True
        connection.tell(delivered=handed.took_all, lost=handed.connection_lost)
    return Stream(_lines(msgspec.json.encode(answer), handed), media_type=_LINES)


async def _lines(answer: bytes, handed: HandOver | None) -> AsyncGenerator[bytes]:
    yield answer + b"\n"
    if handed is not None:
        await handed.done.wait()
