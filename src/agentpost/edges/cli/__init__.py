"""The `agentpost` command: noun-verb, `-o json` on everything, data on stdout, everything else on stderr.

main      the command itself, and one place that turns a refusal into an exit code
gateway   up, down, status, doctor
mesh      invite, join, nodes, revoke
store     store check, store backup
bench     bench protocol, bench store, bench room
reference docs, errors: what the code says of itself
options   options that several commands share
output    text for people, JSON for programs
"""
