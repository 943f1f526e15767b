"""What the pipeline found, handed back to the gateways through their API (OBS-9): a repeated run adds nothing.

A finding goes to the gateway of the node that it is about, if that one is at hand, else to the first one that is.
Review items go to whichever may write the review queue. A watermark goes to the node whose outbox it is of.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from msgspec import Struct

from agentpost.protocol.reviews import MAX_SAMPLES, review_id
from agentpost.protocol.timestamps import format_ms

__all__ = ["Door", "Feedback", "Reader", "Told", "collect", "send_feedback"]

Reader: TypeAlias = Callable[[str, Sequence[str]], pa.Table | None]

PATH: Final = "/ansible/pipeline/findings"
_AT_ONCE: Final = 500
_FIELDS: Final = {
    "rule": "rule",
    "node": "node",
    "epoch": "epoch",
    "seq": "seq",
    "event_id": "eventId",
    "agent_id": "agentId",
    "corr_id": "corrId",
}


class Door(Protocol):
    """A gateway that can be reached."""

    node_id: str

    def post(self, path: str, body: dict[str, Any]) -> Any: ...


class Feedback(Struct, frozen=True, kw_only=True):
    """What there is to tell, as the API takes it. `watermarks` are by node."""

    findings: tuple[dict[str, Any], ...] = ()
    reviews: tuple[dict[str, Any], ...] = ()
    watermarks: dict[str, dict[str, Any]] = {}


class Told(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was news to one gateway."""

    node: str
    raised: int = 0
    known: int = 0
    reviews_added: int = 0
    reviews_refused: str | None = None
    keeps_above_seq: int | None = None


def collect(read: Reader) -> Feedback:
    """What a version of the tables has to tell."""
    findings = [
        {wire: row[name] for name, wire in _FIELDS.items() if row[name] not in (None, "")}
        for row in _rows(read, "integrity", _FIELDS)
    ]
    columns = ("node", "epoch", "prune_through_seq")
    watermarks = {
        row["node"]: {"epoch": row["epoch"], "throughSeq": row["prune_through_seq"]}
        for row in _rows(read, "watermarks", columns)
    }
    return Feedback(findings=tuple(findings), reviews=tuple(_reviews(read)), watermarks=watermarks)


def send_feedback(feedback: Feedback, gateways: Sequence[Door]) -> list[Told]:
    """Tell each gateway what is its own. Gives what was news to whom."""
    if not gateways:
        return []
    at_hand = {door.node_id for door in gateways}
    told: list[Told] = []
    reviews = feedback.reviews
    for place, door in enumerate(gateways):
        own = [
            finding
            for finding in feedback.findings
            if finding.get("node") == door.node_id or (place == 0 and finding.get("node") not in at_hand)
        ]
        answers = [
            door.post(PATH, {"findings": own[start : start + _AT_ONCE]}) for start in range(0, len(own), _AT_ONCE)
        ]
        rest: dict[str, Any] = {}
        if door.node_id in feedback.watermarks:
            rest["watermark"] = feedback.watermarks[door.node_id]
        answers.append(door.post(PATH, rest))
        queued = [
            door.post(PATH, {"reviews": reviews[start : start + _AT_ONCE]})
            for start in range(0, len(reviews), _AT_ONCE)
        ]
        refused = next((answer["reviewsRefused"] for answer in queued if answer.get("reviewsRefused")), None)
        if refused is None:
            reviews = ()
        told.append(
            Told(
                node=door.node_id,
                raised=sum(answer["raised"] for answer in answers),
                known=sum(answer["known"] for answer in answers),
                reviews_added=sum(answer["reviewsAdded"] for answer in queued),
                reviews_refused=refused,
                keeps_above_seq=answers[-1].get("keepsAboveSeq"),
            )
        )
    return told


def _reviews(read: Reader) -> list[dict[str, Any]]:
    columns = (
        "review_key",
        "trigger",
        "capability_id",
        "delegation_skill_version",
        "executor_skill_version",
        "failure_class",
        "sample_corr_ids",
        "first_us",
    )
    return [
        {
            "reviewId": review_id(row["review_key"], row["first_us"] // 1000),
            "capabilityId": row["capability_id"],
            "delegationSkillVersion": row["delegation_skill_version"] or "unknown",
            "executorSkillVersion": row["executor_skill_version"] or "unknown",
            "failureClass": row["failure_class"] or row["trigger"],
            "sampleCorrIds": list(row["sample_corr_ids"] or ())[:MAX_SAMPLES],
            "createdAt": format_ms(row["first_us"] // 1000),
        }
        for row in _rows(read, "reviews", columns)
    ]


def _rows(read: Reader, table: str, columns: Sequence[str] | dict[str, str]) -> list[dict[str, Any]]:
    found = read(table, list(columns))
    return [] if found is None or not found.num_columns else found.to_pylist()
