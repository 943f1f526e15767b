"""Awareness, the part of y-protocols that is not kept: which node is there, by its own signed word.

A state is a heartbeat, `{"nodeId": …, "heartbeatAt": epoch ms, "sig": …}` (with a `beat` where the clock was set
back), or a goodbye, which has `"status": "offline"` too. Each node has one, whatever Yjs client it came under. Only a
later one of the same node takes its place; so nobody can speak for another, say goodbye for it, or bring an old word
back. Who says nothing ages out (`presence`). A Yjs client without the node's key may send a state without a signature
on its own session; then it is present at that gateway only. Nothing of it reaches the document or the disk.
"""

import json
from typing import Any, Final, NamedTuple, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentpost.protocol.errors import Code, Refusal
from agentpost.room.guard import client_tag
from agentpost.room.membership import RoomMembers
from agentpost.room.presence import Presence
from agentpost.room.records import canonical, sign_bytes, verify_bytes
from agentpost.room.schema import is_id
from agentpost.room.wire import Reader, var_uint
from agentpost.world import Clock

__all__ = ["Awareness", "Entry", "decode_awareness", "encode_awareness", "signed_state"]

MAX_STATE_BYTES: Final = 512
_FIELDS: Final = frozenset({"nodeId", "heartbeatAt", "beat", "status", "sig"})
_OFFLINE: Final = "offline"
_LARGEST: Final = 2**53 - 2
# The end of the year 9999: what is beyond is no time.
_LAST_TIME_MS: Final = 253_402_300_800_000
# Older ones are not told to who connects now: a node that is there says so again in a few seconds.
_TOLD_FOR_MS: Final = 25_000
# A mesh has fewer nodes; nobody fills the memory with what a frame claims.
_MOST_ENTRIES: Final = 4096


class Entry(NamedTuple):
    """One client's state; None when it is gone."""

    client: int
    clock: int
    state: dict[str, Any] | None


class Heard(NamedTuple):
    """What to do about the states that a peer brought: what to pass on, what to say to every peer, what to answer."""

    news: list[Entry]
    own: list[Entry]
    answer: list[Entry]


class _Held(NamedTuple):
    entry: Entry
    number: int
    heard_at_ms: int


def decode_awareness(data: bytes) -> list[Entry]:
    reader = Reader(data)
    entries: list[Entry] = []
    count = reader.uint()
    if count > _MOST_ENTRIES:
        raise Refusal(Code.TOO_LARGE, f"{count} states at once", hint="Presence is one state a node.")
    for _ in range(count):
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


def signed_state(
    node_id: str,
    heartbeat_at: int,
    signing: Ed25519PrivateKey,
    *,
    number: int | None = None,
    is_goodbye: bool = False,
) -> dict[str, Any]:
    """A node's word that it is there, or that it leaves. `number` is given where the time would be an earlier one."""
    said: dict[str, Any] = {"nodeId": node_id, "heartbeatAt": heartbeat_at}
    if number is not None and number != heartbeat_at:
        said["beat"] = number
    if is_goodbye:
        said["status"] = _OFFLINE
    return said | {"sig": sign_bytes(signing, _message(said))}


