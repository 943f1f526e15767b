"""The agents of this gateway: which there are, and how each is engaged. What a runtime is, is not known here."""

import json

from agentpost.store.database import Database, Row
from agentpost.store.queries import SQL
from agentpost.store.rules import options_as_json
from agentpost.store.transaction import Transaction
from agentpost.store.values import LocalAgent

__all__ = ["local_agents", "put_agent", "remove_agent"]


def put_agent(tx: Transaction, agent: LocalAgent) -> None:
    options = options_as_json(agent)
    tx.database.run(SQL.put_agent, (agent.agent_id, agent.runtime, options, agent.created_at_ms, int(agent.is_paused)))


def remove_agent(tx: Transaction, agent_id: str) -> bool:
    before = tx.database.changed_rows()
    tx.database.run(SQL.remove_agent, (agent_id,))
    return tx.database.changed_rows() != before


def local_agents(database: Database) -> list[LocalAgent]:
    return [_agent(row) for row in database.rows(SQL.local_agents)]


def _agent(row: Row) -> LocalAgent:
    return LocalAgent(
        agent_id=row[0],
        runtime=row[1],
        options=json.loads(row[2]),
        created_at_ms=row[3],
        is_paused=bool(row[4]),
    )
