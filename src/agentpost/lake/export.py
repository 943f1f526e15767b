"""Outboxes into the lake: what is not there yet becomes sealed segments, each event once, in order.

All that has to be remembered stands in the lake: an outbox goes on after the last segment that has a manifest. Several
gateways may export the same outbox to one lake, its owner and those who mirror it; whoever is first has sealed.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from agentpost.lake.columns import segment_batch
from agentpost.lake.manifest import SegmentManifest
from agentpost.lake.place import Lake, NameTaken
from agentpost.lake.segments import last_manifest, manifest_at, remove_orphans, seal
from agentpost.lake.settings import LakeSettings
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.heads import chain_over
from agentpost.store.exporting import OutboxReader, WholeOutbox
from agentpost.world import Clock

__all__ = ["ExportProgress", "Exporter"]

_log = logging.getLogger(__name__)

# What is decoded and turned into columns at once: long enough to be quick, short enough that others get their turn.
_ROWS_A_STEP: Final = 2_048
# Until a segment was written nobody knows how long the events are.
_LIKELY_EVENT_BYTES: Final = 500

Outbox = tuple[str, str]


class ExportProgress(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How far one outbox is in the lake. `lag_events` are here and not there."""

    node_id: str
    epoch: str
    exported_seq: int
    last_seq: int
    lag_events: int
    is_mirror: bool = False
    problem: str | None = None


class _Position(Struct, frozen=True, kw_only=True):
    """Where an outbox goes on in the lake: after this seq, with this chain."""

    seq: int
    chain: bytes


