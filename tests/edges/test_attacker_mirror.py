"""A lying mirror: a backbone member that hands on the outbox of another, and not as its owner wrote it."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentpost.delivery.frames import Credit, Events, Subscribe
from agentpost.delivery.heads import sign_head
from agentpost.protocol.codec import decode_event, encode_event
from agentpost.protocol.heads import OutboxHead, StreamMark, chain_over, decode_head
from agentpost.store.values import CHAIN_START
from tests.edges.lying import Liar, LiarLink
from tests.edges.mailing import Machine
from tests.edges.meshing import eventually, invite
from tests.edges.running import NO_LIMITS

SOURCE, READER = "vps-jane", "vps-bob"

# How a mirror may lie: what it makes of the frame that it should hand on.
Lie = Callable[[Liar, Events], Events]


def _alter(_: Liar, frame: Events) -> Events:
    altered = replace(decode_event(frame.events[0]), source_agent_id="mallory")
    return replace(frame, events=[encode_event(altered), *frame.events[1:]])


def _flip(_: Liar, frame: Events) -> Events:
    raw = bytearray(frame.events[-1])
    raw[-1] ^= 1
    return replace(frame, events=[*frame.events[:-1], bytes(raw)])


def _reorder(_: Liar, frame: Events) -> Events:
    return replace(frame, events=frame.events[::-1])


def _hide(_: Liar, frame: Events) -> Events:
    return replace(frame, events=[*frame.events[:1], *frame.events[2:]])


def _truncate(_: Liar, frame: Events) -> Events:
    return replace(frame, events=frame.events[:-1])


def _hide_all(_: Liar, frame: Events) -> Events:
    return replace(frame, events=[])


def _repeat(_: Liar, frame: Events) -> Events:
    return replace(frame, events=[*frame.events, frame.events[-1]])


def _add(liar: Liar, frame: Events) -> Events:
    extra = liar.message("builder", source_node_id=SOURCE, source_agent_id="architect", to_nodes=(READER,))
    return replace(frame, events=[*frame.events, encode_event(replace(extra, seq=frame.through_seq))])


def _end_earlier(_: Liar, frame: Events) -> Events:
    return replace(frame, events=frame.events[:-1], through_seq=frame.through_seq - 1)


def _sign_anew(liar: Liar, frame: Events) -> Events:
    """A whole new history, with the liar's own signature."""
    lies = _add(liar, frame).events
    mark = StreamMark(seq=frame.through_seq, chain=chain_over(CHAIN_START, lies))
    head = OutboxHead(
        node_id=SOURCE, epoch=frame.epoch, seq=frame.through_seq, chain=mark.chain, streams={READER: mark}
    )
    raw, signature = sign_head(head, liar.identity.signing)
    return replace(frame, events=lies, head=raw, signature=signature)


def _begin_later(_: Liar, frame: Events) -> Events:
    """As if what was before were gone: the first event is then what the liar says it is."""
    altered = replace(decode_event(frame.events[1]), source_agent_id="mallory")
    chain = chain_over(CHAIN_START, frame.events[:1])
    raws = [encode_event(altered), *frame.events[2:]]
    return replace(frame, after_seq=frame.after_seq + 1, events=raws, before_chain=chain, first_chain=chain)


LIES: dict[str, tuple[Lie, set[str]]] = {
    "alters who said it": (_alter, {"conflict"}),
    "flips a bit": (_flip, {"conflict"}),
    "reorders": (_reorder, {"conflict"}),
    "hides one": (_hide, {"conflict"}),
    "hides the last": (_truncate, {"conflict"}),
    "hides all": (_hide_all, {"conflict"}),
    "repeats one": (_repeat, {"conflict"}),
    "adds one": (_add, {"conflict"}),
    "ends earlier, with the head of the end": (_end_earlier, {"conflict"}),
    "signs a history of its own": (_sign_anew, {"node_proof_invalid"}),
}


