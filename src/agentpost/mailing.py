"""The engine of one gateway: joined to its store, its room and its keys. Knows nothing of HTTP or of runtimes."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from agentpost.delivery.engine import Engine
from agentpost.delivery.hub import OnRegressed
from agentpost.delivery.keeping import CursorCopy, DeliveryCopy
from agentpost.delivery.policy import DeliveryPolicy
from agentpost.delivery.ports import Runtime
from agentpost.protocol.errors import Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.room.directory import RoomDirectory
from agentpost.room.document import Room
from agentpost.room.host import RoomHost
from agentpost.room.view import RoomView
from agentpost.store.identity import Identity
from agentpost.store.interface import Store
from agentpost.store.values import LocalAgent
from agentpost.world import Chance, Clock

__all__ = ["CursorsInRoom", "RoomCopyWriter", "make_engine"]

_log = logging.getLogger(__name__)


def make_engine(
    *,
    store: Store,
    host: RoomHost,
    identity: Identity,
    tier: NodeTier,
    clock: Clock,
    chance: Chance,
    runtimes: Callable[[LocalAgent], Runtime],
    secret_options: Callable[[str], Collection[str]],
    policy: DeliveryPolicy | None = None,
    on_regressed: OnRegressed | None = None,
) -> Engine:
    return Engine(
        store=store,
        room=RoomView(host.room, refused_by=host.refused_by),
        directory=RoomDirectory(host.room),
        copies=RoomCopyWriter(host.room),
        signing=identity.signing,
        sealing=identity.sealing,
        tier=tier,
        clock=clock,
        chance=chance,
        runtimes=runtimes,
        secret_options=secret_options,
        policy=policy,
        readers=CursorsInRoom(host.room).of,
        on_regressed=on_regressed,
    )


class CursorsInRoom:
    """How far each gateway says it has read each source (CUR-5). What cannot be read counts as nothing read."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def of(self, source_node_id: str) -> Iterator[CursorCopy]:
        for key, record in self._room.records("delivery.cursors").items():
            consumer, _, source = key.partition("/")
            if source != source_node_id or record.get("signedBy") != consumer:
                continue
            try:
                copy = msgspec.convert(record, CursorCopy)
            except msgspec.ValidationError:
                continue
            if (copy.consumer_node_id, copy.source_node_id) == (consumer, source):
                yield copy


class RoomCopyWriter:
    """Shows the others how far this node has come (CUR-5). Nothing rests on these copies."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def publish(self, own: DeliveryCopy | None, cursors: Sequence[CursorCopy]) -> None:
        try:
            if own is not None:
                self._room.write("delivery", self._room.node_id, msgspec.to_builtins(own))
            for cursor in cursors:
                key = f"{cursor.consumer_node_id}/{cursor.source_node_id}"
                self._room.write("delivery.cursors", key, msgspec.to_builtins(cursor))
        except Refusal as refusal:
            _log.warning("a copy for the room was refused: %s", refusal.message)
