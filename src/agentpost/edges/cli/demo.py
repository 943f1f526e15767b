"""`demo`: see it work."""

from typing import Annotated

import typer

from agentpost.edges.cli.output import Format, FormatOption, print_json, stderr, stdout

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: [bold]agentpost demo[/bold]")(demo)


def demo(
    pipeline: Annotated[bool, typer.Option(help="End with the pipeline on Spark, if that is installed.")] = True,
    output: FormatOption = Format.TEXT,
) -> None:
    """See it work: a crash that loses nothing, three gateways, mail between them, and the pipeline over all of it."""
    from agentpost.demo import run_demo

    result = run_demo(stdout if output is Format.TEXT else stderr, with_pipeline=pipeline)
    if output is Format.JSON:
        print_json(result)
    if not result.kept:
        raise typer.Exit(1)
