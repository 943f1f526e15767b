"""The post as tools of a model: an MCP server for one agent, over stdin and stdout or over HTTP.

- `server`: the server: tools, resources and the operator's prompt.
- `tools`: the operations of `edges/operations` as tools; how a refusal is told to a model.
- `posts`: where the calls go: to the gateway of this machine, or to one elsewhere.
- `lines`: stdin, with an end to each line.
- `session`: the server of an agent outside the mesh, for one HTTP request.
"""
