"""Answers to calls that came with an idempotency key, kept beside what the calls wrote. Knows nothing of the calls."""

from agentpost.store.database import Database
from agentpost.store.queries import SQL
from agentpost.store.rules import key_taken
from agentpost.store.transaction import Transaction
from agentpost.store.values import KeptAnswer, KeyedAnswer

__all__ = ["expect_unused", "keep_answer", "kept_answer"]


def expect_unused(tx: Transaction, keyed: KeyedAnswer | None) -> None:
    """Refuse a call whose key another call has used: nothing of it is written."""
    if keyed is None:
        return
    kept = kept_answer(tx.database, keyed.agent_id, keyed.key)
    if kept is not None and kept.expires_at_ms > keyed.at_ms:
        raise key_taken()


def keep_answer(tx: Transaction, keyed: KeyedAnswer | None, seq: int) -> None:
    if keyed is not None:
        values = (keyed.agent_id, keyed.key, keyed.request, keyed.answer, seq, keyed.expires_at_ms)
        tx.database.run(SQL.keep_answer, values)


def kept_answer(database: Database, agent_id: str, key: bytes) -> KeptAnswer | None:
    row = database.row(SQL.kept_answer, (agent_id, key))
    return None if row is None else KeptAnswer(request=row[0], answer=row[1], seq=row[2], expires_at_ms=row[3])
