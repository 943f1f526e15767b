"""The delegation policy at one gateway (OPS-8): set by the coordinator, told to every agent, applied, acknowledged."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from agentpost.delivery.agents import expect_local_agent
from agentpost.delivery.ports import Content
from agentpost.delivery.publish import Publisher, SendRequest
from agentpost.protocol.delegation import (
    Ack,
    Policy,
    Problem,
    ProblemKind,
    checksum_of,
    next_version,
    problems_of,
    read_intents,
)
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.identity_file import render_section, with_section
from agentpost.protocol.timestamps import format_ms
from agentpost.room.document import Room
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.work.delegation.records import MAP, ack_writes, read_acks, read_policy, writes_of
from agentpost.world import Clock

__all__ = ["Applied", "DelegationDesk", "DelegationView"]

_log = logging.getLogger(__name__)

_COLLECTION: Final = "delegation"
_MAX_FILE_BYTES: Final = 4 * 1024 * 1024


class DelegationView(Struct, frozen=True, kw_only=True, rename="camel"):
    """The policy, who has acknowledged what, and what needs action."""

    policy: Policy | None
    acks: tuple[Ack, ...]
    problems: tuple[Problem, ...]


class Applied(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: str
    file: str
    version: str
    checksum: str
    acknowledged: bool


class DelegationDesk:
    def __init__(self, *, store: Store, room: Room, publisher: Publisher, clock: Clock) -> None:
        self._store = store
        self._room = room
        self._publisher = publisher
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()

    def view(self) -> DelegationView:
        policy = self.policy()
        acks = read_acks(self._room.records(MAP))
        return DelegationView(policy=policy, acks=tuple(acks.values()), problems=tuple(self.problems()))

    def policy(self) -> Policy | None:
        return read_policy(self._room.records(MAP))

    def problems(self) -> list[Problem]:
        """What the sweep reports: only what needs action."""
        records = self._room.records(MAP)
        return problems_of(read_policy(records), read_acks(records), agents=self._agents(), now_ms=self._clock.now_ms())

    async def set(self, intents: object, *, by: str) -> DelegationView:
        """Make this the policy, under a new version, and tell every agent. Only the coordinator's gateway may.

        Rows that say nothing new make no new version.
        """
        rows = read_intents(intents)
        expect_local_agent(self._store, by)
        async with self._one_at_a_time:
            present = self.policy()
            checksum = checksum_of(rows)
            if present is None or present.checksum != checksum:
                now = format_ms(self._clock.now_ms())
                version = next_version(None if present is None else present.version, today=now[:10])
                policy = Policy(version=version, checksum=checksum, updated_at=now, updated_by=by, intents=rows)
                self._check_agents(policy)
                self._room.write_together(writes_of(policy, self._room.records(MAP)))
        await self.announce()
        return self.view()

    async def announce(self) -> bool:
        """Send `policy_update` for a policy of this gateway's, once; after a crash it is done at the next look."""
        async with self._one_at_a_time:
            policy = self.policy()
            if policy is None or self._store.local_agent(policy.updated_by) is None:
                return False
            key = f"announced:{policy.version}:{policy.checksum}"
            if self._store.note(_COLLECTION, key) is not None:
                return False
            note = Note(collection=_COLLECTION, key=key, value=b"1", at_ms=self._clock.now_ms())
            request = SendRequest(
                source_agent_id=policy.updated_by,
                to_agents=tuple(sorted(agent_id for agent_id, is_active in self._agents().items() if is_active)),
                content=_said(
                    "policy_update",
                    policy,
                    f"The delegation policy is now {policy.version}. Apply it to your IDENTITY.md and acknowledge it: "
                    "agentpost delegation apply --agent YOU --file IDENTITY.md",
                ),
            )
            await self._publisher.send(request, notes=[note])
            return True

    async def apply(self, agent_id: str, file: Path, *, acknowledge: bool = True) -> Applied:
        """Write the section of an agent's file anew, and acknowledge it. Nothing else in the file changes."""
        expect_local_agent(self._store, agent_id)
        if not file.is_absolute():
            raise Refusal(Code.INVALID_FIELD, f"{file} is not an absolute path", field="file")
        policy = self._valid_policy()
        applied_at = format_ms(self._clock.now_ms())
        section = render_section(policy, applied_by=agent_id, applied_at=applied_at)
        await asyncio.to_thread(_edit, file, section)
        if acknowledge:
            await self.acknowledge(agent_id, version=policy.version, checksum=policy.checksum)
        return Applied(
            agent_id=agent_id,
            file=str(file),
            version=policy.version,
            checksum=policy.checksum,
            acknowledged=acknowledge,
        )

    async def acknowledge(self, agent_id: str, *, version: str, checksum: str) -> Ack:
        """Say that an agent has applied the policy: in the room, and to whoever set it. Refused for another one."""
        expect_local_agent(self._store, agent_id)
        policy = self._valid_policy()
        if (version, checksum) != (policy.version, policy.checksum):
            raise Refusal(
                Code.CONFLICT,
                f"the policy is {policy.version} with {policy.checksum}",
                field="version" if version != policy.version else "checksum",
                hint="Apply that one first: agentpost delegation apply.",
            )
        present = read_acks(self._room.records(MAP)).get(agent_id)
        if present is not None and (present.version, present.checksum) == (version, checksum):
            return present
        ack = Ack(agent_id=agent_id, version=version, checksum=checksum, at=format_ms(self._clock.now_ms()))
        self._room.write_together(ack_writes(ack))
        if policy.updated_by in self._agents():
            text = f"{agent_id} has applied the delegation policy {version}."
            request = SendRequest(
                source_agent_id=agent_id, to_agents=(policy.updated_by,), content=_said("policy_ack", policy, text)
            )
            await self._publisher.send(request)
        return ack

    def _valid_policy(self) -> Policy:
        policy = self.policy()
        if policy is None:
            raise Refusal(
                Code.NOT_FOUND,
                "there is no delegation policy",
                hint="The coordinator sets one: agentpost delegation set policy.toml --by AGENT.",
            )
        if checksum_of(policy.intents) != policy.checksum:
            raise Refusal(
                Code.CONFLICT,
                f"the rows of the policy {policy.version} are not those of its checksum",
                hint="It may still be on its way; if this stays so, the coordinator has to set it again.",
            )
        return policy

    def _check_agents(self, policy: Policy) -> None:
        """Every intent has an owner who is there, and nobody unknown is to be told."""
        acks: dict[str, Ack] = {}
        for problem in problems_of(policy, acks, agents=self._agents(), now_ms=0):
            if problem.kind is ProblemKind.INVALID_POLICY:
                raise Refusal(Code.INVALID_FIELD, problem.message, field="intents", hint="Name agents of the mesh.")

    def _agents(self) -> dict[str, bool]:
        return {agent_id: agent.is_active for agent_id, agent in self._room.snapshot().agents.items()}


def _said(what: str, policy: Policy, text: str) -> Content:
    context = {"type": what, "version": policy.version, "checksum": policy.checksum}
    return Content(subject=f"{what} {policy.version}", body=text, context=context)


def _edit(file: Path, section: str) -> None:
    """Replace the file by a rename: a crash leaves the old one or the new one. A link stays a link."""
    try:
        target = file.resolve()
        before = target.read_bytes() if target.exists() else b""
        if len(before) > _MAX_FILE_BYTES:
            raise Refusal(Code.TOO_LARGE, f"{file} has more than {_MAX_FILE_BYTES} bytes", field="file")
        after = with_section(before, section)
        beside = target.with_name(f".{target.name}.agentpost")
        with beside.open("wb") as out:
            out.write(after)
            out.flush()
            os.fsync(out.fileno())
        if target.exists():
            beside.chmod(target.stat().st_mode & 0o7777)
        beside.replace(target)
    except OSError as error:
        raise Refusal(Code.INVALID_FIELD, f"{file} cannot be written: {error.strerror}", field="file") from None
