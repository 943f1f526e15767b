"""The mailbox over sockets: who serves it, and who calls it from elsewhere.

- `rpc`        JSON-RPC 2.0 on one connection: calls in, answers and pushed messages out
- `unix`       lines on a Unix socket
- `websocket`  the same messages over WebSocket
- `http`       the routes under `/ansible/mailbox/`
- `serving`    a mailbox file on any of these
- `carriers`   the callers' side of each
- `connecting` a mailbox by its address, whichever transport that names
"""
