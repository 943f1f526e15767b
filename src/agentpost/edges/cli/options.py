"""Options that several commands share, and how they are written."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from agentpost.edges.operator_client import AnswerLostError, OperatorClient, new_key, not_utf8
from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "TIME",
    "CapabilitiesOption",
    "HomeOption",
    "KeyOption",
    "NodeOption",
    "body_of",
    "expect_somebody",
    "post_once",
    "seconds",
    "seconds_from",
    "seconds_of",
    "text_of",
]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIMES: Final = "90s, 15m, 2h or 7d"
# What content may have; a gateway counts it in bytes.
_LONGEST_TEXT: Final = 64 * 1024 * 1024
# How an option is shown that takes a length of time.
TIME: Final = "TIME"

NodeOption = Annotated[str | None, typer.Option("--node", help="The id of this node.", show_default=False)]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="AGENTPOST_HOME",
        help="The home; else ~/.agentpost/<node>, or the only one there.",
        show_default=False,
    ),
]


KeyOption = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="Repeat this call with the same key within 24h, e.g. after a timeout, and it is done once.",
        show_default=False,
    ),
]
CapabilitiesOption = Annotated[
    list[str] | None, typer.Option("--capability", help="Whoever has it, instead of --to; again for more.")
]


def post_once(client: OperatorClient, path: str, body: dict[str, Any], key: str | None) -> Any:
    """Say something that is done once for its idempotency key; without one, with a new key."""
    key = key or new_key()
    try:
        return client.post(path, body, key=key)
    except AnswerLostError as lost:
        lost.hint = f"It may have been done. Repeat the command with --idempotency-key {key}: it is done once."
        raise


def expect_somebody(to: list[str] | None, capability: list[str] | None) -> None:
    """Refuse what is for nobody, in the words of the command line."""
    if not to and not capability:
        problem = "say who it is for: --to with an agent, or --capability with what it can do"
        raise Refusal(Code.MISSING_ROUTE_FIELDS, problem, field="to", hint="See `agentpost agents list --mesh`.")


def seconds(text: str | int) -> int:
    """The parser of an option that takes a length of time, as people write it. A default is seconds already."""
    if isinstance(text, int):
        return text
    found = _seconds_in(text)
    if found is None:
        raise ValueError(f"{text!r:.40} is not a time; use {_TIMES}")
    return found


def seconds_from(least: str, most: str) -> Callable[[str | int], int]:
    """The parser of an option whose length of time has limits."""

    def parse(text: str | int) -> int:
        found = seconds(text)
        if not seconds(least) <= found <= seconds(most):
            raise ValueError(f"{text!r:.40} is not a time from {least} to {most}")
        return found

    return parse


def seconds_of(text: str, *, field: str) -> int:
    """A length of time that is only one of the things which an option or a program may say."""
    found = _seconds_in(text)
    if found is None:
        raise Refusal(Code.INVALID_FIELD, f"{text!r:.40} is not a time", field=field, hint=f"Use {_TIMES}.")
    return found


def _seconds_in(text: str) -> int | None:
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def text_of(word: str) -> str:
    """What a person says on the command line; `-` is what comes on stdin."""
    try:
        text = sys.stdin.read(_LONGEST_TEXT + 1) if word == "-" else word
        # An argument holds bytes that are no text as lone surrogates, and only writing them shows it.
        text.encode()
    except UnicodeError:
        raise not_utf8() from None
    if len(text) > _LONGEST_TEXT:
        raise Refusal(Code.TOO_LARGE, f"a text has at most {_LONGEST_TEXT:,} characters")
    return text


def body_of(word: str) -> str:
    """The text of a message. Nothing on stdin is mostly a program before the pipe that failed, and no message."""
    text = text_of(word)
    if word == "-" and not text:
        hint = "The program before the pipe may have failed. A message without a text is said with ''."
        raise Refusal(Code.INVALID_FIELD, "nothing came on stdin", field="body", hint=hint)
    return text
