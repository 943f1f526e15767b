"""What a gold table of the hours may be computed from."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame

from agentpost.pipeline.params import Params

__all__ = ["GoldInputs"]


class GoldInputs(NamedTuple):
    """`silver` holds the merged rows of the touched hours.

    `segments` is one row for each segment of the whole lake that is read: node, epoch, first_seq, last_seq,
    sealed_at_us, sealed_by, start_chain, end_chain, path, newest_us. `names` has every name there is, by its hash:
    name_hash, name.
    """

    silver: Mapping[str, DataFrame]
    segments: DataFrame
    names: DataFrame
    params: Params
