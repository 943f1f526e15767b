"""`agentpost pipeline …`: what became of every message, fleet-wide. Spark is loaded by the commands, not by this."""

import typer

from agentpost.edges.cli import pipeline_check, pipeline_report, pipeline_run

__all__ = ["pipeline_app"]

pipeline_app = typer.Typer(
    help="What became of every message, over all gateways and all of their history.", no_args_is_help=True
)
pipeline_run.register(pipeline_app)
pipeline_check.register(pipeline_app)
pipeline_report.register(pipeline_app)
