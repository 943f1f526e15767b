"""What a message of A2A says, as content of ours, and back.

One text is the description of a task, or the body of a message. Whatever a message has besides travels whole under the
key `a2a` of the context, so that the agent gets all of it, and the peer gets back what it sent.
"""

from typing import Any, Final, cast

import msgspec
from a2a.types import Message, Part, Role
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from msgspec import Struct

from agentpost.delivery.ports import Content
from agentpost.protocol.errors import Code, Refusal

__all__ = ["Said", "about_task", "agent_message", "data_part", "said", "skill_of", "text_part", "user_message"]

_WHOLE: Final = "a2a"
_SKILL: Final = "skillId"
_TASK: Final = "taskId"
_LONGEST_TITLE: Final = 120
_LONGEST_ID: Final = 256
_MOST_PARTS: Final = 64
_MOST_REFERENCES: Final = 64


class Said(Struct, frozen=True, kw_only=True):
    """What a peer said: `text` for reading, `input` what the work begins with, if there is more than text."""

    title: str
    text: str
    input: Any = None


def skill_of(message: Message) -> str | None:
    """The skill that a message is for, which its metadata may name."""
    if _SKILL not in message.metadata:
        return None
    named: object = message.metadata[_SKILL]
    if not isinstance(named, str) or not named:
        raise Refusal(Code.INVALID_FIELD, f"metadata.{_SKILL} must be the id of a skill", field=f"metadata.{_SKILL}")
    return named


def said(message: Message) -> Said:
    """What a message says; refused if it is none that a peer may send."""
    _check(message)
    texts = [part.text for part in message.parts if part.HasField("text")]
    text = "\n\n".join(texts)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    title = first[:_LONGEST_TITLE] or "A message without words"
    data = [part for part in message.parts if part.HasField("data")]
    if len(texts) <= 1 and len(data) + len(texts) == len(message.parts) and len(data) <= 1 and _is_bare(message):
        # The data is the input of a capability as it stands, which its contract can be checked against.
        return Said(title=title, text=text, input=MessageToDict(data[0].data) if data else None)
    return Said(title=title, text=text, input={_WHOLE: _whole(message)})


def about_task(task_id: str, what: Said) -> dict[str, Any]:
    """The context of a message that is about a task."""
    return {_TASK: task_id} if what.input is None else {_TASK: task_id, "input": what.input}


def user_message(content: Content, *, message_id: str, task_id: str, context_id: str) -> Message:
    """What the peer said, from what was sealed then: a task's first words, or a message about one."""
    context: Any = content.context
    if content.title is None and isinstance(context, dict):
        context = cast(dict[str, Any], context).get("input")
    message = _from_whole(context)
    if message is None:
        text = content.description if content.title is not None else content.body
        data = [] if context is None else [data_part(context)]
        # Without both it was pruned since: a message has a part all the same.
        message = Message(parts=[text_part(text or ""), *data] if text or not data else data)
    message.message_id, message.task_id, message.context_id = message_id, task_id, context_id
    message.role = Role.ROLE_USER
    return message


def agent_message(text: str, *, message_id: str, task_id: str, context_id: str, **metadata: str) -> Message:
    return Message(
        role=Role.ROLE_AGENT,
        parts=[text_part(text)],
        message_id=message_id,
        task_id=task_id,
        context_id=context_id,
        metadata=metadata or None,
    )


def text_part(text: str) -> Part:
    return Part(text=text, media_type="text/plain")


def data_part(value: Any) -> Part:
    try:
        return ParseDict({"data": value, "mediaType": "application/json"}, Part())
    except ParseError:
        # Deeper than the wire of A2A carries.
        return Part(text=msgspec.json.encode(value).decode(), media_type="application/json")


def _check(message: Message) -> None:
    if message.role != Role.ROLE_USER:
        raise Refusal(Code.INVALID_FIELD, "a peer speaks as ROLE_USER", field="message.role")
    for name, value in (
        ("messageId", message.message_id),
        ("contextId", message.context_id),
        ("taskId", message.task_id),
    ):
        if len(value) > _LONGEST_ID or not value.isprintable():
            raise Refusal(
                Code.INVALID_FIELD, f"{name} must be up to {_LONGEST_ID} printable characters", field=f"message.{name}"
            )
    if not message.message_id:
        raise Refusal(Code.INVALID_FIELD, "messageId must not be empty", field="message.messageId")
    if not 1 <= len(message.parts) <= _MOST_PARTS:
        raise Refusal(Code.INVALID_FIELD, f"a message has 1 to {_MOST_PARTS} parts", field="message.parts")
    if len(message.reference_task_ids) > _MOST_REFERENCES:
        raise Refusal(
            Code.INVALID_FIELD, f"at most {_MOST_REFERENCES} tasks can be referred to", field="message.referenceTaskIds"
        )
    if any(part.WhichOneof("content") is None for part in message.parts):
        raise Refusal(Code.INVALID_FIELD, "each part has text, data, raw or a url", field="message.parts")


def _is_bare(message: Message) -> bool:
    """Whether a message is no more than the text and data of its parts."""
    plain = all(not part.filename and not part.HasField("metadata") for part in message.parts)
    named = set(message.metadata.fields) - {_SKILL}
    return plain and not named and not message.extensions and not message.reference_task_ids


def _whole(message: Message) -> dict[str, Any]:
    copy = Message()
    copy.CopyFrom(message)
    for name in ("message_id", "context_id", "task_id", "role"):
        copy.ClearField(name)
    return MessageToDict(copy)


def _from_whole(context: Any) -> Message | None:
    if not isinstance(context, dict) or list(cast(dict[str, Any], context)) != [_WHOLE]:
        return None
    try:
        return ParseDict(cast(dict[str, Any], context)[_WHOLE], Message(), ignore_unknown_fields=True)
    except ParseError:
        return None
