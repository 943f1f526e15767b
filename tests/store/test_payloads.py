"""Payloads go when no event that is kept names them, after a time of grace, and not a moment earlier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import Event, SignalEvent
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import PayloadRef, Signal
from agentpost.protocol.taskbook import CANCELED_BY, TASK_WITHDRAWN
from agentpost.store.blobs import SealedBlob, seal_blob
from agentpost.store.database import Database
from agentpost.store.home import Home
from agentpost.store.interface import Store
from agentpost.store.payload_rules import MOST_BYTES_A_STEP, KnownPayload, judge_payloads
from agentpost.store.queries import SQL, migrations
from agentpost.store.values import NamedPayload, PayloadUsage, PrunedPayloads
from agentpost.testing import START_MS, SeededChance, a_message
from tests.store.building import (
    EPOCH,
    NODE,
    PEER,
    PEER_EPOCH,
    a_batch,
    a_change,
    a_settlement,
    a_subscriber,
    deliveries_of,
    from_peer,
    incoming,
    open_sqlite,
)
from tests.store.test_mirrors import a_mirror_batch
from tests.store.test_requesters import an_offer

GRACE_MS = 3_600_000
# Far beyond any grace.
LATER_MS = START_MS + 100 * GRACE_MS
SEALED = seal_blob(b"a large payload", SeededChance(1).entropy(32))
SHA = SEALED.blob.sha256
REF = PayloadRef(sha256=SHA, size_bytes=SEALED.blob.size_bytes, suite="test", keys={PEER: b"key"})


def naming(event: Event) -> Any:
    return replace(event, payload_ref=REF)


async def upload(store: Store, sealed: SealedBlob = SEALED) -> None:
    await store.begin_blob(sealed.blob, at_ms=START_MS)
    for part, data in enumerate(sealed.chunks):
        await store.put_chunk(sealed.blob.sha256, part, data)
    await store.complete_blob(sealed.blob.sha256)


async def prune(store: Store, at_ms: int = START_MS) -> int:
    return (await store.prune_payloads(now_ms=at_ms, grace_ms=GRACE_MS)).payloads


async def stays(store: Store) -> bool:
    """Whether the payload is still here after two looks at it that lie further apart than the grace."""
    assert await prune(store, LATER_MS) == 0
    await prune(store, LATER_MS + GRACE_MS)
    return store.blob(SHA) is not None


async def forget_streams(store: Store) -> None:
    """The one reader has read everything; nothing is kept beyond what is needed."""
    await store.note_subscriber(a_subscriber(store.head().seq))
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))


@pytest.mark.req("PIPE-7")
async def test_an_upload_without_an_event_goes_after_the_grace(store: Store) -> None:
    """Its event may be about to be appended; after an hour it is not, and nothing is left of it."""
    await upload(store)
    assert store.payload_usage() == PayloadUsage(payloads=1, size_bytes=SEALED.blob.size_bytes)
    assert await prune(store) == 0
    assert await prune(store, START_MS + GRACE_MS - 1) == 0
    assert store.blob(SHA) is not None
    found = await store.prune_payloads(now_ms=START_MS + GRACE_MS, grace_ms=GRACE_MS)
    assert found == PrunedPayloads(payloads=1, size_bytes=SEALED.blob.size_bytes, through_sha256=None)
    assert (store.blob(SHA), store.chunk(SHA, 0)) == (None, None)
    assert store.payload_usage() == PayloadUsage()


@pytest.mark.req("PIPE-7")
async def test_the_grace_starts_anew_for_what_was_needed_in_between(store: Store) -> None:
    """An upload that was found without its event is safe once that is appended, and has its whole grace after it."""
    await upload(store)
    await prune(store)
    event = naming(a_message(1))
    await store.append([event])
    assert await prune(store, START_MS + GRACE_MS) == 0
    await forget_streams(store)
    assert await prune(store, START_MS + 2 * GRACE_MS) == 0
    assert await prune(store, START_MS + 3 * GRACE_MS - 1) == 0
    assert await prune(store, START_MS + 3 * GRACE_MS) == 1


@pytest.mark.req("PIPE-7")
async def test_the_outbox_needs_the_payloads_of_its_events(store: Store) -> None:
    """As long as an event can be read by others, its payload can be fetched; both go, one after the other."""
    await upload(store)
    await store.append([naming(a_message(1))])
    assert await stays(store)
    await forget_streams(store)
    assert not await stays(store)


@pytest.mark.req("PIPE-8")
@pytest.mark.parametrize("ending", [DeliverySignal.PROCESSED, DeliverySignal.REPLY])
async def test_a_delivery_without_an_outcome_needs_its_payload(store: Store, ending: DeliverySignal) -> None:
    """A gateway that has accepted an event may not have fetched its payload yet; once the agent is done, it has."""
    await upload(store)
    event = naming(a_message(1))
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    await store.append([], changes=[a_change(event, DeliverySignal.ACCEPTED)])
    await forget_streams(store)
    assert store.find_event(event.event_id) is None
    assert await stays(store)
    await store.append([], changes=[a_change(event, ending)])
    assert not await stays(store)


@pytest.mark.req("PIPE-8")
async def test_a_delivery_that_nobody_heard_of_any_more_needs_its_payload(store: Store) -> None:
    """An incident is no outcome: the agent may still get to it, until the delivery itself is forgotten."""
    await upload(store)
    event = naming(a_message(1))
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    await store.append([], changes=[a_change(event, DeliverySignal.ACCEPTED)])
    await store.append([], changes=[a_change(event, DeliverySignal.SLA_TIMEOUT)])
    await forget_streams(store)
    assert await stays(store)
    await store.prune_settled(before_ms=LATER_MS)
    assert not await stays(store)


@pytest.mark.req("RTY-7")
async def test_a_dead_letter_keeps_its_payload_until_it_is_purged(store: Store) -> None:
    """It can be looked into and sent again, however long ago its event has left the outbox."""
    await upload(store)
    event = naming(a_message(1))
    await store.append([event], deliveries=deliveries_of(event, "bob"))
    await store.append([], changes=[a_change(event, DeliverySignal.EXPIRED)])
    await forget_streams(store)
    await store.prune_settled(before_ms=LATER_MS)
    assert await stays(store)
    assert store.find_event(event.event_id) is not None
    await store.purge_deliveries([(event.event_id, "bob")])
    assert not await stays(store)


@pytest.mark.req("PIPE-7")
async def test_the_inbox_needs_the_payloads_of_its_events(store: Store) -> None:
    """What an agent was sent can be read for as long as it stands in the inbox, also if it came before its payload."""
    event = naming(from_peer(1))
    await store.accept(a_batch(incoming(event)))
    await upload(store)
    assert await stays(store)
    await store.settle(a_settlement(event, events=()))
    assert await stays(store)
    await forget_streams(store)
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=0))
    assert store.inbox_items("ada") == []
    assert not await stays(store)


@pytest.mark.req("PIPE-7", "TASK-5")
async def test_a_task_needs_the_payloads_of_its_events(store: Store) -> None:
    """The description of a task is there for as long as the task is, however far the outbox was pruned."""
    await upload(store)
    offer = naming(an_offer(1, by="ada", at_ms=START_MS))
    await store.append([offer])
    await forget_streams(store)
    assert await stays(store)
    over = SignalEvent(
        event_id=a_message(2).event_id,
        source_node_id=NODE,
        source_agent_id="ada",
        corr_id=offer.corr_id,
        created_at=offer.created_at,
        payload=Signal(
            signal=TASK_WITHDRAWN,
            ref_event_id=offer.event_id,
            details={"taskId": offer.payload.task_id, CANCELED_BY: "ada"},
        ),
    )
    await store.append([over])
    await forget_streams(store)
    assert await stays(store)
    await store.prune_settled(before_ms=LATER_MS)
    assert not await stays(store)


async def mirror(store: Store, *seqs: int, source_node_id: str = PEER) -> None:
    """Seven events of another outbox, of which these name the payload."""
    named = [NamedPayload.of(REF, source_node_id, seq=seq) for seq in seqs]
    await store.name_payloads(named)
    await store.keep_mirror(a_mirror_batch(0, 7, source_node_id=source_node_id))


@pytest.mark.req("PIPE-7", "PIPE-9")
async def test_a_mirror_needs_the_payloads_of_its_events(store: Store) -> None:
    """A seed keeps a payload for its readers as long as the event; an event that was sent again counts."""
    await upload(store)
    await mirror(store, 2, 5)
    await store.prune_mirror(PEER, through_seq=4)
    assert await stays(store)
    assert store.may_read_payload(SHA, PEER)
    await store.prune_mirror(PEER, through_seq=5)
    assert not await stays(store)
    assert not store.may_read_payload(SHA, PEER)


@pytest.mark.req("PIPE-9")
async def test_who_names_the_payload_of_another_takes_it_from_nobody(store: Store) -> None:
    """Each source counts alone: one whose mirror is pruned does not make the payload of the other go."""
    await upload(store)
    await mirror(store, 1, source_node_id="node-x")
    await mirror(store, 1)
    await store.prune_mirror("node-x", through_seq=7)
    assert await stays(store)
    await store.prune_mirror(PEER, through_seq=7)
    assert not await stays(store)


@pytest.mark.req("CUR-6", "PIPE-7")
async def test_the_payloads_of_an_earlier_life_go(store: Store) -> None:
    """A mirror that begins anew holds nothing of before; who is at fetching it has the grace to finish."""
    await upload(store)
    await mirror(store, 5)
    await store.restart_mirror(PEER, epoch="another life", at_ms=START_MS)
    await prune(store, LATER_MS)
    assert store.may_read_payload(SHA, PEER)
    assert store.missing_payloads() == []
    assert await prune(store, LATER_MS + GRACE_MS) == 1


@pytest.mark.req("PIPE-5")
async def test_a_payload_that_is_fetched_anew_is_still_needed(store: Store) -> None:
    """What did not fit its address is dropped; its event goes on to name it."""
    await store.accept(a_batch(incoming(naming(from_peer(1)))))
    await upload(store)
    await store.drop_blob(SHA)
    assert await stays(store) is False
    await upload(store)
    assert await stays(store)


async def test_a_payload_that_never_came_is_forgotten(store: Store) -> None:
    """Once its events are gone, nobody may ask for it any more, and it counts nowhere."""
    await mirror(store, 5)
    assert [each.sha256 for each in store.missing_payloads()] == [SHA]
    await store.prune_mirror(PEER, through_seq=7)
    assert await prune(store, START_MS) == 0
    assert store.may_read_payload(SHA, PEER)
    assert await prune(store, START_MS + GRACE_MS) == 0
    assert not store.may_read_payload(SHA, PEER)


async def test_a_clock_that_was_ahead_delays_nothing_for_long(store: Store) -> None:
    """What was marked under a wrong time has its grace from the first look under the right one."""
    await upload(store)
    await prune(store, LATER_MS)
    assert await prune(store, START_MS) == 0
    assert await prune(store, START_MS + GRACE_MS - 1) == 0
    assert await prune(store, START_MS + GRACE_MS) == 1


async def test_pruning_goes_in_steps(store: Store) -> None:
    """A step looks at so many payloads, and says where the next one begins."""
    sealed = [seal_blob(b"%d" % number, SeededChance(number).entropy(32)) for number in range(5)]
    for each in sealed:
        await upload(store, each)
    addresses = sorted(each.blob.sha256 for each in sealed)
    for at_ms, dropped in ((START_MS, [0, 0, 0]), (START_MS + GRACE_MS, [2, 2, 1])):
        after: str | None = ""
        steps: list[PrunedPayloads] = []
        while after is not None:
            step = await store.prune_payloads(now_ms=at_ms, grace_ms=GRACE_MS, after_sha256=after, limit=2)
            steps.append(step)
            after = step.through_sha256
        assert [step.payloads for step in steps] == dropped
        assert [step.through_sha256 for step in steps] == [addresses[1], addresses[3], None]
    assert store.payload_usage() == PayloadUsage()


def a_page(*sizes: int) -> Sequence[KnownPayload]:
    return [
        KnownPayload(sha256=f"{number}", size_bytes=size, unneeded_since_ms=0, is_needed=False)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "dropped", "through"),
    [
        pytest.param((4 * MOST_BYTES_A_STEP, 1), ["0"], "0", id="one that is larger than a step"),
        pytest.param((MOST_BYTES_A_STEP // 2,) * 3, ["0", "1"], "1", id="a step full"),
        pytest.param((1, 1), ["0", "1"], None, id="all of them"),
    ],
)
def test_a_step_drops_so_many_bytes_and_at_least_one_payload(
    sizes: tuple[int, ...], dropped: list[str], through: str | None
) -> None:
    """Large payloads go one by one, so that mail does not wait for them."""
    verdicts = judge_payloads(a_page(*sizes), now_ms=10, grace_ms=1, limit=10)
    assert (verdicts.drop, verdicts.pruned.through_sha256) == (dropped, through)


@pytest.mark.req("PIPE-7")
async def test_events_of_before_still_need_their_payloads(home: Path) -> None:
    """A home of an earlier version gets the names from its events, those that wait for their payload included."""
    scripts = migrations()
    before = next(at for at, script in enumerate(scripts) if "CREATE TABLE payload_events" in script)
    (home / "keys").mkdir(mode=0o700)
    earlier = Database.open_writer(Home(home).database)
    earlier.migrate(scripts[:before])
    earlier.run(SQL.create_gateway, (NODE, EPOCH, 1, bytes(32)))
    earlier.close()
    others = [seal_blob(b"%d" % number, SeededChance(number).entropy(32)) for number in range(5)]
    tables = ("outbox", "inbox", "dead_letter_events", "task_events")
    connection = apsw.Connection(str(Home(home).database))
    for number, (sealed, table) in enumerate(zip(others, tables, strict=False)):
        ref = replace(REF, sha256=sealed.blob.sha256)
        event = replace(a_message(number, body="payloadRef and sha256"), payload_ref=ref)
        values = {"event_id": event.event_id, "body": encode_event(event), "chain": bytes(32), "seq": number + 1}
        values |= {"source_node_id": PEER, "source_epoch": PEER_EPOCH, "source_seq": 1, "received_at_ms": 1}
        values |= {"task_id": "tsk", "is_own": 1, "at_ms": 1}
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] in values]
        marks = ", ".join(f":{column}" for column in columns)
        connection.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)  # noqa: S608
    connection.execute(
        "INSERT INTO deliveries (event_id, to_agent_id, route_decision, seq, state, attempts, emitted_at_ms)"
        " VALUES (?, 'bob', '', 3, 'DeadLetter', 1, 1)",
        (a_message(2).event_id,),
    )
    connection.close()
    store = open_sqlite(home)
    for sealed in others:
        await upload(store, sealed)
    for at_ms in (LATER_MS, LATER_MS + GRACE_MS):
        await prune(store, at_ms)
    assert [store.blob(sealed.blob.sha256) is not None for sealed in others] == [True, True, True, True, False]
    await store.close()
