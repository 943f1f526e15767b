"""Notes: what the layers above keep under keys of their own, alone or together with events."""

from pathlib import Path

from agentpost.protocol.errors import Code
from agentpost.store.interface import Store
from agentpost.store.values import Note
from agentpost.testing import START_MS, a_message
from tests.store.building import NODE, open_sqlite, refused


def a_note(key: str = "a", value: bytes | None = b"1", collection: str = "things") -> Note:
    return Note(collection=collection, key=key, value=value, at_ms=START_MS)


async def test_a_note_takes_the_place_of_the_one_before(store: Store) -> None:
    """Notes are listed by key, page by page, and a change without a value takes one away."""
    await store.put_notes([a_note("b"), a_note("a"), a_note("c"), a_note("z", collection="others")])
    await store.put_notes([a_note("b", b"2"), a_note("c", None), a_note("never", None)])
    assert [(each.key, each.value) for each in store.notes("things")] == [("a", b"1"), ("b", b"2")]
    assert [each.key for each in store.notes("things", limit=1)] == ["a"]
    assert [each.key for each in store.notes("things", after_key="a")] == ["b"]
    assert store.note("things", "b") == a_note("b", b"2")
    assert store.note("things", "c") is None
    assert (store.count_notes("things"), store.count_notes("others"), store.count_notes("none")) == (2, 1, 0)


async def test_notes_and_events_are_kept_together_or_not_at_all(store: Store) -> None:
    """An event and the note that goes with it are one transaction: a refusal of either leaves no trace of both."""
    await store.append([a_message(1, source_node_id=NODE)], notes=[a_note("sent")])
    assert store.note("things", "sent") is not None
    with refused(Code.TOO_LARGE):
        await store.append([a_message(2, source_node_id=NODE)], notes=[a_note("huge", bytes(2_000_000))])
    with refused(Code.FOREIGN_SOURCE):
        await store.append([a_message(3, source_node_id="somebody")], notes=[a_note("foreign")])
    assert store.head().seq == 1
    assert [each.key for each in store.notes("things")] == ["sent"]


async def test_notes_outlive_a_restart(home: Path) -> None:
    """What was noted is there after the next start."""
    store = open_sqlite(home)
    await store.put_notes([a_note()])
    await store.close()
    store = open_sqlite(home)
    assert store.note("things", "a") == a_note()
    await store.close()
