"""The bridge between a legacy document and this gateway: takes over what is for it, writes what its agents send.

Who takes an entry over, so that all gateways together take each of them once:

- the sender lives here: this gateway publishes it, to all recipients that the mesh has, in the sender's name;
- the sender lives at another gateway: that one does;
- the sender lives nowhere in the mesh: each recipient's gateway takes it over for its own agents.

Which recipient got which entry is noted in the transaction that appends its event, so an entry is taken over once,
whatever happens in between. What this gateway itself wrote into the document carries the id of its event and is known
by it. An entry whose recipient nobody hosts waits, and is told of.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from agentpost.delivery.engine import Engine
from agentpost.delivery.placing import Placer
from agentpost.delivery.ports import Content
from agentpost.protocol.codec import decode_event
from agentpost.protocol.envelope import Event, MessageEvent, ReplyEvent, TaskCreateEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId, corr_id_of
from agentpost.protocol.payloads import Message
from agentpost.protocol.routing import RouteRequest
from agentpost.protocol.timestamps import format_ms, parse_ms
from agentpost.store.home import write_private
from agentpost.store.values import Note
from agentpost.work.migration.document import LegacyDocument
from agentpost.work.migration.entries import EVERYONE, LegacyEntry, LegacyMap
from agentpost.work.migration.phases import Phase, check_move, reads, waits_ms, writes
from agentpost.work.offering import NewTask
from agentpost.work.tasks import Tasks

__all__ = ["Bridge", "MigrationStatus", "Taken"]

_log = logging.getLogger(__name__)

_TAKEN: Final = "legacy_taken"
_EVENTS: Final = "legacy_events"
_STATE: Final = "migration"
_PAGE: Final = 256


class Taken(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one pass over a document did. `theirs` are for other gateways; for those `waiting` nobody is known yet."""

    taken: int = 0
    known: int = 0
    read: int = 0
    theirs: int = 0
    waiting: int = 0
    unreadable: tuple[str, ...] = ()


class State(Struct, frozen=True, kw_only=True, rename="camel"):
    phase: Phase = Phase.OFF
    room: str | None = None
    # How far the outbox has been written into the document.
    outbox_seq: int = 0


class MigrationStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the migration stands here. `last` is what the latest pass found in the document."""

    phase: Phase
    room: str | None
    connected: bool
    entries: int
    taken_over: int
    outbox_seq: int
    last: Taken


class Bridge:
    """`document` is the live one; a file is taken over by `take` with a document of its own."""

    def __init__(self, *, engine: Engine, tasks: Tasks, archive: Path) -> None:
        self._engine = engine
        self._store = engine.store
        self._tasks = tasks
        self._archive = archive
        self._placer = Placer(engine.room, own_node_id=engine.store.node_id)
        self._one_at_a_time = asyncio.Lock()
        self._last = Taken()
        self.document = LegacyDocument()
        self.is_connected = False

    @property
    def state(self) -> State:
        note = self._store.note(_STATE, "state")
        return State() if note is None else msgspec.json.decode(note.value or b"", type=State)

    def status(self) -> MigrationStatus:
        state = self.state
        return MigrationStatus(
            phase=state.phase,
            room=state.room,
            connected=self.is_connected,
            entries=len(self.document.keys()),
            taken_over=self._store.count_notes(_TAKEN),
            outbox_seq=state.outbox_seq,
            last=self._last,
        )

    async def move(self, phase: Phase, *, room: str | None = None, force: bool = False) -> MigrationStatus:
        """Enter a phase. The last one empties the document, after all of it is taken over and put into an archive."""
        async with self._one_at_a_time:
            state = self.state
            check_move(state.phase, phase)
            if phase is Phase.CLEANED and state.phase is not Phase.CLEANED:
                await self._clean(force=force)
            # Only what is sent from the first phase on belongs into the document; what was before is here already.
            started = state.phase is Phase.OFF and phase is not Phase.OFF
            seq = self._store.head().seq if started else state.outbox_seq
            await self._keep(State(phase=phase, room=room or state.room, outbox_seq=seq))
        await self.step()
        return self.status()

    async def step(self) -> None:
        """One pass in both directions, as far as the phase has them."""
        async with self._one_at_a_time:
            phase = self.state.phase
            if writes(phase):
                await self._give()
            if reads(phase):
                self._last = await self._take(self.document, older_than_ms=waits_ms(phase))

    async def take(self, document: LegacyDocument) -> Taken:
        """Take over what a document has for this gateway. Again is no harm: what was taken is known."""
        async with self._one_at_a_time:
            self._last = await self._take(document, older_than_ms=0)
            return self._last

    async def _take(self, document: LegacyDocument, *, older_than_ms: int) -> Taken:
        entries, unreadable = document.entries()
        counts: Counter[str] = Counter()
        now_ms = self._engine.clock.now_ms()
        for entry in entries:
            if now_ms - entry.created_at_ms < older_than_ms:
                continue
            counts[await self._take_one(document, entry)] += 1
        return Taken(
            taken=counts["taken"],
            known=counts["known"],
            read=counts["read"],
            theirs=counts["theirs"],
            waiting=counts["waiting"],
            unreadable=tuple(refusal.message for refusal in unreadable),
        )

    async def _take_one(self, document: LegacyDocument, entry: LegacyEntry) -> str:
        """What became of an entry, in one word."""
        if self._store.note(_EVENTS, entry.id) is not None or self._is_our_event(entry.id):
            return "known"
        agents = self._engine.room.snapshot().agents
        home = agents[entry.sender].owner_node_id if entry.sender in agents else None
        own_node_id = self._store.node_id
        if home is not None and home != own_node_id:
            return "theirs"
        named = sorted(agents) if entry.to_agents == (EVERYONE,) else entry.to_agents
        named = [agent_id for agent_id in named if agent_id != entry.sender]
        here = [each for each in named if each in agents and (home or agents[each].owner_node_id) == own_node_id]
        unread = [each for each in here if each not in entry.read_by and not entry.is_over]
        fresh = [each for each in unread if self._store.note(_TAKEN, _key(entry, each)) is None]
        if not fresh:
            if unread:
                return "known"
            if here:
                return "read"
            return "theirs" if any(each in agents for each in named) else "waiting"
        try:
            await self._publish(entry, fresh, is_ours=home is not None)
        except Refusal as refusal:
            _log.warning("the legacy entry %s is not taken over yet: %s", entry.id[:80], refusal.message)
            return "waiting"
        document.mark_read(entry, tuple(fresh))
        return "taken"

    async def _publish(self, entry: LegacyEntry, to_agents: Sequence[str], *, is_ours: bool) -> None:
        notes = [self._note(_TAKEN, _key(entry, agent_id), b"1") for agent_id in to_agents]
        if entry.map is LegacyMap.TASKS and is_ours:
            task = NewTask(
                requester_agent_id=entry.sender,
                title=entry.title or entry.id,
                description=entry.content,
                to_agents=tuple(to_agents),
                input=_context(entry),
            )
            await self._tasks.create_each(task, notes=lambda _tasks: notes)
            return
        wanted = RouteRequest(source_agent_id=entry.sender, to_agents=tuple(to_agents))
        placement = self._placer.place(wanted, now_ms=self._engine.clock.now_ms())
        event_id = self._engine.maker.new_event_id()
        event = MessageEvent(
            event_id=event_id,
            source_node_id=self._store.node_id,
            source_agent_id=entry.sender,
            to_nodes=placement.to_nodes,
            corr_id=corr_id_of(event_id),
            created_at=format_ms(self._engine.clock.now_ms()),
            trace=placement.trace,
            payload=Message(to_agents=placement.to_agents),
        )
        subject = f"Task: {entry.title}" if entry.map is LegacyMap.TASKS else None
        content = Content(subject=subject, body=entry.content, context=_context(entry))
        notes.append(self._note(_EVENTS, event_id, b"1"))
        await self._engine.publisher.post([(event, placement, content)], notes=notes)

    async def _give(self) -> None:
        """Write what this gateway's agents sent since the last time into the document."""
        state = self.state
        seq = state.outbox_seq
        while events := self._store.read_outbox(seq, limit=_PAGE).events:
            for stored in events:
                self._write(decode_event(stored.raw))
            seq = events[-1].seq
        if seq != state.outbox_seq:
            await self._keep(State(phase=state.phase, room=state.room, outbox_seq=seq))

    def _write(self, event: Event) -> None:
        if not isinstance(event, MessageEvent | ReplyEvent | TaskCreateEvent):
            return
        if self._store.note(_EVENTS, event.event_id) is not None or event.source_agent_id not in (
            self._store.local_agent_ids()
        ):
            # It came from the document.
            return
        try:
            content = self._engine.sealer.open(event)
        except Refusal as refusal:
            _log.warning("%s cannot be written into the legacy document: %s", event.event_id, refusal.message)
            return
        name = LegacyMap.TASKS if isinstance(event, TaskCreateEvent) else LegacyMap.MESSAGES
        to_agents = [event.to_agent_id or ""] if isinstance(event, ReplyEvent) else list(event.payload.to_agents)
        if not self.document.has(name, event.event_id):
            self.document.put(name, event.event_id, _entry(event, to_agents, content))

    def _is_our_event(self, entry_id: str) -> bool:
        """Whether an entry is what some gateway wrote beside its outbox: the pipes carry that."""
        return entry_id.startswith("evt_") and len(entry_id) == len(EventId("evt_" + "0" * 26))

    async def _clean(self, *, force: bool) -> None:
        left = await self._take(self.document, older_than_ms=0)
        if (left.waiting or left.unreadable) and not force:
            raise Refusal(
                Code.CONFLICT,
                f"{left.waiting} entries wait for an agent that nobody hosts, {len(left.unreadable)} cannot be read",
                field="phase",
                hint="Host those agents, or go on with --force: the archive keeps all entries.",
            )
        await asyncio.to_thread(write_private, self._archive, self.document.update())
        self.document.clear()

    async def _keep(self, state: State) -> None:
        await self._store.put_notes([self._note(_STATE, "state", msgspec.json.encode(state))])

    def _note(self, collection: str, key: str, value: bytes) -> Note:
        return Note(collection=collection, key=key, value=value, at_ms=self._engine.clock.now_ms())


def _key(entry: LegacyEntry, agent_id: str) -> str:
    return f"{entry.map}/{entry.id}/{agent_id}"


def _context(entry: LegacyEntry) -> dict[str, Any]:
    return {"legacyId": entry.id, "legacyMap": entry.map.value, "legacyAt": format_ms(entry.created_at_ms)}


def _entry(event: Event, to_agents: list[str], content: Content) -> dict[str, Any]:
    """An event as the legacy maps have it."""
    return {
        "id": event.event_id,
        "from": event.source_agent_id,
        "to": to_agents,
        "title": content.title or content.subject,
        "content": content.body or content.description or content.title or "",
        "timestamp": parse_ms(event.created_at),
        "readBy": [],
    }
