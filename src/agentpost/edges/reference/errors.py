"""The page of every code that a refusal can have."""

from typing import Final

from agentpost.edges.cli.output import exit_code
from agentpost.edges.reference.markdown import code, table
from agentpost.protocol.errors import MEANINGS, Refusal

__all__ = ["errors_page"]

_HEAD: Final = """# Error codes

Every refusal has one shape, over HTTP, on the command line (`-o json`, on stderr) and in tools:
`{"error": {"code", "message", "hint", "field"?, "corrId"?}}`. The code is for programs; the message says what is wrong
with this call; the hint what to do. Nothing was changed by a call that was refused.

`agentpost errors CODE` prints a row of this table.
"""


def errors_page() -> str:
    rows = [
        (code(each.value), str(meaning.status), str(exit_code(Refusal(each, ""))), meaning.what, meaning.hint)
        for each, meaning in MEANINGS.items()
    ]
    return f"{_HEAD}\n{table(('code', 'HTTP', 'exit', 'what it means', 'what to do'), rows)}"
