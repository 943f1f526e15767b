"""The bytes of events: templates, filled with the ids, times and names of their rows."""

from typing import Any

import numpy as np
from msgspec import Struct

from agentpost.simulate.arrays import Bytes, Ints
from agentpost.simulate.arrow import ArrowArray, fixed, numbers, pa
from agentpost.simulate.plan import World, policy_number
from agentpost.simulate.rows import Rows
from agentpost.simulate.templates import CIPHERTEXT_BYTES, shape_of, template_of
from agentpost.simulate.text import seq_bytes, times

__all__ = ["Texts", "bodies"]


class Texts(Struct, frozen=True):
    ids: Bytes
    corrs: Bytes
    refs: Bytes
    tasks: Bytes
    created: Bytes


def bodies(world: World, rng: np.random.Generator, rows: Rows, seqs: Ints, text: Texts) -> ArrowArray:
    shapes = shape_of(rows)
    order = np.argsort(shapes, kind="stable")
    found, starts = np.unique(shapes[order], return_index=True)
    parts: list[ArrowArray] = []
    for number, places in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        template = template_of(number)
        body = template.filled(len(places), _Values(world, rng, rows, seqs, text, places).of)
        parts.append(fixed(body, pa.binary()))
    back = np.empty(len(rows), dtype=np.int64)
    back[order] = np.arange(len(rows))
    return pa.concat_arrays(parts).take(numbers(back))


class _Values:
    """What goes into the places of one template."""

    def __init__(
        self, world: World, rng: np.random.Generator, rows: Rows, seqs: Ints, text: Texts, places: Ints
    ) -> None:
        self._world = world
        self._rng = rng
        self._rows = rows
        self._seqs = seqs
        self._text = text
        self._places = places

    def of(self, name: str, width: int) -> Bytes:
        text, places = self._text, self._places
        agents, nodes = self._world.name_letters
        match name:
            case "id":
                return text.ids.take(places, axis=0)
            case "corr":
                return text.corrs.take(places, axis=0)
            case "ref":
                return text.refs.take(places, axis=0)
            case "task":
                return text.tasks.take(places, axis=0)
            case "created":
                return text.created.take(places, axis=0)
            case "expires" | "eta" | "deadline":
                return times(self._column(f"{name}_ms"))
            case "seq":
                return seq_bytes(self._seqs.take(places))
            case "agent":
                return agents.take(self._column("agent"), axis=0)
            case "source":
                return nodes.take(self._column("source"), axis=0)
            case "cipher":
                random = self._rng.bytes(len(places) * CIPHERTEXT_BYTES)
                return np.frombuffer(random, dtype=np.uint8).reshape(len(places), CIPHERTEXT_BYTES)
            case "attempt" | "progress":
                return _byte(self._column(name))
            case "attempts":
                return _byte(self._column("dead_attempts"))
            case "policy":
                return _byte(ord("0") + policy_number(self._world, self._column("corr_ms")))
            case "version":
                return _byte(ord("0") + self._column("version"))
            case _ if name.startswith("peer_node"):
                return nodes.take(self._world.node_of(self._peers(name)), axis=0)
            case _:
                return agents.take(self._peers(name), axis=0)

    def _column(self, name: str) -> Ints:
        return self._rows[name].take(self._places)

    def _peers(self, name: str) -> Ints:
        return self._rows["peers"][:, int(name[-1])].take(self._places)


def _byte(values: Any) -> Bytes:
    return values.astype(np.uint8)[:, None]
