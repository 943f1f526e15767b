"""Fetching payloads that were too large for their events (PIPE-5): chunk by chunk, from the source or a mirror of it.

What is here already is not asked for again, also after a restart. Only a payload whose bytes are those of its address
counts as there; one that is not is dropped and asked of somebody else. What one source names, and never gives, is
bounded, and takes no place from the payloads of others.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from agentpost.delivery.frames import Chunk, GetChunk
from agentpost.delivery.intake import NewBlob
from agentpost.delivery.ports import RoomView, Wakeups
from agentpost.delivery.sealing import MAX_PAYLOAD_BYTES
from agentpost.protocol.codec import Unreadable, read_events
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.interface import Store
from agentpost.store.values import Blob
from agentpost.world import Clock

__all__ = ["Asked", "BlobFetcher", "may_read", "serve_chunk"]

_log = logging.getLogger(__name__)

_MAX_CHUNK_BYTES: Final = 1024 * 1024
# Smaller ones, the last aside, would make a payload a matter of millions of rows.
_MIN_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_UNDER_WAY: Final = 4
# For each source, so that one which names payloads and does not give them holds up no other.
_BLOBS_UNDER_WAY: Final = 16
_MOST_WANTED: Final = 1_024
_RETRY_EVERY_MS: Final = 30_000
_PAGE: Final = 256


class Asked(Protocol):
    """A link, as far as the fetcher needs it."""

    @property
    def peer(self) -> str: ...

    def ask(self, request: GetChunk) -> None: ...


class _Wanted(Struct, kw_only=True):
    sha256: str
    # As the events say; the bytes decide.
    sizes: set[int]
    # Who spoke of it, the latest at the end. More than one may have, and not all of them speak the truth.
    sources: list[str]
    agent_ids: set[str]
    asked: Asked | None = None
    tried: set[str] = set()
    under_way: set[int] = set()
    # Whether a chunk has come since the last look.
    is_moving: bool = True

    @property
    def charged_to(self) -> str:
        return self.sources[-1]


def may_read(store: Store, room: RoomView, sha256: str, peer: str) -> bool:
    """Whether a gateway gets this payload: if an event names it as a reader, or to keep it for others (PIPE-9)."""
    return room.is_backbone(peer) or store.may_read_payload(sha256, peer)


def serve_chunk(store: Store, request: GetChunk) -> Chunk:
    """The piece that was asked for, or that it is not here."""
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
        # Sources with more to fetch than is kept in mind; the store knows what.
        self._left_out: set[str] = set()

    def want_backlog(self) -> None:
        """Ask again for what was under way when the gateway stopped, for its agents and for the mirrors it keeps."""
        self._left_out.clear()
        for agent in self._store.local_agents():
            after = 0
            while items := self._store.backlog(agent.agent_id, after_inbox_seq=after, limit=_PAGE):
                after = items[-1].entry.inbox_seq
                events = zip(
                    (item.source_node_id for item in items), read_events([item.raw for item in items]), strict=True
                )
                self.want(
                    [
                        NewBlob.of(source, event.payload_ref, (agent.agent_id,))
                        for source, event in events
                        if not isinstance(event, Unreadable) and event.payload_ref is not None
                    ]
                )
        self.want(
            [
                NewBlob(source_node_id=each.source_node_id, sha256=each.sha256, size_bytes=each.size_bytes)
                for each in self._store.missing_payloads(limit=_PAGE * _MOST_WANTED)
            ]
        )

    def want(self, blobs: Sequence[NewBlob]) -> None:
        wanted_of = Counter(wanted.charged_to for wanted in self._wanted.values()) if blobs else Counter[str]()
        for blob in blobs:
            if blob.size_bytes > MAX_PAYLOAD_BYTES:
                _log.warning("a payload of %s is too large to be fetched", blob.source_node_id)
                continue
            kept = self._store.blob(blob.sha256)
            if kept is not None and kept.complete:
                continue
            wanted = self._wanted.get(blob.sha256)
            if wanted is None:
                if wanted_of[blob.source_node_id] >= _MOST_WANTED:
                    self._left_out.add(blob.source_node_id)
                    continue
                wanted_of[blob.source_node_id] += 1
                wanted = self._wanted[blob.sha256] = _Wanted(
                    sha256=blob.sha256, sizes=set(), sources=[blob.source_node_id], agent_ids=set()
                )
            elif blob.source_node_id not in wanted.sources:
                wanted.sources.append(blob.source_node_id)
            wanted.sizes.add(blob.size_bytes)
            wanted.agent_ids.update(blob.agent_ids)
        self._ask_for_waiting()

    async def renew(self, sha256: str) -> None:
        """Fetch a payload again whose bytes have changed on the disk. Without another gateway that has it, it stays."""
        sources, blob = self._store.payload_sources(sha256), self._store.blob(sha256)
        if not sources or blob is None:
            _log.error("the payload %s is damaged, and no other gateway has it", sha256)
            return
        _log.error("the payload %s is damaged; it is fetched again from %s", sha256, ", ".join(sources))
        await self._store.drop_blob(sha256)
        self.want([NewBlob(source_node_id=each, sha256=sha256, size_bytes=blob.size_bytes) for each in sources])
        # Those who wait for it now.
        self.want_backlog()

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

    async def receive(self, link: Asked, chunk: Chunk) -> bool:
        """Take a piece; False for one that was not asked for. One that does not fit counts against its sender."""
        wanted = self._wanted.get(chunk.sha256)
        if wanted is None or wanted.asked is not link or chunk.part not in wanted.under_way:
            return False
        wanted.under_way.discard(chunk.part)
        wanted.is_moving = True
        try:
            is_complete = chunk.data is not None and await self._keep(wanted, chunk, chunk.data)
        except Refusal as refusal:
            # Not found: nobody needed the payload any more, and it was pruned while this piece was on its way.
            if refusal.code not in (Code.INVALID_FIELD, Code.TOO_LARGE, Code.NOT_FOUND):
                raise
            _log.warning("a payload from %s was not kept: %s", link.peer, refusal.message)
            await self._store.drop_blob(chunk.sha256)
            is_complete, chunk = False, Chunk(sha256=chunk.sha256, part=chunk.part)
        if is_complete:
            self._completed(wanted)
        elif chunk.data is None:
            self._ask_somebody(wanted)
        else:
            self._ask_for_more(wanted, link)
        return True

    def _completed(self, wanted: _Wanted) -> None:
        del self._wanted[wanted.sha256]
        for agent_id in sorted(wanted.agent_ids):
            self._wakeups.inbox_grew(agent_id)
        self._on_complete(wanted.sha256)
        source = wanted.charged_to
        if source in self._left_out and not any(each.charged_to == source for each in self._wanted.values()):
            self.want_backlog()
        self._ask_for_waiting()

    async def _keep(self, wanted: _Wanted, chunk: Chunk, data: bytes) -> bool:
        """Whether the payload is all there now."""
        sha256 = wanted.sha256
        if self._store.blob(sha256) is None:
            least_bytes = min(_MIN_CHUNK_BYTES, chunk.size_bytes)
            if chunk.size_bytes not in wanted.sizes or not 0 < least_bytes <= chunk.chunk_bytes <= _MAX_CHUNK_BYTES:
                raise Refusal(Code.INVALID_FIELD, "it has other measures than its event says", field="sizeBytes")
            blob = Blob(
                sha256=sha256,
                size_bytes=chunk.size_bytes,
                chunk_bytes=chunk.chunk_bytes,
                chunks=-(-chunk.size_bytes // chunk.chunk_bytes),
                complete=False,
            )
            await self._store.begin_blob(blob, at_ms=self._clock.now_ms())
        await self._store.put_chunk(sha256, chunk.part, data)
        if self._store.missing_chunks(sha256):
            return False
        await self._store.complete_blob(sha256)
        return True

    def _ask_for_waiting(self) -> None:
        under_way = Counter(wanted.charged_to for wanted in self._wanted.values() if wanted.asked is not None)
        for wanted in self._wanted.values():
            if wanted.asked is None and under_way[wanted.charged_to] < _BLOBS_UNDER_WAY:
                self._ask_somebody(wanted)
                under_way[wanted.charged_to] += wanted.asked is not None

    def _ask_somebody(self, wanted: _Wanted) -> None:
        """Ask the best link that was not asked yet; wait for another if there is none."""
        wanted.asked = None
        wanted.under_way.clear()
        links = (link for source in reversed(wanted.sources) for link in self._links_for(source))
        for link in links:
            if link.peer not in wanted.tried:
                wanted.tried.add(link.peer)
                wanted.asked, wanted.is_moving = link, True
                self._ask_for_more(wanted, link)
                return

    def _ask_for_more(self, wanted: _Wanted, link: Asked) -> None:
        sha256 = wanted.sha256
        # The measures of a blob come with its first chunk; until then only that one can be asked for. One that misses
        # nothing was not looked at as a whole yet, which the next chunk brings about.
        missing = [] if self._store.blob(sha256) is None else self._store.missing_chunks(sha256)
        for part in missing or [0]:
            if len(wanted.under_way) >= _CHUNKS_UNDER_WAY:
                return
            if part not in wanted.under_way:
                wanted.under_way.add(part)
                link.ask(GetChunk(sha256=sha256, part=part))
