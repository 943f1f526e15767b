"""What each scope opens, as docs/external-agents.md and docs/a2a.md say it. Written by hand, so it can disagree."""

GRANTED = (
    "ansible.message.read",
    "ansible.message.send",
    "ansible.status.read",
    "ansible.task.claim",
    "ansible.task.complete",
    "ansible.task.create",
    "ansible.task.read",
    "ansible.task.update",
)

OPENED_BY = {
    "ansible_status": "ansible.status.read",
    "ansible_read_messages": "ansible.message.read",
    "ansible_mark_read": "ansible.message.read",
    "ansible_send_message": "ansible.message.send",
    "ansible_list_tasks": "ansible.task.read",
    "ansible_delegate_task": "ansible.task.create",
    "ansible_claim_task": "ansible.task.claim",
    "ansible_update_task": "ansible.task.update",
    "ansible_complete_task": "ansible.task.complete",
    "ansible_fail_task": "ansible.task.complete",
}

# Each needs `task.read` as well.
A2A_METHODS = {
    "SendMessage": "ansible.task.create",
    "SendStreamingMessage": "ansible.task.create",
    "CancelTask": "ansible.task.create",
    "GetTask": "ansible.task.read",
    "ListTasks": "ansible.task.read",
    "SubscribeToTask": "ansible.task.read",
    "CreateTaskPushNotificationConfig": "ansible.task.read",
    "GetTaskPushNotificationConfig": "ansible.task.read",
    "ListTaskPushNotificationConfigs": "ansible.task.read",
    "DeleteTaskPushNotificationConfig": "ansible.task.read",
    "GetExtendedAgentCard": "ansible.task.read",
}
