"""Valid events of every kind, for property tests here and in the store.

    @given(events(node_id="mars", kinds=[Kind.MESSAGE]))
    def test_...(event): ...

Everything drawn from here passes `check`. Sizes are small, so that a test can draw hundreds.
"""

from collections.abc import Collection
from typing import Any, get_args

from hypothesis import strategies as st
from msgspec import UNSET

from agentpost.protocol.envelope import Event, Trace
from agentpost.protocol.ids import CorrId, EventId, TaskId
from agentpost.protocol.payloads import (
    Ack,
    AckType,
    DeadLetter,
    Kind,
    Message,
    PayloadRef,
    Priority,
    Reply,
    Sealed,
    Signal,
    SkillRef,
    TaskAccept,
    TaskComplete,
    TaskCreate,
    TaskFailed,
    TaskUpdate,
)
from agentpost.protocol.timestamps import format_ms

CLASSES: dict[Kind, type[Any]] = {cls.kind: cls for cls in get_args(Event)}

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LAST_MS = 253_402_300_799_999

names = st.sampled_from(["mars", "ann", "bob-2", "vps.jane", "Ärger", "日本", "a" * 128]) | st.text(
    min_size=1, max_size=8
)
codes = st.sampled_from(["in_progress", "expired", "no_route", "x" * 128]) | st.text(min_size=1, max_size=8)
texts = st.text(max_size=20)
times = st.integers(0, LAST_MS).map(format_ms)
ulids = st.text(CROCKFORD, min_size=25, max_size=25).map(lambda tail: "0" + tail)
event_ids = ulids.map(lambda ulid: EventId("evt_" + ulid))
corr_ids = ulids.map(lambda ulid: CorrId("corr_" + ulid))
task_ids = ulids.map(lambda ulid: TaskId("tsk_" + ulid))

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
plain_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


name_lists = st.lists(names, max_size=3).map(tuple)
keys = st.dictionaries(names, st.binary(max_size=8), max_size=2)
sealed = st.builds(Sealed, suite=codes, keys=keys, nonce=st.binary(max_size=12), ciphertext=st.binary(max_size=32))
payload_refs = st.builds(
    PayloadRef,
    sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
    size_bytes=st.integers(1, 2**40),
    suite=codes,
    keys=keys,
)
skill_refs = st.builds(SkillRef, name=names, version=names, path=optional(texts))
traces = st.builds(
    Trace,
    attempt=st.integers(1, 50),
    route_decision=optional(texts),
    routing_policy_version=texts,
    capability_policy_version=texts,
)
seconds = st.integers(0, 31_536_000)

payloads: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.MESSAGE: st.builds(
        Message,
        to_agents=name_lists,
        required_capabilities=name_lists,
        priority=st.sampled_from(Priority),
        expects_reply=st.booleans(),
        subject=optional(texts),
        body=optional(texts),
        context=plain_values,
        sealed=optional(sealed),
    ),
    Kind.ACK: st.builds(
        Ack,
        ref_event_id=event_ids,
        ref_kind=st.sampled_from(Kind),
        ack_type=st.sampled_from(AckType),
        acked_by_node_id=names,
        acked_by_agent_id=names,
        acked_at=times,
        eta_at=optional(times),
        eta_seconds=optional(seconds),
        reason=optional(codes),
        plan_summary=optional(texts),
        error_summary=optional(texts),
        sealed=optional(sealed),
    ),
    Kind.REPLY: st.builds(
        Reply,
        ref_event_id=event_ids,
        subject=optional(texts),
        body=optional(texts),
        context=plain_values,
        sealed=optional(sealed),
    ),
    Kind.TASK_CREATE: st.builds(
        TaskCreate,
        task_id=task_ids,
        to_agents=name_lists,
        required_capabilities=name_lists,
        priority=st.sampled_from(Priority),
        requester_agent_id=names,
        response_required=st.booleans(),
        deadline_at=optional(times),
        task_type=optional(codes),
        capability_id=optional(names),
        delegation_skill_ref=optional(skill_refs),
        required_by=optional(times),
        title=texts,
        description=texts,
        context=plain_values,
        sealed=optional(sealed),
    ),
    Kind.TASK_ACCEPT: st.builds(
        TaskAccept,
        task_id=task_ids,
        accepted_by_agent_id=names,
        eta_at=optional(times),
        eta_seconds=seconds,
        plan_summary=optional(texts),
        sealed=optional(sealed),
    ),
    Kind.TASK_UPDATE: st.builds(
        TaskUpdate,
        task_id=task_ids,
        updated_by_agent_id=optional(names),
        status=codes,
        progress=optional(st.integers(0, 100)),
        revised_eta_at=optional(times),
        notify=st.booleans(),
        note=optional(texts),
        sealed=optional(sealed),
    ),
    Kind.TASK_COMPLETE: st.builds(
        TaskComplete,
        task_id=task_ids,
        completed_by_agent_id=names,
        completed_at=times,
        result_ref=optional(texts),
        installed_version=optional(names),
        installed_at=optional(times),
        result_summary=texts,
        output=plain_values,
        sealed=optional(sealed),
    ),
    Kind.TASK_FAILED: st.builds(
        TaskFailed,
        task_id=task_ids,
        failed_by_agent_id=names,
        failed_at=times,
        failure_class=codes,
        error_summary=texts,
        sealed=optional(sealed),
    ),
    Kind.SIGNAL: st.builds(
        Signal,
        signal=codes,
        ref_event_id=optional(event_ids),
        details=st.dictionaries(st.text(max_size=6), leaves, max_size=3),
        sealed=optional(sealed),
    ),
    Kind.DEAD_LETTER: st.builds(
        DeadLetter,
        ref_event_id=event_ids,
        ref_kind=st.sampled_from(Kind),
        to_agent_id=names,
        reason=codes,
        attempts=st.integers(0, 50),
        dead_lettered_at=times,
        last_error=optional(texts),
    ),
}

# Fields of a later protocol: no name of ours at the top, anything inside.
unknown_fields = st.dictionaries(
    st.sampled_from(["~unknown", "unknown", "zone", "x-trace"]), plain_values, max_size=2
).map(lambda fields: fields or UNSET)


def events(
    *,
    node_id: str | None = None,
    kinds: Collection[Kind] = tuple(Kind),
    with_unknown: bool = False,
) -> st.SearchStrategy[Event]:
    """Valid events of these kinds, of one source node or of many; with fields of a later protocol if asked for."""
    heads: dict[str, st.SearchStrategy[Any]] = {
        "event_id": event_ids,
        "seq": st.integers(0, 2**63 - 1),
        "source_node_id": names if node_id is None else st.just(node_id),
        "source_agent_id": names,
        "to_agent_id": optional(names),
        "corr_id": corr_ids,
        "created_at": times,
        "expires_at": optional(times),
        "trace": traces,
        "payload_ref": optional(payload_refs),
    }
    if with_unknown:
        heads["unknown"] = unknown_fields
    return st.sampled_from(sorted(kinds)).flatmap(
        lambda kind: st.builds(CLASSES[kind], **heads, payload=payloads[kind])
    )
