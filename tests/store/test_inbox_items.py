"""Looking at an agent's inbox: pages in both orders, one event, a conversation. Reading consumes nothing."""

import pytest
from msgspec.structs import replace

from agentpost.protocol.errors import Code
from agentpost.protocol.payloads import Priority
from agentpost.store.interface import Store
from agentpost.store.values import BacklogItem, LedgerState
from agentpost.testing import START_MS, a_message
from tests.store.building import PEER, a_batch, a_settlement, from_peer, incoming, refused, visible

EVENTS = [from_peer(number) for number in range(1, 7)]
FIRST, SECOND, THIRD = EVENTS[:3]


@pytest.fixture
async def filled(store: Store) -> Store:
    """Six events for ada, of which eve has the third too; the second is settled."""
    await store.accept(
        a_batch(*(incoming(event, "ada", "eve") if event is THIRD else incoming(event) for event in EVENTS))
    )
    await store.settle(a_settlement(SECOND))
    return store


def seqs(items: list[BacklogItem]) -> list[int]:
    return [item.entry.inbox_seq for item in items]


@pytest.mark.req("OPS-6")
async def test_an_inbox_shows_what_is_settled_and_what_is_not(filled: Store) -> None:
    """Everything that came for the agent is listed, oldest first; the settled part can be left out."""
    items = filled.inbox_items("ada")
    assert seqs(items) == [1, 2, 3, 4, 5, 6]
    assert [item.entry.state for item in items[:2]] == [LedgerState.QUEUED, LedgerState.SETTLED]
    assert (items[2].source_node_id, items[2].source_seq, items[2].raw) == (PEER, 3, incoming(THIRD).raw)
    assert seqs(filled.inbox_items("ada", include_settled=False)) == [1, 3, 4, 5, 6]
    assert seqs(filled.inbox_items("eve")) == [3]
    assert filled.inbox_items("nobody") == []


@pytest.mark.parametrize("settled_too", [True, False])
@pytest.mark.parametrize("newest_first", [True, False])
async def test_an_inbox_is_read_in_pages(filled: Store, settled_too: bool, newest_first: bool) -> None:
    """Each page goes on where the one before ended, in whichever order, and together they are everything."""
    found: list[int] = []
    while page := filled.inbox_items(
        "ada",
        after_inbox_seq=found[-1] if found else 0,
        limit=2,
        include_settled=settled_too,
        newest_first=newest_first,
    ):
        assert len(page) <= 2
        found += seqs(page)
    expected = [1, 2, 3, 4, 5, 6] if settled_too else [1, 3, 4, 5, 6]
    assert found == (expected[::-1] if newest_first else expected)


async def test_one_event_of_an_inbox(filled: Store) -> None:
    """It is there for whom it came for, settled or not, and for nobody else."""
    item = filled.inbox_item(SECOND.event_id, "ada")
    assert item is not None
    assert item == filled.inbox_items("ada")[1]
    assert filled.inbox_item(SECOND.event_id, "eve") is None
    assert filled.inbox_item(a_message(9).event_id, "ada") is None


@pytest.mark.req("OBS-10")
async def test_a_conversation_is_found_by_its_id(filled: Store) -> None:
    """All that came in within it, for each agent that got it, in order."""
    later = a_message(7, seq=7, source_node_id=PEER, source_agent_id="bob", to_agents=("eve",), corr_id=THIRD.corr_id)
    await filled.accept(a_batch(incoming(later, "eve"), after=6))
    found = [(item.entry.event_id, item.entry.to_agent_id) for item in filled.inbox_by_corr(THIRD.corr_id)]
    assert found == [(THIRD.event_id, "ada"), (THIRD.event_id, "eve"), (later.event_id, "eve")]
    assert filled.inbox_by_corr(a_message(9).corr_id) == []


@pytest.mark.req("PIPE-7")
async def test_what_was_pruned_is_not_shown(filled: Store) -> None:
    """An event that has left the inbox is in no list, though the ledger still knows it."""
    await filled.settle(a_settlement(FIRST))
    await filled.compact(filled.watermarks(now_ms=START_MS, retention_events=0))
    assert seqs(filled.inbox_items("ada")) == [3, 4, 5, 6]
    assert filled.inbox_item(FIRST.event_id, "ada") is None
    assert filled.inbox_by_corr(FIRST.corr_id) == []
    assert filled.ledger_entry(FIRST.event_id, "ada") is not None


