"""What the tests of the lake are made of: one event of every kind, a home with mail, and a look into the lake."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentpost.lake.export import Exporter
from agentpost.lake.place import Lake, open_lake
from agentpost.lake.segments import manifests
from agentpost.lake.settings import LakeSettings
from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import (
    AckEvent,
    DeadLetterEvent,
    Event,
    SignalEvent,
    TaskAcceptEvent,
    TaskCompleteEvent,
    TaskCreateEvent,
    TaskFailedEvent,
    TaskUpdateEvent,
    Trace,
)
from agentpost.protocol.heads import chain_over
from agentpost.protocol.ids import TaskId
from agentpost.protocol.payloads import (
    Ack,
    AckType,
    DeadLetter,
    Kind,
    Priority,
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
from agentpost.store.values import CHAIN_START
from agentpost.testing import START_MS, FakeClock, a_message, a_reply, an_event_id, an_identity

NODE = "node-a"
SEALED = Sealed(suite="none", keys={"node-b": b"key"}, nonce=b"nonce", ciphertext=b"ciphertext")
TASK_ID = TaskId("tsk_" + an_event_id("task", at_ms=START_MS + 3_600_000)[4:])


def a_head(number: int, **more: Any) -> dict[str, Any]:
    event_id = an_event_id("event", number)
    return {
        "event_id": event_id,
        "corr_id": "corr_" + event_id[4:],
        "source_node_id": NODE,
        "source_agent_id": "ada",
        "created_at": format_ms(START_MS + number),
        **more,
    }


def one_of_each() -> list[Event]:
    """One event of every kind, with all that the columns tell."""
    message = a_message(1, to_agents=("bob", "eve"))
    to_b: dict[str, Any] = {"to_agent_id": "bob", "to_nodes": ("node-b",)}
    return [
        message,
        a_reply(message, by_agent_id="ada", by_node_id=NODE),
        AckEvent(
            **a_head(3, to_nodes=("node-b",)),
            payload=Ack(
                ref_event_id=message.event_id,
                ref_kind=Kind.TASK_CREATE,
                ack_type=AckType.ACCEPTED,
                acked_by_node_id=NODE,
                acked_by_agent_id="ada",
                acked_at=format_ms(START_MS + 30),
                eta_seconds=60,
                reason="busy",
            ),
        ),
        TaskCreateEvent(
            **a_head(
                4,
                to_nodes=("node-b", "node-c"),
                expires_at=format_ms(START_MS + 9_000),
                trace=Trace(
                    attempt=2,
                    route_decision="direct",
                    routing_policy_version="rpv_1",
                    capability_policy_version="cpv_1",
                    engaged_by={"bob": "node-b", "eve": "node-c"},
                ),
            ),
            payload=TaskCreate(
                task_id=TASK_ID,
                to_agents=("bob", "eve", "nobody"),
                required_capabilities=("build",),
                priority=Priority.HIGH,
                requester_agent_id="ada",
                deadline_at=format_ms(START_MS + 5_000),
                task_type="build",
                capability_id="cap.build",
                delegation_skill_ref=SkillRef(name="ask", version="1.2.0"),
                sealed=SEALED,
            ),
        ),
        TaskAcceptEvent(
            **a_head(5, **to_b),
            payload=TaskAccept(task_id=TASK_ID, accepted_by_agent_id="ada", eta_at=format_ms(START_MS + 7_000)),
        ),
        TaskUpdateEvent(**a_head(6, **to_b), payload=TaskUpdate(task_id=TASK_ID, status="in_progress", progress=40)),
        TaskCompleteEvent(
            **a_head(7, **to_b),
            payload=TaskComplete(
                task_id=TASK_ID, completed_by_agent_id="ada", completed_at=format_ms(START_MS + 70), sealed=SEALED
            ),
        ),
        TaskFailedEvent(
            **a_head(8, **to_b),
            payload=TaskFailed(
                task_id=TASK_ID,
                failed_by_agent_id="ada",
                failed_at=format_ms(START_MS + 80),
                failure_class="tool_error",
                sealed=SEALED,
            ),
        ),
        SignalEvent(**a_head(9, to_nodes=("node-b",)), payload=Signal(signal="status_request")),
        DeadLetterEvent(
            **a_head(10),
            payload=DeadLetter(
                ref_event_id=message.event_id,
                ref_kind=Kind.MESSAGE,
                to_agent_id="eve",
                reason="no_route",
                attempts=2**40,
                dead_lettered_at=format_ms(START_MS + 100),
            ),
        ),
    ]


def chained(bodies: list[bytes]) -> list[bytes]:
    return [chain_over(CHAIN_START, bodies[: end + 1]) for end in range(len(bodies))]


def encoded(events: list[Event]) -> list[bytes]:
    return [encode_event(event) for event in events]


def an_exporter(lake: Lake | Path, home: Path, *, node_id: str = NODE, **settings: Any) -> Exporter:
    lake = open_lake(str(lake)) if isinstance(lake, Path) else lake
    return Exporter(
        lake,
        home=home,
        signing=an_identity(node_id).signing,
        settings=LakeSettings(path=lake.where, **settings),
        clock=FakeClock(),
    )


def ranges(lake: Path, node_id: str, epoch: str) -> list[tuple[int, int]]:
    return [(each.first_seq, each.last_seq) for each in manifests(open_lake(str(lake)), node_id, epoch)]


def rows_of(lake: Path, node_id: str, epoch: str) -> pa.Table:
    """Everything that is sealed of an outbox, as a table."""
    found = [pq.read_table(lake / each.path) for each in manifests(open_lake(str(lake)), node_id, epoch)]
    return pa.concat_tables(found)
