"""Every kind of incident: what it means, what to do about it, and how it closes. The one list; all edges read it.

A new kind is a member here with its meaning: `tests/protocol/test_incidents.py` refuses a kind that is raised somewhere
and is not in the list.
"""

import shlex
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

__all__ = ["INCIDENTS", "PIPELINE_PREFIX", "IncidentKind", "IncidentMeaning", "hint_for", "meaning_of"]

# The pipeline raises one kind for each of its rules, e.g. pipeline.gap.
PIPELINE_PREFIX: Final = "pipeline."


class IncidentKind(StrEnum):
    """The kind of an incident. The value is what the store keeps and what programs sort by."""

    # Delivery.
    NO_ROUTE = "no_route"
    SLA_MISSED = "sla_missed"
    OWNER_SILENT = "owner_silent"

    # Agents of this gateway.
    RUNTIME_UNUSABLE = "runtime_unusable"
    AGENT_FAILING = "agent_failing"
    INDETERMINATE = "indeterminate"
    UNREADABLE = "unreadable"
    REPLY_REFUSED = "reply_refused"
    AGENT_CONFLICT = "agent_conflict"

    # Streams of other gateways.
    GAP = "gap"
    STREAM_BROKEN = "stream_broken"
    MIRROR_BROKEN = "mirror_broken"
    EPOCH_CHANGED = "epoch_changed"
    SOURCE_REGRESSED = "source_regressed"
    OUTBOX_REGRESSED = "outbox_regressed"
    FOREIGN_SOURCE = "foreign_source"
    FORGED_SENDER = "forged_sender"
    FORGED_ACK = "forged_ack"
    FORGED_ID = "forged_id"
    EVENT_ID_TAKEN = "event_id_taken"
    UNKNOWN_EVENT_KIND = "unknown_event_kind"
    MALFORMED_EVENTS = "malformed_events"

    # The gateways themselves.
    CLOCK_OFF = "clock_off"
    RECORD_SET_ASIDE = "record_set_aside"

    # Tasks and coordination.
    TASK_LATE = "task_late"
    TASK_QUIET = "task_quiet"
    TASK_NEEDS_ACTION = "task_needs_action"
    LOOP_OPEN = "loop_open"
    SWEEP_NEEDS_ACTION = "sweep_needs_action"
    DELEGATION_POLICY = "delegation_policy"

    # Edges and the lake.
    AGENT_TOKEN_STOLEN = "agent_token_stolen"  # noqa: S105 - a kind is no secret
    A2A_PUSH_FAILED = "a2a_push_failed"
    LAKE_EXPORT = "lake_export"


class IncidentMeaning(NamedTuple):
    """What a kind stands for. `hint` is the next step; its {names} are details of the incident.

    `closes` says when an incident of this kind closes by itself; empty if only an operator closes it.
    """

    what: str
    hint: str
    closes: str = ""


