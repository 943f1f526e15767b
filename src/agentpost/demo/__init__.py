"""`agentpost demo`: the promise in one minute, with real parts: a real disk, a real kill -9, a real reply.

story     what is shown, step by step
victim    the process that is killed
mail      two gateways' stores exchange a message, by hand
mesh      three gateway processes join by invites and share the room
tasks     a delegated task with an ETA and progress, and one that fails
telling   titles, and what is left out
pipeline  Spark over all that they said, and its report
"""

from agentpost.demo.story import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
