"""The page of the command line, from the commands themselves."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from rich.text import Text

from agentpost.edges.reference.markdown import code, table

__all__ = ["commands_page", "every_command"]

# Commands and their parameters are classes of a library inside Typer, which are nobody's business but its own.
Command = Any

_HEAD: Final = """# Commands

`agentpost COMMAND --help` says the same. Every command has `-o json` for programs; data is on stdout, everything else
on stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 refused, 5 timed out.
"""


def commands_page(root: Command) -> str:
    """The page of all commands below this one."""
    return "\n".join([_HEAD, *(_section(words, command) for words, command in every_command(root, ("agentpost",)))])


def every_command(command: Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Each command that can be run, with the words that run it."""
    inner: dict[str, Command] = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield words, command
    for name, each in inner.items():
        if not each.hidden:
            yield from every_command(each, (*words, name))


def _section(words: tuple[str, ...], command: Command) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join([*words, *(_placeholder(each) for each in arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## {' '.join(words)}\n", f"{_plain(command.help)}\n", f"```\n{usage}\n```\n"]
    parts.append(table(("argument", "what it is"), [(code(_name(each)), _meaning(each)) for each in arguments]))
    parts.append(table(("option", "default", "what it is"), [_option(each) for each in options]))
    if command.epilog:
        parts.append(f"{_plain(command.epilog)}\n")
    return "\n".join(part for part in parts if part)


def _option(option: Command) -> tuple[str, str, str]:
    names = ", ".join(code(each) for each in (*option.opts, *option.secondary_opts))
    default = option.default
    if option.required:
        shown = "has to be said"
    elif default is None or default is False or default in ((), []) or callable(default):
        shown = ""
    elif isinstance(option.show_default, str):
        shown = code(option.show_default)
    else:
        shown = code(default.value if isinstance(default, Enum) else default)
    return names, shown, _meaning(option)


def _meaning(parameter: Command) -> str:
    said = [_plain(parameter.help)]
    if choices := _choices(parameter):
        said.append("One of " + ", ".join(code(each) for each in choices) + ".")
    if parameter.envvar:
        said.append(f"Also from {code(parameter.envvar)}.")
    if getattr(parameter, "multiple", False):
        said.append("May be said several times.")
    return " ".join(said)


def _choices(parameter: Command) -> list[str]:
    choices = parameter.type_descriptor.choices or ()
    return [str(each.value if isinstance(each, Enum) else each) for each in choices]


def _name(argument: Command) -> str:
    return str(argument.metavar or argument.name.upper())


def _placeholder(argument: Command) -> str:
    name = _name(argument) + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _plain(text: str | None) -> str:
    """Help without the marks that make it colourful on a terminal."""
    return "" if text is None else Text.from_markup(text).plain
