"""Reference pages, made from the code that they are about, so that they cannot lag behind it.

pages           which there are
commands        the command line, from its commands
http            both doors, from their OpenAPI documents
tools           the MCP tools, from the server that has them
configuration   the keys of agentpost.toml
errors          every code of a refusal
markdown        how they are written
schemas         JSON Schema in words
"""
