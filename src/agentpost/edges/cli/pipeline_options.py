"""Options that the commands of `agentpost pipeline` share, and what they stand for. Loads no Spark."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from agentpost.edges.cli.options import seconds_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import parse_ms

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from agentpost.pipeline.files import Files
    from agentpost.pipeline.warehouse import Warehouse

__all__ = [
    "ConfOption",
    "LakeOption",
    "MasterOption",
    "NowOption",
    "RemoteOption",
    "WarehouseOption",
    "now_us_of",
    "places",
    "session_of",
    "time_us_of",
]

LakeOption = Annotated[
    str,
    typer.Option(
        "--lake", envvar="AGENTPOST_LAKE", metavar="PATH", help="The lake: a directory or a URL.", show_default=False
    ),
]
WarehouseOption = Annotated[
    str | None,
    typer.Option(
        "--warehouse", metavar="PATH", help="Where the tables are; else `pipeline/` in the lake.", show_default=False
    ),
]
MasterOption = Annotated[
    str, typer.Option("--master", help="Spark cluster, e.g. spark://host:7077; by default this machine alone.")
]
RemoteOption = Annotated[
    str | None,
    typer.Option("--remote", metavar="URL", help="Spark Connect server, e.g. sc://host:15002.", show_default=False),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of the Spark session; repeatable.", show_default=False),
]
NowOption = Annotated[
    str | None,
    typer.Option("--now", metavar="TIME", help="What the tables take for now; else the clock.", show_default=False),
]


def places(lake: str, warehouse: str | None) -> "tuple[Files, Warehouse]":
    """The lake, and the warehouse over it."""
    from agentpost.pipeline.session import require_spark

    require_spark()
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.warehouse import Warehouse

    files = Files(lake)
    return files, Warehouse(files.below("pipeline") if warehouse is None else Files(warehouse))


def session_of(master: str, remote: str | None, conf: list[str] | None) -> "AbstractContextManager[SparkSession]":
    """The Spark session that these options ask for."""
    from agentpost.pipeline.session import spark_session

    settings: dict[str, str] = {}
    for each in conf or ():
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise Refusal(
                Code.INVALID_FIELD,
                f"{each!r:.60} is not KEY=VALUE",
                field="conf",
                hint="e.g. --conf spark.ui.port=4040",
            )
        settings[key] = value
    return spark_session(master=master, remote=remote, settings=settings)


def now_us_of(text: str | None) -> int:
    return time.time_ns() // 1000 if text is None else time_us_of(text, field="now")


def time_us_of(text: str, *, field: str, now_us: int | None = None) -> int:
    """A time, or a length of time before now: 2026-02-25T16:22:10.123Z, 2026-02-25, 7d."""
    if now_us is not None and text[-1:] in "smhd":
        return now_us - seconds_of(text, field=field) * 1_000_000
    try:
        full = {10: f"{text}T00:00:00.000Z", 20: f"{text[:-1]}.000Z"}.get(len(text), text)
        return parse_ms(full, field=field) * 1000
    except Refusal:
        raise Refusal(
            Code.INVALID_FIELD,
            f"{text!r:.40} is not a time",
            field=field,
            hint="Use 2026-02-25, 2026-02-25T16:22:10Z" + ("" if now_us is None else ", or 90s, 15m, 2h, 7d ago."),
        ) from None
