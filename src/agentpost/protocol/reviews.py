"""Review items (CAP-6): what raises one, and which of them are about the same cause. Pure.

The id of an item is a ULID whose time is that of the first case, and whose chance is a checksum of the cause. So
whoever finds a cause, a gateway or the pipeline, gives it the same end, and one look at two ids tells whether they are
about the same.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

__all__ = ["MAX_SAMPLES", "ReviewItem", "Trigger", "cause_of", "review_id", "review_key", "time_of"]

MAX_SAMPLES: Final = 16
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PREFIX: Final = "rev_"
_CAUSE_LENGTH: Final = 16

Name = Annotated[str, Meta(min_length=1, max_length=128)]


class Trigger(StrEnum):
    ETA_MISSED = "eta_missed"
    TASK_FAILED = "task_failed"
    CONTRACT_MISMATCH = "contract_mismatch"
    ROUTING_MISS = "routing_miss"


class ReviewItem(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An item as it stands in `coordination.skillReviewQueue`."""

    review_id: Annotated[str, Meta(pattern="^rev_[0-9A-HJKMNP-TV-Z]{26}$")]
    capability_id: Name
    delegation_skill_version: Name
    executor_skill_version: Name
    failure_class: Name
    sample_corr_ids: Annotated[tuple[Name, ...], Meta(max_length=MAX_SAMPLES)]
    created_at: Annotated[str, Meta(min_length=24, max_length=24)]


def review_key(trigger: str, capability_id: str, delegation_version: str | None, failure_class: str | None) -> str:
    """The cause in one word; the pipeline makes the same of its columns."""
    cause = "|".join((trigger, capability_id, delegation_version or "", failure_class or ""))
    return hashlib.sha256(cause.encode()).hexdigest()[:26]


def review_id(key: str, first_ms: int) -> str:
    """The id of an item whose cause has this key and whose first case was then."""
    value = (first_ms << 80) | int.from_bytes(hashlib.sha256(key.encode()).digest()[:10], "big")
    return _PREFIX + "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def cause_of(item_id: str) -> str:
    """What two items about the same cause have in common."""
    return item_id[-_CAUSE_LENGTH:]


def time_of(item_id: str) -> int:
    """When the first case was, in epoch ms."""
    value = 0
    for letter in item_id.removeprefix(_PREFIX)[:-_CAUSE_LENGTH]:
        value = value << 5 | _CROCKFORD.index(letter)
    return value
