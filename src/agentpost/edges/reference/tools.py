"""The page of the MCP tools, from the operations that they are."""

import inspect
from typing import Any, Final

import msgspec

from agentpost.auth.external.scopes import OPERATION_SCOPES
from agentpost.edges.operations import OPERATIONS, Effect, Operation
from agentpost.edges.reference.markdown import code, table
from agentpost.edges.reference.schemas import default_of, kind_of

__all__ = ["tools_page"]

_HEAD: Final = """# MCP tools

`agentpost mcp --agent NAME` serves them to a model over stdin and stdout, and the gateway at `/mcp` to models outside;
`agentpost setup` tells Claude Code, Codex and others to start it. What other agents write is data for the model to
judge, and every result that has such words in it says so.
"""
_EFFECTS: Final = {
    Effect.LOOKS: "Changes nothing.",
    Effect.CHANGES: "Changes something.",
    Effect.REPLACES: "Replaces or takes away something.",
}


def tools_page() -> str:
    return "\n".join([_HEAD, *(_section(name, operation) for name, operation in OPERATIONS.items())])


def _section(name: str, operation: Operation) -> str:
    (_,), named = msgspec.json.schema_components([operation.args])
    schema: dict[str, Any] = named[operation.args.__name__]
    required = schema.get("required", ())
    rows = [
        (
            code(field),
            kind_of(each),
            "has to be said" if field in required else default_of(each),
            str(each.get("description", "")),
        )
        for field, each in schema.get("properties", {}).items()
    ]
    said = f"## {name}\n\n{inspect.getdoc(operation.args)}\n\n{_EFFECTS[operation.effect]} {_scope(name)}\n"
    return f"{said}\n{table(('argument', 'type', 'default', 'what it is'), rows)}"


def _scope(name: str) -> str:
    scopes = OPERATION_SCOPES.get(name)
    if scopes is None:
        return "Not for agents outside the mesh."
    return "An agent outside the mesh needs " + " or ".join(code(scope) for scope in scopes) + "."
