"""`python -m agentpost` is the `agentpost` command."""

from agentpost.edges.cli.main import main

main()
