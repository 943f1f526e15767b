"""The mailbox's types for TypeScript, made from the Structs that read and write them. Pure."""

from enum import StrEnum
from typing import Any

import msgspec

from agentpost.mailbox.calls import METHODS
from agentpost.protocol.mailbox import DeadLetterEntry, EnqueueAck, MailboxMessage, MailboxState, MessageSummary

__all__ = ["declarations"]

_NAMES = {
    MailboxMessage: "Message",
    MessageSummary: "MessageSummary",
    EnqueueAck: "EnqueueAck",
    DeadLetterEntry: "DeadLetterEntry",
}

_PROTOCOL = """\
/** Every transport has these calls; JSON-RPC methods have the same names in snake_case. */
export interface MailboxProtocol {
  enqueue(message: Message): Promise<EnqueueAck>;
  dequeue(session: string, waitSeconds?: number): Promise<Message | null>;
  ack(session: string, msgId: string): Promise<void>;
  nack(session: string, msgId: string, reason: string): Promise<void>;
  peek(session: string, after?: string, limit?: number): Promise<MessageSummary[]>;
  purge(session: string): Promise<void>;
  peekDeadLetter(session: string, after?: string, limit?: number): Promise<DeadLetterEntry[]>;
  purgeDeadLetter(session: string): Promise<void>;
  enqueueMany(messages: Message[]): Promise<EnqueueAck[]>;
  dequeueMany(session: string, limit: number, waitSeconds?: number): Promise<Message[]>;
  ackMany(session: string, msgIds: string[]): Promise<void>;
  extend(session: string, msgId: string, seconds: number): Promise<void>;
}

/** On a WebSocket and on the Unix socket: messages as they come, at most `credit` that are not acked or nacked yet. */
export interface MailboxPush {
  subscribe(session: string, credit?: number): Promise<void>;
  unsubscribe(session: string, unheard?: string[]): Promise<void>;
}

/** The parameters of the notification `message`. */
export interface PushedMessage {
  session: string;
  message: Message;
}
"""


def declarations() -> str:
    """The text of a `.d.ts` file: names as in the protocol's snake_case form."""
    parts = [_union("MailboxState", MailboxState), *(_interface(name, kind) for kind, name in _NAMES.items())]
    methods = " | ".join(f'"{name}"' for name in (*METHODS, "subscribe", "unsubscribe"))
    parts += [f"export type Method = {methods};\n", _PROTOCOL]
    return "\n".join(parts)


def _union(name: str, kind: type[StrEnum]) -> str:
    values = " | ".join(f'"{each.value}"' for each in kind)
    return f"export type {name} = {values};\n"


def _interface(name: str, kind: type[msgspec.Struct]) -> str:
    schema = msgspec.json.schema_components([kind])[1][kind.__name__]
    required = set(schema.get("required", ()))
    lines = [
        f"  {field}{'' if field in required else '?'}: {_type(about)};"
        for field, about in schema["properties"].items()
        if field != "extra"
    ]
    # MBX-1: unknown fields pass through.
    extra = ["  [extra: string]: unknown;"] if "extra" in schema["properties"] else []
    return "\n".join([f"export interface {name} {{", *lines, *extra, "}", ""])


def _type(about: dict[str, Any]) -> str:
    if "anyOf" in about:
        return " | ".join(_type(each) for each in about["anyOf"] if each.get("type") != "null")
    if "$ref" in about:
        return about["$ref"].rpartition("/")[2]
    return {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}[about["type"]]
