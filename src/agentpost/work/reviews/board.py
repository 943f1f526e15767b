"""The review queue of the room, `coordination.skillReviewQueue` (CAP-6). Only the coordinator writes it.

One item stands for one cause. A second item about the same cause adds its samples to the first; what was closed stays
closed for the cases that were known then, and opens again, under a new id, for one that came later.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.reviews import MAX_SAMPLES, ReviewItem, cause_of, time_of
from agentpost.room.document import Room
from agentpost.room.records import Record, is_removed

__all__ = ["ReviewBoard"]

_MAP: Final = "coordination"
_PREFIX: Final = "skillReviewQueue:"
_SIGNATURE: Final = ("signedBy", "rev", "sig")
# A fleet with so many causes at once has one cause, and a person has to look at that.
_MOST_OPEN: Final = 1_000


class ReviewBoard:
    def __init__(self, room: Room) -> None:
        self._room = room

    def items(self, capability_id: str | None = None) -> list[ReviewItem]:
        """What is open, the oldest first."""
        found = [_item(record) for _, record in self._records() if not is_removed(record)]
        wanted = [item for item in found if capability_id in (None, item.capability_id)]
        return sorted(wanted, key=lambda item: item.review_id)

    def get(self, review_id: str) -> ReviewItem:
        record = self._room.record(_MAP, _PREFIX + review_id)
        if record is None or is_removed(record):
            raise Refusal(
                Code.NOT_FOUND,
                f"there is no open review {review_id!r:.60}",
                field="reviewId",
                hint="See which there are: agentpost review list.",
            )
        return _item(record)

    def open_about(self, cause: str) -> ReviewItem | None:
        """The open item about a cause, by the end of its id."""
        return next((item for item in self.items() if cause_of(item.review_id) == cause), None)

    def is_known(self, review_id: str) -> bool:
        """Whether an item about these cases stands here or was closed."""
        cause = cause_of(review_id)
        return self.open_about(cause) is not None or self._closed_since(cause, time_of(review_id))

    def put(self, item: ReviewItem) -> bool:
        """Add an item, or its samples to the one about the same cause. False if it says nothing new.

        Refused with `write_denied` where another node is the coordinator.
        """
        cause = cause_of(item.review_id)
        present = self.open_about(cause)
        if present is not None:
            samples = tuple(dict.fromkeys((*present.sample_corr_ids, *item.sample_corr_ids)))[:MAX_SAMPLES]
            if samples == present.sample_corr_ids:
                return False
            return self._write(replace(present, sample_corr_ids=samples))
        if self._closed_since(cause, time_of(item.review_id)):
            return False
        if len(self.items()) >= _MOST_OPEN:
            raise Refusal(Code.TOO_LARGE, f"{_MOST_OPEN} reviews are open", hint="Close some: agentpost review close.")
        return self._write(item)

    def close(self, review_id: str) -> ReviewItem:
        """Take an item off the queue: somebody looked into it."""
        item = self.get(review_id)
        self._room.remove(_MAP, _PREFIX + review_id)
        return item

    def _write(self, item: ReviewItem) -> bool:
        return self._room.write(_MAP, _PREFIX + item.review_id, msgspec.to_builtins(item))

    def _closed_since(self, cause: str, at_ms: int) -> bool:
        """Whether an item about this cause was closed at that time or later. `rev` is when it was."""
        return any(
            is_removed(record) and cause_of(key) == cause and record["rev"] >= at_ms for key, record in self._records()
        )

    def _records(self) -> list[tuple[str, Record]]:
        return [(key, each) for key, each in self._room.records(_MAP).items() if key.startswith(_PREFIX)]


def _item(record: Record) -> ReviewItem:
    return msgspec.convert({name: each for name, each in record.items() if name not in _SIGNATURE}, ReviewItem)
