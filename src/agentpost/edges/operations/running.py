"""One operation by its name: the arguments are checked, and then it runs."""

from typing import Any, Final

import msgspec

from agentpost.edges.operations.calling import Caller, Desk, Done, Operation
from agentpost.edges.operations.mail import MAIL
from agentpost.edges.operations.mesh import MESH
from agentpost.edges.operations.status import STATUS
from agentpost.edges.operations.tasks import TASKS
from agentpost.protocol.errors import Code, Refusal

__all__ = ["OPERATIONS", "run_operation"]

OPERATIONS: Final[dict[str, Operation]] = STATUS | MAIL | TASKS | MESH


async def run_operation(desk: Desk, caller: Caller, name: str, args: dict[str, Any]) -> Done:
    """Run one operation; its result is plain values.

    Arguments that it does not have, or that make no sense, are refused, and nothing changes.
    """
    found = OPERATIONS.get(name)
    if found is None or (name in MESH and not caller.is_local):
        raise Refusal(
            Code.SCOPE_DENIED,
            f"this gateway does not serve {name!r:.60} here",
            field="operation",
            hint=f"It serves {', '.join(each for each in OPERATIONS if caller.is_local or each not in MESH)}.",
        )
    if desk.engine.store.local_agent(caller.agent_id) is None:
        raise Refusal(
            Code.NOT_FOUND, f"{caller.agent_id} is not an agent of this gateway any more", hint="Ask the operator."
        )
    try:
        read = msgspec.convert(args, found.args)
    except msgspec.ValidationError as error:
        raise Refusal(Code.INVALID_FIELD, f"args: {error}", field="args") from None
    done = await found.run(desk, caller, read)
    return done._replace(result=msgspec.to_builtins(done.result))
