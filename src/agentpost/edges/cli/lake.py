"""`agentpost lake …`: outboxes as Parquet, for the pipeline and for the day a disk is lost."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from agentpost.config import Settings, home_of, load_settings
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stderr, stdout
from agentpost.edges.operator_client import OperatorClient
from agentpost.lake.settings import LakeSettings, require_pyarrow
from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.timestamps import parse_ms
from agentpost.world import SystemChance, SystemClock

if TYPE_CHECKING:
    from agentpost.lake.place import Lake

__all__ = ["lake_app"]

# An export of a long outbox takes its time.
_EXPORT_SECONDS: Final = 3600.0

lake_app = typer.Typer(
    help="Outboxes as Parquet, for the pipeline and for the day a disk is lost.", no_args_is_help=True
)

LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        envvar="AGENTPOST_LAKE",
        metavar="PATH",
        help="The lake: a directory or a URL; else the one of the home.",
        show_default=False,
    ),
]


@lake_app.command("export", epilog="Example: [bold]agentpost lake export --now[/bold]")
def lake_export(
    now: Annotated[bool, typer.Option("--now", help="Seal all there is, not only what is due.")] = False,
    home: HomeOption = None,
    lake: LakeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Seal what is not in the lake yet. The gateway does it if it runs, else this command.

    A gateway with a lake exports by itself; this is for who does not want to wait.
    """
    settings = _settings(home, lake)
    _lake_of(settings)
    require_pyarrow()
    with stderr.status("exporting"):
        try:
            gateway = OperatorClient(settings.home, timeout_seconds=_EXPORT_SECONDS)
            _expect_same(lake, gateway.get("/operator/lake")["path"])
            found = gateway.post("/operator/lake/export", {"now": now})
        except Refusal as refusal:
            if refusal.code is not Code.UNAVAILABLE:
                raise
            found = asyncio.run(_export_alone(settings, now=now))
    if output is Format.JSON:
        print_json(found)
        return
    for segment in found["segments"]:
        stdout.print(
            f"{escape(segment['nodeId'])} seq {segment['firstSeq']:,} to {segment['lastSeq']:,}, "
            f"{segment['sizeBytes']:,} bytes: {escape(segment['path'])}",
            highlight=False,
        )
    stdout.print(f"{len(found['segments'])} segments, {found['facts']} facts", highlight=False)


async def _export_alone(settings: Settings, *, now: bool) -> dict[str, Any]:
    """The export of a home whose gateway does not run."""
    from msgspec import to_builtins

    from agentpost.lake.service import LakeService
    from agentpost.store.home import Home
    from agentpost.store.identity import load_identity
    from agentpost.store.sqlite import SqliteStore

    if not Home(settings.home).exists():
        raise Refusal(Code.NOT_FOUND, f"there is no agentpost home at {settings.home}", hint="Check the path.")
    clock = SystemClock()
    store = SqliteStore.open(settings.home, node_id=settings.node_id, epoch="", now_ms=clock.now_ms())
    try:
        service = LakeService(
            _lake_of(settings),
            home=settings.home,
            store=store,
            room=None,
            identity=load_identity(Home(settings.home)),
            tier=settings.tier,
            policy=settings.delivery,
            clock=clock,
        )
        exported = await service.export(now=now)
        problems = [each.problem for each in service.status().outboxes if each.problem is not None]
        await service.close()
    finally:
        await store.close()
    if problems and not exported.segments:
        raise Refusal(Code.CONFLICT, problems[0], hint="See docs/lake.md.")
    return to_builtins(exported)


