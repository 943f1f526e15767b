"""Sums over rows: what a row was when it was written, for rows that no hash chain covers. Pure."""

from zlib import crc32

__all__ = ["inbox_head", "inbox_seed", "inbox_sum", "task_event_sum"]


def inbox_seed(source_node_id: str, source_epoch: str, received_at_ms: int) -> int:
    """The sum of what the rows of a batch have in common."""
    return crc32(f"{source_node_id}\0{source_epoch}\0{received_at_ms}".encode())


def inbox_head(event_id: str, seq: int, source_seq: int, corr_id: str) -> bytes:
    """What a row has alone beside its event: 30 bytes of event id, 20 of seq, 20 of the source's seq, 31 of corrId."""
    return f"{event_id}{seq:020d}{source_seq:020d}{corr_id:31}".encode()


def inbox_sum(seed: int, head: bytes, body: bytes) -> int:
    return crc32(body, crc32(head, seed))


def task_event_sum(task_id: str, event_id: str, *, is_own: bool, at_ms: int, body: bytes) -> int:
    return crc32(body, crc32(f"{task_id}\0{event_id}\0{int(is_own)}\0{at_ms}".encode()))
