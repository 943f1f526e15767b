"""`migrate`: from a legacy document to outboxes, phase by phase."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentpost.config import expanded, home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient
from agentpost.work.migration.phases import Phase

__all__ = ["migrate_app"]

migrate_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="From a legacy document to outboxes, phase by phase."
)


@migrate_app.command("import", epilog="Example: [bold]agentpost migrate import legacy.yjs[/bold]")
def import_file(
    file: Annotated[Path, typer.Argument(help="A Yjs update (v1) with the maps messages and tasks.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Take over what a legacy document has for the agents of this gateway.

    What its recipients have read already is not handed to them again. Importing twice changes nothing.
    """
    body = {"file": str(expanded(file).absolute())}
    client = OperatorClient(home_of(None, home=home), timeout_seconds=600)
    done: dict[str, Any] = client.post("/ansible/migration/import", body)
    if output is Format.JSON:
        print_json(done)
        return
    _print_taken(done)


@migrate_app.command(
    epilog="Examples: [bold]agentpost migrate phase dual_write --room ws://old-host:1234/ansible[/bold] · "
    "[bold]agentpost migrate phase pipes_first[/bold]"
)
def phase(
    phase: Annotated[Phase, typer.Argument(help="The phase to enter: one step forward, or back.")],
    room: Annotated[str | None, typer.Option("--room", help="The legacy room; once is enough.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Clean up although some entries could not be taken over.")
    ] = False,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Enter a phase of the migration. Every gateway enters it; the last one cannot be taken back.

    [bold]dual_write[/bold]: what is sent goes into outboxes and into the legacy room, and both are read.
    [bold]pipes_first[/bold]: the same, and the room is read as a fallback only.
    [bold]shared_off[/bold]: nothing is written into the room; it is still read.
    [bold]cleaned[/bold]: all of it is put into an archive in the home, and the room is emptied.
    """
    body = {"phase": phase.value, "room": room, "force": force}
    client = OperatorClient(home_of(None, home=home), timeout_seconds=600)
    _print(client.post("/ansible/migration/phase", body), output)


@migrate_app.command(epilog="Example: [bold]agentpost migrate status -o json[/bold]")
def status(home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """Where the migration stands at this gateway, and what the last look at the document found."""
    _print(OperatorClient(home_of(None, home=home)).get("/ansible/migration"), output)


def _print(found: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json(found)
        return
    connected = "connected" if found["connected"] else "not connected"
    rows = [
        ("phase", found["phase"]),
        ("legacy room", f"{found['room']} ({connected})" if found["room"] else "none"),
        ("entries in it", f"{found['entries']:,}"),
        ("taken over here", f"{found['takenOver']:,}"),
    ]
    print_table("Migration", ("", ""), [(name, escape(value)) for name, value in rows])
    _print_taken(found["last"])


def _print_taken(taken: dict[str, Any]) -> None:
    names = ("taken", "known", "read", "theirs", "waiting")
    stdout.print(", ".join(f"{taken[name]:,} {name}" for name in names), highlight=False)
    for problem in taken["unreadable"][:20]:
        stdout.print(f"  not readable: {escape(problem)}", highlight=False)
