"""The SQL by name: what it costs does not grow with what is kept."""

import re
from collections.abc import Iterator

import pytest

from agentpost.store.database import Database
from agentpost.store.queries import SQL

# Tables that grow with the traffic; everything else has a row for each node, agent or blob.
GROWING = (
    "outbox",
    "streams",
    "inbox",
    "ledger",
    "deliveries",
    "mirror_events",
    "mirror_streams",
    "mirror_heads",
    "failed_attempts",
)
# A look at all of it: counting, a check of the whole home, and the open rows of the ledger after a start.
LOOKS_AT_ALL = {
    "count_deliveries",
    "count_inbox",
    "count_outbox",
    "count_streams",
    "engaged_entries",
    "ledger_without_inbox",
    # As much as is counted of what nobody has accepted, and no more.
    "unaccepted_counts",
}
# The end of the outbox is read by walking it backwards, one step.
ONE_STEP = {"outbox_head"}
# Looked up by keys; an array cannot be explained without one.
BY_ARRAY = {name for name, sql in vars(SQL).items() if "carray" in sql}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database.open_writer(tmp_path_factory.mktemp("plans") / "plans.db")
    database.migrate()
    yield database
    database.close()


def plan(database: Database, sql: str) -> list[str]:
    numbered = [int(number) for number in re.findall(r"\?(\d)", sql)]
    values = [1] * (max(numbered) if numbered else sql.count("?"))
    return [row[3] for row in database.rows(f"EXPLAIN QUERY PLAN {sql}", values)]


@pytest.mark.parametrize("name", sorted(set(vars(SQL)) - LOOKS_AT_ALL - ONE_STEP - BY_ARRAY))
def test_no_statement_walks_through_a_growing_table(database: Database, name: str) -> None:
    """Every look-up finds its place by an index, and rows come in the order in which they are wanted."""
    steps = plan(database, getattr(SQL, name))
    walks = [step for step in steps if re.match(rf"SCAN ({'|'.join(GROWING)}|[a-z])\b", step)]
    assert walks == []
    assert [step for step in steps if "AUTOMATIC" in step] == []


def test_the_backlog_does_not_walk_through_what_is_settled(database: Database) -> None:
    """What an agent has open is found among what is open, however much it has settled."""
    assert any("ledger_urgent" in step for step in plan(database, SQL.urgent_unread))
    for name in ("backlog", "backlog_newest_first", "backlog_size", "unread_size", "waiting_agents"):
        assert any("ledger_backlog" in step for step in plan(database, getattr(SQL, name)))
