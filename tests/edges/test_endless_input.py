"""Commands that are fed without end: they stop by themselves, with a sentence, long before memory runs out."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edges.meshing import eventually
from tests.edges.running import RunningGateway, running_gateway

MOST_MEMORY_BYTES = 2 * 1024**3
PATIENCE_SECONDS = 120


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("endless") / "vps-jane") as gateway:
        yield gateway


def fed_with_zeros(*words: str) -> "subprocess.CompletedProcess[str]":
    """A command whose stdin never ends, in a process that may have only so much memory."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))

    with Path("/dev/zero").open("rb") as zeros:
        return subprocess.run(
            [sys.executable, "-m", "agentpost", *words],
            stdin=zeros,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            preexec_fn=bound,
            check=False,
        )


@pytest.mark.req("OPS-1")
def test_a_model_whose_line_never_ends_is_told_so(gateway: RunningGateway) -> None:
    """`agentpost mcp` with an endless line on its stdin says that it is too long, and ends."""
    done = fed_with_zeros("mcp", "--agent", "claude", "--home", str(gateway.home))
    assert done.returncode == 1
    assert "a line on stdin has more than" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("what", ["send", "mailbox send"])
def test_a_body_that_never_ends_is_refused(gateway: RunningGateway, tmp_path: Path, what: str) -> None:
    """What is to be said can come from stdin; what has no end is not collected."""
    words = {
        "send": ("send", "--from", "claude", "--to", "codex", "-", "--home", str(gateway.home)),
        "mailbox send": ("mailbox", "send", "bob", "-", "--at", str(tmp_path / "mail.db")),
    }
    done = fed_with_zeros(*words[what])
    assert done.returncode == 1
    assert "too_large: a text has at most 67,108,864 characters" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hook_that_is_told_without_end_does_its_work(gateway: RunningGateway) -> None:
    """It tells the model of its mail, whatever it is told itself."""
    for agent in ("writer", "reader"):
        gateway.operator.post("/ansible/agents", {"agentId": agent})
    gateway.operator.post("/ansible/messages", {"fromAgentId": "writer", "toAgents": ["reader"], "body": "Hello."})
    eventually(lambda: len(gateway.operator.get("/ansible/agents/reader/inbox")) == 1)
    done = fed_with_zeros("hook", "start", "--agent", "reader", "--home", str(gateway.home))
    assert (done.returncode, done.stderr) == (0, "")
    assert "writer" in done.stdout
