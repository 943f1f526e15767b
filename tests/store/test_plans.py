"""How SQLite looks up what each statement asks for: the index that was meant, and no table from end to end.

`plans.txt` has, for each statement of the stores, what it searches and by which index, or that it scans. A statement
that is new, or whose plan has changed, fails here. Look at the plan that the test prints before you write it down: a
plan by the wrong index gives the same rows, and is a thousand times slower in a large home.
"""

from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from agentpost.mailbox.statements import SQL as MAILBOX_SQL
from agentpost.store.queries import SQL, migrations

PLANS = Path(__file__).with_name("plans.txt")

# Tables that stay small, whatever a gateway does: one row, or one for each node, agent, key or room update.
SMALL = {
    "gateway",
    "agents",
    "cursors",
    "known_nodes",
    "mirrors",
    "subscribers",
    "token_keys",
    "room_log",
    "walk",
}
# What goes through all of a larger table, or sorts, and may.
SCANS = {
    # For `store check` alone, beside a reading of everything.
    "count_inbox": "store check",
    "count_outbox": "store check",
    "count_streams": "store check",
    "chunks_without_blob": "store check",
    "events_without_mirror": "store check",
    "ledger_of_other_event": "store check",
    "ledger_without_inbox": "store check",
    # By the row id, and with a limit: the first rows, or the last.
    "agent_sessions": "newest first, with a limit",
    "is_time_for_sweep": "the first row",
    "latest_invites": "newest first, with a limit",
    "next_in_line": "the first row",
    "outbox_head": "the last row",
    "quarantine_sources": "at most 1,000 rows of each gateway",
    # Indexes that hold no more than what is asked for.
    "count_deliveries": "an index of states; one row for each delivery, for the metrics",
    "count_open_incidents": "what is open",
    "engaged_entries": "what is open",
    "unaccepted_counts": "what is not accepted, with a limit",
    "waiting_abroad": "the sessions that are addresses",
    # Small next to what it counts.
    "payload_usage": "one row for each payload",
}
SORTS = {
    "dead_letters": "a page",
    "engaged_entries": "what is open",
    "failing_before": "what one agent fails with now, and from one sender",
    "expired_mail": "what expires in the same millisecond",
    "missing_payloads": "what is not here yet, after a start",
    "quarantine_sources": "one row for each gateway",
    "page_in_flight": "what is in flight, which is little",
    "unaccepted_by": "a page",
    "unaccepted_counts": "one row for each gateway",
    "sources_of_payload": "one row for each gateway",
    "waiting_agents": "one row for each agent",
}


def plans_of(statements: SimpleNamespace, scripts: list[str]) -> dict[str, list[str]]:
    """The plan of each statement on an empty file of the newest schema. No statistics are kept, so size has no part."""
    connection = apsw.Connection(":memory:")
    for script in scripts:
        connection.execute(script)
    return {name: plan_of(connection, text) for name, text in sorted(vars(statements).items())}


def plan_of(connection: apsw.Connection, text: str) -> list[str]:
    for values in range(30):
        try:
            return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", (None,) * values)]
        except apsw.BindingsError:
            continue
    raise AssertionError(f"how many values has {text}?")


def all_plans() -> dict[str, list[str]]:
    return {
        **{f"store {name}": plan for name, plan in plans_of(SQL, migrations()).items()},
        **{f"mailbox {name}": plan for name, plan in plans_of(MAILBOX_SQL, migrations("agentpost.mailbox")).items()},
    }


def looked_up(plan: list[str]) -> str:
    """The lines that touch a table, without the words that SQLite words differently from version to version."""
    touching = [line for line in plan if line.startswith(("SEARCH", "SCAN", "USE TEMP")) and not is_no_table(line)]
    return "; ".join(touching) or "-"


def is_no_table(line: str) -> bool:
    """An array of the caller's, a constant, or rows that the statement has made itself."""
    return line.startswith(("SCAN carray", "SCAN CONSTANT", "SCAN (")) or line in (
        "SCAN known",
        "SCAN next",
        "SCAN readers",
        "SCAN waiting",
    )


def test_each_statement_is_planned_as_it_was_meant() -> None:
    """A statement that is new or is looked up in another way fails here."""
    found = {name: looked_up(plan) for name, plan in all_plans().items()}
    known = dict(line.split(": ", 1) for line in PLANS.read_text().splitlines())
    differing = {name: plan for name, plan in found.items() if known.get(name) != plan}
    assert differing == {}
    assert known.keys() - found.keys() == set()


def test_no_statement_goes_through_a_table_that_grows() -> None:
    """Neither a scan nor a sort of all there is, but for those that are named with a reason."""
    scans: set[str] = set()
    sorts: set[str] = set()
    for name, plan in all_plans().items():
        statement = name.split()[1]
        for line in plan:
            if line.startswith("SCAN") and not is_no_table(line) and line.split()[1] not in SMALL:
                scans.add(statement)
            if line.startswith("USE TEMP B-TREE"):
                sorts.add(statement)
    assert scans == SCANS.keys()
    assert sorts == SORTS.keys()


@pytest.mark.req("PIPE-7")
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("oldest_unaccepted_seq", "deliveries_unaccepted"),
        ("next_due_delivery", "deliveries_due"),
        ("expired_mail", "ledger_expiring"),
        ("urgent_unread", "ledger_urgent"),
        ("backlog", "ledger_backlog"),
    ],
)
def test_what_each_round_asks_for_has_an_index_of_its_own(statement: str, index: str) -> None:
    """An index with a condition holds only what is asked for, however many rows the table has."""
    plan = plans_of(SQL, migrations())[statement]
    assert f"INDEX {index}" in plan[0]
