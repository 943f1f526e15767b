"""agentpost from Python: `Client` to send and read, `Agent` to answer, `SyncClient` for programs without a loop.

- `client`: what one agent says and reads, over the gateway of its home.
- `agent`: functions that are called with mail and with tasks.
- `blocking`: the same client, for code that waits; `blocking_parts`: its tasks and its mailbox.
- `embedded`: a gateway inside this process, for programs that run without one.

All of it is reached as `agentpost.Client`, `agentpost.Agent` and so on.
"""
