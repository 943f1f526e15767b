"""The TypeScript declarations say what travels."""

import re

import msgspec

from agentpost.mailbox.typescript import declarations
from agentpost.protocol.mailbox import MailboxState, to_wire
from tests.mailboxes.building import message


def test_the_declarations_match_what_travels() -> None:
    """Each field of a message on the wire is declared, with its type; each state is in the union."""
    text = declarations()
    found = re.search(r"export interface Message \{(.*?)\n\}", text, re.DOTALL)
    assert found is not None
    types = {str: "string", int: "number"}
    for name, value in to_wire(message()).items():
        assert f"  {name}: {types[type(value)]};" in found[1]
    assert "protocol_version?: string;" in found[1]
    assert all(f'"{state.value}"' in text for state in MailboxState)
    assert msgspec.json.encode(text)
