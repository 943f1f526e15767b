"""The replay guard and the audit log."""

from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from agentpost.store.home import Home
from agentpost.store.interface import Store
from agentpost.store.values import AuditEntry
from tests.store.building import open_sqlite


@pytest.mark.req("AUTH-8")
async def test_a_value_is_new_once(store: Store) -> None:
    """The second one who brings a nonce is told that it was used; in another scope it is another nonce."""
    assert await store.remember_once("nonce", "abc", now_ms=0, expires_at_ms=100) is True
    assert await store.remember_once("nonce", "abc", now_ms=1, expires_at_ms=200) is False
    assert await store.remember_once("nonce", "abcd", now_ms=1, expires_at_ms=100) is True
    assert await store.remember_once("jti", "abc", now_ms=1, expires_at_ms=100) is True


@pytest.mark.req("AUTH-8")
async def test_scope_and_value_do_not_run_together(store: Store) -> None:
    """`ab` + `c` is not `a` + `bc`."""
    assert await store.remember_once("ab", "c", now_ms=0, expires_at_ms=100) is True
    assert await store.remember_once("a", "bc", now_ms=0, expires_at_ms=100) is True


@pytest.mark.req("AUTH-8")
async def test_a_value_is_forgotten_when_it_expires_and_not_before(store: Store) -> None:
    """A repeat does not prolong it; what has expired may be used again, because it is refused as expired anyway."""
    await store.remember_once("nonce", "abc", now_ms=0, expires_at_ms=100)
    assert await store.remember_once("nonce", "abc", now_ms=99, expires_at_ms=1_000) is False
    assert await store.remember_once("nonce", "abc", now_ms=100, expires_at_ms=1_000) is True


@pytest.mark.req("AUTH-8")
async def test_the_replay_guard_survives_a_restart(home: Path) -> None:
    """A value that was used before the gateway stopped is still used after it started."""
    store = open_sqlite(home)
    await store.remember_once("nonce", "abc", now_ms=0, expires_at_ms=100)
    await store.close()
    store = open_sqlite(home)
    assert await store.remember_once("nonce", "abc", now_ms=1, expires_at_ms=100) is False
    await store.close()


@pytest.mark.req("AUTH-9")
async def test_the_replay_guard_keeps_no_secret(home: Path) -> None:
    """The database has the hash of what was used, not the value."""
    store = open_sqlite(home)
    await store.remember_once("ticket", "very-secret-ticket", now_ms=0, expires_at_ms=100)
    await store.close()
    assert b"very-secret-ticket" not in Home(home).database.read_bytes()


def an_entry(at_ms: int) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms,
        actor="ada",
        action="send",
        subject="evt_1",
        corr_id="corr_1",
        session_id="ses_1",
        detail={"to": "bob", "attempt": 1, "again": False, "reason": None},
    )


async def test_the_audit_log_reads_back_in_order(store: Store) -> None:
    """Entries come back as they were recorded, in their order, a page at a time."""
    await store.record_audit([an_entry(1), an_entry(2)])
    await store.record_audit([])
    await store.record_audit([AuditEntry(at_ms=3, actor="operator", action="purge")])
    purge = AuditEntry(id=3, at_ms=3, actor="operator", action="purge")
    assert store.audit_log() == [replace(an_entry(1), id=1), replace(an_entry(2), id=2), purge]
    assert store.audit_log(limit=1) == [replace(an_entry(1), id=1)]
    assert [entry.id for entry in store.audit_log(after_id=1)] == [2, 3]


async def test_what_was_recorded_cannot_be_altered_from_outside(store: Store) -> None:
    """Neither the entry handed in nor the one read back is a handle on the log."""
    entry = an_entry(1)
    await store.record_audit([entry])
    entry.detail["to"] = "mallory"
    store.audit_log()[0].detail["to"] = "mallory"
    assert store.audit_log() == [replace(an_entry(1), id=1)]


@pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'nobody'", "DELETE FROM audit"])
async def test_the_database_itself_refuses_to_change_the_audit_log(home: Path, statement: str) -> None:
    """Even with SQL in hand an entry is neither changed nor removed."""
    store = open_sqlite(home)
    await store.record_audit([an_entry(1)])
    await store.close()
    connection = apsw.Connection(str(Home(home).database))
    with pytest.raises(apsw.ConstraintError, match="append-only"):
        connection.execute(statement)
    connection.close()
