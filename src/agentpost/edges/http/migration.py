"""The migration from a legacy document, over HTTP (OPS-9)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body
from msgspec import Meta, Struct

from agentpost.gateway import Gateway
from agentpost.protocol.errors import Code, Refusal
from agentpost.work.migration.bridge import MigrationStatus, Taken
from agentpost.work.migration.document import LegacyDocument
from agentpost.work.migration.phases import Phase

__all__ = ["migration_routes"]

_MAX_FILE_BYTES = 256 * 1024 * 1024


class ImportFile(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    file: str


class EnterPhase(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    phase: Phase
    room: Annotated[str, Meta(pattern=r"^wss?://[!-~]{1,500}\Z")] | None = None
    force: bool = False


def migration_routes(gateway: Gateway) -> Sequence[HTTPRouteHandler]:
    bridge = gateway.commons.migration

    @get("/ansible/migration", sync_to_thread=False, summary="Where the migration stands", tags=["migration"])
    def status() -> MigrationStatus:
        return bridge.status()

    @post("/ansible/migration/import", status_code=200, summary="Take over a legacy document", tags=["migration"])
    async def import_file(data: Annotated[ImportFile, Body()]) -> Taken:
        """Take over what a Yjs update file has for this gateway's agents. Each entry is taken once."""
        raw = await asyncio.to_thread(_read, Path(data.file))
        return await bridge.take(LegacyDocument(raw))

    @post("/ansible/migration/phase", status_code=200, summary="Enter a phase", tags=["migration"])
    async def phase(data: Annotated[EnterPhase, Body()]) -> MigrationStatus:
        """Forward one step, or back; the last step cannot be taken back."""
        if data.phase is not Phase.OFF and data.room is None and bridge.state.room is None:
            raise Refusal(
                Code.INVALID_FIELD,
                "the migration does not know the legacy room",
                field="room",
                hint="Name it once: --room ws://host:port/room.",
            )
        return await bridge.move(data.phase, room=data.room, force=data.force)

    return [status, import_file, phase]


def _read(file: Path) -> bytes:
    try:
        if not file.is_absolute() or file.stat().st_size > _MAX_FILE_BYTES:
            raise Refusal(Code.INVALID_FIELD, f"{file} is not an absolute path, or too large", field="file")
        return file.read_bytes()
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise Refusal(Code.NOT_FOUND, problem, field="file", hint="Name a file that the gateway can read.") from None
