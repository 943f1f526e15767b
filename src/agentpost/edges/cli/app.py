"""Which commands there are, and where. A command imports its own module and no other, and starts a third sooner."""

import importlib
from typing import Annotated, Any, Final

import typer

from agentpost import __version__
from agentpost.edges.cli.output import print_text

__all__ = ["make_app"]

# In the order of the help. A module adds its commands itself; a group is the `<word>_app` of its module.
_COMMANDS: Final = {
    "gateway": ("up", "down", "status"),
    "doctor": ("doctor",),
    "mesh": ("invite", "invites", "join", "nodes", "revoke"),
    "mail": ("send", "inbox", "fetch", "read", "reply", "dismiss", "resolve"),
    "following": ("show", "trace", "watch", "tail"),
    "tasks": ("task", "rebuild", "context"),
    "audit": ("audit",),
    "mcp": ("mcp",),
    "setup": ("setup", "hook"),
    "reference": ("docs", "errors"),
    "demo": ("demo",),
    "conformance": ("conformance",),
}
_GROUPS: Final = {
    "agents": "agents",
    "agent": "agent",
    "a2a": "a2a",
    "capability": "capabilities",
    "skill": "skills",
    "review": "reviews",
    "delegation": "delegation",
    "coordination": "coordination",
    "migrate": "migration",
    "deadletters": "deadletters",
    "incidents": "incidents",
    "quarantine": "quarantine",
    "mailbox": "mailbox",
    "store": "store",
    "lake": "lake",
    "bench": "bench",
    "pipeline": "pipeline",
    "simulate": "simulate",
}


def make_app(word: str | None = None) -> typer.Typer:
    """The command line with the commands that are where this one is; with all of them if it is none."""
    app = typer.Typer(
        name="agentpost",
        help="The durable post between AI agents on several machines.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(_agentpost)
    is_known = word in _GROUPS or any(word in words for words in _COMMANDS.values())
    for module, words in _COMMANDS.items():
        if word in words or not is_known:
            _import(module).register(app)
    for name, module in _GROUPS.items():
        if word == name or not is_known:
            app.add_typer(getattr(_import(module), f"{name}_app"), name=name)
    return app


def _import(module: str) -> Any:
    return importlib.import_module(f"agentpost.edges.cli.{module}")


def _print_version(wanted: bool) -> None:
    if wanted:
        print_text(f"agentpost {__version__}\n")
        raise typer.Exit


def _agentpost(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
