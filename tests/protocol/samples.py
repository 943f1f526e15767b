"""One event of each kind as it stands on the wire, with every field that the protocol knows."""

from copy import deepcopy
from typing import Any

from agentpost.protocol.payloads import Kind

EVENT_ID = "evt_01K2H7Q4ZB9D6XW3T5N8RMVCGA"
ASKED_EVENT_ID = "evt_01K2H7Q0YA8C5WV2S4M7QKTBFZ"
CORR_ID = "corr_01K2H7Q0YA8C5WV2S4M7QKTBFZ"
TASK_ID = "tsk_01K2H7PZX97B4VT1R3K6PJSAEY"

SEALED: dict[str, Any] = {
    "suite": "x25519-aesgcm",
    "keys": {"mars": b"\x01\x02", "venus": b"\xff"},
    "nonce": b"\x00" * 12,
    "ciphertext": b"\x80secret",
}

PAYLOADS: dict[Kind, dict[str, Any]] = {
    Kind.MESSAGE: {
        "toAgents": ["ann", "bob"],
        "requiredCapabilities": ["cap.release.notes"],
        "priority": "high",
        "expectsReply": True,
        "subject": "Release",
        "body": "Please read the notes.",
        "context": {"branch": "main", "commits": [1, 2.5, None, True]},
        "sealed": SEALED,
    },
    Kind.ACK: {
        "refEventId": ASKED_EVENT_ID,
        "refKind": "task_create",
        "ackType": "accepted",
        "ackedByNodeId": "mars",
        "ackedByAgentId": "ann",
        "ackedAt": "2026-03-01T09:00:01.000Z",
        "etaAt": "2026-03-01T10:00:00.000Z",
        "etaSeconds": 3600,
        "reason": "queued",
        "planSummary": "Read, then answer.",
        "errorSummary": "None so far.",
        "sealed": SEALED,
    },
    Kind.REPLY: {
        "refEventId": ASKED_EVENT_ID,
        "subject": "Re: Release",
        "body": "They are fine.",
        "context": ["one", {"two": 2}],
        "sealed": SEALED,
    },
    Kind.TASK_CREATE: {
        "taskId": TASK_ID,
        "title": "Check the notes",
        "description": "Every change has a line.",
        "toAgents": ["ann"],
        "requiredCapabilities": ["cap.release.notes"],
        "priority": "low",
        "requesterAgentId": "carl",
        "responseRequired": False,
        "deadlineAt": "2026-03-02T09:00:00.000Z",
        "taskType": "skill_distribution",
        "capabilityId": "cap.release.notes",
        "delegationSkillRef": {"name": "delegate-notes", "version": "1.3.0", "path": "/skills/delegate-notes"},
        "requiredBy": "2026-03-02T08:00:00.000Z",
        "context": "free text",
        "sealed": SEALED,
    },
    Kind.TASK_ACCEPT: {
        "taskId": TASK_ID,
        "acceptedByAgentId": "ann",
        "etaAt": "2026-03-01T10:00:00.000Z",
        "etaSeconds": 3600,
        "planSummary": "Read, then answer.",
        "sealed": SEALED,
    },
    Kind.TASK_UPDATE: {
        "taskId": TASK_ID,
        "updatedByAgentId": "ann",
        "status": "waiting",
        "progress": 60,
        "note": "Half of them read.",
        "revisedEtaAt": "2026-03-01T10:30:00.000Z",
        "notify": True,
        "sealed": SEALED,
    },
    Kind.TASK_COMPLETE: {
        "taskId": TASK_ID,
        "completedByAgentId": "ann",
        "completedAt": "2026-03-01T10:20:00.000Z",
        "resultSummary": "All lines are there.",
        "resultRef": "artifact://notes/1.3.0.md",
        "installedVersion": "1.3.0",
        "installedAt": "2026-03-01T10:19:00.000Z",
        "output": {"lines": 42},
        "sealed": SEALED,
    },
    Kind.TASK_FAILED: {
        "taskId": TASK_ID,
        "failedByAgentId": "ann",
        "failedAt": "2026-03-01T10:20:00.000Z",
        "failureClass": "dependency_missing",
        "errorSummary": "There are no notes.",
        "sealed": SEALED,
    },
    Kind.SIGNAL: {
        "signal": "status_request",
        "refEventId": ASKED_EVENT_ID,
        "details": {"since": "2026-03-01T09:00:00.000Z", "count": 2, "share": 0.5, "urgent": True, "by": None},
        "sealed": SEALED,
    },
    Kind.DEAD_LETTER: {
        "refEventId": ASKED_EVENT_ID,
        "refKind": "message",
        "toAgentId": "bob",
        "reason": "no_route",
        "attempts": 10,
        "deadLetteredAt": "2026-03-01T11:00:00.000Z",
        "lastError": "nobody owns bob",
    },
}

# Content may stand in the clear, sealed or behind a reference; these are the fields that say it in the clear.
PAYLOAD_REF: dict[str, Any] = {
    "sha256": "0123456789abcdef" * 4,
    "sizeBytes": 300_000,
    "suite": "x25519-aesgcm",
    "keys": {"mars": b"\x03"},
}


def full_wire(kind: Kind) -> dict[str, Any]:
    """An event of `kind` with every field there is; bytes are bytes, as in msgpack."""
    return deepcopy(
        {
            "eventId": EVENT_ID,
            "seq": 1842,
            "kind": kind.value,
            "sourceNodeId": "venus",
            "sourceAgentId": "carl",
            "toAgentId": "ann",
            "corrId": CORR_ID,
            "createdAt": "2026-03-01T09:00:00.123Z",
            "expiresAt": "2026-03-02T09:00:00.123Z",
            "payload": PAYLOADS[kind],
            "payloadRef": PAYLOAD_REF,
            "trace": {
                "attempt": 2,
                "routeDecision": "owner",
                "routingPolicyVersion": "rpv_7",
                "capabilityPolicyVersion": "cpv_9",
            },
        }
    )


def clear_wire(kind: Kind) -> dict[str, Any]:
    """The same event with its content in the clear: nothing is sealed and nothing stored elsewhere."""
    wire = full_wire(kind)
    del wire["payloadRef"]
    wire["payload"].pop("sealed", None)
    return wire