@lake_app.command("status", epilog="Example: [bold]agentpost lake status[/bold]")
def lake_status(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """How far each outbox of the running gateway is in its lake."""
    found: dict[str, Any] = OperatorClient(_settings(home, None).home).get("/operator/lake")
    if output is Format.JSON:
        print_json(found)
    else:
        stdout.print(f"lake: {escape(found['path'])}", highlight=False)
        rows = [
            (
                escape(each["nodeId"]) + (" (mirror)" if each.get("isMirror") else ""),
                escape(each["epoch"]),
                f"{each['exportedSeq']:,}",
                f"{each['lastSeq']:,}",
                f"{each['lagEvents']:,}",
                escape(each.get("problem") or ""),
            )
            for each in found["outboxes"]
        ]
        print_table("Outboxes", ("node", "epoch", "in the lake", "here", "behind", "problem"), rows, numbers=(2, 3, 4))
        if found.get("problem"):
            stdout.print(f"[red]problem[/red] {escape(found['problem'])}", highlight=False)
    if found.get("problem"):
        raise typer.Exit(1)


@lake_app.command("list", epilog="Example: [bold]agentpost lake list --lake ./lake[/bold]")
def lake_list(home: HomeOption = None, lake: LakeOption = None, output: FormatOption = Format.TEXT) -> None:
    """What is in a lake: each outbox with its segments. Needs no gateway."""
    require_pyarrow()
    from agentpost.lake.segments import manifests, outboxes

    place = _open(lake or _lake_of(_settings(home, None)).path)
    if not place.directories(""):
        raise Refusal(
            Code.NOT_FOUND, f"there is no lake at {place.where}", hint="Check the path; `lake export` writes one."
        )
    found: list[dict[str, Any]] = []
    for node_id, epoch in outboxes(place):
        segments = list(manifests(place, node_id, epoch))
        if segments:
            found.append(
                {
                    "nodeId": node_id,
                    "epoch": epoch,
                    "segments": len(segments),
                    "firstSeq": segments[0].first_seq,
                    "lastSeq": segments[-1].last_seq,
                    "sizeBytes": sum(each.size_bytes for each in segments),
                    "sealedAtUs": segments[-1].sealed_at_us,
                    "sealedBy": sorted({each.sealed_by for each in segments}),
                }
            )
    if output is Format.JSON:
        print_json(found)
        return
    rows = [
        (
            escape(each["nodeId"]),
            escape(each["epoch"]),
            f"{each['segments']:,}",
            f"{each['firstSeq']:,} to {each['lastSeq']:,}",
            f"{each['sizeBytes']:,}",
            datetime.fromtimestamp(each["sealedAtUs"] / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            escape(", ".join(each["sealedBy"])),
        )
        for each in found
    ]
    print_table(
        f"Lake {place.where}",
        ("node", "epoch", "segments", "seq", "bytes", "sealed (UTC)", "by"),
        rows,
        numbers=(2, 4),
    )


@lake_app.command(
    "restore", epilog="Example: [bold]agentpost lake restore --node lab-jane --lake s3://bucket/lake[/bold]"
)
def lake_restore(
    node: Annotated[str, typer.Option("--node", help="The node that lost its home.")],
    lake: LakeOption = None,
    home: HomeOption = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="The lake has all that was ever appended: the epoch goes on.")
    ] = False,
    lost_at: Annotated[
        str | None,
        typer.Option(
            "--lost-at",
            metavar="TIME",
            help="When it was lost (UTC, 2026-02-25T16:22:10.123Z): what was sent later is simply read.",
            show_default=False,
        ),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Write a lost gateway's home anew, from the lake. Its keys are used if they are there.

    First have the others bring the lake up to date: `agentpost lake export --now` on each.
    """
    require_pyarrow()
    from agentpost.lake.restore import restore

    path = home_of(node, home=home)
    settings = load_settings(home=path, flags={"node": node, "lake": lake})
    with stderr.status("restoring"):
        restored = restore(
            _open(_lake_of(settings).path),
            path,
            node_id=node,
            clock=SystemClock(),
            chance=SystemChance(),
            policy=settings.delivery,
            is_complete=complete,
            lost_at_ms=None if lost_at is None else parse_ms(lost_at, field="lost-at"),
        )
    if output is Format.JSON:
        print_json(restored)
        return
    stdout.print(
        f"[bold]{escape(restored.node_id)}[/bold] is restored into {escape(str(path))}, epoch {escape(restored.epoch)}",
        highlight=False,
    )
    stdout.print(
        f"  outbox: seq {restored.first_seq:,} to {restored.last_seq:,}, {restored.open_deliveries:,} deliveries open",
        highlight=False,
    )
    stdout.print(
        f"  taken: {restored.settled:,} with an outcome, {restored.in_doubt:,} in doubt, {restored.queued:,} waiting, "
        f"{restored.missing:,} not in the lake",
        highlight=False,
    )
    for note in restored.notes:
        stdout.print(f"  [yellow]note[/yellow] {escape(note)}", highlight=False)
    if restored.agents:
        names = ", ".join(restored.agents)
        stdout.print(
            f"  its agents are paused: {escape(names)}. Add each with its runtime, then `agentpost agents resume`.",
            highlight=False,
        )
    stdout.print("  next: `agentpost up`, then `agentpost join` with a new invite of a seed.", highlight=False)


def _expect_same(lake: str | None, used: str) -> None:
    if lake is not None and _open(lake).where != used:
        raise Refusal(
            Code.CONFLICT,
            f"the gateway is running and exports to {used}",
            field="lake",
            hint="Leave --lake out, or stop the gateway first.",
        )


def _settings(home: Any, lake: str | None) -> Settings:
    return load_settings(home=home, flags={"lake": lake})


def _lake_of(settings: Settings) -> LakeSettings:
    if settings.lake is None:
        raise Refusal(
            Code.NOT_FOUND,
            f"{settings.home} has no lake",
            hint="Name one with --lake, or start its gateway with `agentpost up --lake PATH`.",
        )
    return settings.lake


def _open(where: str) -> "Lake":
    from agentpost.lake.place import open_lake

    return open_lake(where)
