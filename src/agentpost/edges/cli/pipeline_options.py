"""Options that the commands of `agentpost pipeline` share, and what they stand for. Loads no Spark."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from agentpost.edges.cli.options import seconds_of
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import parse_ms

if TYPE_CHECKING:
    from agentpost.pipeline.files import Files
    from agentpost.pipeline.warehouse import Warehouse

__all__ = ["LakeOption", "MasterOption", "NowOption", "WarehouseOption", "now_us_of", "places", "time_us_of"]

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
    str, typer.Option("--master", help="A Spark cluster, as spark://host:7077; else this machine alone.")
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
