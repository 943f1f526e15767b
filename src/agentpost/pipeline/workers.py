"""Segments checked in the Python workers of Spark, when they are too many for the driver alone."""

from collections.abc import Sequence

import msgspec
from pyspark.sql import SparkSession

from agentpost.pipeline.checking import Claim, Verdict, check_segment
from agentpost.pipeline.files import Files

__all__ = ["check_in_workers"]


def check_in_workers(spark: SparkSession, lake: str, claims: Sequence[Claim]) -> list[Verdict]:
    """Check segments in Spark's Python workers, the largest first."""
    encode = msgspec.msgpack.encode
    ordered = sorted(claims, key=lambda claim: -claim.manifest.size_bytes)
    context = spark.sparkContext
    parts = min(len(ordered), 4 * context.defaultParallelism)
    # Dealt out like cards, so that each part has its share of the large ones.
    dealt = [ordered[start::parts] for start in range(parts)]
    work = context.parallelize([encode(part) for part in dealt], parts)
    context.setJobDescription("checking segments")
    answers = work.map(lambda part: _check_part(lake, part)).collect()
    decode = msgspec.msgpack.Decoder(list[Verdict]).decode
    return [verdict for answer in answers for verdict in decode(answer)]


def _check_part(lake: str, part: bytes) -> bytes:
    files = Files(lake)
    claims = msgspec.msgpack.decode(part, type=list[Claim])
    return msgspec.msgpack.encode([check_segment(files, claim) for claim in claims])
