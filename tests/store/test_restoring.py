"""A backup that is put back: whole, in a new epoch, and its readers find no hole."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.protocol.codec import encode_event
from agentpost.protocol.envelope import MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.ids import EventId
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import Priority
from agentpost.store.integrity import back_up, check_home
from agentpost.store.restoring import InboxEvent, RestoredHome, put_back, write_home
from agentpost.store.values import CHAIN_START, Head, LedgerEntry, LedgerState, Subscriber
from agentpost.testing import START_MS, a_message
from tests.edges.running import agentpost, running_gateway
from tests.store.building import EPOCH, NODE, PEER, a_batch, a_change, deliveries_of, incoming, open_sqlite, to_nodes


@pytest.mark.req("CUR-6")
async def test_a_backup_begins_a_new_epoch(tmp_path: Path) -> None:
    """The same events at the same places, another epoch, and streams that a reader can follow from their start."""
    store = open_sqlite(tmp_path / "home")
    await store.append([to_nodes(a_message(number), PEER, NODE) for number in range(1, 9)])
    local = store.read_stream(NODE, 0)
    await store.accept(
        a_batch(
            incoming(to_nodes(a_message(1, seq=1), PEER, NODE)),
            source_node_id=NODE,
            source_epoch=EPOCH,
            through=6,
            through_chain=local.events[5].chain,
        )
    )
    await store.note_subscriber(
        Subscriber(
            consumer_node_id=PEER, epoch=EPOCH, last_seq=8, updated_at_ms=START_MS, lease_expires_at_ms=START_MS * 2
        )
    )
    await store.compact(store.watermarks(now_ms=START_MS, retention_events=5))
    before = store.read_outbox(0)
    await store.close()
    assert before.floor_seq == 3
    back_up(tmp_path / "home", tmp_path / "backup.db")
    put_back(tmp_path / "again", tmp_path / "backup.db", epoch="epoch-2")
    assert check_home(tmp_path / "again").problems == ()
    store = open_sqlite(tmp_path / "again")
    try:
        assert store.epoch == "epoch-2"
        assert store.read_outbox(0) == before
        stream = store.read_stream(PEER, 0)
        assert (stream.floor_seq, [event.seq for event in stream.events]) == (0, [4, 5, 6, 7, 8])
        own = store.cursor(NODE)
        assert own is not None
        # The reader of the local mail goes on where it was, in the new epoch.
        assert (own.epoch, own.last_seq) == ("epoch-2", 6)
        assert own.last_chain == store.read_stream(NODE, 0).events[2].chain
    finally:
        await store.close()


@pytest.mark.req("OBS-11", "ENV-7", "OPS-5")
async def test_what_the_ledger_notes_of_some_mail_is_noted_again(tmp_path: Path) -> None:
    """A home that is written anew knows which of its mail ends by itself, and which is urgent."""
    ends = a_message(1, seq=1, expires_at_ms=START_MS + 60_000)
    plain, urgent = a_message(2, seq=2), a_message(3, seq=3)
    urgent = replace(urgent, payload=replace(urgent.payload, priority=Priority.HIGH))
    inbox = [_taken(place, event) for place, event in enumerate((ends, plain, urgent), start=1)]
    write_home(tmp_path / "home", _restored(inbox))
    store = open_sqlite(tmp_path / "home")
    try:
        assert [item.entry.event_id for item in store.expired_mail(now_ms=START_MS + 60_000)] == [ends.event_id]
        assert [item.entry.event_id for item in store.urgent_unread("bob")] == [urgent.event_id]
    finally:
        await store.close()


def _taken(place: int, event: MessageEvent) -> InboxEvent:
    return InboxEvent(
        seq=place,
        event_id=event.event_id,
        source_node_id=event.source_node_id,
        source_epoch=EPOCH,
        source_seq=event.seq,
        received_at_ms=START_MS,
        raw=encode_event(event),
        corr_id=event.corr_id,
    )


def _restored(inbox: Sequence[InboxEvent]) -> RestoredHome:
    """A home that had said nothing, and had this mail waiting for bob."""
    waiting = [
        LedgerEntry(
            event_id=EventId(each.event_id),
            to_agent_id="bob",
            inbox_seq=each.seq,
            state=LedgerState.QUEUED,
            attempts=0,
            due_at_ms=0,
            accepted_at_ms=START_MS,
        )
        for each in inbox
    ]
    return RestoredHome(
        node_id=NODE,
        epoch=EPOCH,
        at_ms=START_MS,
        floor=Head(seq=0, chain=CHAIN_START),
        outbox=(),
        streams=(),
        stream_floors=(),
        dead_letters=(),
        deliveries=(),
        inbox=inbox,
        ledger=waiting,
        cursors=(),
        agents=(),
    )


@pytest.mark.req("CUR-6", "RTY-3")
async def test_what_readers_have_forgotten_is_not_offered_again(tmp_path: Path) -> None:
    """Of a backup that is put back, readers get what is young, and what nobody has accepted or read; nothing older."""
    store = open_sqlite(tmp_path / "home")
    events = [to_nodes(a_message(number), PEER) for number in range(1, 9)]
    local = to_nodes(a_message(9), NODE)
    for event in events:
        await store.append([event], deliveries=deliveries_of(event, "bob"))
    await store.append([local])
    for event in (*events[:3], *events[4:]):
        await store.append([], changes=[a_change(event, DeliverySignal.PROCESSED)])
    await store.close()
    back_up(tmp_path / "home", tmp_path / "backup.db")

    async def offered(name: str, *, forgotten_before_ms: int) -> list[int]:
        put_back(tmp_path / name, tmp_path / "backup.db", epoch="epoch-2", forgotten_before_ms=forgotten_before_ms)
        assert check_home(tmp_path / name).problems == ()
        store = open_sqlite(tmp_path / name)
        try:
            return [event.seq for event in store.read_outbox(0).events]
        finally:
            await store.close()

    assert await offered("none-old", forgotten_before_ms=START_MS) == list(range(1, 10))
    assert await offered("two-old", forgotten_before_ms=START_MS + 3) == list(range(3, 10))
    assert await offered("unaccepted", forgotten_before_ms=START_MS * 2) == list(range(4, 10))
    store = open_sqlite(tmp_path / "home")
    await store.append([], changes=[a_change(events[3], DeliverySignal.PROCESSED)])
    await store.close()
    (tmp_path / "backup.db").unlink()
    back_up(tmp_path / "home", tmp_path / "backup.db")
    # Mail for an agent of its own, which it has not read.
    assert await offered("unread", forgotten_before_ms=START_MS * 2) == [9]


async def test_a_disk_without_room_for_a_backup_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal speaks of the disk, not of the backup, and what was copied until then is away again."""
    store = open_sqlite(tmp_path / "home")
    await store.close()
    back_up(tmp_path / "home", tmp_path / "backup.db")

    def full(_: Path, target: Path) -> None:
        target.write_bytes(b"half a copy")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(Refusal) as caught:
        put_back(tmp_path / "again", tmp_path / "backup.db", epoch="epoch-2")
    assert caught.value.code is Code.STORAGE_FULL
    assert "No space left" in caught.value.message
    assert sorted(each.name for each in (tmp_path / "again").iterdir()) == ["gateway.lock", "keys"]


async def test_a_home_is_never_overwritten(tmp_path: Path) -> None:
    """A backup goes only where no database is, and a file that is none is refused."""
    store = open_sqlite(tmp_path / "home")
    await store.close()
    back_up(tmp_path / "home", tmp_path / "backup.db")
    with pytest.raises(Refusal) as caught:
        put_back(tmp_path / "home", tmp_path / "backup.db", epoch="epoch-2")
    assert caught.value.code is Code.CONFLICT


def test_the_command(tmp_path: Path) -> None:
    """`agentpost store restore` puts a backup back, and says so; junk is refused and leaves nothing."""
    home, again = tmp_path / "home", tmp_path / "again"
    with running_gateway(home):
        assert agentpost("store", "backup", str(tmp_path / "b.db"), "--home", str(home)).returncode == 0
    done = agentpost("store", "restore", str(tmp_path / "b.db"), "--home", str(again))
    assert done.returncode == 0, done.stderr
    assert agentpost("store", "check", "--home", str(again)).returncode == 0
    (tmp_path / "junk").write_bytes(b"no database at all" * 100)
    refused = agentpost("store", "restore", str(tmp_path / "junk"), "--home", str(tmp_path / "none"))
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert not (tmp_path / "none").exists()
