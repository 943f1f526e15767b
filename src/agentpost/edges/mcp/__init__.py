"""The post as tools of a model: an MCP server over the gateway of a home.

- `server`: the server, put together; resources and the operator's prompt.
- `mail`, `tasks`, `mesh`: the tools, by what they are about (OPS-1).
- `telling`: how a refusal is told to a model, and how the words of others are marked.
"""
