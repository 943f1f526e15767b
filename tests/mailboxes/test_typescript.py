"""The TypeScript declarations say what travels."""

import inspect
import re

import msgspec
import pytest

from agentpost.mailbox.calls import METHODS
from agentpost.mailbox.interface import MailboxProtocol
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


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


@pytest.mark.req("MBX-10")
def test_the_declared_calls_are_those_of_the_protocol() -> None:
    """Each call is declared once, with its parameters, optional where they are; push is declared, too."""
    text = declarations()
    found = re.search(r"export interface MailboxProtocol \{(.*?)\n\}", text, re.DOTALL)
    assert found is not None
    declared = {name: re.findall(r"(\w+\??):", given) for name, given in re.findall(r"(\w+)\((.*?)\)", found[1])}
    for name in METHODS:
        parameters = list(inspect.signature(getattr(MailboxProtocol, name)).parameters.values())[1:]
        wanted = [camel(each.name) + ("" if each.default is each.empty else "?") for each in parameters]
        assert declared.pop(camel(name)) == wanted, name
    assert declared == {}
    methods = re.search(r"export type Method = (.*?);", text)
    assert methods is not None
    assert re.findall(r'"(\w+)"', methods[1]) == [*METHODS, "subscribe", "unsubscribe"]
    assert "subscribe(session: string, credit?: number)" in text
    assert "export interface PushedMessage" in text
