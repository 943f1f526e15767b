"""`agentpost`: the command line as a program."""

import re
import sys

import typer
from typer.exceptions import TyperException

from agentpost.edges.cli.app import make_app
from agentpost.edges.cli.output import (
    INTERRUPTED,
    Format,
    break_lines_only_for_terminals,
    exit_code,
    print_defect,
    print_error,
    say,
)
from agentpost.edges.cli.readers import end_when_nobody_reads
from agentpost.edges.cli.usage import refusal_of, unusable_file
from agentpost.edges.operator_client import not_utf8
from agentpost.protocol.errors import Refusal

__all__ = ["main"]


def main() -> None:
    """Run the command line. The one place that turns what went wrong into an exit code."""
    words = sys.argv[1:]
    # When a command fails its options are gone, so the wish for JSON is read from the words themselves.
    wanted = Format.JSON if re.search(r"(^| )(-o|--output)[ =]?json( |$)", " ".join(words)) else Format.TEXT
    end_when_nobody_reads()
    sys.excepthook = print_defect
    break_lines_only_for_terminals()
    try:
        # A command gives nothing back, or the code that it exits with.
        code: int | None = make_app(words[0] if words else None)(standalone_mode=False)
    except Refusal as refusal:
        print_error(refusal, wanted)
        code = exit_code(refusal)
    except TyperException as error:
        # A group without a command has shown its help instead, and has nothing to add.
        if error.format_message():
            print_error(refusal_of(error), wanted)
        code = error.exit_code
    except typer.Abort:
        say("Aborted.")
        code = 1
    except UnicodeEncodeError:
        # Words that are no text, as a shell can pass them, come to light wherever they are written first.
        print_error(not_utf8(), wanted)
        code = 1
    except OSError as error:
        refusal = unusable_file(error)
        if refusal is None:
            raise
        print_error(refusal, wanted)
        code = exit_code(refusal)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise SystemExit(code)
