"""Every way the mesh says no: one catalogue of codes, each with its HTTP status, what it means and what to do next.

Knows nothing of HTTP libraries, exit codes or MCP: the edges translate a `Refusal` once each.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple

__all__ = ["Code", "Meaning", "MEANINGS", "Refusal"]


class Code(StrEnum):
    """The code a caller branches on. The value is what travels on the wire."""

    # What was sent is not what the protocol says.
    MALFORMED = "malformed"
    INVALID_FIELD = "invalid_field"
    UNKNOWN_KIND = "unknown_kind"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"
    FOREIGN_SOURCE = "foreign_source"
    EXPIRED = "expired"

    # Routing.
    INVALID_TARGETS = "invalid_targets"
    NO_ROUTE = "no_route"
    MISSING_ROUTE_FIELDS = "missing_route_fields"
    CAPABILITY_UNAVAILABLE = "capability_unavailable"
    CONTRACT_MISMATCH = "contract_mismatch"

    # State.
    INVALID_TRANSITION = "invalid_transition"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    SEQUENCE_GAP = "sequence_gap"
    EPOCH_MISMATCH = "epoch_mismatch"

    # Joining the room.
    INVALID_TOKEN = "invalid_token"
    EXPIRED_TOKEN = "expired_token"
    NODE_MISMATCH = "node_mismatch"
    TOKEN_ALREADY_USED = "token_already_used"
    REPLAY_DETECTED = "replay_detected"
    INVALID_TICKET = "invalid_ticket"
    EXPIRED_TICKET = "expired_ticket"
    TICKET_ALREADY_USED = "ticket_already_used"
    NODE_PROOF_REQUIRED = "node_proof_required"
    NODE_PROOF_INVALID = "node_proof_invalid"
    ROOM_DENIED = "room_denied"
    WRITE_DENIED = "write_denied"
    NODE_REVOKED = "node_revoked"
    RATE_LIMITED = "rate_limited"

    # External agents.
    INVALID_INVITE = "invalid_invite"
    EXPIRED_INVITE = "expired_invite"
    INVITE_USED = "invite_used"
    SCOPE_DENIED = "scope_denied"
    INVALID_ACCESS_TOKEN = "invalid_access_token"
    EXPIRED_ACCESS_TOKEN = "expired_access_token"
    INVALID_REFRESH_TOKEN = "invalid_refresh_token"

    # The gateway itself.
    STORAGE_FULL = "storage_full"
    STORAGE_FAILED = "storage_failed"
    STORAGE_CORRUPT = "storage_corrupt"
    HOME_IN_USE = "home_in_use"
    HOME_UNSAFE = "home_unsafe"
    SCHEMA_TOO_NEW = "schema_too_new"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class Meaning(NamedTuple):
    """What a code stands for: its HTTP status, what has happened, and the hint a person or a model acts on."""

    status: int
    what: str
    hint: str


MEANINGS: Final[dict[Code, Meaning]] = {
    Code.MALFORMED: Meaning(
        400, "What was sent cannot be read at all.", "Send one valid JSON or msgpack object, encoded as UTF-8."
    ),
    Code.INVALID_FIELD: Meaning(
        400,
        "A field is missing, unknown, or has a value that it cannot have.",
        "Correct the field that the message names, and send it again.",
    ),
    Code.UNKNOWN_KIND: Meaning(
        400, "An event is of a kind that the protocol does not have.", "Use one of the kinds that the protocol lists."
    ),
    Code.TOO_DEEP: Meaning(
        400,
        "A payload is nested deeper than any reader has to follow.",
        "Flatten the payload, or send it as one string.",
    ),
    Code.TOO_LARGE: Meaning(
        413,
        "A body, payload or frame is larger than it may be.",
        "Send it in parts, or say where it can be fetched.",
    ),
    Code.FOREIGN_SOURCE: Meaning(
        403,
        "An event names another node than the one that sent it.",
        "A gateway speaks only for its own node; publish from the owner.",
    ),
    Code.EXPIRED: Meaning(
        410,
        "The message was past its expiresAt before it could be sent.",
        "Send it anew with a later expiresAt if it still matters.",
    ),
    Code.INVALID_TARGETS: Meaning(
        400,
        "None of the agents that were named exists and is active.",
        "Name at least one agent that exists and is active.",
    ),
    Code.NO_ROUTE: Meaning(
        400,
        "No agent has all of the capabilities that were asked for.",
        "Publish a capability that matches, or name the agents in toAgents.",
    ),
    Code.MISSING_ROUTE_FIELDS: Meaning(
        400, "Neither agents nor capabilities say who it is for.", "Give toAgents or requiredCapabilities."
    ),
    Code.CAPABILITY_UNAVAILABLE: Meaning(
        409,
        "The capability is known, but its owner, or the skill that it needs, is away.",
        "Wait for its owner to come back with the executor skill, or name an agent in toAgents.",
    ),
    Code.CONTRACT_MISMATCH: Meaning(
        400,
        "Input or output is not what the contract of the capability describes.",
        "Send what the contract describes; the message says what is wrong.",
    ),
    Code.INVALID_TRANSITION: Meaning(
        409,
        "The move does not exist from the state that it is in now, or is somebody else's to make.",
        "Read the current state first; this move is not open from there.",
    ),
    Code.NOT_FOUND: Meaning(404, "Nothing has that id, name or path here.", "Check the id; it may have been pruned."),
    Code.CONFLICT: Meaning(409, "It contradicts what is already so.", "Read the current state and decide again."),
    Code.IDEMPOTENCY_KEY_REUSED: Meaning(
        422,
        "The idempotency key belongs to another call of this agent, which said something else.",
        "Use a new key for a new call. Use the same key only to repeat a call exactly.",
    ),
    Code.SEQUENCE_GAP: Meaning(
        409, "Events between the cursor and these are missing.", "Send the missing events first, from the cursor on."
    ),
    Code.EPOCH_MISMATCH: Meaning(
        409,
        "The stream is another life of its node than the one that was read so far.",
        "The source was restored or replaced; start again from its new epoch.",
    ),
    Code.INVALID_TOKEN: Meaning(401, "The token of an invite is unknown, or was withdrawn.", "Ask for a new invite."),
    Code.EXPIRED_TOKEN: Meaning(401, "The invite has run out.", "Ask for a new invite; invites live for minutes."),
    Code.NODE_MISMATCH: Meaning(
        403,
        "The invite is for another node, or another node answers than was expected.",
        "Join with the node id that the invite was made for.",
    ),
    Code.TOKEN_ALREADY_USED: Meaning(
        409, "Somebody has joined with this invite.", "Ask for a new invite; each one joins a single node."
    ),
    Code.REPLAY_DETECTED: Meaning(
        409, "A nonce or an id that counts once was seen before.", "Use a fresh nonce for every request."
    ),
    Code.INVALID_TICKET: Meaning(
        401, "The ticket was not made by this gateway, or not for this.", "Exchange again for a new ticket."
    ),
    Code.EXPIRED_TICKET: Meaning(
        401, "The ticket was not used in time.", "Exchange again; a ticket lives for less than a minute."
    ),
    Code.TICKET_ALREADY_USED: Meaning(
        409, "A connection was opened with this ticket before.", "Exchange again; a ticket opens one connection."
    ),
    Code.NODE_PROOF_REQUIRED: Meaning(
        401, "The node did not prove that it has its key.", "Sign the server's challenge with the node's key."
    ),
    Code.NODE_PROOF_INVALID: Meaning(
        401,
        "The proof was made with another key, for something else, or by another machine.",
        "Sign with the key that this node id is pinned to.",
    ),
    Code.ROOM_DENIED: Meaning(403, "The ticket does not open this room.", "Ask for a ticket that names this room."),
    Code.WRITE_DENIED: Meaning(
        403,
        "The caller may not write this, whatever it says.",
        "A node writes only its own records, and never a payload.",
    ),
    Code.NODE_REVOKED: Meaning(
        403, "The node was thrown out of the mesh.", "This node was revoked; an operator has to invite it again."
    ),
    Code.RATE_LIMITED: Meaning(
        429, "Too many attempts in too short a time.", "Slow down and try again after the time given."
    ),
    Code.INVALID_INVITE: Meaning(
        401,
        "There is no such invite of an agent, it is another agent's, or its proof does not hold.",
        "Ask the operator for a new agent invite.",
    ),
    Code.EXPIRED_INVITE: Meaning(
        401, "The invite of the agent has run out.", "Ask the operator for a new agent invite; they live for minutes."
    ),
    Code.INVITE_USED: Meaning(
        409,
        "A session was opened with this invite before.",
        "Ask the operator for a new agent invite; each is good for one exchange.",
    ),
    Code.SCOPE_DENIED: Meaning(
        403,
        "The session does not have the scope that this needs, or may not be used from there.",
        "Ask the operator for a session with the scope that the message names.",
    ),
    Code.INVALID_ACCESS_TOKEN: Meaning(
        401,
        "The access token is not good, was revoked, or comes without a proof of its key.",
        "Refresh the session, and prove possession of its key.",
    ),
    Code.EXPIRED_ACCESS_TOKEN: Meaning(401, "The access token has run out.", "Refresh the session."),
    Code.INVALID_REFRESH_TOKEN: Meaning(
        401,
        "The refresh token is unknown, was used before, has run out, or comes without a proof.",
        "Start over with a new invite; the session is gone.",
    ),
    Code.STORAGE_FULL: Meaning(
        507, "The gateway's disk is full.", "Free space on the gateway's disk; nothing was written."
    ),
    Code.STORAGE_FAILED: Meaning(
        503,
        "The gateway's disk failed, and nobody knows what it kept of the last write.",
        "The disk failed and the gateway stopped; check the disk, then start it to recover.",
    ),
    Code.STORAGE_CORRUPT: Meaning(
        503, "The gateway's database is damaged.", "Restore the home from a backup or from the lake."
    ),
    Code.HOME_IN_USE: Meaning(
        409, "Another gateway has this home.", "Stop the other gateway, or give this one a home of its own."
    ),
    Code.HOME_UNSAFE: Meaning(
        403,
        "Others could read the home or its keys, or it cannot be used as it is.",
        "Make the home and its keys readable by their owner alone.",
    ),
    Code.SCHEMA_TOO_NEW: Meaning(
        409,
        "A newer version of agentpost has written this home.",
        "Upgrade agentpost; this home was written by a newer version.",
    ),
    Code.UNAVAILABLE: Meaning(
        503, "The gateway, or something that it needs, is not there or does not answer.", "Try again shortly."
    ),
    Code.INTERNAL: Meaning(
        500, "The gateway failed where it should not.", "This is a defect of the gateway; its log has the details."
    ),
}


class Refusal(Exception):  # noqa: N818 - it is an answer of the protocol, not a fault of the program
    """The one exception of the mesh: a code, a sentence that names the field, nothing changed.

    `field` is the path of what is wrong (`payload.toAgents[0]`), where there is one; `hint` is what to do about it,
    where that can be said better than in general.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        field: str | None = None,
        corr_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.corr_id = corr_id
        self.hint = MEANINGS[code].hint if hint is None else hint

    @property
    def status(self) -> int:
        """The HTTP status of this refusal."""
        return MEANINGS[self.code].status

    def to_wire(self) -> dict[str, Any]:
        """The one JSON shape of an error: `{"error": {"code", "message", "hint", "field"?, "corrId"?}}`."""
        error: dict[str, Any] = {"code": self.code.value, "message": self.message, "hint": self.hint}
        if self.field is not None:
            error["field"] = self.field
        if self.corr_id is not None:
            error["corrId"] = self.corr_id
        return {"error": error}
