"""What the store in memory keeps beside its streams: the replay guard, the audit log, the room's updates, the blobs."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from agentpost.protocol.envelope import Event
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.store import rules
from agentpost.store.values import AuditEntry, Blob, NamedPayload, PayloadUsage

__all__ = ["MemoryKeeping"]


class MemoryKeeping:
    """A part of `MemoryStore`, with the one thing that all of its parts need: whether it is closed."""

    def __init__(self) -> None:
        self._closed = False
        self._seen: dict[tuple[str, bytes], int] = {}
        self._audit: list[AuditEntry] = []
        self._room_updates: list[bytes] = []
        self._blobs: dict[str, Blob] = {}
        self._chunks: dict[str, dict[int, bytes]] = {}
        # By address, reader and source.
        self._payloads: dict[tuple[str, str, str], NamedPayload] = {}
        self._payload_events: dict[str, set[EventId]] = {}
        self._unneeded_since_ms: dict[str, int] = {}

    def _check_open(self) -> None:
        if self._closed:
            raise Refusal(Code.UNAVAILABLE, "the store is closed")

    async def close(self) -> None:
        self._closed = True

    async def remember_once(self, scope: str, value: str, *, now_ms: int, expires_at_ms: int) -> bool:
        self._check_open()
        self._seen = {key: expires for key, expires in self._seen.items() if expires > now_ms}
        key = (scope, rules.replay_hash(scope, value))
        is_new = key not in self._seen
        self._seen.setdefault(key, expires_at_ms)
        return is_new

    async def record_audit(self, entries: Sequence[AuditEntry]) -> None:
        self._check_open()
        first_id = len(self._audit) + 1
        self._audit += [replace(entry, id=first_id + place) for place, entry in enumerate(_copies(entries))]

    def audit_log(self, *, after_id: int = 0, limit: int = 256) -> list[AuditEntry]:
        self._check_open()
        return _copies(self._audit[max(after_id, 0) :][:limit])

    async def append_room_update(self, update: bytes) -> None:
        self._check_open()
        self._room_updates.append(update)

    def room_updates(self) -> list[bytes]:
        self._check_open()
        return list(self._room_updates)

    async def compact_room(self, snapshot: bytes) -> None:
        self._check_open()
        self._room_updates = [snapshot]

    async def begin_blob(self, blob: Blob, *, at_ms: int) -> None:
        self._check_open()
        rules.check_blob(blob)
        self._blobs.setdefault(blob.sha256, replace(blob, complete=False))
        self._chunks.setdefault(blob.sha256, {})

    async def put_chunk(self, sha256: str, part: int, data: bytes) -> None:
        rules.check_chunk(self._expect(sha256), part, data)
        self._chunks[sha256].setdefault(part, data)

    async def complete_blob(self, sha256: str) -> None:
        blob = self._expect(sha256)
        if not blob.complete:
            held = sorted(self._chunks[sha256])
            rules.check_address(blob, held, (self._chunks[sha256][part] for part in held))
            self._blobs[sha256] = replace(blob, complete=True)

    async def drop_blob(self, sha256: str) -> None:
        self._check_open()
        self._blobs.pop(sha256, None)
        self._chunks.pop(sha256, None)

    async def name_payloads(self, payloads: Sequence[NamedPayload]) -> None:
        self._check_open()
        for payload in payloads:
            for node_id in payload.readers:
                key = (payload.sha256, node_id, payload.source_node_id)
                # An event that was sent again stands further up in its mirror.
                before = self._payloads.setdefault(key, payload)
                self._payloads[key] = replace(before, seq=max(before.seq, payload.seq))

    def may_read_payload(self, sha256: str, node_id: str) -> bool:
        self._check_open()
        return any(key[:2] == (sha256, node_id) for key in self._payloads)

    def _name_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.payload_ref is not None:
                self._payload_events.setdefault(event.payload_ref.sha256, set()).add(event.event_id)

    def payloads(self, *, after_sha256: str = "", limit: int = 256) -> list[Blob]:
        self._check_open()
        return [self._blobs[address] for address in sorted(self._blobs) if address > after_sha256][:limit]

    def payload_usage(self) -> PayloadUsage:
        self._check_open()
        return PayloadUsage(payloads=len(self._blobs), size_bytes=sum(blob.size_bytes for blob in self._blobs.values()))

    def blob(self, sha256: str) -> Blob | None:
        self._check_open()
        return self._blobs.get(sha256)

    def chunk(self, sha256: str, part: int) -> bytes | None:
        self._check_open()
        return self._chunks.get(sha256, {}).get(part)

    def missing_chunks(self, sha256: str) -> list[int]:
        blob = self._expect(sha256)
        return [part for part in range(blob.chunks) if part not in self._chunks[sha256]]

    def _expect(self, sha256: str) -> Blob:
        return rules.expect_blob(self.blob(sha256), sha256)


def _copies(entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    """Entries that share no detail with those given: nobody can write into the log through what they hold."""
    return [replace(entry, detail=dict(entry.detail)) for entry in entries]
