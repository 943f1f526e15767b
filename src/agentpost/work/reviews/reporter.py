"""Cases at this gateway become review items: counted by cause, and brought to the coordinator until they stand there.

A case is noted in the store before anything else happens. Who may write the queue writes it; everybody else tells the
coordinator by a signal, and tells it again until the room shows that it was heard.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentpost.delivery.making import EventMaker
from agentpost.delivery.outbox import OutboxWriter
from agentpost.delivery.ports import Wakeups
from agentpost.protocol.envelope import SignalEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.reviews import MAX_SAMPLES, ReviewItem, Trigger, cause_of, review_id, review_key
from agentpost.protocol.timestamps import format_ms
from agentpost.room.document import Room
from agentpost.room.records import is_removed
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.work.reviews.board import ReviewBoard
from agentpost.world import Clock

__all__ = ["ROUTING_MISSES", "SIGNAL", "Case", "ReviewReporter"]

_log = logging.getLogger(__name__)

SIGNAL: Final = "review_item"
# CAP-6 asks for *repeated* misses: one may be a capability that is just being published.
ROUTING_MISSES: Final = 3
_COLLECTION: Final = "review_causes"
_PAGE: Final = 256
_UNKNOWN: Final = "unknown"


class Case(Struct, frozen=True, kw_only=True):
    """One thing that went wrong with a capability."""

    trigger: Trigger
    capability_id: str
    corr_id: str
    failure_class: str | None = None
    delegation_skill_version: str | None = None
    executor_skill_version: str | None = None


class Cause(Struct, frozen=True, kw_only=True, rename="camel"):
    """The cases of one cause so far, as they are kept."""

    item: ReviewItem
    trigger: Trigger
    count: int

    @property
    def is_due(self) -> bool:
        return self.trigger is not Trigger.ROUTING_MISS or self.count >= ROUTING_MISSES


class ReviewReporter:
    def __init__(
        self, *, store: Store, room: Room, board: ReviewBoard, maker: EventMaker, clock: Clock, wakeups: Wakeups
    ) -> None:
        self._store = store
        self._room = room
        self._board = board
        self._maker = maker
        self._clock = clock
        self._outbox = OutboxWriter(store, wakeups)
        # Of two cases at once, the second has to find the first when it is counted.
        self._counting = asyncio.Lock()

    async def report(self, case: Case) -> str:
        """Count a case, and bring it to the queue if it is worth an item. Gives the id that the item has or will have.

        Versions that the case does not name are those of the catalog.
        """
        record = self._room.snapshot().catalog.get(case.capability_id)
        delegation = None if record is None else record.delegation_skill_ref
        executor = None if record is None else record.executor_skill_ref
        delegation_version = case.delegation_skill_version or (delegation.version if delegation else None)
        # A routing miss is no fault of a skill, so it is the same cause whatever the version.
        of_skill = None if case.trigger is Trigger.ROUTING_MISS else delegation_version
        key = review_key(case.trigger, case.capability_id, of_skill, case.failure_class)
        now_ms = self._clock.now_ms()
        fresh = ReviewItem(
            review_id=review_id(key, now_ms),
            capability_id=case.capability_id,
            delegation_skill_version=delegation_version or _UNKNOWN,
            executor_skill_version=case.executor_skill_version or (executor.version if executor else None) or _UNKNOWN,
            failure_class=case.failure_class or case.trigger.value,
            sample_corr_ids=(case.corr_id,),
            created_at=format_ms(now_ms),
        )
        async with self._counting:
            cause = self._with(fresh, case)
            await self._keep(cause)
        if cause.is_due:
            await self._bring(cause)
        return cause.item.review_id

    async def bring_all(self) -> int:
        """Bring what is due and not in the queue yet; forget what was closed. Gives how many are still to be heard."""
        waiting = 0
        after = ""
        while notes := self._store.notes(_COLLECTION, after_key=after, limit=_PAGE):
            after = notes[-1].key
            for note in notes:
                cause = msgspec.json.decode(note.value or b"", type=Cause)
                if not cause.is_due:
                    continue
                if self._was_closed(cause):
                    await self._forget(cause)
                elif not self._is_heard(cause):
                    waiting += not await self._bring(cause)
        return waiting

    async def hear(self, signals: Sequence[SignalEvent]) -> None:
        """Take the items that other gateways bring to the coordinator."""
        for signal in signals:
            if signal.payload.signal != SIGNAL:
                continue
            try:
                item = _told(signal.payload.details)
                if item.capability_id in self._room.snapshot().catalog:
                    self._board.put(item)
            except (Refusal, msgspec.ValidationError) as problem:
                _log.warning("a review of %s was not taken: %s", signal.source_node_id, problem)

    def cases_of(self, item_id: str) -> int:
        """How many cases of an item's cause this gateway has seen itself."""
        note = self._store.note(_COLLECTION, cause_of(item_id))
        return 0 if note is None else msgspec.json.decode(note.value or b"", type=Cause).count

    def _with(self, fresh: ReviewItem, case: Case) -> Cause:
        """The cause with this case added to it; a cause that was closed begins anew."""
        note = self._store.note(_COLLECTION, cause_of(fresh.review_id))
        present = None if note is None else msgspec.json.decode(note.value or b"", type=Cause)
        if present is None or self._was_closed(present):
            return Cause(item=fresh, trigger=case.trigger, count=1)
        samples = tuple(dict.fromkeys((*present.item.sample_corr_ids, case.corr_id)))[:MAX_SAMPLES]
        return replace(
            present,
            item=replace(present.item, sample_corr_ids=samples),
            count=present.count + 1,
        )

    async def _bring(self, cause: Cause) -> bool:
        """Whether it stands in the queue now."""
        try:
            self._board.put(cause.item)
        except Refusal as refusal:
            if refusal.code is not Code.WRITE_DENIED:
                raise
        else:
            return True
        node_id = self._coordinator()
        if node_id is not None and node_id != self._store.node_id:
            signal = self._maker.signal(SIGNAL, to_nodes=(node_id,), details=_details(cause.item))
            await self._outbox.append((signal,))
        return False

    def _coordinator(self) -> str | None:
        """Who writes the queue: the coordinator, or without one the first backbone node that is here."""
        record = self._room.record("coordination", "coordinator")
        if record is not None and not is_removed(record):
            return record["value"]
        nodes = self._room.snapshot().nodes
        return min((node_id for node_id in nodes if self._room.keys.is_backbone(node_id)), default=None)

    def _is_heard(self, cause: Cause) -> bool:
        present = self._board.open_about(cause_of(cause.item.review_id))
        if present is None:
            return False
        is_full = len(present.sample_corr_ids) >= MAX_SAMPLES
        return is_full or set(cause.item.sample_corr_ids) <= set(present.sample_corr_ids)

    def _was_closed(self, cause: Cause) -> bool:
        return self._board.open_about(cause_of(cause.item.review_id)) is None and self._board.is_known(
            cause.item.review_id
        )

    async def _keep(self, cause: Cause) -> None:
        await self._store.put_notes([self._note(cause, msgspec.json.encode(cause))])

    async def _forget(self, cause: Cause) -> None:
        await self._store.put_notes([self._note(cause, None)])

    def _note(self, cause: Cause, value: bytes | None) -> Note:
        key = cause_of(cause.item.review_id)
        return Note(collection=_COLLECTION, key=key, value=value, at_ms=self._clock.now_ms())


def _details(item: ReviewItem) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(item)
    return said | {"sampleCorrIds": " ".join(item.sample_corr_ids)}


def _told(details: dict[str, Any]) -> ReviewItem:
    said = dict(details)
    return msgspec.convert(said | {"sampleCorrIds": str(said.get("sampleCorrIds", "")).split()}, ReviewItem)
