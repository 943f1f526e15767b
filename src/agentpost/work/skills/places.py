"""Where each agent of this gateway keeps its skills, and whether others may put some there."""

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from agentpost.delivery.agents import expect_local_agent
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.work.skills.folder import Skill, resolve_skill

__all__ = ["SkillPlace", "SkillPlaces"]

_COLLECTION: Final = "skill_places"


class SkillPlace(Struct, frozen=True, kw_only=True, rename="camel"):
    """`accepts`: skills that others publish are installed here; an agent may say no to that."""

    agent_id: str
    directory: str
    accepts: bool = True


class SkillPlaces:
    """`default` is the directory below which an agent has its own, unless its people named another."""

    def __init__(self, store: Store, *, default: Path) -> None:
        self._store = store
        self._default = default

    def of(self, agent_id: str) -> SkillPlace:
        expect_local_agent(self._store, agent_id)
        note = self._store.note(_COLLECTION, agent_id)
        if note is None or note.value is None:
            return SkillPlace(agent_id=agent_id, directory=str(self._default / agent_id))
        return msgspec.json.decode(note.value, type=SkillPlace)

    async def set(
        self, agent_id: str, *, directory: Path | None = None, accepts: bool | None = None, at_ms: int
    ) -> SkillPlace:
        """Change what is given, and leave the rest."""
        present = self.of(agent_id)
        if directory is not None and not directory.is_absolute():
            raise Refusal(Code.INVALID_FIELD, f"{directory} is not an absolute path", field="directory")
        place = SkillPlace(
            agent_id=agent_id,
            directory=present.directory if directory is None else str(directory),
            accepts=present.accepts if accepts is None else accepts,
        )
        value = msgspec.json.encode(place)
        await self._store.put_notes([Note(collection=_COLLECTION, key=agent_id, value=value, at_ms=at_ms)])
        return place

    def resolve(self, agent_id: str, name: str, version: str | None = None) -> Skill:
        """A skill of an agent of this gateway; refused if it is not there in this version (CAP-2)."""
        return resolve_skill(Path(self.of(agent_id).directory), name, version)
