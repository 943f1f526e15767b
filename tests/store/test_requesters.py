"""The tasks that one agent asked for, the last changed first."""

from agentpost.store.interface import Store
from agentpost.testing import START_MS
from tests.store.building import an_offer


async def test_the_tasks_of_a_requester_come_page_by_page(store: Store) -> None:
    """Only those of the agent, the last changed first, and two that changed at once in an order that stays."""
    times = (0, 3, 1, 1, 2)
    await store.append([an_offer(at, by="ada", at_ms=START_MS + more) for at, more in enumerate(times)])
    await store.append([an_offer(9, by="eve", at_ms=START_MS + 9)])
    found = [int(record.task_id[4:]) for record in store.tasks_of("ada")]
    assert found == [1, 4, 3, 2, 0]
    paged, before = [], None
    while page := store.tasks_of("ada", before=before, limit=2):
        paged += [int(record.task_id[4:]) for record in page]
        before = (page[-1].updated_at_ms, page[-1].task_id)
    assert paged == found
    assert [record.requester_agent_id for record in store.tasks_of("eve")] == ["eve"]
    assert store.tasks_of("nobody") == []
