"""When a payload may go: nobody has needed it for longer than the grace (PIPE-7). Pure; both stores decide by it."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from agentpost.store.values import PrunedPayloads

__all__ = ["MOST_BYTES_A_STEP", "KnownPayload", "Verdicts", "judge_payloads"]

# What one transaction drops, or a single payload: other writes wait meanwhile.
MOST_BYTES_A_STEP: Final = 16 * 1024 * 1024


class KnownPayload(Struct, frozen=True, kw_only=True):
    """A payload that is here, or that somebody has named. `size_bytes` is None for one that is not here."""

    sha256: str
    size_bytes: int | None
    unneeded_since_ms: int | None
    is_needed: bool


class Verdicts(Struct, frozen=True, kw_only=True):
    """What to do in this step. A mark says since when a payload is unneeded; None takes the mark away."""

    drop: list[str]
    mark: dict[str, int | None]
    pruned: PrunedPayloads


def judge_payloads(known: Sequence[KnownPayload], *, now_ms: int, grace_ms: int, limit: int) -> Verdicts:
    """Decide about one page of payloads, in the order of their addresses; `limit` is how many a page has."""
    drop: list[str] = []
    mark: dict[str, int | None] = {}
    payloads = size_bytes = 0
    through = known[-1].sha256 if known and len(known) >= limit else None
    for payload in known:
        since_ms = _unneeded_since_ms(payload, now_ms)
        # Its event may be about to be appended, or somebody at fetching it.
        if since_ms is None or now_ms - since_ms < grace_ms:
            if since_ms != payload.unneeded_since_ms:
                mark[payload.sha256] = since_ms
            continue
        drop.append(payload.sha256)
        if payload.size_bytes is not None:
            payloads, size_bytes = payloads + 1, size_bytes + payload.size_bytes
            if size_bytes >= MOST_BYTES_A_STEP:
                through = payload.sha256
                break
    pruned = PrunedPayloads(payloads=payloads, size_bytes=size_bytes, through_sha256=through)
    return Verdicts(drop=drop, mark=mark, pruned=pruned)


def _unneeded_since_ms(payload: KnownPayload, now_ms: int) -> int | None:
    if payload.is_needed:
        return None
    marked_ms = payload.unneeded_since_ms
    # A mark of a time to come was made by a clock that was wrong: it counts from now on.
    return now_ms if marked_ms is None else min(marked_ms, now_ms)
