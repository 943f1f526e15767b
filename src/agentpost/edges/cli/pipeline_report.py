"""`pipeline report` and `pipeline feedback`: what the tables say, for people, and back to the gateways."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentpost.config import home_of
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, stdout
from agentpost.edges.cli.pipeline_options import LakeOption, NowOption, WarehouseOption, now_us_of, places
from agentpost.edges.operator_client import OperatorClient
from agentpost.protocol.errors import Code, Refusal

if TYPE_CHECKING:
    from agentpost.pipeline.feedback import Told
    from agentpost.pipeline.warehouse import Warehouse

__all__ = ["hand_back", "register"]


def register(app: typer.Typer) -> None:
    app.command("report", epilog="Example: [bold]agentpost pipeline report --lake /srv/lake --html report.html[/bold]")(
        report
    )
    app.command("feedback", epilog="Example: [bold]agentpost pipeline feedback --lake /srv/lake[/bold]")(feedback)


def report(
    lake: LakeOption,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one HTML file that needs no network.", show_default=False),
    ] = None,
    warehouse: WarehouseOption = None,
    now: NowOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Show what the tables say: objectives, latency, backlog, tasks, broken rules. Starts no Spark."""
    _, tables = places(lake, warehouse)
    from agentpost.pipeline.report.gather import gather
    from agentpost.pipeline.report.page import page
    from agentpost.pipeline.report.terminal import print_report

    version = tables.require()
    found = gather(
        lambda name, columns: tables.read(version, name, columns=list(columns)) if name in version.tables else None,
        lake=lake,
        version=version.number,
        now_us=version.now_us if now is None else now_us_of(now),
        newest_us=version.newest_us,
        events=version.events,
    )
    if html is not None:
        try:
            html.write_text(page(found))
        except OSError as error:
            problem = f"{html} cannot be written: {error.strerror}"
            raise Refusal(Code.INVALID_FIELD, problem, field="html", hint="Name another file.") from None
    if output is Format.JSON:
        print_json(found)
    elif html is None:
        print_report(found, stdout)
    else:
        stdout.print(f"the report is in {escape(str(html))}", highlight=False)


def feedback(
    lake: LakeOption,
    home: Annotated[
        list[Path] | None,
        typer.Option("--home", help="The home of a gateway, again for each; else the only one.", show_default=False),
    ] = None,
    warehouse: WarehouseOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Hand broken rules, review items and watermarks to gateways of this machine. A repeat adds nothing."""
    _, tables = places(lake, warehouse)
    told = hand_back(tables, homes=home)
    if output is Format.JSON:
        print_json(told)
        return
    for each in told:
        said = f"{each.node}: {each.raised:,} new incidents, {each.known:,} known, {each.reviews_added:,} new reviews"
        kept = "" if each.keeps_above_seq is None else f", keeps what is above seq {each.keeps_above_seq:,}"
        stdout.print(said + kept, highlight=False)


def hand_back(tables: "Warehouse", *, homes: list[Path] | None = None) -> "list[Told]":
    """Hand the current version back to the gateways of these homes."""
    from agentpost.pipeline.feedback import collect, send_feedback

    version = tables.require()
    found = collect(
        lambda name, columns: tables.read(version, name, columns=list(columns)) if name in version.tables else None
    )
    return send_feedback(found, [_Door(OperatorClient(home_of(None, home=home))) for home in homes or [None]])


class _Door:
    """One gateway, as the feedback sees it."""

    def __init__(self, client: OperatorClient) -> None:
        self._client = client
        self.node_id: str = client.get("/operator/status")["nodeId"]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._client.post(path, body)
