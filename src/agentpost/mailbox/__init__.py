"""The mailbox protocol (MBX-1..11): messages for sessions, each handed out, then acknowledged or tried again.

- `interface`  what a mailbox can do, whatever carries it
- `file`       in a file that several processes use at once, without a daemon; what the other transports serve
- `worker`     the thread that runs the work on the file, many pieces in one transaction
- `book`       the operations themselves, inside a transaction
- `fitting`    how much one answer may hold
- `looking`    what can be seen of it
- `picking`    which message is next
- `ending`     how messages leave: acked, nacked, expired, removed, forgotten
- `sweeping`   what time asks for, while nobody calls
- `memory`     the same in memory
"""
