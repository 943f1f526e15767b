"""Change logs: what is true beside the events, written down when it changes and only then."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentpost.delivery.policy import DeliveryPolicy
from agentpost.lake import facts as facts_module
from agentpost.lake.facts import FactLog, Facts, gather_facts
from agentpost.lake.place import open_lake
from agentpost.lake.schema import FACT_TOPICS, FACTS
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.snapshot import NodeTier
from agentpost.store.sqlite import SqliteStore
from agentpost.store.values import AuditEntry, Subscriber
from agentpost.testing import START_MS, an_identity
from tests.lake.building import NODE
from tests.store.building import EPOCH, a_batch, from_peer, incoming, open_sqlite


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = open_sqlite(tmp_path / "home")
    yield store
    await store.close()


def logs(lake: Path) -> list[list[tuple[str, str, Any]]]:
    found: list[list[tuple[str, str, Any]]] = []
    for file in sorted((lake / "facts").rglob("*.parquet")):
        table = pq.read_table(pa.BufferReader(file.read_bytes()))
        assert table.schema.equals(FACTS)
        found.append(
            [
                (row["topic"], row["key"], row["value"] and msgspec.json.decode(row["value"]))
                for row in table.to_pylist()
            ]
        )
    return found


def a_log(lake: Path) -> FactLog:
    return FactLog(open_lake(str(lake)), NODE)


def agent(owner: str) -> dict[str, Any]:
    return {"ownerNodeId": owner, "status": "active", "fallbackNodeIds": []}


async def test_only_changes_are_appended(store: SqliteStore, tmp_path: Path) -> None:
    """A fact is written when it is new, changes or is gone; a new start knows what was written before."""
    lake = tmp_path / "lake"
    first: Facts = {("agent", "ada"): agent("node-a"), ("agent", "bob"): agent("node-b")}
    assert a_log(lake).append(first, store, at_us=1) == 2
    log = a_log(lake)
    assert log.append(first, store, at_us=2) == 0
    assert log.append({("agent", "ada"): agent("node-c")}, store, at_us=3) == 2
    assert a_log(lake).append({("agent", "ada"): agent("node-c")}, store, at_us=4) == 0
    assert logs(lake)[1] == [("agent", "ada", agent("node-c")), ("agent", "bob", None)]
    assert [file.name for file in sorted((lake / "facts" / f"node={NODE}").iterdir())] == [
        "000000000001.parquet",
        "000000000002.parquet",
    ]


async def test_who_knows_only_a_part_takes_nothing_back(store: SqliteStore, tmp_path: Path) -> None:
    """Facts gathered without the room do not make those of the room gone."""
    log = a_log(tmp_path)
    log.append({("agent", "ada"): agent("node-a")}, store, at_us=1)
    assert log.append({("policy", "routing"): {"version": "1"}}, store, at_us=2, is_complete=False) == 1
    assert log.append({("agent", "ada"): agent("node-a"), ("policy", "routing"): {"version": "1"}}, store, at_us=3) == 0


async def test_a_start_reads_few_logs(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many logs one holds everything, and what lies before it is not needed any more."""
    monkeypatch.setattr(facts_module, "_LOGS_BETWEEN", 4)
    await store.record_audit([AuditEntry(at_ms=START_MS, actor="ada", action="a", session_id="ses_1", corr_id="c")])
    log = a_log(tmp_path)
    for turn in range(6):
        log.append({("agent", "ada"): agent("node-a"), ("policy", "routing"): {"version": str(turn)}}, store, at_us=1)
    written = logs(tmp_path)
    assert [len(rows) for rows in written] == [3, 1, 1, 1, 3, 1]
    for number in range(1, 5):
        (tmp_path / "facts" / f"node={NODE}" / f"{number:012d}.parquet").write_bytes(b"never read again")
    same: Facts = {("agent", "ada"): agent("node-a"), ("policy", "routing"): {"version": "5"}}
    assert a_log(tmp_path).append(same, store, at_us=1) == 0


@pytest.mark.req("OBS-10")
async def test_sessions_come_from_the_audit_log_once(store: SqliteStore, tmp_path: Path) -> None:
    """What was done within a session or a conversation is exported once, whatever number of starts."""
    await store.record_audit(
        [
            AuditEntry(at_ms=START_MS, actor="ada", action="deadletter.resend", session_id="ses_1", corr_id="corr_1"),
            AuditEntry(at_ms=START_MS, actor="operator", action="no session"),
        ]
    )
    assert a_log(tmp_path).append({}, store, at_us=1) == 1
    assert a_log(tmp_path).append({}, store, at_us=1) == 0
    await store.record_audit([AuditEntry(at_ms=START_MS, actor="eve", action="x", session_id="ses_2")])
    assert a_log(tmp_path).append({}, store, at_us=1) == 1
    value = {"sessionId": "ses_1", "actor": "ada", "action": "deadletter.resend", "auditId": 1}
    assert logs(tmp_path)[0] == [("session", "corr_1", value)]


@pytest.mark.req("PIPE-7", "OBS-9")
async def test_cursors_settings_and_keys_are_facts(store: SqliteStore) -> None:
    """Who has read how far, what the timers are and whose key it is: what the pipeline judges by."""
    await store.accept(a_batch(incoming(from_peer(1))))
    await store.note_subscriber(
        Subscriber(
            consumer_node_id="node-c",
            epoch=EPOCH,
            last_seq=7,
            updated_at_ms=START_MS,
            lease_expires_at_ms=START_MS + 10,
        )
    )

    def gathered(now_ms: int) -> Facts:
        identity = an_identity(NODE)
        return gather_facts(
            room=None, store=store, identity=identity, tier=NodeTier.EDGE, policy=DeliveryPolicy(), now_ms=now_ms
        )

    found = gathered(START_MS)
    assert found["cursor", "node-c/node-a"]["status"] == "active"
    assert found["cursor", "node-a/node-b"]["lastSeq"] == 1
    assert found["node", NODE]["signingPublic"] == an_identity(NODE).signing_public
    assert found["settings", NODE]["maxAttempts"] == DeliveryPolicy().resend.max_attempts
    assert gathered(START_MS + 10)["cursor", "node-c/node-a"]["status"] == "expired"
    assert {topic for topic, _ in found} <= set(FACT_TOPICS)


async def test_a_lease_that_is_renewed_is_no_news(store: SqliteStore, tmp_path: Path) -> None:
    """A reader that stands still and renews its lease does not fill the lake."""
    log = a_log(tmp_path)
    place = {"lastSeq": 7, "status": "active"}
    assert log.append({("cursor", "b/a"): {**place, "leaseExpiresUs": 1}}, store, at_us=1) == 1
    assert log.append({("cursor", "b/a"): {**place, "leaseExpiresUs": 2}}, store, at_us=2) == 0


async def test_a_damaged_log_is_named_and_told_for_as_long_as_it_is_there(store: SqliteStore, tmp_path: Path) -> None:
    """Nothing is written after a change log that cannot be read; once it is out of the lake, the others go on."""
    lake = tmp_path / "lake"
    a_log(lake).append({("agent", "ada"): agent("node-a")}, store, at_us=1)
    (damaged,) = (lake / "facts").rglob("*.parquet")
    damaged.write_bytes(b"junk")
    log = a_log(lake)
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            log.append({("agent", "bob"): agent("node-b")}, store, at_us=2)
        assert refused.value.code is Code.STORAGE_CORRUPT
        assert damaged.name in refused.value.message
    damaged.unlink()
    assert log.append({("agent", "bob"): agent("node-b")}, store, at_us=3) == 1
