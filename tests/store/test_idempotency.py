"""Answers under idempotency keys: kept with what was written, or not at all."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Code
from agentpost.store.interface import Store
from agentpost.store.values import KeptAnswer, KeyedAnswer
from agentpost.testing import a_message
from tests.store.building import a_batch, a_settlement, deliveries_of, from_peer, incoming, open_sqlite, refused

KEYED = KeyedAnswer(
    agent_id="ada", key=bytes(32), request=b"r" * 32, answer=b'{"it":1}', at_ms=1_000, expires_at_ms=87_400_000
)


@pytest.mark.req("RTY-3")
async def test_an_answer_is_kept_with_what_was_appended(store: Store) -> None:
    """The answer, with the place of the first event; another agent's key of the same text is another key."""
    await store.append([a_message(1)])
    await store.append([a_message(2), a_message(3)], keyed=KEYED)
    kept = store.kept_answer("ada", KEYED.key)
    assert kept == KeptAnswer(request=KEYED.request, answer=KEYED.answer, seq=2, expires_at_ms=87_400_000)
    assert store.kept_answer("eve", KEYED.key) is None
    await store.append([a_message(4)], keyed=replace(KEYED, agent_id="eve"))
    assert store.head().seq == 4


@pytest.mark.req("RTY-3")
async def test_a_key_that_was_used_lets_nothing_in(store: Store) -> None:
    """A second append under the key is refused whole: no event, no delivery, and the first answer stays."""
    await store.append([a_message(1)], keyed=KEYED)
    with refused(Code.IDEMPOTENCY_KEY_REUSED):
        await store.append(
            [a_message(2)], deliveries=deliveries_of(a_message(2), "bob"), keyed=replace(KEYED, answer=b"2")
        )
    assert store.head().seq == 1
    assert store.deliveries_of(a_message(2).event_id) == []
    kept = store.kept_answer("ada", KEYED.key)
    assert kept is not None
    assert kept.answer == KEYED.answer


@pytest.mark.req("RTY-3")
async def test_an_append_that_is_refused_keeps_no_key(store: Store) -> None:
    """What did not happen can be tried again with its key."""
    with refused(Code.FOREIGN_SOURCE):
        await store.append([a_message(1, source_node_id="node-z")], keyed=KEYED)
    assert store.kept_answer("ada", KEYED.key) is None
    await store.append([a_message(1)], keyed=KEYED)


@pytest.mark.req("RTY-3")
async def test_of_appends_at_once_under_one_key_one_happens(store: Store) -> None:
    """Ten callers with one key, all before any commit: one event."""
    calls = [store.append([a_message(number)], keyed=KEYED) for number in range(1, 11)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(not isinstance(each, BaseException) for each in done) == 1
    assert store.head().seq == 1


@pytest.mark.req("RTY-3")
async def test_a_key_that_has_expired_can_be_used_again(store: Store) -> None:
    """After its time a key is as if it had never been used."""
    await store.append([a_message(1)], keyed=KEYED)
    later = replace(KEYED, answer=b"later", at_ms=KEYED.expires_at_ms, expires_at_ms=KEYED.expires_at_ms + 1)
    await store.append([a_message(2)], keyed=later)
    kept = store.kept_answer("ada", KEYED.key)
    assert kept is not None
    assert (kept.answer, kept.seq) == (b"later", 2)


@pytest.mark.req("RTY-3")
async def test_a_settlement_keeps_its_answer_if_it_settles(store: Store) -> None:
    """The one that closes the row keeps its answer; one that comes too late keeps none; a used key settles nothing."""
    first, second = from_peer(1), from_peer(2)
    await store.accept(a_batch(incoming(first), incoming(second)))
    settled = a_settlement(first)
    assert await store.settle(replace(settled, keyed=KEYED)) is True
    assert store.kept_answer("ada", KEYED.key) is not None
    other = replace(KEYED, key=b"o" * 32)
    assert await store.settle(replace(settled, keyed=other)) is False
    assert store.kept_answer("ada", other.key) is None
    before = store.head().seq
    with refused(Code.IDEMPOTENCY_KEY_REUSED):
        await store.settle(replace(a_settlement(second), keyed=KEYED))
    assert store.head().seq == before
    assert len(store.backlog("ada")) == 1


@pytest.mark.req("RTY-3")
async def test_an_answer_is_there_after_a_restart(home: Path) -> None:
    """A crash after the commit takes neither the event nor its answer."""
    store = open_sqlite(home)
    await store.append([a_message(1)], keyed=KEYED)
    await store.close()
    store = open_sqlite(home)
    assert store.kept_answer("ada", KEYED.key) is not None
    await store.close()
