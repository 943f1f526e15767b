"""What is wrong with the words of a command, or with a file that they name, in the one shape that all errors have."""

from typing import Any, Final

from typer.exceptions import TyperException

from agentpost.protocol.errors import Code, Refusal

__all__ = ["refusal_of", "unusable_file"]

# What libraries put before the words of whoever checked a value, or several of them together.
_PREFIXES: Final = ("Invalid value: ", "Value error, ")


def refusal_of(error: TyperException) -> Refusal:
    """The same as a refusal: it names the option, and where to read what is allowed."""
    message = error.format_message()
    for prefix in _PREFIXES:
        message = message.replace(prefix, "")
    # Not every error knows the command or the parameter that it is about.
    parameter: Any = getattr(error, "param", None)
    context: Any = getattr(error, "ctx", None)
    field = None if parameter is None else max(parameter.opts, key=len).lstrip("-")
    hint = "See the command with --help." if context is None else f"See `{context.command_path} --help`."
    return Refusal(Code.INVALID_FIELD, " ".join(message.split()), field=field, hint=hint)


def unusable_file(error: OSError) -> Refusal | None:
    """What the machine says of a file that somebody named; None if it is about something else."""
    if error.filename is None:
        return None
    return Refusal(Code.INVALID_FIELD, f"{error.filename}: {error.strerror}", hint="Name one that can be used.")
