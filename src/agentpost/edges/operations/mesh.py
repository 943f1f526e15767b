"""Operations on the mesh: what could not be delivered, who coordinates, who does what, what can be asked for.

They are for who can open the operator's socket. Agents outside are never given them.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict

from agentpost.delivery.deadletters import DeadLetterLine, Filter, Resent
from agentpost.edges.operations.calling import Caller, Desk, Done, Effect, Operation
from agentpost.protocol.coordination import Preference
from agentpost.protocol.delegation import Ack
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.work.capabilities.catalog import CapabilityDetail, CapabilityLine
from agentpost.work.coordination import CoordinationView
from agentpost.work.delegation.desk import DelegationView

__all__ = ["MESH", "Prefer", "SetCoordination", "prefer", "publish", "set_coordination", "unpublish", "Unpublished"]


class DeadLettersArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What was sent from this gateway and could not be delivered, with the reason of each."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class DeadLetterList(Struct, frozen=True, kw_only=True, rename="camel"):
    """Send one again with ansible_resend once its reason is gone."""

    dead_letters: list[DeadLetterLine]


class ResendArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Send a dead letter again, as a new event of the same conversation."""

    event_id: Annotated[str, Meta(description="A dead letter.")]


class GetCoordinationArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Who coordinates, how often it looks for stale work, and what its latest sweeps came to."""


class SetCoordination(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Appoint the coordinator, or set how often it sweeps.

    To put a node in the place of another takes `confirmLastResort`.
    """

    coordinator: Annotated[str | None, Meta(description="A node.")] = None
    sweep_every_seconds: int | None = None
    confirm_last_resort: Annotated[bool, Meta(description="Ask your person first.")] = False


class Prefer(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Say whom this node would like to coordinate: it decides who acts while the coordinator is silent."""

    desired_coordinator: Annotated[str | None, Meta(description="A node.")] = None
    desired_sweep_every_seconds: int | None = None


class GetDelegationArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Who does what: the table of intents, who has acknowledged it, and what needs action."""


class SetDelegationArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Set who does what. Only the coordinator's gateway may; every active agent is told."""

    intents: Annotated[list[dict[str, Any]], Meta(description="The rows of the table; all of them.")]


class AckDelegationArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Say that you have the delegation policy of this version and checksum."""

    version: str
    checksum: str


class PublishArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Offer a capability of an agent of this gateway. The version before is retired."""

    declaration: Annotated[dict[str, Any], Meta(description="As docs/capabilities.md describes it.")]


class UnpublishArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Withdraw a capability: from now on no task can ask for it."""

    capability_id: str


class Unpublished(Struct, frozen=True, kw_only=True, rename="camel"):
    unpublished: str
    version: str


class ListCapabilitiesArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What agents of the mesh can be asked for by capability."""


class CapabilityList(Struct, frozen=True, kw_only=True, rename="camel"):
    capabilities: list[CapabilityLine]


async def set_coordination(desk: Desk, said: SetCoordination) -> CoordinationView:
    if said.coordinator is None and said.sweep_every_seconds is None:
        raise Refusal(Code.INVALID_FIELD, "say coordinator or sweepEverySeconds", field="coordinator")
    return await desk.coordination.set(**asdict(said))


def prefer(desk: Desk, said: Prefer) -> CoordinationView:
    return desk.coordination.prefer(Preference(**asdict(said)))


async def publish(desk: Desk, declaration: dict[str, Any]) -> CapabilityDetail:
    page = await desk.commons.desk.publish(declaration)
    await desk.commons.look()
    return desk.commons.catalog.show(page.capability_id)


async def unpublish(desk: Desk, capability_id: str) -> Unpublished:
    page = await desk.commons.desk.unpublish(capability_id)
    return Unpublished(unpublished=page.capability_id, version=page.version)


async def _dead_letters(desk: Desk, caller: Caller, args: DeadLettersArgs) -> Done:
    found = await desk.engine.dead_letters.list(Filter(), limit=args.limit, actor=caller.agent_id)
    return Done(DeadLetterList(dead_letters=found))


async def _resend(desk: Desk, caller: Caller, args: ResendArgs) -> Done:
    return Done(await desk.engine.dead_letters.resend(Filter(event_id=EventId(args.event_id)), actor=caller.agent_id))


async def _get_coordination(desk: Desk, _: Caller, __: GetCoordinationArgs) -> Done:
    return Done(desk.coordination.show())


async def _set_coordination(desk: Desk, _: Caller, args: SetCoordination) -> Done:
    return Done(await set_coordination(desk, args))


async def _prefer(desk: Desk, _: Caller, args: Prefer) -> Done:
    return Done(prefer(desk, args))


async def _get_delegation(desk: Desk, _: Caller, __: GetDelegationArgs) -> Done:
    return Done(desk.commons.delegation.view())


async def _set_delegation(desk: Desk, caller: Caller, args: SetDelegationArgs) -> Done:
    return Done(await desk.commons.delegation.set(args.intents, by=caller.agent_id))


async def _ack_delegation(desk: Desk, caller: Caller, args: AckDelegationArgs) -> Done:
    delegation = desk.commons.delegation
    return Done(await delegation.acknowledge(caller.agent_id, version=args.version, checksum=args.checksum))


async def _publish(desk: Desk, _: Caller, args: PublishArgs) -> Done:
    return Done(await publish(desk, args.declaration))


async def _unpublish(desk: Desk, _: Caller, args: UnpublishArgs) -> Done:
    return Done(await unpublish(desk, args.capability_id))


async def _list_capabilities(desk: Desk, _: Caller, __: ListCapabilitiesArgs) -> Done:
    return Done(CapabilityList(capabilities=desk.commons.catalog.list()))


_LOOKS: Final = Effect.LOOKS
_REPLACES: Final = Effect.REPLACES

MESH: Final[dict[str, Operation]] = {
    "ansible_dead_letters": Operation("Dead letters", DeadLettersArgs, DeadLetterList, _dead_letters, _LOOKS),
    "ansible_resend": Operation("Send a dead letter again", ResendArgs, Resent, _resend),
    "ansible_get_coordination": Operation(
        "Coordination", GetCoordinationArgs, CoordinationView, _get_coordination, _LOOKS
    ),
    "ansible_set_coordination_preference": Operation("Prefer a coordinator", Prefer, CoordinationView, _prefer),
    "ansible_set_coordination": Operation(
        "Set the coordinator", SetCoordination, CoordinationView, _set_coordination, _REPLACES
    ),
    "ansible_get_delegation_policy": Operation(
        "Delegation policy", GetDelegationArgs, DelegationView, _get_delegation, _LOOKS
    ),
    "ansible_set_delegation_policy": Operation(
        "Set the delegation policy", SetDelegationArgs, DelegationView, _set_delegation, _REPLACES
    ),
    "ansible_ack_delegation_policy": Operation("Acknowledge the policy", AckDelegationArgs, Ack, _ack_delegation),
    "ansible_capability_list": Operation(
        "Capabilities", ListCapabilitiesArgs, CapabilityList, _list_capabilities, _LOOKS
    ),
    "ansible_capability_publish": Operation("Publish a capability", PublishArgs, CapabilityDetail, _publish),
    "ansible_capability_unpublish": Operation(
        "Withdraw a capability", UnpublishArgs, Unpublished, _unpublish, _REPLACES
    ),
}
