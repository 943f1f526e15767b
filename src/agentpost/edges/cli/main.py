"""`agentpost`: the command line as a program."""

import os
import re
import sys

from agentpost.edges.cli.app import make_app
from agentpost.edges.cli.output import Format, exit_code, print_error
from agentpost.protocol.errors import Refusal

__all__ = ["main"]


def main() -> None:
    """Run the command line. The one place that turns a refusal into an exit code."""
    words = sys.argv[1:]
    # When a command fails its options are gone, so the wish for JSON is read from the words themselves.
    wanted = Format.JSON if re.search(r"(^| )(-o|--output)[ =]?json( |$)", " ".join(words)) else Format.TEXT
    try:
        make_app(words[0] if words else None)()
    except Refusal as refusal:
        print_error(refusal, wanted)
        raise SystemExit(exit_code(refusal)) from None
    except BrokenPipeError:
        # The reader went away, as `| head` does: nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
