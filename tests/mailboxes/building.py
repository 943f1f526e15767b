"""Messages for the tests of the mailbox."""

from agentpost.protocol.mailbox import MailboxMessage

__all__ = ["message"]


def message(
    msg_id: str = "m1",
    *,
    sender: str = "ada",
    to: str = "bob",
    payload: str = "hello",
    created_at: int = 1_700_000_000,
) -> MailboxMessage:
    return MailboxMessage(msg_id=msg_id, sender=sender, to=to, payload=payload, created_at=created_at, attempt=0)
