"""How things stand for one agent: its gateway, what waits, what became of a message, who is there."""

from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from agentpost import __version__
from agentpost.auth.external.scopes import MESSAGE_READ
from agentpost.delivery.engine import Engine
from agentpost.delivery.sent import SentTo, sent_message
from agentpost.edges.operations.calling import Caller, Desk, Done, Effect, Operation
from agentpost.edges.operations.mail import mail_counts
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.routing import is_live
from agentpost.protocol.timestamps import format_ms

__all__ = ["STATUS", "KnownAgent", "known_agents"]


class StatusArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Who you are, whether something waits for you, who is there; with `eventId`, what became of a message of yours."""

    event_id: Annotated[str | None, Meta(description="A message that you sent.")] = None


class KnownAgent(Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent of the mesh, wherever it lives."""

    agent_id: str
    node_id: str | None
    status: str
    is_online: bool


class KnownNode(Struct, frozen=True, kw_only=True, rename="camel"):
    """A gateway of the mesh."""

    node_id: str
    tier: str
    is_online: bool


class Status(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`waiting` is what has no outcome yet, `unread` what of it was not looked at; within a context, of that alone.

    `agents` and `nodes` are for those of this machine, `deliveries` for who asked for a message.
    """

    agent_id: str
    at: str
    node_id: str
    version: str
    waiting: int
    unread: int
    agents: list[KnownAgent] | None = None
    nodes: list[KnownNode] | None = None
    deliveries: list[SentTo] | None = None


async def _status(desk: Desk, caller: Caller, args: StatusArgs) -> Done:
    waiting, unread = mail_counts(desk, caller)
    status = Status(
        agent_id=caller.agent_id,
        at=format_ms(desk.engine.clock.now_ms()),
        node_id=desk.engine.store.node_id,
        version=__version__,
        waiting=waiting,
        unread=unread,
    )
    if args.event_id is not None:
        deliveries, corr_id = _deliveries(desk, caller, EventId(args.event_id))
        return Done(replace(status, deliveries=deliveries), corr_id)
    if caller.is_local:
        status = replace(status, agents=known_agents(desk.engine), nodes=_known_nodes(desk.engine))
    return Done(status, caller.context)


def known_agents(engine: Engine) -> list[KnownAgent]:
    """The agents of the mesh, by name."""
    room = engine.room.snapshot()
    return [
        KnownAgent(
            agent_id=agent_id,
            node_id=agent.owner_node_id,
            status=agent.status.value,
            is_online=_is_online(engine, agent.owner_node_id or ""),
        )
        for agent_id, agent in sorted(room.agents.items())
    ]


def _known_nodes(engine: Engine) -> list[KnownNode]:
    return [
        KnownNode(node_id=node_id, tier=node.tier.value, is_online=_is_online(engine, node_id))
        for node_id, node in sorted(engine.room.snapshot().nodes.items())
    ]


def _is_online(engine: Engine, node_id: str) -> bool:
    node = engine.room.snapshot().nodes.get(node_id)
    return node_id == engine.store.node_id or is_live(node, engine.clock.now_ms())


def _deliveries(desk: Desk, caller: Caller, event_id: EventId) -> tuple[list[SentTo], str]:
    """What became of a message of the caller, and its conversation. Whether others sent it is not told."""
    store = desk.engine.store
    own = [
        each
        for each in store.deliveries_of(event_id)
        if each.from_agent_id == caller.agent_id and caller.context in (None, each.corr_id)
    ]
    if not own:
        raise Refusal(Code.NOT_FOUND, f"{event_id!r:.40} was not sent by {caller.agent_id}", field="eventId")
    now_ms = desk.engine.clock.now_ms()
    found = sent_message(store, desk.engine.sealer, event_id, now_ms=now_ms).deliveries
    if MESSAGE_READ not in caller.scopes:
        # The words of a reply are mail, and so are those of an error.
        found = [
            replace(each, answer=None, failing=each.failing and replace(each.failing, error=None)) for each in found
        ]
    return found, own[0].corr_id


STATUS: Final[dict[str, Operation]] = {
    "ansible_status": Operation("How things stand", StatusArgs, Status, _status, Effect.LOOKS)
}
