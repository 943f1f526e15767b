"""The `agentpost` command: noun-verb, `-o json` on everything, data on stdout, everything else on stderr.

main      the commands, and one place that turns a refusal into an exit code
output    text for people, JSON for programs
"""
