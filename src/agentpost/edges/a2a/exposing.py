"""Which agents the operator shows to A2A clients. Nobody, until somebody is exposed.

Each is a note: who, with which of its capabilities, described how. Knows nothing of the SDK.
"""

from importlib.util import find_spec
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from agentpost.delivery.ports import RoomView
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import CapabilityRecord, CapabilityStatus
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry, Note
from agentpost.world import Clock

__all__ = ["Exposed", "ExposeRequest", "Exposures", "has_sdk"]

_COLLECTION: Final = "a2a.exposed"
_MOST: Final = 1_000
_OPERATOR: Final = "operator"

Name = Annotated[str, Meta(min_length=1, max_length=256)]


class ExposeRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`skills` are capabilities of the agent; without any, all that it has published. `is_default`: its card is the one
    at the well-known place of the gateway."""

    agent_id: Name
    skills: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    description: Annotated[str, Meta(max_length=2_000)] | None = None
    is_default: bool = False


class Exposed(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An agent that A2A clients can find."""

    agent_id: str
    skills: tuple[str, ...] = ()
    description: str | None = None
    is_default: bool = False
    at_ms: int


def has_sdk() -> bool:
    """Whether this installation can speak A2A at all."""
    return find_spec("a2a") is not None and find_spec("sse_starlette") is not None


class Exposures:
    def __init__(self, store: Store, room: RoomView, clock: Clock) -> None:
        self._store = store
        self._room = room
        self._clock = clock

    async def expose(self, request: ExposeRequest) -> Exposed:
        """Show an agent of the mesh, or change how it is shown. Its capabilities are the skills of its card."""
        if not has_sdk():
            raise Refusal(
                Code.UNAVAILABLE,
                "the A2A SDK is not installed",
                hint="Install it with: pip install 'agentpost[a2a]', and start the gateway again.",
            )
        self._check(request)
        now_ms, before = self._clock.now_ms(), self.get(request.agent_id)
        exposed = Exposed(
            agent_id=request.agent_id,
            skills=request.skills,
            description=request.description,
            is_default=request.is_default,
            at_ms=now_ms if before is None else before.at_ms,
        )
        changed = [exposed]
        if request.is_default:
            changed += [replace(each, is_default=False) for each in self.all() if each.is_default]
        await self._store.put_notes([self._note(each) for each in reversed(changed)])
        await self._audit("a2a.expose", exposed.agent_id)
        return exposed

    async def hide(self, agent_id: str) -> None:
        """Show it no more. Its tasks go on; A2A clients just do not reach it."""
        if self.get(agent_id) is None:
            raise Refusal(Code.NOT_FOUND, f"{agent_id!r:.80} is not exposed", hint="`agentpost a2a list` shows who is.")
        await self._store.put_notes(
            [Note(collection=_COLLECTION, key=agent_id, value=None, at_ms=self._clock.now_ms())]
        )
        await self._audit("a2a.hide", agent_id)

    def get(self, agent_id: str) -> Exposed | None:
        found = self._store.note(_COLLECTION, agent_id)
        return None if found is None or found.value is None else msgspec.json.decode(found.value, type=Exposed)

    def all(self) -> list[Exposed]:
        """By name."""
        notes = self._store.notes(_COLLECTION, limit=_MOST)
        return [msgspec.json.decode(each.value, type=Exposed) for each in notes if each.value is not None]

    def default(self) -> Exposed | None:
        """The one whose card is at the well-known place: who was named for it, or else who was exposed first."""
        return min(self.all(), key=lambda each: (not each.is_default, each.at_ms, each.agent_id), default=None)

    def skills_of(self, exposed: Exposed) -> list[CapabilityRecord]:
        """The capabilities that the card shows: published now, by this agent, and not held back."""
        return [
            each
            for each in self._capabilities(exposed.agent_id)
            if not exposed.skills or each.capability_id in exposed.skills
        ]

    def _capabilities(self, agent_id: str) -> list[CapabilityRecord]:
        catalog = self._room.snapshot().catalog
        return [
            catalog[capability_id]
            for capability_id in sorted(catalog)
            if catalog[capability_id].owner_agent_id == agent_id
            and catalog[capability_id].status is CapabilityStatus.ACTIVE
        ]

    def _check(self, request: ExposeRequest) -> None:
        agent = self._room.snapshot().agents.get(request.agent_id)
        if agent is None or not agent.is_active:
            raise Refusal(
                Code.INVALID_TARGETS,
                f"{request.agent_id!r:.80} is not an active agent of the mesh",
                field="agentId",
                hint="`agentpost agents list --mesh` shows those that are.",
            )
        known = [each.capability_id for each in self._capabilities(request.agent_id)]
        missing = [each for each in request.skills if each not in known]
        if missing:
            raise Refusal(
                Code.INVALID_FIELD,
                f"{request.agent_id} has not published {missing[0]!r:.80}",
                field="skills",
                hint=f"It has published: {', '.join(known) or 'nothing'}.",
            )

    def _note(self, exposed: Exposed) -> Note:
        return Note(
            collection=_COLLECTION,
            key=exposed.agent_id,
            value=msgspec.json.encode(exposed),
            at_ms=self._clock.now_ms(),
        )

    async def _audit(self, action: str, agent_id: str) -> None:
        entry = AuditEntry(at_ms=self._clock.now_ms(), actor=_OPERATOR, action=action, subject=agent_id)
        await self._store.record_audit([entry])
