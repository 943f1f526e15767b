"""What is wrong with the words of a command, in the one shape that all errors have."""

from typing import Any, Final

from typer.exceptions import TyperException

from agentpost.protocol.errors import Code, Refusal

__all__ = ["refusal_of"]

# What is put before the words of whoever checked the value.
_PREFIX: Final = "Value error, "


def refusal_of(error: TyperException) -> Refusal:
    """The same as a refusal: it names the option, and where to read what is allowed."""
    message = error.format_message().replace(_PREFIX, "")
    # Not every error knows the command or the parameter that it is about.
    parameter: Any = getattr(error, "param", None)
    context: Any = getattr(error, "ctx", None)
    field = None if parameter is None else max(parameter.opts, key=len).lstrip("-")
    hint = None if context is None else f"See `{context.command_path} --help`."
    return Refusal(Code.INVALID_FIELD, " ".join(message.split()), field=field, hint=hint)
