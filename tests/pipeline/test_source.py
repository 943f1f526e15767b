"""`spark.read.format("agentpost")`: the events of a lake in anybody's own Spark."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentpost.protocol.envelope import Event
from agentpost.testing import START_MS, a_message, an_ack
from tests.lake.building import an_exporter
from tests.store.building import EPOCH, NODE, PEER, PEER_EPOCH, open_sqlite
from tests.store.test_mirrors import keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def write_lake(folder: Path) -> Path:
    """Sixty events of the own outbox in six segments, and five of a mirrored one."""
    store = open_sqlite(folder / "home")
    try:
        events: list[Event] = []
        for number in range(1, 31):
            message = a_message(number, at_ms=START_MS + number)
            events += [message, an_ack(message, by_node_id=NODE)]
        await store.append(events)
        await keep(store, 5)
        an_exporter(folder / "lake", folder / "home", seal_events=10).export(now=True)
    finally:
        await store.close()
    return folder / "lake"


pytestmark = pytest.mark.long


@pytest.mark.req("OBS-4")
async def test_all_events_are_read_and_filters_are_exact(spark: "SparkSession", tmp_path: Path) -> None:
    """Every event is there once, and a filter gives the same rows whether it is pushed down or not."""
    from agentpost.pipeline.source import register

    register(spark)
    lake = await write_lake(tmp_path)
    events = spark.read.format("agentpost").load(str(lake))
    assert events.count() == 65
    plain = spark.read.parquet(f"{lake}/outbox").drop("node", "epoch")
    assert sorted(row.event_id for row in events.collect()) == sorted(row.event_id for row in plain.collect())
    for text, count in {
        f"node = '{NODE}'": 60,
        f"node = '{PEER}' and seq >= 4": 2,
        "kind = 'ack' and seq <= 10": 5,
        "seq > 15 and seq < 26": 10,
        f"epoch in ('{EPOCH}', 'another') and kind in ('ack', 'reply')": 30,
        f"created_us <= {(START_MS + 3) * 1000} and node = '{NODE}' and kind = 'message'": 3,
        f"corr_id = '{a_message(7, at_ms=START_MS + 7).corr_id}' and node = '{NODE}'": 2,
        "ref_event_id is not null": 30,
        "kind = 'ack' or seq = 1": 32,
    }.items():
        assert events.where(text).count() == count, text


async def test_filters_choose_the_segments(tmp_path: Path) -> None:
    """A filter on node, epoch or seq leaves out the segments that cannot have such a row."""
    from pyspark.sql.datasource import EqualTo, GreaterThan, IsNotNull, StringStartsWith

    from agentpost.pipeline.source import AgentpostSource

    lake = await write_lake(tmp_path)

    def chosen(*filters: Any) -> tuple[int, list[Any]]:
        source = AgentpostSource({"path": str(lake)})
        reader = source.reader(source.schema())
        left = list(reader.pushFilters(list(filters)))
        return len(reader.partitions()), left

    assert chosen() == (7, [])
    assert chosen(EqualTo(("node",), NODE), GreaterThan(("seq",), 40)) == (2, [])
    assert chosen(EqualTo(("node",), PEER)) == (1, [])
    kept = [IsNotNull(("kind",)), StringStartsWith(("kind",), "a")]
    assert chosen(*kept) == (7, kept)


async def test_a_stream_goes_on_from_its_offset(tmp_path: Path) -> None:
    """Between two offsets lie exactly the events that were sealed between them."""
    from agentpost.pipeline.source import AgentpostSource

    lake = await write_lake(tmp_path)
    source = AgentpostSource({"path": str(lake), "body": "false"})
    stream = source.streamReader(source.schema())

    def seqs(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
        batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        return sorted((row["node"], row["seq"]) for batch in batches for row in batch.to_pylist())

    before = stream.latestOffset({}, None)
    assert before == {f"{NODE}/{EPOCH}": 60, f"{PEER}/{PEER_EPOCH}": 5}
    assert len(seqs(stream.initialOffset(), before)) == 65
    # An offset may lie within a segment, if another was sealed in its place.
    assert seqs({f"{NODE}/{EPOCH}": 13}, {f"{NODE}/{EPOCH}": 25}) == [(NODE, seq) for seq in range(14, 26)]
    assert seqs(before, before) == []


async def test_a_stream_reads_what_is_sealed_once(spark: "SparkSession", tmp_path: Path) -> None:
    """A stream goes on after what it had, segment by segment, and reads nothing twice."""
    from agentpost.pipeline.source import register

    register(spark)
    lake = await write_lake(tmp_path)
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"

    def run() -> int:
        events = spark.readStream.format("agentpost").option("body", "false").load(str(lake))
        writing = events.select("node", "epoch", "seq").writeStream.format("parquet").trigger(availableNow=True)
        writing.option("checkpointLocation", str(checkpoint)).start(str(target)).awaitTermination()
        return spark.read.parquet(str(target)).count()

    assert run() == 65
    store = open_sqlite(tmp_path / "home")
    try:
        await store.append([a_message(number) for number in range(100, 107)])
        an_exporter(lake, tmp_path / "home", seal_events=5).export(now=True)
    finally:
        await store.close()
    assert run() == 72
    assert spark.read.parquet(str(target)).distinct().count() == 72


def test_without_a_path_it_says_what_to_do() -> None:
    """A source without a lake is refused in words."""
    from agentpost.pipeline.source import AgentpostSource
    from agentpost.protocol.errors import Refusal

    source = AgentpostSource({})
    with pytest.raises(Refusal, match="path of the lake"):
        source.reader(source.schema())
