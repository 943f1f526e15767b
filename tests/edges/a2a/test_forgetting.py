"""What is kept beside tasks goes when they go, and not before."""

import msgspec

from agentpost.edges.a2a.forgetting import forget
from agentpost.edges.a2a.noting import FOLLOW_UPS, MESSAGES, TASKS, KnownTask, Notebook, begun, followed, taken
from agentpost.edges.a2a.push import CONFIGS
from agentpost.edges.a2a.pushing import PUSHED
from agentpost.protocol.ids import EventId, TaskId
from agentpost.store.values import Note
from agentpost.testing import START_MS, MemoryStore
from tests.store.building import EPOCH, NODE
from tests.store.test_requesters import an_offer


def notes_of(task_id: TaskId) -> list[Note]:
    known = KnownTask(peer_id="orbit", agent_id="scribe", context_id="c", message_id="m")
    return [
        taken(f"key of {task_id}", task_id=task_id, digest="d", at_ms=START_MS),
        begun(task_id, known, at_ms=START_MS),
        followed(task_id, EventId("evt_1"), "m-2", at_ms=START_MS),
        Note(collection=CONFIGS, key=f"{task_id}/one", value=b"sealed", at_ms=START_MS),
        Note(collection=PUSHED, key=f"{task_id}/one", value=msgspec.json.encode({}), at_ms=START_MS),
    ]


async def test_notes_go_with_their_tasks() -> None:
    """Those of a task that is pruned are forgotten, page by page; those of the others stay."""
    store = MemoryStore(node_id=NODE, epoch=EPOCH)
    offers = [an_offer(number, by="orbit", at_ms=START_MS) for number in range(2)]
    kept, gone = (offer.payload.task_id for offer in offers)
    await store.append([offers[0]], notes=notes_of(kept))
    await store.put_notes(notes_of(gone))
    assert await forget(store, now_ms=START_MS) == 5
    assert await forget(store, now_ms=START_MS) == 0
    for collection in (MESSAGES, TASKS, FOLLOW_UPS, CONFIGS, PUSHED):
        assert store.count_notes(collection) == 1
    notebook = Notebook(store)
    assert notebook.task(gone) is None
    assert notebook.task(kept) is not None
    assert [message_id for _, message_id, _ in notebook.follow_ups(kept)] == ["m-2"]
