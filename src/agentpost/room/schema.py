"""What stands in the room: its maps, the fields of their records, the form of their keys, and how large they may be.

Knows nothing of Yjs or of who may write what. Readers are lenient (`protocol/snapshot`); this is the writers' side, and
it is strict: an unknown field is refused, because a field that nobody knows is where payloads hide (PIPE-6).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import (
    AgentStatus,
    AgentType,
    CapabilityStatus,
    Failover,
    NodeStatus,
    NodeTier,
)
from agentpost.room.records import Record, canonical, is_removed, plain_record

__all__ = [
    "MAPS",
    "MAX_RECORD_BYTES",
    "ROOM_NAME",
    "MapRules",
    "check_id",
    "check_record",
    "is_harmless",
    "is_id",
    "is_statement",
]

ROOM_NAME: Final = "ansible-control"
MAX_RECORD_BYTES: Final = 4096
_LONGEST_KEY: Final = 300

_ID: Final = r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}"
_is_id = re.compile(_ID).fullmatch

# What a record of the room never has, whatever the map: the words that messages and tasks are made of.
_PAYLOAD_WORDS: Final = frozenset(
    """
    arguments artifact attachment attachments blob body comment content context data description detail details
    error errorsummary html input instructions markdown message messages note notes output payload plan
    plansummary prompt reply result results resultsummary stderr stdout subject summary text title transcript
    """.split()  # noqa: SIM905 - a list of quoted words would hide them
)

Id = Annotated[str, Meta(pattern=rf"^{_ID}\Z")]
Ids = Annotated[tuple[Id, ...], Meta(max_length=128)]
Word = Annotated[str, Meta(pattern=r"^[!-~]{1,128}\Z")]
Name = Annotated[str, Meta(max_length=128)]
Key = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{43}\Z")]
Signature = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{86}\Z")]
Signatures = Annotated[tuple[Signature, ...], Meta(max_length=12)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[int, Meta(ge=1, le=31_536_000)]
Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")]
Moment = Count | Time
Endpoint = Annotated[str, Meta(pattern=r"^wss?://[!-~]{1,200}\Z")]


class Signed(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What every record has: who signed it, which write of its key it is, and the signature."""

    signed_by: Id
    rev: Annotated[int, Meta(ge=1)]
    sig: Signature


class Removed(Signed, frozen=True, kw_only=True, rename="camel"):
    """What is left of a record that was taken away: the key stays, and is free for whoever may have it next."""

    status: Literal["removed"]


class NodeEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    tier: NodeTier
    status: NodeStatus
    endpoint_ws: Endpoint | None = None
    capabilities: Ids = ()
    last_heartbeat_at: Count | None = None
    protocol_version: Word | None = None
    added_by: Id | None = None
    added_at: Moment | None = None
    public_key: Key | None = None
    sealing_key: Key | None = None
    outbox: Word | None = None


class AgentEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    owner_node_id: Id
    type: AgentType = AgentType.INTERNAL
    role: Word | None = None
    status: AgentStatus = AgentStatus.ACTIVE
    last_seen_at: Count | None = None


class RoutingEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    owner_node_id: Id | None = None
    fallback_node_ids: Ids = ()
    requires_capabilities: Ids = ()
    priority_default: Word | None = None
    failover: Failover = Failover.WAIT


