"""A database that is older than what its node has said since: how that is kept, told and found (CUR-6)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agentpost.protocol.errors import Code, Refusal
from agentpost.protocol.incidents import INCIDENTS, IncidentKind
from agentpost.store.database import Database
from agentpost.store.home import Home
from agentpost.store.incidents import incidents
from agentpost.store.queries import SQL
from agentpost.store.values import Incident

__all__ = ["MOST_INCIDENTS", "open_regression", "regressed", "regression_of"]

# As many as are looked through for it.
MOST_INCIDENTS: Final = 1 << 16


def open_regression(found: Iterable[Incident]) -> Incident | None:
    """The one among these incidents that says that this database is an older one."""
    return next((each for each in found if each.kind == IncidentKind.OUTBOX_REGRESSED), None)


def regression_of(path: Path) -> Incident | None:
    """The same of a home whose gateway does not run."""
    database = Database.open_reader(Home(path).database)
    try:
        gateway = database.row(SQL.gateway)
        found = open_regression(incidents(database, open_only=True, after_id=0, limit=MOST_INCIDENTS))
        is_present = found is not None and gateway is not None and found.detail.get("epoch") == gateway[1]
        return found if is_present else None
    finally:
        database.close()


def regressed(incident: Incident) -> Refusal:
    """What a gateway says that stops for it, or does not start."""
    detail = incident.detail
    return Refusal(
        Code.EPOCH_MISMATCH,
        f"the database of {incident.subject} is an older one: it ends at seq {detail.get('endsAt')}, and the node has "
        f"signed seq {detail.get('signedSeq')} of the same epoch, as {detail.get('shownBy')} has shown",
        hint=INCIDENTS[IncidentKind.OUTBOX_REGRESSED].hint,
    )
