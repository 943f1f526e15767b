"""The columns of a segment and of a change log: the contract between who writes the lake and who reads it.

An event is one row. `body` is the event as its owner appended it, byte for byte, its content sealed; all other columns
repeat what stands readable in it, typed, so that nobody has to open a body to count, join or follow.

Times are microseconds since 1970 (`_us`). A column that does not apply to the kind of the event is null, except the
lists, which are empty. The node and the epoch of the outbox stand in the path (`node=`, `epoch=`), not in the file.
"""

from typing import Final

import pyarrow as pa

__all__ = ["FACTS", "FACT_TOPICS", "SEGMENT"]

_text = pa.string()
_texts = pa.list_(pa.field("element", _text, nullable=False))
_time_us = pa.int64()

SEGMENT: Final = pa.schema(
    [
        # Where it stands and what it is.
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("event_id", _text, nullable=False),
        pa.field("kind", _text, nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("source_node", _text, nullable=False),
        pa.field("source_agent", _text, nullable=False),
        pa.field("corr_id", _text, nullable=False),
        pa.field("created_us", _time_us, nullable=False),
        pa.field("expires_us", _time_us),
        # Whom it is delivered to, agent by agent, and the gateway that engages each ("" where that is open).
        # Empty for what has no delivery: acks, signals, dead letters.
        pa.field("to_agents", _texts, nullable=False),
        pa.field("to_nodes", _texts, nullable=False),
        pa.field("route_decision", _text),
        pa.field("routing_policy", _text),
        pa.field("capability_policy", _text),
        pa.field("payload_bytes", pa.int64()),  # of a payload that lies in a blob
        # ack, reply, dead_letter, signal: the event they speak of.
        pa.field("ref_event_id", _text),
        pa.field("ref_kind", _text),
        pa.field("ack_type", _text),
        pa.field("acked_by_node", _text),
        pa.field("acked_by_agent", _text),
        pa.field("acked_us", _time_us),
        pa.field("reason", _text),  # ack, dead_letter
        pa.field("dead_for_agent", _text),  # also of a status request: the recipient that it asks about
        pa.field("dead_attempts", pa.int32()),
        # Tasks. `eta_us` is the promise of an ack or a task_accept, or the revised one of a task_update.
        pa.field("task_id", _text),
        pa.field("task_type", _text),
        pa.field("priority", _text),
        pa.field("capability_id", _text),
        pa.field("skill_version", _text),
        pa.field("requester_agent", _text),
        pa.field("required_capabilities", _texts, nullable=False),
        pa.field("response_required", pa.bool_()),
        pa.field("deadline_us", _time_us),
        pa.field("eta_us", _time_us),
        pa.field("task_status", _text),
        pa.field("progress", pa.int32()),
        pa.field("failure_class", _text),
        pa.field("ended_us", _time_us),  # task_complete, task_failed, dead_letter: when, as they say
        pa.field("signal", _text),
        # The hours since 1970 in which the ids were made, as their ULIDs say (0 if they do not): what speaks of
        # one event, or of one task, falls into one hour, whenever and wherever it was said.
        pa.field("event_hour", pa.int32(), nullable=False),
        pa.field("ref_hour", pa.int32()),
        pa.field("task_hour", pa.int32()),
        # The hash chain of the outbox up to and with this event, and the event itself.
        pa.field("chain", pa.binary(32), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)

# What else the pipeline has to know, as it changed over time. `value` is a JSON object.
FACTS: Final = pa.schema(
    [
        pa.field("at_us", _time_us, nullable=False),
        pa.field("observer", _text, nullable=False),  # the gateway that wrote it down
        pa.field("topic", _text, nullable=False),
        pa.field("key", _text, nullable=False),
        pa.field("value", _text),  # null: gone
    ]
)

FACT_TOPICS: Final = {
    "node": "key: node id; tier, signingPublic, status (active, revoked)",
    "presence": "key: node id; status (online, offline), as the observer saw it change",
    "agent": "key: agent id; ownerNodeId, status, fallbackNodeIds",
    "cursor": "key: consumer/source; consumer, source, epoch, lastSeq, leaseExpiresUs, status (active, expired)",
    "capability": "key: capability id; version, ownerAgentId, ownerNodeId, status, executorSkillVersion, policyVersion",
    "policy": "key: routing or capability; version",
    "session": "key: corr id; sessionId, actor, action",
    "settings": "key: node id; acceptedAckTimeoutSeconds, maxAttempts, processedSlaSeconds, processedSlaGraceSeconds",
}
