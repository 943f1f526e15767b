"""Fetching payloads that were too large for their events (PIPE-5): chunk by chunk, from the source or a mirror of it.

What is here already is not asked for again, also after a restart. Only a payload whose bytes are those of its address
counts as there; one that is not is dropped and asked of somebody else.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from agentpost.delivery.frames import Chunk, GetChunk
from agentpost.delivery.intake import NewBlob, read_event
from agentpost.delivery.ports import Wakeups
from agentpost.protocol.codec import Unreadable
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.payloads import PayloadRef
from agentpost.store.interface import Store
from agentpost.store.values import Blob
from agentpost.world import Clock

__all__ = ["Asked", "BlobFetcher", "serve_chunk"]

_log = logging.getLogger(__name__)

_MAX_CHUNK_BYTES: Final = 1024 * 1024
_CHUNKS_UNDER_WAY: Final = 4
_BLOBS_UNDER_WAY: Final = 64
_RETRY_EVERY_MS: Final = 30_000


class Asked(Protocol):
    """A link, as far as the fetcher needs it."""

    @property
    def peer(self) -> str: ...

    def ask(self, request: GetChunk) -> None: ...


class _Wanted(Struct, kw_only=True):
    source_node_id: str
    ref: PayloadRef
    agent_ids: set[str]
    asked: Asked | None = None
    tried: set[str] = set()
    under_way: set[int] = set()
    # Whether a chunk has come since the last look.
    is_moving: bool = True


def serve_chunk(store: Store, request: GetChunk) -> Chunk:
    """The piece that was asked for, or that it is not here. Content is sealed: a member that asks learns nothing."""
    blob = store.blob(request.sha256)
    data = None if blob is None or not blob.complete else store.chunk(request.sha256, request.part)
    if blob is None or data is None:
        return Chunk(sha256=request.sha256, part=request.part)
    return Chunk(
        sha256=request.sha256,
        part=request.part,
        size_bytes=blob.size_bytes,
        chunk_bytes=blob.chunk_bytes,
        data=data,
    )


class BlobFetcher:
    """`links_for` gives the links at which the payloads of a source may be, the best first.

    `on_complete` hears of every payload that is here now: others may have asked for it while it was on its way.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        wakeups: Wakeups,
        links_for: Callable[[str], Sequence[Asked]],
        on_complete: Callable[[str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._wakeups = wakeups
        self._links_for = links_for
        self._on_complete = on_complete
        self._retried_at_ms = 0
        self._wanted: dict[str, _Wanted] = {}

    def want_backlog(self) -> None:
        """Ask again for what was under way when the gateway stopped."""
        for agent in self._store.local_agents():
            after = 0
            while items := self._store.backlog(agent.agent_id, after_inbox_seq=after):
                after = items[-1].entry.inbox_seq
                events = ((item.source_node_id, read_event(item.raw)) for item in items)
                self.want(
                    [
                        NewBlob(source_node_id=source, ref=event.payload_ref, agent_ids=(agent.agent_id,))
                        for source, event in events
                        if not isinstance(event, Unreadable) and event.payload_ref is not None
                    ]
                )

    def want(self, blobs: Sequence[NewBlob]) -> None:
        for blob in blobs:
            kept = self._store.blob(blob.ref.sha256)
            if kept is not None and kept.complete:
                continue
            wanted = self._wanted.get(blob.ref.sha256)
            if wanted is None:
                wanted = self._wanted[blob.ref.sha256] = _Wanted(
                    source_node_id=blob.source_node_id, ref=blob.ref, agent_ids=set()
                )
            wanted.agent_ids.update(blob.agent_ids)
        self._ask_for_waiting()

    def is_awaited(self, sha256: str) -> bool:
        """Whether the payload is on its way here."""
        return sha256 in self._wanted

    def tick(self) -> None:
        """Ask again for what nobody had, and elsewhere for what does not come."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._retried_at_ms < _RETRY_EVERY_MS:
            return
        self._retried_at_ms = now_ms
        for wanted in self._wanted.values():
            if not wanted.is_moving:
                self._ask_somebody(wanted)
            wanted.is_moving = False
        self.link_came()

    def link_came(self) -> None:
        for wanted in self._wanted.values():
            if wanted.asked is None:
                wanted.tried.clear()
        self._ask_for_waiting()

    def link_went(self, link: Asked) -> None:
        for wanted in self._wanted.values():
            if wanted.asked is link:
                self._ask_somebody(wanted)

    async def receive(self, link: Asked, chunk: Chunk) -> None:
        """Take a piece. One that was not asked for is passed over; one that does not fit counts against its sender."""
        wanted = self._wanted.get(chunk.sha256)
        if wanted is None or wanted.asked is not link or chunk.part not in wanted.under_way:
            return
        wanted.under_way.discard(chunk.part)
        wanted.is_moving = True
        try:
            is_complete = chunk.data is not None and await self._keep(wanted.ref, chunk, chunk.data)
        except Refusal as refusal:
            if refusal.code not in (Code.INVALID_FIELD, Code.TOO_LARGE):
                raise
            _log.warning("a payload from %s does not fit its address: %s", link.peer, refusal.message)
            await self._store.drop_blob(chunk.sha256)
            is_complete, chunk = False, Chunk(sha256=chunk.sha256, part=chunk.part)
        if is_complete:
            del self._wanted[chunk.sha256]
            for agent_id in sorted(wanted.agent_ids):
                self._wakeups.inbox_grew(agent_id)
            self._on_complete(chunk.sha256)
            self._ask_for_waiting()
        elif chunk.data is None:
            self._ask_somebody(wanted)
        else:
            self._ask_for_more(wanted, link)

    async def _keep(self, ref: PayloadRef, chunk: Chunk, data: bytes) -> bool:
        """Whether the payload is all there now."""
        if self._store.blob(ref.sha256) is None:
            if chunk.size_bytes != ref.size_bytes or not 0 < chunk.chunk_bytes <= _MAX_CHUNK_BYTES:
                raise Refusal(Code.INVALID_FIELD, "it has other measures than its event says", field="sizeBytes")
            blob = Blob(
                sha256=ref.sha256,
                size_bytes=ref.size_bytes,
                chunk_bytes=chunk.chunk_bytes,
                chunks=-(-ref.size_bytes // chunk.chunk_bytes),
                complete=False,
            )
            await self._store.begin_blob(blob, at_ms=self._clock.now_ms())
        await self._store.put_chunk(ref.sha256, chunk.part, data)
        if self._store.missing_chunks(ref.sha256):
            return False
        await self._store.complete_blob(ref.sha256)
        return True

    def _ask_for_waiting(self) -> None:
        free = _BLOBS_UNDER_WAY - sum(wanted.asked is not None for wanted in self._wanted.values())
        for wanted in self._wanted.values():
            if free <= 0:
                return
            if wanted.asked is None:
                self._ask_somebody(wanted)
                free -= wanted.asked is not None

    def _ask_somebody(self, wanted: _Wanted) -> None:
        """Ask the best link that was not asked yet; wait for another if there is none."""
        wanted.asked = None
        wanted.under_way.clear()
        for link in self._links_for(wanted.source_node_id):
            if link.peer not in wanted.tried:
                wanted.tried.add(link.peer)
                wanted.asked, wanted.is_moving = link, True
                self._ask_for_more(wanted, link)
                return

    def _ask_for_more(self, wanted: _Wanted, link: Asked) -> None:
        sha256 = wanted.ref.sha256
        # The measures of a blob come with its first chunk; until then only that one can be asked for. One that misses
        # nothing was not looked at as a whole yet, which the next chunk brings about.
        missing = [] if self._store.blob(sha256) is None else self._store.missing_chunks(sha256)
        for part in missing or [0]:
            if len(wanted.under_way) >= _CHUNKS_UNDER_WAY:
                return
            if part not in wanted.under_way:
                wanted.under_way.add(part)
                link.ask(GetChunk(sha256=sha256, part=part))
