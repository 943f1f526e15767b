"""A command whose output nobody reads any more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentpost.edges.cli.readers import NOBODY_READS


@pytest.mark.parametrize(
    "words",
    [("errors",), ("errors", "-o", "json"), ("docs", "commands"), ("--help",), ("mailbox", "typescript")],
    ids=" ".join,
)
@pytest.mark.parametrize("buffering", ["", "1"])
def test_a_reader_that_went_away_ends_the_command_without_a_word(words: tuple[str, ...], buffering: str) -> None:
    """As after `| head -1`: no traceback, no error text, and the exit code of a program that SIGPIPE ends."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "agentpost", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": buffering}
    try:
        shown = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment)
    finally:
        os.close(writer)
    assert (shown.returncode, shown.stderr) == (NOBODY_READS, b"")


def test_a_disk_that_is_full_loses_the_output_and_nothing_else() -> None:
    """It is told in words, and the exit code is not 0."""
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run([sys.executable, "-m", "agentpost", "errors"], stdout=full, stderr=subprocess.PIPE)
    assert (shown.returncode, shown.stderr.count(b"\n")) == (1, 2)
    assert b"No space left on device" in shown.stderr


def test_an_error_that_nobody_reads_ends_the_same_way() -> None:
    """`2>&1 | head` can go away before there is anything to say."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        shown = subprocess.run([sys.executable, "-m", "agentpost", "errors", "nonsense"], stdout=writer, stderr=writer)
    finally:
        os.close(writer)
    assert shown.returncode == NOBODY_READS
