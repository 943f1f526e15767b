"""The operations as tools of a model: their schemas, their results, and what a model is told when one is refused."""

import inspect
from functools import cache
from typing import Any, Final

import msgspec
from mcp_types import CallToolResult, TextContent, Tool, ToolAnnotations

from agentpost.edges.operations import OPERATIONS, Effect
from agentpost.edges.operator_client import AnswerLostError
from agentpost.protocol.errors import Refusal

__all__ = ["refused", "result_of", "tool"]

# What a client may show, or ask its person about, before a tool runs.
_ANNOTATIONS: Final = {
    Effect.LOOKS: ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    Effect.CHANGES: ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
    ),
    Effect.REPLACES: ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True
    ),
}


@cache
def tool(name: str) -> Tool:
    operation = OPERATIONS[name]
    return Tool(
        name=name,
        title=operation.title,
        description=inspect.getdoc(operation.args),
        input_schema=_schema(operation.args),
        output_schema=_schema(operation.result),
        annotations=_ANNOTATIONS[operation.effect],
    )


def result_of(result: dict[str, Any]) -> CallToolResult:
    text = TextContent(type="text", text=msgspec.json.encode(result).decode())
    return CallToolResult(content=[text], structured_content=result)


def refused(refusal: Refusal) -> CallToolResult:
    """What is wrong, and what to do next."""
    where = f" (field: {refusal.field})" if refusal.field else ""
    done = "It may have been done" if isinstance(refusal, AnswerLostError) else "Nothing was changed"
    text = f"{refusal.code.value}: {refusal.message}{where}. {done}. What to do: {refusal.hint}"
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _schema(of: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a struct with an object at its top, as tools have to have it."""
    (_,), named = msgspec.json.schema_components([of], ref_template="#/$defs/{name}")
    top = dict(named.pop(of.__name__))
    top.pop("title", None)
    return top | ({"$defs": named} if named else {})
