"""What an agent outside the mesh may be allowed, and what each operation needs. What is not here is denied (EXT-5)."""

from collections.abc import Collection, Iterable
from typing import Final

from agentpost.protocol.errors import Code, Refusal

__all__ = [
    "A2A_SCOPES",
    "MESSAGE_READ",
    "OPERATION_SCOPES",
    "SCOPES",
    "STATUS_READ",
    "TASK_CREATE",
    "TASK_READ",
    "check_scopes",
    "operations_of",
    "require_scope",
]

MESSAGE_READ: Final = "ansible.message.read"
MESSAGE_SEND: Final = "ansible.message.send"
TASK_READ: Final = "ansible.task.read"
TASK_CREATE: Final = "ansible.task.create"
TASK_CLAIM: Final = "ansible.task.claim"
TASK_UPDATE: Final = "ansible.task.update"
TASK_COMPLETE: Final = "ansible.task.complete"
STATUS_READ: Final = "ansible.status.read"

# All that there is to grant. `ansible.admin.*` is not among it: an operator has the operator's socket.
SCOPES: Final = (
    MESSAGE_READ,
    MESSAGE_SEND,
    TASK_READ,
    TASK_CREATE,
    TASK_CLAIM,
    TASK_UPDATE,
    TASK_COMPLETE,
    STATUS_READ,
)

# The tools of OPS-1 that an agent outside may ever call, each with the scopes of which it needs one. Those that change
# the mesh are not here, and so denied.
OPERATION_SCOPES: Final[dict[str, tuple[str, ...]]] = {
    "ansible_status": (STATUS_READ,),
    "ansible_read_messages": (MESSAGE_READ,),
    "ansible_mark_read": (MESSAGE_READ,),
    "ansible_send_message": (MESSAGE_SEND,),
    "ansible_list_tasks": (TASK_READ,),
    "ansible_delegate_task": (TASK_CREATE,),
    "ansible_claim_task": (TASK_CLAIM,),
    "ansible_update_task": (TASK_UPDATE,),
    "ansible_complete_task": (TASK_COMPLETE,),
    "ansible_fail_task": (TASK_COMPLETE,),
}

# What an agent outside may call over A2A. All of it shows tasks, and so needs TASK_READ besides.
A2A_SCOPES: Final[dict[str, tuple[str, ...]]] = {
    "a2a.SendMessage": (TASK_CREATE,),
    "a2a.SendStreamingMessage": (TASK_CREATE,),
    "a2a.CancelTask": (TASK_CREATE,),
    "a2a.GetTask": (TASK_READ,),
    "a2a.ListTasks": (TASK_READ,),
    "a2a.SubscribeToTask": (TASK_READ,),
    "a2a.CreateTaskPushNotificationConfig": (TASK_READ,),
    "a2a.GetTaskPushNotificationConfig": (TASK_READ,),
    "a2a.ListTaskPushNotificationConfigs": (TASK_READ,),
    "a2a.DeleteTaskPushNotificationConfig": (TASK_READ,),
    "a2a.GetExtendedAgentCard": (TASK_READ,),
    # So that who may call something is told, in the terms of A2A, what is wrong with the call.
    "a2a.Unknown": (TASK_READ,),
}


def check_scopes(asked: Iterable[str], *, within: Iterable[str] = SCOPES) -> tuple[str, ...]:
    """The scopes in the order of the list, each once; refused if one of them is not among `within`."""
    wanted, allowed = set(asked), set(within)
    beyond = sorted(wanted - allowed)
    if beyond:
        raise Refusal(
            Code.SCOPE_DENIED,
            f"{beyond[0]!r:.60} cannot be granted",
            field="scopes",
            hint=f"Ask for some of: {', '.join(scope for scope in SCOPES if scope in allowed)}.",
        )
    if not wanted:
        raise Refusal(Code.INVALID_FIELD, "scopes must name at least one scope", field="scopes")
    return tuple(scope for scope in SCOPES if scope in wanted)


def operations_of(granted: Collection[str]) -> tuple[str, ...]:
    """The operations that these scopes open."""
    return tuple(name for name, needed in OPERATION_SCOPES.items() if any(scope in granted for scope in needed))


def require_scope(operation: str, granted: Collection[str]) -> str:
    """The granted scope that lets the operation be called."""
    needed = OPERATION_SCOPES.get(operation) or A2A_SCOPES.get(operation)
    if needed is None:
        raise Refusal(
            Code.SCOPE_DENIED,
            f"{operation!r:.60} is not an operation for agents outside the mesh",
            field="operation",
            hint=f"Operations: {', '.join(OPERATION_SCOPES)}.",
        )
    found = next((scope for scope in needed if scope in granted), None)
    if found is None:
        raise Refusal(
            Code.SCOPE_DENIED,
            f"{operation} needs the scope {' or '.join(needed)}",
            field="operation",
            hint=f"Ask the operator for a session with {needed[0]}.",
        )
    return found
