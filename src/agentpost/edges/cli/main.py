"""The commands of `agentpost`."""

import os
import re
import sys
from typing import Annotated

import typer

from agentpost import __version__
from agentpost.edges.cli import audit, gateway, mail, mcp, mesh, reference, setup, tasks
from agentpost.edges.cli.a2a import a2a_app
from agentpost.edges.cli.agent import agent_app
from agentpost.edges.cli.agents import agents_app
from agentpost.edges.cli.bench import bench_app
from agentpost.edges.cli.capabilities import capability_app
from agentpost.edges.cli.coordination import coordination_app
from agentpost.edges.cli.deadletters import deadletters_app
from agentpost.edges.cli.delegation import delegation_app
from agentpost.edges.cli.incidents import incidents_app
from agentpost.edges.cli.lake import lake_app
from agentpost.edges.cli.mailbox import mailbox_app
from agentpost.edges.cli.migration import migrate_app
from agentpost.edges.cli.output import (
    Format,
    FormatOption,
    exit_code,
    print_error,
    print_json,
    stderr,
    stdout,
)
from agentpost.edges.cli.pipeline import pipeline_app
from agentpost.edges.cli.reviews import review_app
from agentpost.edges.cli.simulate import simulate_app
from agentpost.edges.cli.skills import skill_app
from agentpost.edges.cli.store import store_app
from agentpost.protocol.errors import Refusal

__all__ = ["app", "main"]

app = typer.Typer(
    name="agentpost",
    help="The durable post between AI agents on several machines.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
gateway.register(app)
mesh.register(app)
mail.register(app)
tasks.register(app)
audit.register(app)
mcp.register(app)
setup.register(app)
reference.register(app)
app.add_typer(agents_app, name="agents")
app.add_typer(agent_app, name="agent")
app.add_typer(a2a_app, name="a2a")
app.add_typer(capability_app, name="capability")
app.add_typer(skill_app, name="skill")
app.add_typer(review_app, name="review")
app.add_typer(delegation_app, name="delegation")
app.add_typer(coordination_app, name="coordination")
app.add_typer(migrate_app, name="migrate")
app.add_typer(deadletters_app, name="deadletters")
app.add_typer(incidents_app, name="incidents")
app.add_typer(mailbox_app, name="mailbox")
app.add_typer(store_app, name="store")
app.add_typer(lake_app, name="lake")
app.add_typer(bench_app, name="bench")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(simulate_app, name="simulate")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentpost {__version__}")
        raise typer.Exit


@app.callback()
def agentpost(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: [bold]agentpost demo[/bold]")
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


def main() -> None:
    """Run the command line. The one place that turns a refusal into an exit code."""
    # When a command fails its options are gone, so the wish for JSON is read from the words themselves.
    words = " ".join(sys.argv[1:])
    wanted = Format.JSON if re.search(r"(^| )(-o|--output)[ =]?json( |$)", words) else Format.TEXT
    try:
        app()
    except Refusal as refusal:
        print_error(refusal, wanted)
        raise SystemExit(exit_code(refusal)) from None
    except BrokenPipeError:
        # The reader went away, as `| head` does: nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
