"""The mailbox's SQL by name."""

from typing import Final

from agentpost.store.queries import load_statements

__all__ = ["SQL"]

SQL: Final = load_statements("agentpost.mailbox")
