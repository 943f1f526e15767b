"""The capabilities of the mesh as people and programs ask for them: list, show, health. Reads, and changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from agentpost.delivery.ports import RoomView
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.routing import is_live
from agentpost.protocol.snapshot import CapabilityRecord, CapabilityStatus, RoomSnapshot
from agentpost.work.capabilities.book import ManifestBook
from agentpost.work.capabilities.desk import CapabilityDesk
from agentpost.work.capabilities.manifest import Contract
from agentpost.work.capabilities.records import policy_version
from agentpost.world import Clock

__all__ = ["Catalog", "CapabilityDetail", "CapabilityHealth", "CapabilityLine", "Health", "Installation"]


class Health(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"  # it works, and somebody should look at it
    UNAVAILABLE = "unavailable"  # a task for it is refused, or waits


class Installation(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whether one agent has the delegation skill of a capability (CAP-4)."""

    agent_id: str
    state: str
    task_id: str | None = None
    installed_version: str | None = None
    installed_at: str | None = None
    problem: str | None = None


class CapabilityLine(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One capability as a list shows it."""

    capability_id: str
    name: str
    version: str
    status: CapabilityStatus
    owner_agent_id: str
    owner_node_id: str | None
    default_eta_seconds: float | None
    eligible_agent_ids: tuple[str, ...]
    policy_version: str | None
    is_ours: bool = False


class CapabilityHealth(Struct, frozen=True, kw_only=True, rename="camel"):
    capability_id: str
    version: str
    health: Health
    problems: tuple[str, ...]


class CapabilityDetail(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All that this gateway knows of a capability. `contract` is missing where its manifest has not arrived."""

    line: CapabilityLine
    delegation_skill: str
    executor_skill: str
    published_at: str | None
    published_by_agent_id: str | None
    contract_schema_ref: str | None
    contract: Contract | None
    health: CapabilityHealth
    installations: tuple[Installation, ...]
    open_review_ids: tuple[str, ...]
    retired_versions: tuple[str, ...] = ()


class Catalog:
    """`raw` is the catalog's record as it stands in the room; `installations` and `reviews` are kept elsewhere."""

    def __init__(
        self,
        *,
        room: RoomView,
        clock: Clock,
        book: ManifestBook,
        desk: CapabilityDesk,
        own_node_id: str,
        raw: Callable[[str], Mapping[str, Any] | None],
        installations: Callable[[str, str], Sequence[Installation]],
        reviews: Callable[[str], Sequence[str]],
    ) -> None:
        self._room = room
        self._clock = clock
        self._book = book
        self._desk = desk
        self._own_node_id = own_node_id
        self._raw = raw
        self._installations = installations
        self._reviews = reviews

    def list(self) -> list[CapabilityLine]:
        room = self._room.snapshot()
        return [self._line(room, capability_id) for capability_id in sorted(room.catalog)]

    def show(self, capability_id: str) -> CapabilityDetail:
        room = self._room.snapshot()
        record = _expect(room, capability_id)
        page = self._book.by_ref(capability_id, record.contract_schema_ref)
        return CapabilityDetail(
            line=self._line(room, capability_id),
            delegation_skill=_skill(record, is_executor=False),
            executor_skill=_skill(record, is_executor=True),
            published_at=record.published_at,
            published_by_agent_id=record.published_by_agent_id,
            contract_schema_ref=record.contract_schema_ref,
            contract=None if page is None else page.manifest.declaration.contract,
            health=self._health(room, capability_id),
            installations=tuple(self._installations(capability_id, record.version)),
            open_review_ids=tuple(self._reviews(capability_id)),
            retired_versions=tuple(
                each.version for each in self._book.versions(capability_id) if each.version != record.version
            ),
        )

    def health(self, capability_id: str | None = None) -> "list[CapabilityHealth]":
        """How one capability is doing, or all of them."""
        room = self._room.snapshot()
        if capability_id is not None:
            _expect(room, capability_id)
        wanted = sorted(room.catalog) if capability_id is None else [capability_id]
        return [self._health(room, each) for each in wanted]

    def _line(self, room: RoomSnapshot, capability_id: str) -> CapabilityLine:
        record, index = room.catalog[capability_id], room.index.get(capability_id)
        return CapabilityLine(
            capability_id=capability_id,
            name=record.name,
            version=record.version,
            status=record.status,
            owner_agent_id=record.owner_agent_id,
            owner_node_id=record.owner_node_id,
            default_eta_seconds=record.default_eta_seconds,
            eligible_agent_ids=() if index is None else index.eligible_agent_ids,
            policy_version=None if index is None else index.policy_version,
            is_ours=record.owner_node_id == self._own_node_id,
        )

    def _health(self, room: RoomSnapshot, capability_id: str) -> CapabilityHealth:
        record = room.catalog[capability_id]
        fatal = self._fatal(room, record)
        doubtful = self._doubtful(room, record)
        level = Health.UNAVAILABLE if fatal else Health.DEGRADED if doubtful else Health.OK
        return CapabilityHealth(
            capability_id=capability_id, version=record.version, health=level, problems=(*fatal, *doubtful)
        )

    def _fatal(self, room: RoomSnapshot, record: CapabilityRecord) -> "list[str]":
        problems: list[str] = []
        owner = room.agents.get(record.owner_agent_id)
        index = room.index.get(record.capability_id)
        own = self._book.active(record.capability_id)
        if own is not None and (problem := self._desk.why_unavailable(own)) is not None:
            problems.append(problem)
        elif record.status is CapabilityStatus.DISABLED:
            problems.append("it is disabled")
        if owner is None or not owner.is_active:
            problems.append(f"its owner {record.owner_agent_id} is {'unknown' if owner is None else 'inactive'}")
        if index is None or not index.eligible_agent_ids:
            problems.append("no agent is eligible for it")
        elif index.policy_version != policy_version(self._raw(record.capability_id) or {}):
            problems.append("catalog and index are of two policy versions")
        return problems

    def _doubtful(self, room: RoomSnapshot, record: CapabilityRecord) -> "list[str]":
        problems: list[str] = []
        node_id = record.owner_node_id or ""
        if node_id != self._own_node_id and not is_live(room.nodes.get(node_id), self._clock.now_ms()):
            problems.append(f"its gateway {node_id} is away; tasks wait for it")
        if self._book.by_ref(record.capability_id, record.contract_schema_ref) is None:
            problems.append("its manifest is not here, so contracts are checked at the owner only")
        if reviews := self._reviews(record.capability_id):
            problems.append(f"{len(reviews)} open review{'s' if len(reviews) > 1 else ''}")
        return problems


def _skill(record: CapabilityRecord, *, is_executor: bool) -> str:
    ref = record.executor_skill_ref if is_executor else record.delegation_skill_ref
    return "" if ref is None else f"{ref.name} {ref.version}"


def _expect(room: RoomSnapshot, capability_id: str) -> CapabilityRecord:
    record = room.catalog.get(capability_id)
    if record is None:
        raise Refusal(
            Code.NOT_FOUND,
            f"{capability_id!r:.80} is not published",
            field="capabilityId",
            hint="See what is: agentpost capability list.",
        )
    return record