class Scene:
    """Mail of the source for the reader, which only the liar has: the source sleeps, and the reader was away."""

    def __init__(self, folder: Path) -> None:
        self.source = Machine(folder, SOURCE, "backbone", *NO_LIMITS)
        self.reader = Machine(folder, READER, "backbone", *NO_LIMITS)
        self.folder = folder
        self.sent: list[str] = []
        self.frame: Events
        self._numbers = itertools.count(1)

    def begin(self, *, kept_back: int = 0) -> None:
        """`kept_back` is how much the source says after the mirror has taken its frame."""
        self.source.start()
        self.reader.start()
        url = self.source.gateway.url
        token = invite(self.source.gateway, READER, tier="backbone")
        self.reader.post("/operator/join", {"url": url, "token": token})
        self.source.add_agent("architect")
        self.reader.add_counting_agent("builder")
        eventually(lambda: self.source.knows("builder") and self.reader.knows("architect"))
        mirror = Liar("mallory", self.folder, self.source.gateway, tier="backbone")
        self.reader.stop()
        self.sent = [self.source.send("builder", f"no. {n}", sender="architect")["eventId"] for n in range(3)]
        with mirror.link() as link:
            link.send(
                Subscribe(source=SOURCE, after_seq=0, after_chain=CHAIN_START, whole=True),
                Credit(source=SOURCE, through_seq=0, bytes=10_000_000, whole=True),
            )
            self.frame = link.expect(Events)
        assert len(self.frame.events) == 3
        self.sent += [
            self.source.send("builder", f"kept back {n}", sender="architect")["eventId"] for n in range(kept_back)
        ]
        self.source.stop()
        self.reader.start()

    @contextmanager
    def link(self) -> Iterator[LiarLink]:
        """Another mirror each time, because who has lied is not asked again; it has what the first one got."""
        liar = Liar(f"mallory-{next(self._numbers)}", self.folder, self.reader.gateway, tier="backbone")
        with liar.link() as link:
            link.asked(SOURCE)
            link.asked(SOURCE, whole=True)
            yield link

    def incidents(self) -> set[str]:
        found = self.reader.get("/ansible/incidents?limit=500&only_open=false")
        return {each["kind"] for each in found if each["subject"] == SOURCE}


@pytest.mark.req("PIPE-9", "PIPE-1")
def test_a_mirror_that_lies_is_caught_and_what_it_held_arrives_from_its_source(tmp_path: Path) -> None:
    """Altered, reordered, hidden, cut off, repeated, made up: refused, with an incident; nothing is lost by it."""
    scene = Scene(tmp_path)
    try:
        scene.begin()
        for name, (lie, codes) in LIES.items():
            for is_whole in (False, True):
                with scene.link() as link:
                    link.send(lie(link.liar, replace(scene.frame, whole=is_whole)))
                    assert link.refusal() in codes, f"{name}, whole: {is_whole}"
                    assert ("mirror_broken" if is_whole else "stream_broken") in scene.incidents()
                assert scene.reader.counted() == [], name
        with scene.link() as link:
            link.send(_begin_later(link.liar, replace(scene.frame, whole=True)))
            assert link.refusal() == "conflict"
        # One that keeps silent only delays; so does one that gives what is right.
        with scene.link() as link:
            link.sync()
        assert scene.reader.counted() == []
        # A gateway that was started just now does not wait to dial again.
        scene.reader.stop()
        scene.source.start()
        scene.reader.start()
        eventually(lambda: len(scene.reader.counted()) == 3)
        assert scene.reader.counted() == scene.sent
        eventually(lambda: all(scene.source.states(each)[0] in ("Processed", "Replied") for each in scene.sent))
        assert "Traceback" not in scene.reader.gateway.log
    finally:
        scene.reader.stop()
        scene.source.stop()


@pytest.mark.req("PIPE-9")
def test_what_an_honest_mirror_hands_on_is_taken(tmp_path: Path) -> None:
    """The same frame without a lie is good: the agent has its mail although the source sleeps."""
    scene = Scene(tmp_path)
    try:
        scene.begin()
        assert READER in decode_head(scene.frame.head).streams
        with scene.link() as link:
            link.send(replace(scene.frame, whole=False))
            eventually(lambda: scene.reader.counted() == scene.sent)
    finally:
        scene.reader.stop()
        scene.source.stop()


@pytest.mark.req("PIPE-9", "CUR-1", "RTY-3")
def test_what_a_mirror_drops_comes_from_its_source(tmp_path: Path) -> None:
    """A mirror that hands on an older state that its owner did sign, and nothing of what came after, now and at every
    later link: no agent gets anything twice or out of order, and the rest arrives as soon as its source is there."""
    scene = Scene(tmp_path)
    try:
        scene.begin(kept_back=2)
        for is_whole in (False, True):
            with scene.link() as link:
                link.send(replace(scene.frame, whole=is_whole))
                eventually(lambda: scene.reader.counted() == scene.sent[:3])
                # Said again, it is no news and no lie.
                link.send(replace(scene.frame, whole=is_whole, after_seq=scene.frame.through_seq, events=[]))
                link.sync()
            assert scene.reader.counted() == scene.sent[:3]
        assert scene.incidents() & {"stream_broken", "mirror_broken"} == set()
        scene.reader.stop()
        scene.source.start()
        scene.reader.start()
        eventually(lambda: len(scene.reader.counted()) == 5)
        assert scene.reader.counted() == scene.sent
        eventually(lambda: all(scene.source.states(each)[0] in ("Processed", "Replied") for each in scene.sent))
    finally:
        scene.reader.stop()
        scene.source.stop()
