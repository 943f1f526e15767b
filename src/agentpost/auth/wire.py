"""The requests and answers of the handshake, as they travel. None of them shows its secrets when it is printed."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct

from agentpost.auth.signing import TOKEN_PREFIX
from agentpost.protocol.ids import InviteId, SessionId
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.values import KnownNode

__all__ = [
    "CONTROL_ROOM",
    "Challenge",
    "Discreet",
    "Entry",
    "ExchangeRequest",
    "Find",
    "FindRoot",
    "Grant",
    "LINK_ROOM",
    "NodeProof",
    "Whois",
]

CONTROL_ROOM: Final = "ansible-control"
# Not a room with a document: a ticket for it opens a link, over which mail goes.
LINK_ROOM: Final = "ansible-link"

# Generous limits, checked while decoding: what is longer is no mistake.
Text = Annotated[str, Meta(max_length=256)]
LongText = Annotated[str, Meta(max_length=2048)]


class Discreet(Struct, frozen=True, kw_only=True, rename="camel"):
    """A value that may be logged: of the fields in `secret` it says only whether they are there (AUTH-9)."""

    secret: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, self._shown(name, getattr(self, name))) for name in self.__struct_fields__]

    def _shown(self, name: str, value: Any) -> Any:
        # Somebody may have put the token into another field.
        is_token = isinstance(value, str) and value.startswith(TOKEN_PREFIX)
        return "***" if is_token or (name in self.secret and value is not None) else value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


# A node as this gateway knows it, from its own joins or by the word of others; None if it does not.
Find = Callable[[str], KnownNode | None]
# The node that began the mesh, and the key that it had then: what a node that joins goes by from then on.
FindRoot = Callable[[], tuple[str, str]]


# The name that the tailnet has for the machine at an address and port; None if it knows of none there.
Whois = Callable[[str, int], Awaitable[str | None]]


class Challenge(Discreet, frozen=True, kw_only=True):
    """What a node signs to prove its key, and the node that asks for it."""

    secret = frozenset({"challenge"})

    challenge: str
    node_id: str
    expires_at: str


class NodeProof(Discreet, frozen=True, kw_only=True):
    """A node's public keys, and a signature that shows that it holds the signing key (AUTH-7)."""

    secret = frozenset({"challenge", "signature"})

    challenge: LongText
    signing_public: Text
    sealing_public: Text | None = None
    signature: Text


class ExchangeRequest(Discreet, frozen=True, kw_only=True):
    """What a node asks for (AUTH-3). A known node that comes back has no invite, only its proof."""

    secret = frozenset({"invite_token", "nonce"})

    node_id: Text
    nonce: Text
    invite_token: Text | None = None
    node_proof: NodeProof | None = None
    requested_rooms: Annotated[tuple[Text, ...], Meta(max_length=32)] | None = None
    # The version of the room that it speaks; one that does not say so is too old.
    protocol_version: Text | None = None


class Grant(Discreet, frozen=True, kw_only=True):
    """What a node gets for its invite or its key: a ticket, and who it is that gives it.

    `root_node_id` and `root_public` are the anchor of the mesh: the node that began it, and the key that it had then.
    Whoever trusts this gateway takes them from it, once. `server_proof` shows that the one who answers holds the key
    that it names: see `challenge`.
    """

    secret = frozenset({"ws_ticket"})

    ws_ticket: str
    expires_at: str
    rooms: tuple[str, ...]
    session_id: SessionId
    node_id: str
    signing_public: str
    sealing_public: str
    root_node_id: str = ""
    root_public: str = ""
    server_proof: str = ""


class Entry(Struct, frozen=True, kw_only=True, rename="camel"):
    """Who may pass now that the ticket is used. `first_join` says that an invite was used up for it."""

    node_id: str
    tier: NodeTier
    rooms: tuple[str, ...]
    session_id: SessionId
    signing_public: str | None
    sealing_public: str | None
    invite_id: InviteId | None
    first_join: bool
