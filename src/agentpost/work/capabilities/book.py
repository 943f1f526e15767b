"""The manifests that this gateway keeps: what its own agents published, and what other gateways sent.

One note for each capability and version. An own one is *active* until another takes its place (*retired*) or it is
taken back (*withdrawn*): that note, and not the room, is what the owner meant, so the room can be made to say it again.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.work.capabilities.manifest import Manifest, SignedManifest

__all__ = ["ManifestBook", "ManifestState", "Page"]

_COLLECTION: Final = "manifests"
_PAGE: Final = 256


class ManifestState(StrEnum):
    ACTIVE = "active"
    RETIRED = "retired"
    WITHDRAWN = "withdrawn"
    RECEIVED = "received"


class Page(Struct, frozen=True, kw_only=True, rename="camel"):
    """A manifest as it is kept. It was verified when it got here."""

    state: ManifestState
    signed: SignedManifest
    manifest: Manifest
    at_ms: int

    @property
    def capability_id(self) -> str:
        return self.manifest.declaration.capability_id

    @property
    def version(self) -> str:
        return self.manifest.declaration.version


class ManifestBook:
    def __init__(self, store: Store) -> None:
        self._store = store

    def own(self, state: ManifestState = ManifestState.ACTIVE) -> list[Page]:
        """What this gateway has published and not taken back, by capability; or what is in another state."""
        return [page for page in self._all() if page.state is state]

    def active(self, capability_id: str) -> Page | None:
        return next((page for page in self.versions(capability_id) if page.state is ManifestState.ACTIVE), None)

    def versions(self, capability_id: str) -> list[Page]:
        notes = self._store.notes(_COLLECTION, after_key=f"{capability_id}/", limit=_PAGE)
        return [_page(note) for note in notes if note.key.startswith(f"{capability_id}/")]

    def by_ref(self, capability_id: str, ref: str | None) -> Page | None:
        """The manifest that the catalog names, if it is here."""
        return next((page for page in self.versions(capability_id) if page.signed.ref == ref), None)

    async def publish(self, signed: SignedManifest, manifest: Manifest, *, at_ms: int) -> None:
        """Make this the active version, and retire the one before, together."""
        capability_id = manifest.declaration.capability_id
        page = Page(state=ManifestState.ACTIVE, signed=signed, manifest=manifest, at_ms=at_ms)
        before = [
            replace(each, state=ManifestState.RETIRED)
            for each in self.versions(capability_id)
            if each.state is ManifestState.ACTIVE and each.version != page.version
        ]
        await self._store.put_notes([_note(each) for each in (*before, page)])

    async def take_back(self, page: Page, before: Page | None) -> None:
        """Undo a publish that the room refused."""
        changed = [_note(page, gone=True)]
        if before is not None:
            changed.append(_note(before))
        await self._store.put_notes(changed)

    async def withdraw(self, page: Page) -> None:
        await self._store.put_notes([_note(replace(page, state=ManifestState.WITHDRAWN))])

    async def receive(self, signed: SignedManifest, manifest: Manifest, *, at_ms: int) -> None:
        """Keep what another gateway published; older versions of it go. What this one published is here already."""
        capability_id = manifest.declaration.capability_id
        if any(each.signed.ref == signed.ref for each in self.versions(capability_id)):
            return
        page = Page(state=ManifestState.RECEIVED, signed=signed, manifest=manifest, at_ms=at_ms)
        old = [_note(each, gone=True) for each in self.versions(capability_id) if each.state is ManifestState.RECEIVED]
        await self._store.put_notes([*old, _note(page)])

    def _all(self) -> list[Page]:
        found: list[Page] = []
        after = ""
        while notes := self._store.notes(_COLLECTION, after_key=after, limit=_PAGE):
            found += map(_page, notes)
            after = notes[-1].key
        return found


def _page(note: Note) -> Page:
    return msgspec.json.decode(note.value or b"", type=Page)


def _note(page: Page, *, gone: bool = False) -> Note:
    return Note(
        collection=_COLLECTION,
        key=f"{page.capability_id}/{page.version}",
        value=None if gone else msgspec.json.encode(page),
        at_ms=page.at_ms,
    )
