"""`agentpost store …`: look after the durable store of a gateway."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from agentpost.config import home_of, load_settings
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, stderr, stdout
from agentpost.protocol.errors import Code, Refusal
from agentpost.store.integrity import back_up, check_home, drop_damaged_payloads
from agentpost.store.restoring import put_back
from agentpost.world import IdMaker, SystemChance, SystemClock, new_epoch

__all__ = ["store_app"]

store_app = typer.Typer(help="Look after the durable store of a gateway.", no_args_is_help=True)


@store_app.command("check", epilog="Example: [bold]agentpost store check --home ~/.agentpost/vps-jane[/bold]")
def store_check(
    home: HomeOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop damaged payloads, to be fetched again. The gateway must be stopped.")
    ] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Check all that a home keeps: file, outbox, inbox, payloads, mirrors, tasks. Works beside a running gateway.

    Says what is damaged, whether it can be had again, and how.
    """
    path = home_of(None, home=home)
    dropped = drop_damaged_payloads(path) if repair else ()
    with stderr.status("checking") as status:
        report = check_home(path, progress=lambda done, total: status.update(f"checked {done:,} of {total:,}"))
    if output is Format.JSON:
        print_json({**msgspec.to_builtins(report), "droppedPayloads": dropped})
    else:
        stdout.print(f"node {escape(report.node_id)}, epoch {escape(report.epoch)}, schema {report.schema_version}")
        stdout.print(
            f"outbox: {report.outbox_events:,} events, seq {report.outbox_first_seq} to {report.outbox_last_seq}"
        )
        stdout.print(f"inbox: {report.inbox_events:,} events; payloads: {report.payloads:,}")
        for problem in report.problems:
            stdout.print(f"[red]problem[/red] {escape(problem)}")
        for remedy in report.remedies:
            stdout.print(f"[yellow]what to do[/yellow] {escape(remedy)}")
        for address in dropped:
            stdout.print(f"dropped payload {escape(address)}: the gateway fetches it again when it starts")
        stdout.print("[green]whole[/green]" if not report.problems else f"[red]{len(report.problems)} problems[/red]")
    if report.problems:
        raise typer.Exit(1)


@store_app.command(
    "backup", epilog="Example: [bold]agentpost store backup monday.db --home ~/.agentpost/vps-jane[/bold]"
)
def store_backup(
    target: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Copy a home's database while its gateway runs. The keys are not in it; keep those where secrets are kept."""
    path = home_of(None, home=home)
    with stderr.status(f"copying to {target}"):
        size = back_up(path, target)
    if output is Format.JSON:
        print_json({"target": str(target), "sizeBytes": size})
    else:
        stdout.print(f"{escape(str(target))}: {size:,} bytes")


@store_app.command(
    "restore", epilog="Example: [bold]agentpost store restore monday.db --home ~/.agentpost/vps-jane[/bold]"
)
def store_restore(
    backup: Annotated[Path, typer.Argument(help="The file that `agentpost store backup` wrote.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Put a backup back into a home without a database. Its outbox begins a new epoch, so that its readers notice.

    What was taken after the backup was made is taken again: where there is a lake, `agentpost lake restore` is better.
    """
    report = check_home(backup)
    if report.problems:
        raise Refusal(Code.STORAGE_CORRUPT, f"{backup}: {report.problems[0]}", hint="Use another backup.")
    path = home_of(report.node_id, home=home)
    clock = SystemClock()
    epoch = new_epoch(IdMaker(clock, SystemChance()))
    policy = load_settings(home=path, flags={"node": report.node_id}).delivery
    put_back(path, backup, epoch=epoch, forgotten_before_ms=clock.now_ms() - round(policy.offered_again_seconds * 1000))
    if output is Format.JSON:
        print_json({"nodeId": report.node_id, "home": str(path), "epoch": epoch, "lastSeq": report.outbox_last_seq})
    else:
        stdout.print(
            f"{escape(report.node_id)} is back in {escape(str(path))}: outbox to seq {report.outbox_last_seq:,}, "
            f"epoch {escape(epoch)}",
            highlight=False,
        )
