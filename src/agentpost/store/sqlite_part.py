"""What the parts of `SqliteStore` share: the one who writes, and a connection to read with."""

from abc import ABC, abstractmethod

from agentpost.store.database import Database
from agentpost.store.writer import Writer

__all__ = ["SqlitePart"]


class SqlitePart(ABC):
    _writer: Writer

    @abstractmethod
    def _reader(self) -> Database: ...
