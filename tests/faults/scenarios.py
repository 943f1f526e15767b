"""What a gateway does to its store, as scenarios: each a few transactions, since every one of their writes is cut, torn
and failed."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from agentpost.protocol.codec import Unreadable
from agentpost.protocol.envelope import AckEvent, Event, MessageEvent
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.protocol.payloads import AckType
from agentpost.store.blobs import SealedBlob, seal_blob
from agentpost.store.values import Acceptance, Compacted, Outcome
from tests.faults import operations as do
from tests.faults import words
from tests.faults.playing import Operation, Scenario
from tests.faults.words import EPOCH, NOW_MS, OTHER_PEER, PEER

__all__ = ["SCENARIOS"]


def _appending() -> Scenario:
    first, second = words.message(1), words.message(2)
    return Scenario(
        name="append",
        groups=(
            (do.append(1, first, agents=("worker", "helper")),),
            (
                do.append(2, second),
                do.append(3, words.message(3), words.message(4), words.message(5)),
                do.append(6, words.message(6)),
            ),
            (do.time_out(second, head_seq=6), do.append_foreign(90), do.resend(7, second)),
            (
                do.append(8, words.message(8)),
                do.append_twice_to_one(91),
                do.append(9, words.message(9), agents=("helper",)),
            ),
            (do.append(10, words.message(10)),),
        ),
        checkpoint_at_pages=25,
    )


def _accepting() -> Scenario:
    sent = words.message(1), words.message(2)
    asked = [words.message(100 + number, node=PEER, seq=number) for number in range(4)]
    first = Acceptance(
        source_node_id=PEER,
        source_epoch=EPOCH,
        after_seq=0,
        through_seq=3,
        events=(
            words.inbound(
                asked[1], worker=words.ack(201, asked[1], "worker"), helper=words.ack(202, asked[1], "helper")
            ),
            words.inbound(asked[2], worker=words.ack(203, asked[2], "worker")),
            words.inbound(words.ack(110, sent[0], "worker", node=PEER, seq=3)),
        ),
        changes=(words.change(sent[0], "worker", DeliverySignal.ACCEPTED),),
        at_ms=NOW_MS,
    )
    resent = replace(asked[1], seq=4)
    second = Acceptance(
        source_node_id=PEER,
        source_epoch=EPOCH,
        after_seq=3,
        through_seq=6,
        events=(
            words.inbound(resent, worker=words.ack(204, resent, "worker"), helper=words.ack(205, resent, "helper")),
            words.inbound(
                replace(asked[3], seq=5),
                worker=words.ack(206, asked[3], "worker"),
                helper=words.ack(207, asked[3], "helper"),
            ),
        ),
        unreadable=(Unreadable(raw=b"?", refusal=Refusal(Code.MALFORMED, "not an event"), seq=6, event_id=None),),
        changes=(words.change(sent[1], "worker", DeliverySignal.ACCEPTED),),
        at_ms=NOW_MS,
    )
    other = words.message(301, node=OTHER_PEER, seq=1)
    third = Acceptance(
        source_node_id=OTHER_PEER,
        source_epoch=EPOCH,
        after_seq=0,
        through_seq=1,
        events=(words.inbound(other, helper=words.ack(208, other, "helper")),),
        at_ms=NOW_MS,
    )
    known = [(asked[1].event_id, "worker"), (asked[1].event_id, "helper")]
    known_by_then = [*known, (asked[3].event_id, "worker"), (asked[3].event_id, "helper")]
    return Scenario(
        name="accept",
        before=(do.append(1, *sent),),
        groups=(
            (do.accept(first, first_ack_seq=3),),
            (do.accept(second, first_ack_seq=6, after_inbox_seq=2, repeated=known),),
            (
                do.accept(second, first_ack_seq=8, repeated=known_by_then),
                do.accept(third, first_ack_seq=8, after_inbox_seq=3),
                do.accept_with_gap(),
                do.append(9, words.message(9)),
            ),
        ),
        checkpoint_at_pages=20,
    )


def _received(count: int, *, size: int = 40, accepts: Sequence[Event] = ()) -> tuple[list[MessageEvent], Acceptance]:
    """Messages for the worker, and the batch that brings them."""
    asked = [words.message(100 + number, node=PEER, seq=number, size=size) for number in range(1, count + 1)]
    batch = Acceptance(
        source_node_id=PEER,
        source_epoch=EPOCH,
        after_seq=0,
        through_seq=count,
        events=tuple(words.inbound(event, worker=words.ack(200 + event.seq, event, "worker")) for event in asked),
        changes=tuple(words.change(event, "worker", DeliverySignal.ACCEPTED) for event in accepts),
        at_ms=NOW_MS,
    )
    return asked, batch


def _settling() -> Scenario:
    (one, two, three), batch = _received(3)

    def processed(number: int, event: Event) -> AckEvent:
        return words.ack(number, event, "worker", AckType.PROCESSED)

    return Scenario(
        name="settle",
        before=(do.accept(batch, first_ack_seq=1),),
        groups=(
            (do.engage(one),),
            (do.settle(one, words.reply(301, one), processed(302, one), outcome=Outcome.PROCESSED, first_seq=4),),
            (do.engage(two), do.postpone(two), do.engage(two, attempt=2)),
            (
                do.settle(
                    two,
                    words.ack(303, two, "worker", AckType.FAILED_TERMINAL),
                    outcome=Outcome.FAILED_TERMINAL,
                    first_seq=6,
                ),
                do.settle(one, processed(304, one), outcome=Outcome.PROCESSED, first_seq=7, closed_already=True),
                do.settle(
                    three, words.reply(305, three), processed(306, three), outcome=Outcome.PROCESSED, first_seq=7
                ),
            ),
        ),
        checkpoint_at_pages=8,
    )


def _settling_together() -> Scenario:
    (one, two, three, four, five), batch = _received(5)

    def processed(number: int, event: Event) -> AckEvent:
        return words.ack(number, event, "worker", AckType.PROCESSED)

    return Scenario(
        name="settle together",
        before=(do.accept(batch, first_ack_seq=1),),
        groups=(
            (do.settle_all((one, processed(301, one), True), (two, processed(302, two), True), first_seq=6),),
            (do.settle_all((two, processed(303, two), False), (three, processed(304, three), True), first_seq=8),),
            (do.settle_all((four, processed(305, four), True), first_seq=9),),
            (do.settle_all((five, processed(306, five), True), first_seq=10),),
        ),
        checkpoint_at_pages=8,
    )


def _compacting() -> Scenario:
    sent = [words.message(number, size=1000) for number in range(1, 9)]
    asked, batch = _received(6, size=1000, accepts=sent[:6])

    def settle(number: int, seq: int) -> Operation:
        event = asked[number - 1]
        ack = words.ack(300 + number, event, "worker", AckType.PROCESSED)
        return do.settle(event, ack, outcome=Outcome.PROCESSED, first_seq=seq)

    def compacted(outbox: int, inbox: int, *, outbox_floor: int, inbox_floor: int) -> Compacted:
        return Compacted(
            outbox_events=outbox, inbox_events=inbox, outbox_floor_seq=outbox_floor, inbox_floor_seq=inbox_floor
        )

    return Scenario(
        name="compact",
        # Nothing from 7 on was acknowledged, so the outbox is kept from there (PIPE-8).
        before=(
            do.append(1, *sent),
            do.accept(batch, first_ack_seq=9),
            *(settle(number, 14 + number) for number in range(1, 5)),
            do.note_subscriber(18),
        ),
        groups=(
            (do.compact(compacted(2, 2, outbox_floor=2, inbox_floor=2), limit=2),),
            (
                do.append(19, words.message(19)),
                do.compact(compacted(3, 1, outbox_floor=5, inbox_floor=3), limit=3),
                do.append(20, words.message(20)),
            ),
            (settle(5, 21), do.compact(compacted(1, 1, outbox_floor=6, inbox_floor=4), limit=10)),
        ),
        checkpoint_at_pages=20,
    )


def _mirroring() -> Scenario:
    return Scenario(
        name="mirror",
        before=(do.keep_mirror(0, 3),),
        groups=(
            (do.keep_mirror(3, 5), do.append(1, words.message(1)), do.keep_mirror(0, 3, is_known=True)),
            (do.keep_mirror(5, 7), do.prune_mirror(4, events=4)),
        ),
        checkpoint_at_pages=15,
    )


def _pruning_payloads() -> Scenario:
    """Three payloads: one of an event that is kept, one of an event that leaves the inbox, one that no event names."""
    grace_ms = 1_000
    sent, taken, orphan = (seal_blob(b"%d" % number * 6_000, bytes([number]) * 32) for number in range(3))
    asked, ack = words.message_naming(taken, 101, node=PEER, seq=1), words.ack
    batch = Acceptance(
        source_node_id=PEER,
        source_epoch=EPOCH,
        after_seq=0,
        through_seq=1,
        events=(words.inbound(asked, worker=ack(201, asked, "worker")),),
        at_ms=NOW_MS,
    )

    def prune(at_ms: int, keeps: Sequence[SealedBlob], *drops: SealedBlob) -> Operation:
        return do.prune_payloads(at_ms=NOW_MS + at_ms, grace_ms=grace_ms, drops=drops, keeps=keeps)

    return Scenario(
        name="payloads",
        before=(*do.upload(orphan), *do.upload(sent), *do.upload(taken), do.accept(batch, first_ack_seq=1)),
        groups=(
            (prune(0, (sent, taken, orphan)),),
            (
                do.append(2, words.message_naming(sent, 2)),
                do.settle(asked, ack(301, asked, "worker", AckType.PROCESSED), outcome=Outcome.PROCESSED, first_seq=3),
            ),
            (do.append(4, words.message(4)), prune(grace_ms, (sent, taken), orphan), do.prune_inbox(through=1)),
            (prune(grace_ms + 1, (sent, taken)),),
            (prune(2 * grace_ms + 1, (sent,), taken),),
        ),
        checkpoint_at_pages=12,
    )


def _checkpointing() -> Scenario:
    """A checkpoint after every commit, so that each one starts the log anew."""
    return Scenario(
        name="checkpoint",
        before=(do.append(1, words.message(1)),),
        groups=tuple((do.append(number, words.message(number)),) for number in range(2, 5)),
        checkpoint_at_pages=1,
    )


def _overflowing() -> Scenario:
    """Transactions that do not fit into the cache: the log gets part of them before the commit."""
    _, batch = _received(4, size=3000)
    return Scenario(
        name="overflow",
        before=(),
        groups=(
            (do.append(1, words.message(1)), do.accept(batch, first_ack_seq=2), do.append(6, words.message(6))),
            (do.append(7, *(words.message(number, size=3000) for number in range(7, 11))),),
            (do.append(11, words.message(11)),),
        ),
        checkpoint_at_pages=20,
        cache_pages=3,
    )


def _creating() -> Scenario:
    return Scenario(name="create", before=None, groups=((do.append(1, words.message(1)),),), checkpoint_at_pages=1)


_NEW_MIGRATION: Final = """
ALTER TABLE deliveries ADD COLUMN lane TEXT NOT NULL DEFAULT '';
UPDATE deliveries SET lane = to_node_id || '/' || to_agent_id;
CREATE TABLE lengths (event_id TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO lengths SELECT event_id, length(body) FROM outbox;
UPDATE inbox SET received_at_ms = received_at_ms + 1, sum = NULL;
"""


def _migrating() -> Scenario:
    _, batch = _received(3, size=1500)
    return Scenario(
        name="migrate",
        before=(
            do.append(1, *(words.message(number) for number in range(1, 4)), agents=("worker", "helper")),
            do.accept(batch, first_ack_seq=4),
        ),
        groups=((do.append(7, words.message(7)),),),
        checkpoint_at_pages=1,
        new_migration=_NEW_MIGRATION,
    )


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        _appending(),
        _accepting(),
        _settling(),
        _settling_together(),
        _compacting(),
        _mirroring(),
        _pruning_payloads(),
        _checkpointing(),
        _overflowing(),
        _creating(),
        _migrating(),
    )
}
