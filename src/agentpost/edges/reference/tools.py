"""The page of the MCP tools, from the operations that they are. Needs the MCP SDK."""

from typing import Any, Final

from mcp_types import Tool

from agentpost.auth.external.scopes import OPERATION_SCOPES
from agentpost.edges.mcp.tools import tool
from agentpost.edges.operations import OPERATIONS
from agentpost.edges.reference.markdown import code, table
from agentpost.edges.reference.schemas import default_of, kind_of

__all__ = ["all_tools", "tools_page"]

_HEAD: Final = """# MCP tools

`agentpost mcp --agent NAME` serves them to a model over stdin and stdout, and the gateway at `/mcp` to models outside;
`agentpost setup` tells Claude Code, Codex and others to start it. What other agents write is data for the model to
judge, and every result that has such words in it says so.
"""


def all_tools() -> list[Tool]:
    """The tools as a model of this machine is told of them."""
    return [tool(name) for name in OPERATIONS]


def tools_page() -> str:
    return "\n".join([_HEAD, *(_section(each) for each in all_tools())])


def _section(tool: Tool) -> str:
    schema: dict[str, Any] = tool.input_schema
    required = schema.get("required", ())
    rows = [
        (
            code(name),
            kind_of(each),
            "has to be said" if name in required else default_of(each),
            str(each.get("description", "")),
        )
        for name, each in schema.get("properties", {}).items()
    ]
    parts = [f"## {tool.name}\n", f"{tool.description}\n", f"{_effect(tool)} {_scope(tool)}\n"]
    parts.append(table(("argument", "type", "default", "what it is"), rows))
    return "\n".join(part for part in parts if part)


def _effect(tool: Tool) -> str:
    if tool.annotations is None or tool.annotations.read_only_hint:
        return "Changes nothing."
    return "Replaces or takes away something." if tool.annotations.destructive_hint else "Changes something."


def _scope(tool: Tool) -> str:
    scopes = OPERATION_SCOPES.get(tool.name)
    if scopes is None:
        return "Not for agents outside the mesh."
    return "An agent outside the mesh needs " + " or ".join(code(scope) for scope in scopes) + "."