class Exporter:
    """Exports the outboxes of one home. Used by one thread at a time, which may be any."""

    def __init__(
        self,
        lake: Lake,
        *,
        home: Path,
        signing: Ed25519PrivateKey,
        settings: LakeSettings,
        clock: Clock,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> None:
        self._lake = lake
        self._home = home
        self._signing = signing
        self._settings = settings
        self._clock = clock
        self._keep_going = keep_going
        self._sealed_by = ""
        self._positions: dict[Outbox, _Position] = {}
        self._waiting_since_ms: dict[Outbox, int] = {}
        self._event_bytes: dict[Outbox, int] = {}
        self._progress: dict[Outbox, ExportProgress] = {}
        # The mirrored outboxes that their owners export themselves.
        self._left_to_owner: set[Outbox] = set()

    def progress(self) -> list[ExportProgress]:
        """As of the last round."""
        return list(self._progress.values())

    def exported_seq(self, node_id: str, epoch: str) -> int:
        """The last seq of an outbox that is known to be in the lake; 0 if none is."""
        position = self._positions.get((node_id, epoch))
        return position.seq if position else 0

    def export(self, *, now: bool = False) -> list[SegmentManifest]:
        """Seal what is due, or with `now` all there is. Gives the new segments.

        A problem with one outbox is noted in its progress and does not keep the others.
        """
        reader = OutboxReader(self._home)
        try:
            own = reader.own()
            self._sealed_by = own.node_id
            outboxes = [own, *(reader.mirrored() if self._settings.mirrors else ())]
            sealed: list[SegmentManifest] = []
            progress: dict[Outbox, ExportProgress] = {}
            for outbox in outboxes:
                problem: str | None = None
                try:
                    sealed += self._export(reader, outbox, now=now)
                except Refusal as refusal:
                    problem = refusal.message
                    _log.error("the outbox of %s cannot be exported: %s", outbox.node_id, refusal.message)
                key = (outbox.node_id, outbox.epoch)
                progress[key] = self._as_progress(outbox, problem)
            self._progress = progress
            return sealed
        finally:
            reader.close()

    def _as_progress(self, outbox: WholeOutbox, problem: str | None) -> ExportProgress:
        exported_seq = self.exported_seq(outbox.node_id, outbox.epoch)
        return ExportProgress(
            node_id=outbox.node_id,
            epoch=outbox.epoch,
            exported_seq=exported_seq,
            last_seq=outbox.last_seq,
            lag_events=max(outbox.last_seq - exported_seq, 0),
            is_mirror=outbox.is_mirror,
            problem=problem,
        )

    def _export(self, reader: OutboxReader, outbox: WholeOutbox, *, now: bool) -> list[SegmentManifest]:
        position = self._position(reader, outbox)
        sealed: list[SegmentManifest] = []
        while self._keep_going() and self._is_due(outbox, position, now=now or bool(sealed)):
            manifest = self._seal_next(reader, outbox, position)
            if manifest is not None:
                sealed.append(manifest)
            after = self._position(reader, outbox)
            if after == position:
                break  # what comes next is not there: pruned, or of an epoch that is over
            position = after
            self._waiting_since_ms.pop((outbox.node_id, outbox.epoch), None)
        return sealed

    def _is_due(self, outbox: WholeOutbox, position: _Position, *, now: bool) -> bool:
        key = (outbox.node_id, outbox.epoch)
        waiting = outbox.last_seq - position.seq
        if waiting <= 0:
            self._waiting_since_ms.pop(key, None)
            return False
        since_ms = self._waiting_since_ms.setdefault(key, self._clock.monotonic_ms())
        return (
            now
            or waiting >= self._settings.seal_events
            or waiting * self._event_bytes.get(key, _LIKELY_EVENT_BYTES) >= self._settings.seal_bytes
            or self._clock.monotonic_ms() - since_ms >= self._settings.seal_every_seconds * 1000
        )

    # Where an outbox goes on

    def _position(self, reader: OutboxReader, outbox: WholeOutbox) -> _Position:
        """After the last segment in the lake, whoever sealed it; at its start if there is none."""
        key = (outbox.node_id, outbox.epoch)
        known = self._positions.get(key)
        if known is None:
            for orphan in remove_orphans(self._lake, *key):
                _log.info("removed %s, which was never sealed", orphan)
            last = last_manifest(self._lake, *key)
            known = self._start(reader, outbox) if last is None else _end_of(last)
            if outbox.is_mirror and last is not None and last.sealed_by == outbox.node_id:
                self._left_to_owner.add(key)
        while (after := manifest_at(self._lake, *key, known.seq + 1)) is not None:
            known = _end_of(after)
        # What a mirror does not have any more, the owner is still to export: nobody begins behind it.
        if known.seq < outbox.floor_seq and key not in self._left_to_owner:
            _log.warning(
                "the outbox of %s was pruned through seq %d, the lake ends at %d: what is between is lost to it",
                outbox.node_id,
                outbox.floor_seq,
                known.seq,
            )
            known = self._start(reader, outbox)
        # Somebody else may have exported what came after this round began.
        if not outbox.is_mirror and known.seq > outbox.last_seq and known.seq > reader.own().last_seq:
            raise Refusal(
                Code.CONFLICT,
                f"the lake has seq {known.seq} of {outbox.node_id} in epoch {outbox.epoch}, and its outbox ends at "
                f"{outbox.last_seq}",
                hint="The home was put back from an older copy: give it a new epoch, see docs/lake.md.",
            )
        self._positions[key] = known
        return known

    def _start(self, reader: OutboxReader, outbox: WholeOutbox) -> _Position:
        if outbox.floor_chain is not None:
            return _Position(seq=outbox.floor_seq, chain=outbox.floor_chain)
        # A mirror that began in the middle knows the chain from its first event on.
        first = reader.rows(outbox, outbox.floor_seq, limit=1)
        if not first:
            return _Position(seq=outbox.floor_seq, chain=bytes(32))
        return _Position(seq=first[0][0], chain=first[0][1])

    # One segment

    def _seal_next(self, reader: OutboxReader, outbox: WholeOutbox, position: _Position) -> SegmentManifest | None:
        """Seal the next segment. None if somebody else did, or if what it would hold is gone."""
        batches, end, size = self._read(reader, outbox, position)
        if not batches:
            return None
        key = (outbox.node_id, outbox.epoch)
        self._event_bytes[key] = max(size // (end.seq - position.seq), 1)
        manifest = SegmentManifest(
            node_id=outbox.node_id,
            epoch=outbox.epoch,
            first_seq=position.seq + 1,
            last_seq=end.seq,
            start_chain=position.chain.hex(),
            end_chain=end.chain.hex(),
            path="",
            size_bytes=0,
            sha256="0" * 64,
            sealed_at_us=self._clock.now_ms() * 1000,
            sealed_by=self._sealed_by,
        )
        try:
            return seal(self._lake, manifest, batches, signing=self._signing)
        except NameTaken:
            return None

    def _read(
        self, reader: OutboxReader, outbox: WholeOutbox, position: _Position
    ) -> tuple[list[pa.RecordBatch], _Position, int]:
        batches: list[pa.RecordBatch] = []
        at, chain, size = position.seq, position.chain, 0
        while at - position.seq < self._settings.seal_events and size < self._settings.seal_bytes:
            step = min(_ROWS_A_STEP, self._settings.seal_events - (at - position.seq))
            rows = reader.rows(outbox, at, limit=step)
            if not rows:
                break
            seqs, chains, bodies = zip(*rows, strict=True)
            chain = chain_over(chain, bodies)
            size += sum(map(len, bodies))
            if chain != chains[-1]:
                raise Refusal(
                    Code.CONFLICT,
                    f"the hash chain of {outbox.node_id} after seq {at} does not go on from the one in the lake",
                    hint="Run `agentpost store check`; a home put back from an older copy needs a new epoch.",
                )
            batches.append(segment_batch(seqs, chains, bodies, node_id=outbox.node_id))
            at = seqs[-1]
            # The thread that delivers mail is waiting for its turn.
            time.sleep(0)
        return batches, _Position(seq=at, chain=chain), size


def _end_of(manifest: SegmentManifest) -> _Position:
    return _Position(seq=manifest.last_seq, chain=bytes.fromhex(manifest.end_chain))
