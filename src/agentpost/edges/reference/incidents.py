"""The page of every kind of incident."""

from typing import Final

from agentpost.edges.reference.markdown import code, table
from agentpost.protocol.incidents import INCIDENTS, hint_for

__all__ = ["incidents_page"]

_HEAD: Final = """# Incidents

An incident is something that a person should look at. `agentpost incidents list` shows those of a gateway,
`agentpost incidents show ID` one of them, and `agentpost doctor` reports the open ones. At most one incident is open
for each kind and subject. A broken rule that the pipeline finds is a kind, e.g. `pipeline.gap`: see docs/pipeline.md.
"""
_BY_HAND: Final = "By hand: `agentpost incidents close ID`."


def incidents_page() -> str:
    rows = [
        (code(kind.value), meaning.what, hint_for(kind), meaning.closes or _BY_HAND)
        for kind, meaning in INCIDENTS.items()
    ]
    return f"{_HEAD}\n{table(('kind', 'what it means', 'what to do', 'when it closes'), rows)}"