INCIDENTS: Final[dict[IncidentKind, IncidentMeaning]] = {
    IncidentKind.NO_ROUTE: IncidentMeaning(
        "No gateway hosts the agent that mail was sent to, or the agent was removed here with mail that it had not "
        "handled. The senders were told.",
        "See who is there with `agentpost agents list --mesh`; the sender's gateway sends it again with "
        "`agentpost deadletters resend {eventId}`.",
        "When a gateway hosts the agent.",
    ),
    IncidentKind.SLA_MISSED: IncidentMeaning(
        "A message was accepted, and no outcome arrived in time.",
        "See how far it is with `agentpost trace {eventId}`, and look at the recipient's gateway.",
        "When the outcome arrives.",
    ),
    IncidentKind.OWNER_SILENT: IncidentMeaning(
        "The gateway of a recipient is offline and may have taken the mail, so no stand-in gets it.",
        "Bring that gateway back. `agentpost agents stand-ins` names stand-ins for the next time.",
        "When that gateway is back, or was revoked.",
    ),
    IncidentKind.RUNTIME_UNUSABLE: IncidentMeaning(
        "An agent cannot be engaged: its runtime or its options cannot be used. Its mail is kept.",
        "Correct its options with `agentpost agents add {subject}`.",
        "When the agent can be engaged, or is removed.",
    ),
    IncidentKind.AGENT_FAILING: IncidentMeaning(
        "An agent failed with a message until that was given up. Its sender was told.",
        "See the last error with `agentpost agents list`. Once the agent works again, `agentpost deadletters resend "
        "{eventId}` at the sender's gateway.",
        "When the agent handles a message, or is removed.",
    ),
    IncidentKind.INDETERMINATE: IncidentMeaning(
        "The gateway stopped while an agent had a message. It does not know whether the agent did the work.",
        "Find out whether the agent did the work, then `agentpost resolve {eventId} --agent {agentId} --how retry` "
        "or `--how settle`.",
        "When it is resolved, or settled by hand.",
    ),
    IncidentKind.UNREADABLE: IncidentMeaning(
        "The content of a message cannot be opened with this gateway's key. The sender was told that it failed.",
        "See the sender with `agentpost trace {eventId}` and ask for it again. If all mail of that sender fails, that "
        "gateway has an old key of this one: restart it.",
    ),
    IncidentKind.REPLY_REFUSED: IncidentMeaning(
        "An agent has done its work, and its reply could not be sent.",
        "See why with `agentpost read {eventId} --agent {agentId}`, and tell the sender another way.",
    ),
    IncidentKind.AGENT_CONFLICT: IncidentMeaning(
        "An agent of this gateway belongs to another gateway. Mail for it goes to the other one.",
        "Remove it here with `agentpost agents remove {subject}`, or there: see `agentpost agents list --mesh`.",
        "When the agent belongs to this gateway again, or is removed here.",
    ),
    IncidentKind.GAP: IncidentMeaning(
        "Events of a gateway are missing, and no gateway in reach has them. The setting gap_policy says what follows.",
        "Bring back {subject}, or a seed that mirrors it. `agentpost audit` has what was skipped.",
        "When the missing events arrive.",
    ),
    IncidentKind.STREAM_BROKEN: IncidentMeaning(
        "What arrived as the outbox of a gateway is not what that gateway signed. Nothing of it was taken.",
        "Run `agentpost store check` at {subject}. If it is whole there, a gateway between them alters mail.",
    ),
    IncidentKind.MIRROR_BROKEN: IncidentMeaning(
        "The copy of an outbox that is kept for others does not fit together. Nothing of the batch was kept.",
        "Run `agentpost store check` at {subject}.",
    ),
    IncidentKind.EPOCH_CHANGED: IncidentMeaning(
        "A gateway began a new outbox: its disk was restored or replaced.",
        "Ask the operator of {subject} whether that was meant, then close the incident. No mail is taken twice.",
    ),
    IncidentKind.SOURCE_REGRESSED: IncidentMeaning(
        "The outbox of a gateway ends before what was read from it: an old copy of its database is in use.",
        "Restore {subject} with `agentpost lake restore`, or from a newer backup; it has stopped by itself.",
        "When that gateway begins a new epoch.",
    ),
    IncidentKind.OUTBOX_REGRESSED: IncidentMeaning(
        "The database of this gateway is an older one: a peer has shown its own signature under more of its outbox.",
        "Put the newer database back if there is one. Otherwise `agentpost lake restore` makes the home anew from the "
        "lake. Without a lake: `agentpost store backup older.db`, move agentpost.db out of the home, then `agentpost "
        "store restore older.db`. That begins a new epoch; what agents were given since the copy was made, they get "
        "again.",
        "When the gateway starts in a new epoch.",
    ),
    IncidentKind.FOREIGN_SOURCE: IncidentMeaning(
        "A gateway sent an event in the name of another gateway. Nothing of the batch was taken.",
        "Look at {subject}; if it cannot be trusted, `agentpost revoke {subject}`.",
    ),
    IncidentKind.FORGED_SENDER: IncidentMeaning(
        "A gateway sent an event in the name of an agent that it does not own. No agent got it.",
        "Look at {subject}; if it cannot be trusted, `agentpost revoke {subject}`.",
    ),
    IncidentKind.FORGED_ACK: IncidentMeaning(
        "A gateway acknowledged or answered mail that it was not asked to handle. The answer was ignored.",
        "Look at {subject}; if it cannot be trusted, `agentpost revoke {subject}`.",
    ),
    IncidentKind.FORGED_ID: IncidentMeaning(
        "A gateway used the id of an event or task that another gateway made. No agent got it.",
        "Look at {subject}; if it cannot be trusted, `agentpost revoke {subject}`.",
    ),
    IncidentKind.EVENT_ID_TAKEN: IncidentMeaning(
        "Two gateways used one event id. The second event was not taken, and its sender gets no ACK.",
        "See the first with `agentpost trace {eventId}`; ask the operator of {subject} to send the other one anew.",
    ),
    IncidentKind.CLOCK_OFF: IncidentMeaning(
        "The clock of a gateway is more than 30 s off. Expiries, ETAs and deadlines go by it.",
        "Set the clock of {subject}, e.g. with `timedatectl set-ntp true`.",
        "When the clock is right again.",
    ),
    IncidentKind.RECORD_SET_ASIDE: IncidentMeaning(
        "A gateway passed on a record of the room that nobody believes: the node it names may not write it, or did "
        "not sign it. It is in no view. The seeds write over what revoked nodes and strangers left.",
        "Ask the operator of {subject}. If it is not honest: `agentpost revoke {subject}` at a seed.",
    ),
    IncidentKind.UNKNOWN_EVENT_KIND: IncidentMeaning(
        "A gateway sends events of a kind that this version does not know: it runs a newer version. They are kept in "
        "the quarantine, and no agent got them.",
        "Upgrade this gateway: at its next start it reads them. See `agentpost quarantine list --source {subject}`.",
        "When a newer version has read the events, or they were pruned.",
    ),
    IncidentKind.MALFORMED_EVENTS: IncidentMeaning(
        "A gateway sends events that are not what the protocol says. They are kept in the quarantine, and no agent got "
        "them.",
        "See `agentpost quarantine list --source {subject}`. If {subject} runs a newer version, upgrade this gateway; "
        "else repair {subject}, or `agentpost revoke {subject}`.",
        "When a newer version has read the events, or they were pruned.",
    ),
    IncidentKind.TASK_LATE: IncidentMeaning(
        "A task has missed its ETA or its deadline. Its worker was asked.",
        "See it with `agentpost task show {subject}`.",
        "When the task is on time again, or ended.",
    ),
    IncidentKind.TASK_QUIET: IncidentMeaning(
        "The worker of a task does not report progress as often as it promised. It was asked.",
        "See it with `agentpost task show {subject}`.",
        "When the worker reports, or the task has ended.",
    ),
    IncidentKind.TASK_NEEDS_ACTION: IncidentMeaning(
        "A task is late, its worker was asked, and no other agent can take it.",
        "See it with `agentpost task show {subject}`; ask another agent, or `agentpost task cancel {subject}`.",
        "When the task is on time again, or ended.",
    ),
    IncidentKind.LOOP_OPEN: IncidentMeaning(
        "Results of tasks have been in an agent's inbox for longer than loop_sla_seconds, without an outcome.",
        "See them with `agentpost inbox {subject} --open`, and answer or dismiss them.",
        "When the agent has dealt with them, or is removed.",
    ),
    IncidentKind.SWEEP_NEEDS_ACTION: IncidentMeaning(
        "The sweep of another gateway found tasks that need a decision there.",
        "See `agentpost incidents list` at {subject}.",
        "When a later sweep of that gateway finds none.",
    ),
    IncidentKind.DELEGATION_POLICY: IncidentMeaning(
        "The delegation policy needs action: an agent is missing, or has not acknowledged it.",
        "See `agentpost delegation show`.",
        "When a later sweep does not find the problem.",
    ),
    IncidentKind.AGENT_TOKEN_STOLEN: IncidentMeaning(
        "A token of an agent outside the mesh was used twice, or with another key. Its session has ended.",
        "See `agentpost agent sessions`; find out who else had the credentials, then invite the agent again.",
    ),
    IncidentKind.A2A_PUSH_FAILED: IncidentMeaning(
        "A push notification to an A2A peer was not delivered after all tries.",
        "Check that the peer's URL answers; the peer can read the task at any time.",
        "When a later notification arrives.",
    ),
    IncidentKind.LAKE_EXPORT: IncidentMeaning(
        "The outbox cannot be exported to the lake. Mail goes on; nothing that is not exported is pruned.",
        "See the reason with `agentpost lake status`; check the path, the credentials and the disk.",
        "When an export succeeds.",
    ),
}

