"""The `agentpost` command: noun-verb, `-o json` on everything, data on stdout, everything else on stderr.

main      the command itself, and one place that turns what went wrong into an exit code
gateway   up, down, status
doctor    doctor
mesh      invite, join, nodes, revoke
store     store check, store backup
bench     bench protocol, bench store, bench room
reference docs, errors: what the code says of itself
options   options that several commands share
usage     what is wrong with the words of a command
output    text for people, JSON for programs
readers   what becomes of a command whose output nobody reads any more
"""
