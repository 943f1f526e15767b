"""The parts of `work` for one gateway, put together. Starts them and stops them; decides nothing by itself."""

from agentpost.delivery.engine import Engine
from agentpost.work.tasks import Tasks

__all__ = ["Office"]


class Office:
    """What agents do for each other through this gateway. The edges call its parts by their names."""

    def __init__(self, engine: Engine) -> None:
        self.tasks = Tasks(engine)
