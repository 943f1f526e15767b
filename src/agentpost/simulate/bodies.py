"""The bytes of events: templates, filled with the ids, times and names of their rows."""

from typing import Any

import numpy as np
from msgspec import Struct

from agentpost.simulate.arrays import Bytes, Ints, Rows
from agentpost.simulate.arrow import ArrowArray, fixed, pa
from agentpost.simulate.plan import World, policy_number
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
    numbers, starts = np.unique(shapes[order], return_index=True)
    parts: list[ArrowArray] = []
    for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        template = template_of(number)
        body = template.filled(len(places), _Values(world, rng, rows[places], seqs[places], text, places).of)
        parts.append(fixed(body, pa.binary()))
    back = np.empty(len(rows), dtype=np.int64)
    back[order] = np.arange(len(rows))
    return pa.concat_arrays(parts).take(pa.array(back))


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
        rows, text, places = self._rows, self._text, self._places
        agents, nodes = self._world.name_letters
        match name:
            case "id":
                return text.ids[places]
            case "corr":
                return text.corrs[places]
            case "ref":
                return text.refs[places]
            case "task":
                return text.tasks[places]
            case "created":
                return text.created[places]
            case "expires" | "eta" | "deadline":
                return times(rows[f"{name}_ms"])
            case "seq":
                return seq_bytes(self._seqs)
            case "agent":
                return agents[rows["agent"]]
            case "source":
                return nodes[rows["source"]]
            case "cipher":
                random = self._rng.bytes(len(rows) * CIPHERTEXT_BYTES)
                return np.frombuffer(random, dtype=np.uint8).reshape(len(rows), CIPHERTEXT_BYTES)
            case "attempt":
                return _byte(rows["attempt"])
            case "attempts":
                return _byte(rows["dead_attempts"])
            case "progress":
                return _byte(rows["progress"])
            case "policy":
                return _byte(ord("0") + policy_number(self._world, rows["corr_ms"]))
            case "version":
                return _byte(ord("0") + rows["version"])
            case _ if name.startswith("peer_node"):
                return nodes[self._world.node_of(rows["peers"][:, int(name[-1])])]
            case _:
                return agents[rows["peers"][:, int(name[-1])]]


def _byte(values: Any) -> Bytes:
    return values.astype(np.uint8)[:, None]