class Awareness:
    """The latest word of each node, here and beyond."""

    def __init__(
        self, *, node_id: str, signing: Ed25519PrivateKey, keys: RoomMembers, presence: Presence, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._signing = signing
        self._keys = keys
        self._presence = presence
        self._clock = clock
        self._latest = 0
        self._has_left = False
        self._held: dict[str, _Held] = {}

    def beat(self) -> list[Entry]:
        """The own heartbeat, to be sent to every peer."""
        self._has_left = False
        return [self._say(is_goodbye=False)]

    def farewell(self) -> list[Entry]:
        """The own goodbye, said to every peer when the gateway stops. A node says it for itself only."""
        if self._node_id not in self._held or self._has_left:
            return []
        self._has_left = True
        return [self._say(is_goodbye=True)]

    def receive(self, entries: list[Entry], *, peer: str) -> Heard:
        """Take the states that `peer` brought."""
        heard = Heard([], [], [])
        is_relay, may_relay = self._keys.is_backbone(peer), self._may_relay()
        for entry in entries:
            if entry.state is None:
                continue  # y-protocols' way to say that a client is gone, for whomever: it proves nothing
            node_id, number = _form(entry.state)
            if node_id == peer:
                self._hear_peer(entry, number, heard)
            elif node_id == self._node_id:
                heard.own.extend(self._catch_up(entry, number))
            elif is_relay and self._is_news(entry, number):
                self._hold(entry, number)
                heard.news.append(entry)
        return heard if may_relay else heard._replace(news=[])

    def present(self) -> list[Entry]:
        """What somebody who connects now is told."""
        oldest_ms = self._clock.monotonic_ms() - _TOLD_FOR_MS
        told = [held.entry for held in self._held.values() if held.heard_at_ms >= oldest_ms]
        return told if self._may_relay() else [each for each in told if _node_of(each) == self._node_id]

    def _say(self, *, is_goodbye: bool) -> Entry:
        # Never below an earlier one, also when the clock was set back.
        now_ms = self._clock.now_ms()
        self._latest = max(now_ms, self._latest + 1)
        state = signed_state(self._node_id, now_ms, self._signing, number=self._latest, is_goodbye=is_goodbye)
        entry = Entry(client_tag(self._node_id), self._latest, state)
        self._hold(entry, self._latest)
        return entry

    def _hear_peer(self, entry: Entry, number: int, heard: Heard) -> None:
        """Take a peer's word for itself, on its own session: that outweighs what others say of it."""
        state = entry.state or {}
        held = self._held.get(_node_of(entry))
        if held is not None and held.entry.state == state:
            return
        is_signed = "sig" in state and self._is_signed(state)
        if is_signed and (held is None or number > held.number):
            self._hold(entry, number)
            heard.news.append(entry)
            return
        # Without the node's key, or with one that is not known here yet, or from before what it said already: who has
        # the session is there, and others do not take that from us.
        if not _is_goodbye(state):
            self._presence.heard(_node_of(entry))
        if held is not None and is_signed:
            heard.answer.append(held.entry)

    def _catch_up(self, entry: Entry, number: int) -> list[Entry]:
        """Others have a later word of this node than it remembers: what it says next has to be later still."""
        if number <= self._latest or self._has_left or not self._is_signed(entry.state or {}):
            return []
        self._latest = number
        return [self._say(is_goodbye=False)]

    def _is_news(self, entry: Entry, number: int) -> bool:
        """Whether it is later than what is held, and its node's own word: one check of a signature for a heartbeat."""
        held = self._held.get(_node_of(entry))
        return (held is None or number > held.number) and self._is_signed(entry.state or {})

    def _is_signed(self, state: dict[str, Any]) -> bool:
        node_id = state["nodeId"]
        key = self._keys.public_key(node_id) if self._keys.is_member(node_id) else None
        said = {name: value for name, value in state.items() if name != "sig"}
        return key is not None and verify_bytes(key, state.get("sig"), _message(said))

    def _may_relay(self) -> bool:
        """Whether others take from this node what it heard of somebody else: from a backbone node they do."""
        return self._keys.is_backbone(self._node_id)

    def _hold(self, entry: Entry, number: int) -> None:
        node_id = _node_of(entry)
        self._held[node_id] = _Held(entry, number, self._clock.monotonic_ms())
        if _is_goodbye(entry.state or {}):
            self._presence.left(node_id)
        else:
            said_ms = int((entry.state or {})["heartbeatAt"])
            is_time = said_ms < _LAST_TIME_MS and node_id != self._node_id
            self._presence.heard(node_id, said_ms=said_ms if is_time else None)


def _form(state: dict[str, Any]) -> tuple[str, int]:
    """The node and the number of a state; a refusal for what is none (PIPE-6)."""
    extra = state.keys() - _FIELDS
    if extra:
        raise Refusal(Code.WRITE_DENIED, f"a state has a field that it must not have: {min(extra)[:40]!r}")
    node_id = state.get("nodeId")
    if not isinstance(node_id, str) or not is_id(node_id):
        raise Refusal(Code.INVALID_FIELD, "a state does not say whose it is", field="nodeId")
    heartbeat_at = _whole(state.get("heartbeatAt"), "heartbeatAt")
    number = _whole(state["beat"], "beat") if "beat" in state else heartbeat_at
    if state.get("status", _OFFLINE) not in (_OFFLINE, "online"):
        raise Refusal(Code.INVALID_FIELD, "a status is online or offline", field="status")
    if not isinstance(state.get("sig", ""), str):
        raise Refusal(Code.INVALID_FIELD, "a signature is text", field="sig")
    return node_id, number


def _whole(value: object, field: str) -> int:
    # JavaScript writes all numbers as floats.
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if type(number) is not int or not 0 <= number <= _LARGEST:
        raise Refusal(Code.INVALID_FIELD, f"{field} is not a whole number", field=field)
    return number


def _is_goodbye(state: dict[str, Any]) -> bool:
    return state.get("status") == _OFFLINE


def _node_of(entry: Entry) -> str:
    return (entry.state or {})["nodeId"]


def _message(said: dict[str, Any]) -> bytes:
    return canonical(["presence", said])
