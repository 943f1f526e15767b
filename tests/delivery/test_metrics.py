"""What a gateway says about its own mail."""

import re

import pytest
from msgspec.structs import replace

from agentpost.delivery.metrics import DeliveryMetrics, Latency, Meter, Tally, to_prometheus
from agentpost.protocol.lifecycle import DeliverySignal
from agentpost.store.values import Accepted, Blob
from agentpost.testing import an_event_id
from tests.delivery.timing import OTHER, PEER, Desk


async def _measured(desk: Desk, *, tally: Tally | None = None) -> DeliveryMetrics:
    return Meter(desk.store, tally=tally).read(now_ms=desk.clock.now_ms(), room=desk.room.snapshot())


@pytest.mark.req("OBS-1")
async def test_control_plane_metrics() -> None:
    """ACK lag, dead letters, the share of resends and the age of each heartbeat."""
    desk = await Desk(tells_senders=False).settle_in()
    await desk.send(1, expires_at_ms=desk.clock.now_ms() + 1_000)
    await desk.pass_time(1)
    await desk.send(2)
    desk.room.set_offline(OTHER)
    await desk.pass_time(20)
    await desk.pass_time(5)
    metrics = await _measured(desk)
    assert (metrics.ack_lag, metrics.dead_letters) == (0, 1)
    assert metrics.retry_rate == pytest.approx(1 / 3)
    assert metrics.heartbeat_age_ms == {"node-a": 0, PEER: 0, OTHER: 25_000}
    assert metrics.deliveries["DeadLetter"] == 1
    assert metrics.deliveries["Emitted"] == 1


@pytest.mark.req("OBS-2")
async def test_latency_by_kind_is_the_nearest_rank() -> None:
    """Half, 95 and 99 of a hundred messages were accepted and processed within the times it says."""
    desk = await Desk().settle_in()
    events = [await desk.send(number) for number in range(1, 101)]
    for event in events:
        desk.clock.advance(10)
        await desk.change(event, DeliverySignal.ACCEPTED)
    for event in events:
        await desk.change(event, DeliverySignal.PROCESSED)
    metrics = await _measured(desk)
    assert metrics.accepted_latency == {"message": Latency(count=100, p50_ms=500, p95_ms=950, p99_ms=990)}
    assert metrics.closed_latency == {"message": Latency(count=100, p50_ms=1000, p95_ms=1000, p99_ms=1000)}
    assert metrics.throughput_per_second == {PEER: pytest.approx(100 / 900)}


async def test_what_payloads_take_up_is_told() -> None:
    """How many large payloads are kept, and how much room they take."""
    desk = await Desk().settle_in()
    for number, size in ((1, 700), (2, 300)):
        blob = Blob(sha256=f"{number:064x}", size_bytes=size, chunk_bytes=size, chunks=1, complete=False)
        await desk.store.begin_blob(blob, at_ms=desk.clock.now_ms())
    metrics = await _measured(desk)
    assert (metrics.payloads, metrics.payload_bytes) == (2, 1_000)
    assert "agentpost_payload_bytes 1000\n" in to_prometheus(metrics)


@pytest.mark.req("OBS-2")
async def test_only_the_window_counts() -> None:
    """What was sent an hour ago says nothing about now."""
    desk = await Desk().settle_in()
    old = await desk.send(1)
    await desk.change(old, DeliverySignal.PROCESSED)
    desk.clock.advance(3_600_000)
    assert (await _measured(desk)).accepted_latency == {}
    new = await desk.send(2)
    desk.clock.advance(40)
    await desk.change(new, DeliverySignal.ACCEPTED)
    assert (await _measured(desk)).accepted_latency["message"] == Latency(count=1, p50_ms=40, p95_ms=40, p99_ms=40)


@pytest.mark.req("OBS-2")
async def test_the_share_of_duplicates_is_counted_where_events_are_taken() -> None:
    """Of four events that came in, one was here already."""
    desk = Desk()
    tally = Tally()
    pairs = tuple((an_event_id(number), "ada") for number in range(3))
    tally.took(Accepted(new=pairs, repeated=pairs[:1], orphans=(), cursor_seq=3))
    metrics = await _measured(desk, tally=tally)
    assert (metrics.taken, metrics.repeated, metrics.duplicate_share) == (4, 1, 0.25)


@pytest.mark.req("OBS-1", "OBS-2")
async def test_prometheus_can_read_it() -> None:
    """Each family has its HELP and TYPE once, before its samples, and odd names are escaped."""
    desk = await Desk().settle_in()
    event = await desk.send()
    await desk.change(event, DeliverySignal.ACCEPTED)
    metrics = replace(await _measured(desk), throughput_per_second={'a"b\\c\nd': 0.5})
    text = to_prometheus(metrics)
    assert text.endswith("\n")
    sample = re.compile(
        r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? -?[0-9.e+-]+'
    )
    seen: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            seen.append(line.split()[2])
        elif line.startswith("# TYPE "):
            assert line.split()[2] == seen[-1]
            assert line.split()[3] in ("gauge", "counter")
        else:
            assert sample.fullmatch(line), line
            assert re.split(r"[{ ]", line)[0] == seen[-1]
    assert len(seen) == len(set(seen))
    assert 'agentpost_sends_per_second{node="a\\"b\\\\c\\nd"} 0.5' in text
    assert 'agentpost_delivery_latency_seconds{kind="message",stage="accepted",quantile="0.95"} 0' in text
