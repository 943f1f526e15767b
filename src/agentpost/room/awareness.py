"""Awareness, the part of y-protocols that is not kept: who is connected, with which state, as of which clock.

A state is `{"nodeId": …, "heartbeatAt": epoch ms}` and little else. A node sets its own states; a backbone node also
passes on those of others. Nothing of it reaches the document or the disk.
"""

import json
from typing import Any, Final, NamedTuple, cast

from agentpost.protocol.errors import Code, Refusal
from agentpost.room.keys import KeyBook
from agentpost.room.presence import Presence
from agentpost.room.schema import is_id
from agentpost.room.wire import Reader, var_uint
from agentpost.world import Clock

__all__ = ["Awareness", "Entry", "decode_awareness", "encode_awareness"]

MAX_STATE_BYTES: Final = 1024
_MOST_CLIENTS: Final = 4096
_EXPIRES_AFTER_MS: Final = 90_000
# The end of the year 9999: what is beyond is no time.
_LAST_TIME_MS: Final = 253_402_300_800_000


class Entry(NamedTuple):
    """One client's state; None when it is gone."""

    client: int
    clock: int
    state: dict[str, Any] | None


class _Held(NamedTuple):
    entry: Entry
    node_id: str
    heard_at_ms: int


def decode_awareness(data: bytes) -> list[Entry]:
    reader = Reader(data)
    entries: list[Entry] = []
    for _ in range(reader.uint()):
        client, clock, text = reader.uint(), reader.uint(), reader.text()
        if len(text) > MAX_STATE_BYTES:
            raise Refusal(Code.TOO_LARGE, "a state is too large", hint="Presence is a node id and a heartbeat.")
        try:
            state: object = json.loads(text)
        except (ValueError, RecursionError):
            raise Refusal(Code.MALFORMED, "a state is not JSON") from None
        if state is not None and type(state) is not dict:
            raise Refusal(Code.MALFORMED, "a state is not an object")
        entries.append(Entry(client, clock, cast("dict[str, Any] | None", state)))
    if reader.rest:
        raise Refusal(Code.MALFORMED, "there are bytes after the end of the awareness update")
    return entries


def encode_awareness(entries: list[Entry]) -> bytes:
    out = bytearray(var_uint(len(entries)))
    for client, clock, state in entries:
        text = json.dumps(state, separators=(",", ":")).encode()
        out += var_uint(client) + var_uint(clock) + var_uint(len(text)) + text
    return bytes(out)


class Awareness:
    """The states of everybody who is connected, here and beyond."""

    def __init__(self, *, node_id: str, client: int, keys: KeyBook, presence: Presence, clock: Clock) -> None:
        self._node_id = node_id
        self._client = client
        self._keys = keys
        self._presence = presence
        self._clock = clock
        self._held: dict[int, _Held] = {}

    def beat(self) -> list[Entry]:
        """The own heartbeat, to be sent to every peer."""
        held = self._held.get(self._client)
        state = {"nodeId": self._node_id, "heartbeatAt": self._clock.now_ms()}
        # A clock that starts at the time of day is higher than that of any life before.
        clock = self._clock.now_ms() if held is None else held.entry.clock + 1
        entry = Entry(self._client, clock, state)
        self._hold(entry, self._node_id)
        return [entry]

    def farewell(self) -> list[Entry]:
        """The own state, taken back: said to every peer when the gateway stops."""
        held = self._held.pop(self._client, None)
        self._presence.left(self._node_id)
        return [] if held is None else [Entry(self._client, held.entry.clock + 1, None)]

    def receive(self, entries: list[Entry], *, peer: str) -> list[Entry]:
        """Take the states that `peer` brought. Gives those that were news, to be passed on."""
        is_backbone = self._keys.is_backbone(peer)
        for entry in entries:
            self._check(entry, peer, is_backbone)
        news: list[Entry] = []
        for entry in entries:
            held = self._held.get(entry.client)
            if held is not None and entry.clock <= held.entry.clock and entry.state is not None:
                continue
            if entry.state is None:
                if held is not None and entry.client != self._client and entry.clock >= held.entry.clock:
                    self._drop(entry.client)
                    news.append(entry)
            elif not self._keys.is_revoked(entry.state["nodeId"]):
                if held is None and len(self._held) >= _MOST_CLIENTS:
                    raise Refusal(Code.TOO_LARGE, "too many clients are present")
                self._hold(entry, entry.state["nodeId"])
                news.append(entry)
        return news if self._may_relay() else []

    def cut_off(self, node_id: str) -> list[Entry]:
        """Forget a node whose connection ended; gives what to tell the others."""
        gone = [held.entry for held in self._held.values() if held.node_id == node_id]
        for entry in gone:
            self._drop(entry.client)
        return [Entry(entry.client, entry.clock + 1, None) for entry in gone] if self._may_relay() else []

    def present(self) -> list[Entry]:
        """What somebody who connects now is told: the states that are fresh."""
        oldest_ms = self._clock.monotonic_ms() - _EXPIRES_AFTER_MS
        for client in [client for client, held in self._held.items() if held.heard_at_ms < oldest_ms]:
            del self._held[client]
        may_relay = self._may_relay()
        return [held.entry for held in self._held.values() if may_relay or held.node_id == self._node_id]

    def _may_relay(self) -> bool:
        """Whether others take this node's word for somebody else: that of a backbone node they do."""
        return self._keys.is_backbone(self._node_id)

    def _check(self, entry: Entry, peer: str, is_backbone: bool) -> None:
        held = self._held.get(entry.client)
        owner = None if held is None else held.node_id
        if entry.state is not None:
            node_id = entry.state.get("nodeId")
            if not isinstance(node_id, str) or not is_id(node_id):
                raise Refusal(Code.INVALID_FIELD, "a state does not say whose it is", field="nodeId")
            extra = entry.state.keys() - {"nodeId", "heartbeatAt", "status", "user"}
            if extra:
                raise Refusal(Code.WRITE_DENIED, f"a state has a field that it must not have: {min(extra)[:40]!r}")
            if owner not in (None, node_id) or (not is_backbone and node_id != peer):
                raise Refusal(Code.WRITE_DENIED, f"{peer} may not speak for {node_id}", field="nodeId")
        elif not is_backbone and owner not in (None, peer):
            raise Refusal(Code.WRITE_DENIED, f"{peer} may not speak for {owner}", field="nodeId")

    def _hold(self, entry: Entry, node_id: str) -> None:
        self._held[entry.client] = _Held(entry, node_id, self._clock.monotonic_ms())
        said_ms = (entry.state or {}).get("heartbeatAt")
        is_time = type(said_ms) is int and 0 <= said_ms < _LAST_TIME_MS and node_id != self._node_id
        self._presence.heard(node_id, said_ms=said_ms if is_time else None)

    def _drop(self, client: int) -> None:
        node_id = self._held.pop(client).node_id
        if all(held.node_id != node_id for held in self._held.values()):
            self._presence.left(node_id)