@pytest.mark.req("OPS-6")
async def test_reading_is_noted_once_and_consumes_nothing(filled: Store) -> None:
    """The first look counts; the event stays in the backlog, and eve has not read what ada has."""
    assert await filled.mark_read(THIRD.event_id, "ada", at_ms=START_MS + 5) is True
    assert await filled.mark_read(THIRD.event_id, "ada", at_ms=START_MS + 9) is False
    item = filled.inbox_item(THIRD.event_id, "ada")
    assert item is not None
    assert (item.entry.read_at_ms, item.entry.state) == (START_MS + 5, LedgerState.QUEUED)
    assert filled.inbox_items("eve")[0].entry.read_at_ms is None
    assert 3 in seqs(filled.backlog("ada"))
    assert await filled.mark_read(SECOND.event_id, "ada", at_ms=START_MS + 6) is True


async def test_what_never_came_cannot_be_read(filled: Store) -> None:
    """Marking it is refused and leaves no trace."""
    before = visible(filled, events=EVENTS)
    with refused(Code.NOT_FOUND):
        await filled.mark_read(FIRST.event_id, "eve", at_ms=1)
    assert visible(filled, events=EVENTS) == before


@pytest.mark.req("OBS-1", "RTY-5")
async def test_the_backlog_is_counted(filled: Store) -> None:
    """What is not settled counts, be it with the agent or waiting."""
    assert [filled.backlog_size(agent) for agent in ("ada", "eve", "nobody")] == [5, 1, 0]
    await filled.mark_read(THIRD.event_id, "ada", at_ms=START_MS)
    assert [filled.backlog_size(agent, unread_only=True) for agent in ("ada", "eve", "nobody")] == [4, 1, 0]
    unread = filled.backlog("ada", unread_only=True)
    assert len(unread) == 4
    assert all(item.entry.read_at_ms is None for item in unread)
    assert filled.backlog("ada", after_inbox_seq=unread[0].entry.inbox_seq, limit=2, unread_only=True) == unread[1:3]
    await filled.engage(THIRD.event_id, "eve", at_ms=START_MS)
    assert filled.backlog_size("eve") == 1
    await filled.settle(a_settlement(THIRD, agent="eve"))
    assert filled.backlog_size("eve") == 0
    assert [filled.backlog_size("ada", most=most) for most in (0, 4, 5, 6)] == [0, 4, 5, 5]
    assert filled.backlog_size("ada", unread_only=True, most=3) == 3


@pytest.mark.req("OBS-1")
async def test_who_has_something_waiting_is_known_in_the_order_of_waiting(filled: Store) -> None:
    """The agent whose oldest mail is oldest comes first; one that has settled everything is not among them."""
    assert filled.waiting_agents() == ["ada", "eve"]
    await filled.settle(a_settlement(FIRST))
    await filled.settle(a_settlement(THIRD))
    assert filled.waiting_agents() == ["eve", "ada"]
    await filled.settle(a_settlement(THIRD, agent="eve"))
    assert filled.waiting_agents() == ["ada"]
    for event in EVENTS[3:]:
        await filled.settle(a_settlement(event))
    assert filled.waiting_agents() == []


@pytest.mark.req("RTY-5")
async def test_what_was_with_an_agent_is_found_after_a_start(filled: Store) -> None:
    """The engaged and unsettled of all agents, oldest first; what was postponed or settled is certain."""
    for event, agent in ((THIRD, "eve"), (THIRD, "ada"), (FIRST, "ada"), (EVENTS[3], "ada"), (EVENTS[4], "ada")):
        await filled.engage(event.event_id, agent, at_ms=START_MS)
    await filled.postpone(EVENTS[3].event_id, "ada", due_at_ms=1, error="away")
    await filled.settle(a_settlement(EVENTS[4]))
    found = filled.engaged_entries()
    assert [(entry.event_id, entry.to_agent_id) for entry in found] == [
        (FIRST.event_id, "ada"),
        (THIRD.event_id, "ada"),
        (THIRD.event_id, "eve"),
    ]
    assert found[0] == filled.ledger_entry(FIRST.event_id, "ada")


@pytest.mark.req("OPS-5")
async def test_urgent_mail_is_found_among_the_rest(filled: Store) -> None:
    """What is urgent is there for each of its agents until one has read it, or dealt with it."""
    urgent = [
        replace(message, payload=replace(message.payload, priority=Priority.HIGH))
        for message in (from_peer(number) for number in (7, 8, 10))
    ]
    seventh, eighth, tenth = (incoming(message, "ada", "eve") for message in urgent)
    await filled.accept(a_batch(seventh, eighth, incoming(from_peer(9)), tenth, after=6))
    assert seqs(filled.urgent_unread("ada")) == [7, 8, 10]
    assert seqs(filled.urgent_unread("ada", limit=2)) == [7, 8]
    assert filled.urgent_unread("ada")[0].raw == seventh.raw
    await filled.mark_read(seventh.event.event_id, "ada", at_ms=START_MS)
    await filled.settle(a_settlement(eighth.event))
    assert seqs(filled.urgent_unread("ada")) == [10]
    assert seqs(filled.urgent_unread("eve")) == [7, 8, 10]
    assert filled.urgent_unread("nobody") == []
