"""Where the outside meets agentpost. Thin: an edge translates, the layers below decide.

cli               the `agentpost` command
http              the public port with the room's gate, and the operator's socket
operator_client   calls through that socket
seed_link         the link to a seed, for as long as the gateway runs
tailnet           asking tailscaled who is at an address
"""
