"""How a local agent is engaged: one runtime a file, all with the same face (`delivery.ports.Runtime`).

command     a program: the message on stdin, the reply on stdout
webhook     an HTTP endpoint: a signed POST with an idempotency key
handler     a Python function in this process
pull        the agent fetches its mail by itself; see `delivery.pull`

registry    `make_runtime`: from an agent's name and options to its runtime
options     options as people and programs write them, and refusals that say what is wrong
answers     what a program or an endpoint gives back, as a result
"""

from agentpost.edges.runtimes.registry import check_agent, make_runtime

__all__ = ["check_agent", "make_runtime"]