class Skill(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    name: Word
    version: Word
    path: Annotated[str, Meta(max_length=256)] | None = None


class CatalogEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    capability_id: Id
    name: Name
    version: Word
    status: CapabilityStatus
    owner_agent_id: Id
    owner_node_id: Id
    delegation_skill_ref: Skill
    executor_skill_ref: Skill
    contract_schema_ref: Word | None = None
    default_eta_seconds: Annotated[int, Meta(ge=30, le=86_400)]
    published_at: Time
    published_by_agent_id: Id


class IndexEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    capability_id: Id
    eligible_agent_ids: Ids
    policy_version: Word
    updated_at: Time


class InviteEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    tier: NodeTier
    expires_at: Moment
    created_by: Id
    expected_node_id: Id | None = None
    created_at: Moment | None = None
    used_at: Moment | None = None
    used_by: Id | None = None
    revoked_at: Moment | None = None
    status: Literal["open", "used", "withdrawn", "expired"] | None = None


class DeliveryEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    inbox_cursor_acked: Count = 0
    inbox_cursor_seen: Count | None = None
    latest_seq: Count | None = None
    epoch: Word | None = None
    dead_letter_count: Count = 0
    incident_count: Count | None = None
    last_ack_at: Moment | None = None
    # What some agents have waiting, and how many have something: if that is more, nothing is said of those not named.
    waiting_by_agent: Annotated[dict[Id, Count], Meta(max_length=128)] | None = None
    agents_waiting: Count | None = None


class CursorEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    consumer_node_id: Id
    source_node_id: Id
    last_seq: Count
    updated_at: Time
    status: Literal["active", "inactive", "gap"]
    lease_expires_at: Time
    epoch: Word


class Setting(Signed, frozen=True, kw_only=True, rename="camel"):
    """One value of `coordination`: a word or a number, never a sentence."""

    value: Word | Count | bool
    # OPS-4: whoever makes another node the coordinator says so.
    confirm_last_resort: bool = False


class Sweep(Signed, frozen=True, kw_only=True, rename="camel"):
    value: Seconds


class SweepTerm(Signed, frozen=True, kw_only=True, rename="camel"):
    """Under which number a node leads the sweeps; the highest one counts."""

    value: Annotated[int, Meta(ge=1)]


class Preference(Signed, frozen=True, kw_only=True, rename="camel"):
    desired_coordinator: Id | None = None
    desired_sweep_every_seconds: Seconds | None = None
    updated_at: Moment | None = None


class Review(Signed, frozen=True, kw_only=True, rename="camel"):
    review_id: Id
    capability_id: Id
    delegation_skill_version: Word
    executor_skill_version: Word
    failure_class: Word
    sample_corr_ids: Annotated[tuple[Id, ...], Meta(max_length=16)]
    created_at: Time


class Intent(Signed, frozen=True, kw_only=True, rename="camel"):
    """One row of the delegation table."""

    intent: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
    owner_agent: Id
    backup_agent: Id | None = None
    requires: Ids = ()
    sla_claim_sec: Seconds | None = None
    sla_update_sec: Seconds | None = None
    escalate_after_sec: Seconds | None = None
    close_notify: Ids = ()


class StatementEntry(Signed, frozen=True, kw_only=True, rename="camel"):
    """ROOM-6: a backbone member's word about another node; see `members`. It is never altered and never removed."""

    node_id: Id
    act: Literal["admit", "revoke"]
    at: Count
    public_key: Key | None = None
    tier: NodeTier | None = None
    after: Signatures = ()
    prev: Signatures = ()
    through: Signatures = ()

    def __post_init__(self) -> None:
        if (self.act == "admit") != (self.public_key is not None and self.tier is not None):
            raise ValueError("an admission has a publicKey and a tier, and a revocation has none")


class MapRules(Struct, frozen=True, kw_only=True):
    """One root map: what its keys look like, what its records are, and how many of them one node may have."""

    key: re.Pattern[str]
    records: tuple[tuple[re.Pattern[str], type[Signed]], ...]
    keys_per_node: int
    # Written again and again for as long as the mesh lives; see `Room` for what that changes.
    is_hot: bool = False

    def type_of(self, key: str) -> type[Signed] | None:
        return next((kind for pattern, kind in self.records if pattern.fullmatch(key)), None)


def _rules(key: str, kind: type[Signed], *, keys_per_node: int, is_hot: bool = False) -> MapRules:
    pattern = re.compile(key)
    return MapRules(key=pattern, records=((pattern, kind),), keys_per_node=keys_per_node, is_hot=is_hot)


_COORDINATION: Final[tuple[tuple[re.Pattern[str], type[Signed]], ...]] = (
    (re.compile(r"coordinator|retention:[A-Za-z]{1,64}"), Setting),
    (re.compile(r"sweepEverySeconds"), Sweep),
    (re.compile(r"delegationPolicy(Version|Checksum|UpdatedAt|UpdatedBy)"), Setting),
    (re.compile(rf"delegationAck:{_ID}:(version|checksum|at)"), Setting),
    (re.compile(rf"pref:{_ID}"), Preference),
    (re.compile(rf"sweepTerm:{_ID}"), SweepTerm),
    (re.compile(rf"skillReviewQueue:{_ID}"), Review),
    (re.compile(r"delegationIntent:[a-z][a-z0-9_]{0,63}"), Intent),
    (re.compile(rf"member:{_ID}:[0-9a-f]{{24}}"), StatementEntry),
)

# In the order in which the changes of one update are judged: who somebody is comes before what they own.
MAPS: Final[Mapping[str, MapRules]] = {
    "nodes": _rules(_ID, NodeEntry, keys_per_node=1, is_hot=True),
    "coordination": MapRules(key=re.compile(r"[!-~]{1,300}"), records=_COORDINATION, keys_per_node=10_000),
    "agents": _rules(_ID, AgentEntry, keys_per_node=1_000),
    "routing": _rules(_ID, RoutingEntry, keys_per_node=1_000),
    "capabilities.catalog": _rules(_ID, CatalogEntry, keys_per_node=1_000),
    "capabilities.index": _rules(_ID, IndexEntry, keys_per_node=1_000),
    "invites": _rules(_ID, InviteEntry, keys_per_node=2_000),
    "delivery": _rules(_ID, DeliveryEntry, keys_per_node=1, is_hot=True),
    "delivery.cursors": _rules(f"{_ID}/{_ID}", CursorEntry, keys_per_node=2_000),
}


def is_id(text: str) -> bool:
    """Whether this may name a node or an agent: nothing in it means anything to a path, a URL or a terminal."""
    return _is_id(text) is not None


def check_id(text: str, *, field: str) -> str:
    if not is_id(text):
        raise Refusal(Code.INVALID_FIELD, f"{field} must be 1 to 128 of A-Z a-z 0-9 _ . @ -, a letter or digit first")
    return text


def is_statement(map_name: str, key: str) -> bool:
    """Whether a statement about a member stands there; see `members`."""
    return map_name == "coordination" and key.startswith("member:")


def check_record(map_name: str, key: str, value: object) -> Record:
    """The record in its plain form, if it is one that this key may hold; a refusal that says what is wrong if not."""
    rules = MAPS.get(map_name)
    if rules is None:
        raise Refusal(Code.WRITE_DENIED, f"the room has no map {map_name[:40]!r}")
    where = f"{map_name}.{key[:80]}"
    kind = rules.type_of(key)
    if kind is None:
        raise Refusal(Code.INVALID_FIELD, f"{where!r} is not a key of this map", field=map_name)
    record = plain_record(value)
    size = len(canonical(record))
    if size > MAX_RECORD_BYTES:
        raise Refusal(Code.TOO_LARGE, f"{where} has {size} bytes; a record has at most {MAX_RECORD_BYTES}", field=where)
    if is_removed(record) and kind is not StatementEntry:
        kind = Removed
    _refuse_unknown_fields(record, kind, where)
    try:
        msgspec.convert(record, kind)
    except msgspec.ValidationError as problem:
        raise Refusal(Code.INVALID_FIELD, f"{where}: {problem}", field=where) from None
    return record


def is_harmless(key: str, value: object) -> bool:
    """Whether what is no record of this version may stand in the room unread: it is small, plain, and no payload."""
    try:
        record = plain_record(value)
    except Refusal:
        return False
    is_key = len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()
    is_payload = any(name.lower() in _PAYLOAD_WORDS for name in record)
    return is_key and not is_payload and len(canonical(record)) <= MAX_RECORD_BYTES


def _refuse_unknown_fields(record: Record, kind: type[Signed], where: str) -> None:
    unknown = record.keys() - _known_fields(kind)
    if not unknown:
        return
    payload = sorted(name for name in unknown if name.lower() in _PAYLOAD_WORDS)
    if payload:
        # PIPE-6
        raise Refusal(
            Code.WRITE_DENIED, f"{where} carries a payload ({payload[0]}); none ever enters the room", field=payload[0]
        )
    name = min(unknown)
    raise Refusal(Code.INVALID_FIELD, f"{where} has a field that it must not have: {name[:40]!r}", field=name[:40])


_FIELDS: dict[type[Signed], frozenset[str]] = {}


def _known_fields(kind: type[Signed]) -> frozenset[str]:
    if kind not in _FIELDS:
        _FIELDS[kind] = frozenset(field.encode_name for field in msgspec.structs.fields(kind))
    return _FIELDS[kind]
