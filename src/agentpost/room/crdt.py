"""One copy of the room's Yjs document. The only module that touches pycrdt.

Bytes in, bytes out, and what changed in between. Whatever the library does with bytes it does not like, a Rust panic
included, leaves here as a refusal; the copy is then in an unknown state and has to be thrown away.
"""

# pycrdt is typed in part: its events, and the maps that a Doc holds, are Any or unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeArgument=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from pycrdt import Doc, Map, MapEvent, Subscription, TransactionEvent, merge_updates

from agentpost.protocol.errors import Code, Refusal
from agentpost.room.schema import MAPS
from agentpost.room.wire import Reader

__all__ = ["Applied", "Touched", "Replica", "merged"]

_STOPS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)


class Touched(NamedTuple):
    """A key whose visible value is another than before; None means that the key was deleted."""

    map_name: str
    key: str
    value: Any


class Applied(NamedTuple):
    """What an update did, and the update as this copy passes it on: without the content of what is not visible."""

    touched: list[Touched]
    relay: bytes


class _Notes:
    """What the observers of a copy saw. They know these notes and not the copy, see `Replica`."""

    def __init__(self) -> None:
        self.touched: list[Touched] = []
        self.relay = b""

    def on_map(self, map_name: str, event: MapEvent) -> None:
        for key, change in event.keys.items():  # pyright: ignore[reportAttributeAccessIssue] - a slot, set at run time
            self.touched.append(Touched(map_name, key, change.get("newValue")))

    def on_update(self, event: TransactionEvent) -> None:
        self.relay = event.update


class Replica:
    """Used by one thread. One that is not watched merges faster, and does not say what an update did.

    In the library a document holds its observers, and they hold it: a circle that Python's collector does not see. So
    they are taken off when the last one who knows the copy lets it go, or every copy would stay in memory for ever.
    """

    def __init__(self, content: bytes | None = None, *, is_watched: bool = True) -> None:
        self._subscriptions: list[Subscription] = []
        self._doc = Doc()
        self._notes = _Notes()
        self._maps: dict[str, Map] = {}
        for name in MAPS:
            self._maps[name] = self._doc.get(name, type=Map)
            if is_watched:
                self._subscriptions.append(self._maps[name].observe(partial(self._notes.on_map, name)))
        if is_watched:
            self._subscriptions.append(self._doc.observe(self._notes.on_update))
        if content is not None:
            self.apply(content)

    def __del__(self) -> None:
        for subscription in self._subscriptions:
            subscription.drop()

    def apply(self, update: bytes) -> Applied:
        notes = self._notes
        notes.touched, notes.relay = [], b""
        _guarded(lambda: self._doc.apply_update(update))
        return Applied(notes.touched, notes.relay)

    def state(self) -> bytes:
        return _guarded(self._doc.get_state)

    def clocks(self) -> dict[int, int]:
        """How many clocks of each client are here."""
        reader = Reader(self.state())
        return {reader.uint(): reader.uint() for _ in range(reader.uint())}

    def update_since(self, state: bytes | None = None) -> bytes:
        """What somebody with this state has not seen; everything, without one."""
        return _guarded(lambda: self._doc.get_update(state))

    def values(self, map_name: str) -> dict[str, Any]:
        """The visible values of a map, verified or not."""
        return _guarded(lambda: self._maps[map_name].to_py()) or {}


def merged(updates: list[bytes]) -> bytes:
    """Several updates as one."""
    return updates[0] if len(updates) == 1 else _guarded(lambda: merge_updates(*updates))


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except _STOPS:
        raise
    except BaseException as problem:  # noqa: BLE001 - a panic of the library is no Exception
        raise Refusal(
            Code.MALFORMED,
            f"Yjs cannot read it: {str(problem)[:200]}",
            hint="Send an update of the Yjs format, version 1.",
        ) from None
