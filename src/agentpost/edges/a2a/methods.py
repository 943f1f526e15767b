"""The operations of A2A by their names, and by their paths. Pure."""

import re
from typing import Any, Final, cast

import msgspec

__all__ = ["UNKNOWN", "rest_method", "rpc_method"]

UNKNOWN: Final = "Unknown"
_NAMES: Final = frozenset(
    {
        "SendMessage",
        "SendStreamingMessage",
        "GetTask",
        "ListTasks",
        "CancelTask",
        "SubscribeToTask",
        "CreateTaskPushNotificationConfig",
        "GetTaskPushNotificationConfig",
        "ListTaskPushNotificationConfigs",
        "DeleteTaskPushNotificationConfig",
        "GetExtendedAgentCard",
    }
)

_ID: Final = r"[^/:]+"
_PATHS: Final[tuple[tuple[str, re.Pattern[str], str], ...]] = tuple(
    (verb, re.compile(path), name)
    for verb, path, name in (
        ("POST", r"/message:send", "SendMessage"),
        ("POST", r"/message:stream", "SendStreamingMessage"),
        ("GET", r"/tasks", "ListTasks"),
        ("GET", rf"/tasks/{_ID}", "GetTask"),
        ("POST", rf"/tasks/{_ID}:cancel", "CancelTask"),
        ("GET", rf"/tasks/{_ID}:subscribe", "SubscribeToTask"),
        ("POST", rf"/tasks/{_ID}:subscribe", "SubscribeToTask"),
        ("POST", rf"/tasks/{_ID}/pushNotificationConfigs", "CreateTaskPushNotificationConfig"),
        ("GET", rf"/tasks/{_ID}/pushNotificationConfigs", "ListTaskPushNotificationConfigs"),
        ("GET", rf"/tasks/{_ID}/pushNotificationConfigs/{_ID}", "GetTaskPushNotificationConfig"),
        ("DELETE", rf"/tasks/{_ID}/pushNotificationConfigs/{_ID}", "DeleteTaskPushNotificationConfig"),
        ("GET", r"/extendedAgentCard", "GetExtendedAgentCard"),
    )
)


def rest_method(verb: str, path: str) -> str | None:
    """What a request of the HTTP+JSON binding asks for; `path` is what follows the agent. None for anything else."""
    return next((name for each, pattern, name in _PATHS if each == verb and pattern.fullmatch(path)), None)


def rpc_method(body: bytes) -> str:
    """What a request of the JSON-RPC binding asks for, or `UNKNOWN`: the SDK says what is wrong with it."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return UNKNOWN
    name = cast(dict[str, Any], found).get("method") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name in _NAMES else UNKNOWN
