"""`skill`: the skills of this gateway's agents, and whether others may add to them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentpost.config import expanded, home_of
from agentpost.edges.cli.options import HomeOption
from agentpost.edges.cli.output import Format, FormatOption, escape, print_json, print_table, stdout
from agentpost.edges.operator_client import OperatorClient, path_of

__all__ = ["skill_app"]

skill_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="The skills of this gateway's agents.")

AgentArgument = Annotated[str, typer.Argument(help="An agent of this gateway.")]


@skill_app.command("list", epilog="Example: [bold]agentpost skill list builder[/bold]")
def list_skills(agent_id: AgentArgument, home: HomeOption = None, output: FormatOption = Format.TEXT) -> None:
    """The skills that an agent has, with their versions, and where they are."""
    found: dict[str, Any] = OperatorClient(home_of(None, home=home)).get(
        path_of("ansible", "agents", agent_id, "skills")
    )
    _print(found, output)


@skill_app.command(epilog="Example: [bold]agentpost skill directory builder ~/builder/.agents/skills[/bold]")
def directory(
    agent_id: AgentArgument,
    path: Annotated[Path, typer.Argument(help="The directory that holds a folder for each skill.")],
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Say where an agent keeps its skills. Without a word it is skills/AGENT in the gateway's home."""
    _change(agent_id, {"directory": str(expanded(path).absolute())}, home, output)


@skill_app.command(
    epilog="Examples: [bold]agentpost skill accept builder --no[/bold] · [bold]agentpost skill accept builder[/bold]"
)
def accept(
    agent_id: AgentArgument,
    yes: Annotated[bool, typer.Option("--yes/--no", help="Whether skills of others are installed.")] = True,
    home: HomeOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Let the gateway install skills that other agents publish, or not: then a distribution is declined."""
    _change(agent_id, {"accepts": yes}, home, output)


def _change(agent_id: str, change: dict[str, Any], home: Path | None, output: Format) -> None:
    client = OperatorClient(home_of(None, home=home))
    _print(client.post(path_of("ansible", "agents", agent_id, "skills"), change), output)


def _print(found: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json(found)
        return
    rows = [(escape(each["name"]), escape(each["version"]), escape(each["description"])) for each in found["skills"]]
    print_table("Skills", ("skill", "version", "what it is for"), rows)
    taken = "skills of others are installed" if found["place"]["accepts"] else "skills of others are declined"
    stdout.print(escape(f"{found['place']['directory']}; {taken}"), highlight=False, soft_wrap=True)
