"""Where the outside meets agentpost. Thin: an edge translates, the layers below decide.

cli    the `agentpost` command
"""