_OF_THE_PIPELINE: Final = IncidentMeaning(
    "The pipeline found a broken rule in the history of the fleet.",
    "See `agentpost pipeline check`; docs/pipeline.md lists the rules and what to do.",
)
_UNKNOWN: Final = IncidentMeaning("Another version of agentpost raised it.", "See its details, then close it.")
# What stands for a detail where an incident does not have it, or where no incident is meant.
_PLACEHOLDERS: Final = {"eventId": "EVENT", "agentId": "AGENT", "subject": "SUBJECT"}


def meaning_of(kind: str) -> IncidentMeaning:
    """The meaning of a kind, also of one that the pipeline or another version made."""
    if kind.startswith(PIPELINE_PREFIX):
        return _OF_THE_PIPELINE
    return INCIDENTS[IncidentKind(kind)] if kind in set(IncidentKind) else _UNKNOWN


def hint_for(kind: str, *, subject: str | None = None, detail: Mapping[str, Any] | None = None) -> str:
    """What to do about an incident, with its own ids in the commands; without a subject, about the kind in general."""
    given = {name: str(value) for name, value in (detail or {}).items() if name in _PLACEHOLDERS and value is not None}
    if subject is not None:
        given["subject"] = subject
    # A peer may have chosen the text, and a person pastes it.
    filled = _PLACEHOLDERS | {name: shlex.quote(value) for name, value in given.items()}
    return meaning_of(kind).hint.format_map(filled)
