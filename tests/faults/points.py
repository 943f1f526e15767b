"""Every point at which a gateway can die between two steps that others notice: before and after each commit and send.

A commit is an operation of the store that writes, a send is a frame on a link or a turn of an agent. This is the one
list of them. `test_points.py` holds it against the source, so that a commit or a send that is new fails there until it
is named here; `test_lives.py` kills a gateway at each of them.
"""

from typing import Final

__all__ = ["AGENT", "COMMITS", "COMMITS_ELSEWHERE", "COMMIT_CALLS", "FRAMES", "FRAMES_ELSEWHERE", "SEND_CALLS"]

# What the lives of messages in `lives.py` come by.
COMMITS: Final = frozenset(
    {
        "accept",
        "append",
        "begin_blob",
        "close_incident",
        "compact",
        "complete_blob",
        "engage",
        "mark_read",
        "note_subscriber",
        "postpone",
        "prune_mirror",
        "prune_payloads",
        "prune_settled",
        "purge_deliveries",
        "put_agent",
        "put_chunk",
        "raise_incident",
        "record_audit",
        "reschedule",
        "settle",
    }
)

# No part of a message's life, or of a rare one. Each is cut as a write of the store in the tests that are named.
COMMITS_ELSEWHERE: Final = {
    "accept_again": "events of the quarantine after an upgrade; tests/delivery/test_quarantine.py",
    "prune_records": "what has ended long ago; tests/store/test_records.py",
    "add_token_key": "the number of a key; tests/store/test_external.py",
    "append_room_update": "the room's own log; test_store_power_loss.py cuts appends, tests/room/test_keeping.py loads",
    "compact_room": "the same",
    "consume_invite_and_pin": "joining; tests/edges/test_ticket_race.py",
    "create_agent_invite": "agents outside the mesh; tests/store/test_external.py",
    "create_invite": "joining",
    "end_agent_sessions": "agents outside the mesh; tests/store/test_external.py",
    "keep_mirror": "a mirror that is read apart from the mail; joint reading writes it with `accept`",
    "give_back": "an agent that fetches its mail; tests/delivery/test_pull.py",
    "extend_lease": "an agent that fetches its mail; tests/delivery/test_pull.py",
    "name_payloads": "just before a batch with payloads is kept, and harmless alone; tests/delivery/test_mirror.py",
    "drop_blob": "a payload that does not fit its address; tests/delivery/test_fetch.py",
    "open_agent_session": "agents outside the mesh; test_store_power_loss.py, tests/store/test_external.py",
    "pin_node": "joining",
    "put_notes": "what capabilities and the like keep beside the mail; tests/store/test_notes.py",
    "rebuild_tasks": "an operator's word; tests/work/test_rebuild.py",
    "remember_once": "joining: nonces",
    "remove_agent": "an operator's word",
    "restart_cursor": "another life of a source; tests/delivery/test_reader.py",
    "restart_mirror": "the same; tests/delivery/test_mirror.py",
    "rotate_refresh_token": "agents outside the mesh; test_store_power_loss.py, tests/store/test_external.py",
    "revoke_node": "an operator's word",
    "settle_all": "agents that may get an event twice; test_store_power_loss.py, test_dispatch_crashes.py",
    "withdraw_invite": "joining",
}

FRAMES: Final = frozenset({"chunk", "credit", "events", "get_chunk", "hello", "ping", "pong", "subscribe"})
FRAMES_ELSEWHERE: Final = {
    "refused": "the last word of a link that is over; tests/delivery/test_link.py",
    "unsubscribe": "a better link has come; tests/delivery/test_link_chaos.py",
}

# The turn of an agent: it is sent a message, and has done something by the time it answers.
AGENT: Final = "turn"

# Where a transaction is committed, by file and function: nowhere else may one be.
COMMIT_CALLS: Final = frozenset(
    {
        ("store/database.py", "migrate"),
        ("store/sqlite.py", "_claim"),
        # A home before it is used, made anew if it is cut off; tests/store/test_restoring.py.
        ("store/restoring.py", "put_back"),
        ("store/restoring.py", "write_home"),
        # A repair before the gateway starts.
        ("store/integrity.py", "_drop_damaged"),
        # Files of their own; tests/mailboxes/test_power_loss.py cuts them, test_processes.py kills in the middle.
        ("mailbox/worker.py", "run_alone"),
        ("mailbox/worker.py", "_try_together"),
        ("store/transaction.py", "commit"),
        ("store/jobs.py", "try_together"),
    }
)

# Where bytes of a link leave the gateway.
SEND_CALLS: Final = frozenset(
    {
        ("edges/link/carry.py", "_write"),
        ("edges/link/dial.py", "_send"),
        ("edges/link/serve.py", "send_frames"),
        ("edges/link/serve.py", "serve"),
    }
)
