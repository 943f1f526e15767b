"""The tools of OPS-1, over whichever edge: HTTP, MCP, the command of a model. Arguments checked, gateway called.

Every call is on behalf of one agent and sees nothing of others; within a context it does not leave that conversation.
Who may call what is decided before, by the edge. Knows nothing of HTTP or of tokens.

calling    who calls, what an operation works on, what it gives
mail       reading, claiming, settling, sending, answering; `messages` is what is said to it and what it gives
tasks      delegating, claiming, reporting, ending
status     how things stand
mesh       dead letters, coordination, delegation, capabilities: for who can open the operator's socket
running    one operation by its name
"""

from agentpost.edges.operations.calling import Caller, Desk, Done, Effect, Operation
from agentpost.edges.operations.running import OPERATIONS, run_operation

__all__ = ["OPERATIONS", "Caller", "Desk", "Done", "Effect", "Operation", "run_operation"]
