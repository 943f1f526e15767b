"""What becomes of the signals of a burst: segments that are missing, damaged, forged or there twice."""

from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from agentpost.lake.manifest import SegmentManifest
from agentpost.simulate.arrow import numbers, pa, texts
from agentpost.simulate.columns import segment_columns
from agentpost.simulate.faults import HARMLESS, Fault
from agentpost.simulate.plan import World
from agentpost.simulate.rows import Rows
from agentpost.simulate.segments import Outbox, parquet_bytes, write_manifest

__all__ = ["write_burst"]

_BROKEN_AT: Final = 5  # the place of the event, within the burst, from which on the chain is another one
_FORKED: Final = slice(3, 8)  # the events of the burst that a mirror exported too


def write_burst(world: World, outbox: Outbox, rng: np.random.Generator, fault: Fault, rows: Rows, root: Path) -> int:
    """Append the burst, in the way of the fault. Gives the seq that shows it."""
    first = outbox.seq + 1
    match fault.rule:
        case "gap":
            outbox.skip(rng, rows)
        case "chain_break":
            outbox.seal(rng, rows, root, broken_at=_BROKEN_AT)
            return first + _BROKEN_AT
        case "bad_signature":
            _forge(world, outbox.seal(rng, rows, root), fault.variant, root)
        case "bad_segment":
            _damage(outbox, outbox.seal(rng, rows, root), fault.variant, root)
        case "fork":
            return _fork(world, outbox, rng, rows, root, same=fault.variant % 2)
        case rule if rule == HARMLESS:
            _fork(world, outbox, rng, rows, root, same=len(rows))
        case _:
            outbox.seal(rng, rows, root)
    return first


def _forge(world: World, manifest: SegmentManifest, variant: int, root: Path) -> None:
    if variant % 2:
        # True when it was signed, and changed since.
        manifest = replace(manifest, sealed_at_us=manifest.sealed_at_us + 1)
        write_manifest(root, manifest)
    else:
        stranger = world.signing_key(world.node_names.index(manifest.sealed_by) - 1)
        write_manifest(root, manifest, signing=stranger)


def _damage(outbox: Outbox, manifest: SegmentManifest, variant: int, root: Path) -> None:
    path = root / manifest.path
    content = path.read_bytes()
    match variant % 5:
        case 0:
            path.write_bytes(content[: len(content) // 2])
        case 1:
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes((content[middle] ^ 4,)) + content[middle + 1 :])
        case 2:
            path.write_bytes(b"")
        case 3:
            # A sound file that says nothing we know, and a manifest that vouches for it.
            strange = pa.Table.from_arrays([numbers(np.arange(1, 4)), texts(("a", "b", "c"))], names=["seq", "note"])
            outbox.replace_content(root, manifest, parquet_bytes(strange))
        case _:
            path.unlink()


def _fork(world: World, outbox: Outbox, rng: np.random.Generator, rows: Rows, root: Path, *, same: int) -> int:
    """A mirror exports some of these events as well; from place `same` of them on they are others."""
    before_seq, before_chain = outbox.seq, outbox.chain
    outbox.seal(rng, rows, root)
    other = rows.copy()
    chain = segment_columns(world, rng, rows[: _FORKED.start], before_seq + 1, before_chain).end_chain
    changed = slice(_FORKED.start + same, None)
    other["word"][changed] += np.uint64(1)
    other["corr_word"][changed] = other["word"][changed]
    first = before_seq + 1 + _FORKED.start
    done = segment_columns(world, rng, other[_FORKED], first, chain)
    mirror = (outbox.node + 1) % world.plan.nodes
    outbox.write(done.table, root, first, chain, done.end_chain, int(rows["t_us"][-1]), sealed_by=mirror)
    return first + same
