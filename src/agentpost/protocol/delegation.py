"""The delegation policy (OPS-8): who does what, who steps in, and how long each may take. Pure.

A policy is a table of intents. Its checksum covers the rows and nothing else, in one spelling, so that the room, an
agent's IDENTITY.md and an acknowledgement can be compared by it. What is wrong with a policy or with its
acknowledgements is a list of problems; a list that is empty needs no report.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import parse_ms

__all__ = [
    "ACK_THRESHOLD_MS",
    "ESCALATION",
    "Ack",
    "Intent",
    "Policy",
    "Problem",
    "ProblemKind",
    "checksum_of",
    "next_version",
    "problems_of",
    "read_intents",
]

# How long an agent may take to acknowledge a policy before the sweep speaks of it.
ACK_THRESHOLD_MS: Final = 15 * 60_000
ESCALATION: Final[Mapping[str, str | int | bool]] = {
    "unavailableOwnerAction": "assign_backup",
    "missingBackupAction": "notify_coordinator_only",
    "maxAutoReassignments": 1,
    "suppressNoopReports": True,
}
_MAX_INTENTS: Final = 256
_VERSION: Final = re.compile(r"(\d{4}-\d\d-\d\d)\.([1-9]\d{0,5})")

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}\Z")]
Ids = Annotated[tuple[Id, ...], Meta(max_length=32)]
Seconds = Annotated[int, Meta(ge=1, le=31_536_000)]


class Intent(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """One row: what somebody may want, who does it, and by when. `close_notify` may name requester and coordinator."""

    intent: Name
    owner_agent: Id
    backup_agent: Id | None = None
    requires: Ids = ()
    sla_claim_sec: Seconds
    sla_update_sec: Seconds
    escalate_after_sec: Seconds
    close_notify: Ids = ("requester",)


class Policy(Struct, frozen=True, kw_only=True, rename="camel"):
    """A policy as it stands in the room. `checksum` is what its author announced."""

    version: str
    checksum: str
    updated_at: str
    updated_by: str
    intents: tuple[Intent, ...]


class Ack(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an agent says it has applied."""

    agent_id: str
    version: str
    checksum: str
    at: str


class ProblemKind(StrEnum):
    INVALID_POLICY = "invalid_policy"
    NO_BACKUP = "no_backup"
    MISSING_ACK = "missing_ack"
    WRONG_ACK = "wrong_ack"


class Problem(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What somebody has to do something about. A warning does not make a policy invalid."""

    kind: ProblemKind
    subject: str
    message: str
    is_warning: bool = False


def read_intents(value: object) -> tuple[Intent, ...]:
    """The rows that these plain values make, in the order of their intents; a refusal that names what is wrong."""
    try:
        intents = msgspec.convert(value, tuple[Intent, ...])
    except msgspec.ValidationError as problem:
        raise Refusal(
            Code.INVALID_FIELD,
            f"the policy is not valid: {problem}",
            field="intents",
            hint="docs/delegation.md has an example with every column.",
        ) from None
    if not 1 <= len(intents) <= _MAX_INTENTS:
        raise Refusal(Code.INVALID_FIELD, f"a policy has 1 to {_MAX_INTENTS} intents", field="intents")
    seen: set[str] = set()
    for each in intents:
        if each.intent in seen:
            raise Refusal(Code.INVALID_FIELD, f"the intent {each.intent} is there twice", field="intents")
        if each.backup_agent == each.owner_agent:
            raise Refusal(Code.INVALID_FIELD, f"{each.intent}: its backup is its owner", field="intents")
        seen.add(each.intent)
    return tuple(sorted(intents, key=lambda each: each.intent))


def checksum_of(intents: Iterable[Intent]) -> str:
    """`sha256:…` over the rows, the same for the same rows in whatever order they came."""
    rows = [msgspec.to_builtins(each) for each in sorted(intents, key=lambda each: each.intent)]
    return "sha256:" + hashlib.sha256(msgspec.json.encode(rows, order="sorted")).hexdigest()


def next_version(present: str | None, *, today: str) -> str:
    """`YYYY-MM-DD.N`: the next one of today, later than the present one even if that is from the future."""
    found = None if present is None else _VERSION.fullmatch(present)
    if found is None or found[1] < today:
        return f"{today}.1"
    return f"{found[1]}.{int(found[2]) + 1}"


def problems_of(
    policy: Policy | None,
    acks: Mapping[str, Ack],
    *,
    agents: Mapping[str, bool],
    now_ms: int,
    threshold_ms: int = ACK_THRESHOLD_MS,
) -> list[Problem]:
    """What needs action, in a fixed order; nothing without a policy. `agents` are the known ones, and who is active."""
    if policy is None:
        return []
    problems = [*_of_rows(policy, agents)]
    if now_ms - parse_ms(policy.updated_at, field="updatedAt") >= threshold_ms:
        problems += _of_acks(policy, acks, sorted(agent_id for agent_id, is_active in agents.items() if is_active))
    return problems


def _of_rows(policy: Policy, agents: Mapping[str, bool]) -> Iterable[Problem]:
    if not _VERSION.fullmatch(policy.version):
        yield _invalid(policy.version, f"the version {policy.version!r:.40} is not YYYY-MM-DD.N")
    actual = checksum_of(policy.intents)
    if actual != policy.checksum:
        yield _invalid(
            policy.version, f"the rows have the checksum {actual}, and {policy.checksum!r:.80} was announced"
        )
    missing_backups: list[str] = []
    for row in policy.intents:
        if not agents.get(row.owner_agent, False):
            yield _invalid(row.intent, f"{row.intent}: its owner {row.owner_agent} is not an active agent")
        if row.backup_agent is None or not agents.get(row.backup_agent, False):
            missing_backups.append(row.intent)
        for name in row.close_notify:
            if name not in ("requester", "coordinator") and name not in agents:
                yield _invalid(row.intent, f"{row.intent}: closeNotify names {name}, which is no agent")
    if missing_backups:
        # One warning for all of them: who has read one has read them all.
        yield Problem(
            kind=ProblemKind.NO_BACKUP,
            subject=policy.version,
            message=f"without an active backup: {', '.join(missing_backups)}",
            is_warning=True,
        )


def _of_acks(policy: Policy, acks: Mapping[str, Ack], agent_ids: Sequence[str]) -> Iterable[Problem]:
    for agent_id in agent_ids:
        ack = acks.get(agent_id)
        if ack is None:
            message = f"{agent_id} has not acknowledged {policy.version}"
            yield Problem(kind=ProblemKind.MISSING_ACK, subject=agent_id, message=message)
        elif (ack.version, ack.checksum) != (policy.version, policy.checksum):
            what = ack.version if ack.version != policy.version else "another checksum"
            message = f"{agent_id} has acknowledged {what} instead of {policy.version}"
            yield Problem(kind=ProblemKind.WRONG_ACK, subject=agent_id, message=message)


def _invalid(subject: str, message: str) -> Problem:
    return Problem(kind=ProblemKind.INVALID_POLICY, subject=subject, message=message)
