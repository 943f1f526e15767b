"""The operator's key: made once, for its owner alone, and checked without telling anything about it."""

import stat
from pathlib import Path

import pytest

from agentpost.auth.operator import OperatorKey, load_operator_key
from agentpost.protocol.errors import Code
from agentpost.store.home import Home
from agentpost.testing import SeededChance
from tests.store.building import refused


@pytest.fixture
def prepared(home: Path) -> Home:
    prepared = Home(home)
    prepared.prepare()
    return prepared


def load(home: Home) -> OperatorKey:
    return load_operator_key(home, SeededChance(5))


def test_the_key_is_made_once_and_stays(prepared: Home) -> None:
    """256 random bits, in a file that nobody else can read."""
    made = load(prepared)
    file = prepared.keys / "operator.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text().strip()) == 43
    assert load_operator_key(prepared, SeededChance(6)).header_value == made.header_value


def test_the_operator_is_whoever_has_the_key(prepared: Home) -> None:
    """And nobody else, wherever he calls from."""
    key = load(prepared)
    key.check_operator(key.header_value)
    text = key.header_value.removeprefix("Bearer ")
    for wrong in (None, "", "Bearer ", text, f"bearer {text}", f"Bearer {text}x", f"Bearer {text[:-1]}", "é", "\ud800"):
        with refused(Code.INVALID_ACCESS_TOKEN) as caught:
            key.check_operator(wrong)
        assert text not in caught.value.message + caught.value.hint


def test_a_key_that_others_can_read_is_not_used(prepared: Home) -> None:
    """The refusal says what to do."""
    load(prepared)
    (prepared.keys / "operator.key").chmod(0o644)
    with refused(Code.HOME_UNSAFE) as caught:
        load(prepared)
    assert "chmod 600" in caught.value.message


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe", b"A" * 42 + b"=\n"])
def test_a_file_that_holds_no_key_is_not_used(prepared: Home, content: bytes) -> None:
    """An empty key must not let everybody in."""
    load(prepared)
    (prepared.keys / "operator.key").write_bytes(content)
    with refused(Code.STORAGE_CORRUPT):
        load(prepared)


def test_the_key_does_not_show_itself(prepared: Home) -> None:
    """Not when it is printed."""
    key = load(prepared)
    assert key.header_value.removeprefix("Bearer ") not in f"{key!r} {key}"
