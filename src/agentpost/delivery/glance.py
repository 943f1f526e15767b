"""What a list shows of content: what can be opened without holding everybody else up.

A list has many messages, and the loop that opens them serves all. Content that is not in its event may have 64 MiB, so
of that a list opens what begins within the bound of an answer; the rest is there for whoever reads the message itself.
"""

from collections.abc import Callable

from agentpost.delivery.ports import Content
from agentpost.delivery.sealing import MOST_ANSWER_BYTES
from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Refusal

__all__ = ["Glance"]


class Glance:
    """Opens content for one list. What does not open says why: the list is still a list."""

    def __init__(self, open_content: Callable[[Event], Content]) -> None:
        self._open_content = open_content
        self._room_bytes = MOST_ANSWER_BYTES

    def open(self, event: Event) -> tuple[Content, str | None]:
        """The content, or none of it and the reason."""
        ref = event.payload_ref
        if ref is not None:
            if self._room_bytes <= 0:
                return Content(), f"large ({ref.size_bytes:,} bytes): a list does not open it"
            self._room_bytes -= ref.size_bytes
        try:
            return self._open_content(event), None
        except Refusal as refusal:
            return Content(), refusal.message
