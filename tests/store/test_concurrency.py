"""Many callers at once: one sequence, each caller in its own order, nobody harmed by another."""

import asyncio

import pytest

from agentpost.protocol.codec import decode_event
from agentpost.protocol.errors import Refusal
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.store.interface import Store
from agentpost.store.sqlite import SqliteStore
from agentpost.testing import START_MS, a_message
from tests.store.building import a_batch, a_change, chain_is_whole, deliveries_of, from_peer, incoming, outbox_seqs

CALLERS = 256
APPENDS = 4


async def write(store: Store, caller: int) -> list[int]:
    """The seqs that one caller got for its messages, one after the other."""
    return [
        (await store.append([a_message(turn, source_agent_id=f"agent-{caller}")])).first_seq
        for turn in range(1, APPENDS + 1)
    ]


@pytest.mark.req("ENV-2", "PIPE-3")
async def test_256_callers_share_one_sequence_and_keep_their_own_order(store: Store) -> None:
    """Every seq from 1 on is given once, and each caller's events stand in the order it sent them."""
    given = await asyncio.gather(*(write(store, caller) for caller in range(CALLERS)))
    assert sorted(seq for seqs in given for seq in seqs) == list(range(1, CALLERS * APPENDS + 1))
    assert all(seqs == sorted(seqs) for seqs in given)
    assert outbox_seqs(store) == list(range(1, CALLERS * APPENDS + 1))
    assert chain_is_whole(store)

    stored = store.read_outbox(0, limit=CALLERS * APPENDS, max_bytes=1 << 30).events
    agents = {decode_event(event.raw).seq: decode_event(event.raw).source_agent_id for event in stored}
    for caller, seqs in enumerate(given):
        assert {agents[seq] for seq in seqs} == {f"agent-{caller}"}


@pytest.mark.req("ENV-2", "PIPE-1")
async def test_bad_callers_among_256_harm_nobody(store: Store) -> None:
    """Refused for four different reasons, some callers get nothing, and all others what they asked for."""
    known = a_message(0)
    await store.append([known], deliveries=deliveries_of(known, "bob"))

    async def bad(number: int) -> None:
        event = a_message(number, source_agent_id="mallory")
        match number % 4:
            case 0:
                await store.append([event, a_message(number, source_node_id="node-z")])
            case 1:
                await store.append([event], changes=[a_change(event, DeliverySignal.ACCEPTED)])
            case 2:
                await store.append([known, event], deliveries=deliveries_of(known, "bob"))
            case _:
                await store.append([event], changes=[a_change(known, DeliverySignal.SLA_TIMEOUT)])

    calls = [bad(caller) if caller % 16 == 7 else write(store, caller) for caller in range(CALLERS)]
    calls += [bad(number) for number in range(1, 9)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [result for result in results if isinstance(result, Refusal)]
    given = [seq for result in results if isinstance(result, list) for seq in result]
    assert len(refusals) == CALLERS // 16 + 8
    assert len(refusals) + len(given) // APPENDS == len(calls)
    assert sorted(given) == list(range(2, len(given) + 2))
    assert outbox_seqs(store) == list(range(1, len(given) + 2))
    assert chain_is_whole(store)


@pytest.mark.req("RTY-3", "CUR-2")
async def test_the_same_batch_from_many_callers_is_taken_once(store: Store) -> None:
    """However many links bring the same events at the same time, each pair is new to exactly one of them."""
    batch = a_batch(*(incoming(from_peer(number), "ada", "eve") for number in range(1, 11)))
    taken = await asyncio.gather(*(store.accept(batch) for _ in range(32)))
    assert sum(len(each.new) for each in taken) == 20
    assert sum(len(each.repeated) for each in taken) == 31 * 20
    assert store.inbox_position().latest_seq == 10
    assert store.head().seq == 20


@pytest.mark.req("AUTH-8")
async def test_of_many_who_bring_the_same_nonce_one_is_first(store: Store) -> None:
    """A race for the same value has one winner."""
    calls = (store.remember_once("nonce", "abc", now_ms=0, expires_at_ms=9) for _ in range(64))
    assert sum(await asyncio.gather(*calls)) == 1


async def test_reads_see_every_write_that_has_returned(sqlite_store: SqliteStore) -> None:
    """A reader, in whatever thread, finds what a writer was told is there."""
    for number in range(1, 20):
        event = a_message(number)
        appended = await sqlite_store.append([event], deliveries=deliveries_of(event, "bob", due_at_ms=START_MS))
        assert sqlite_store.head().seq == appended.last_seq
        head = await asyncio.to_thread(sqlite_store.head)
        assert head.seq == appended.last_seq
        assert len(await asyncio.to_thread(sqlite_store.due_deliveries, START_MS)) == number
