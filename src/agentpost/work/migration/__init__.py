"""Migration (OPS-9): from a shared Yjs document with `messages` and `tasks` to outboxes, phase by phase, without loss.

entries    one entry of a legacy map, read as leniently as they were written
document   the legacy document: its maps, as Yjs has them
phases     where a migration stands, and the moves that are open
bridge     takes over what the document has for this gateway, and writes into it what its agents send
"""
