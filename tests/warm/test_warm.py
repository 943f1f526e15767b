"""A process that was forked is a process like any other: its own arguments, environment, folder, output and end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentpost import __version__
from tests.warm.client import run_warm, start_warm

_SHOW = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "mode": os.environ.get("MODE"), "folder": os.getcwd(), "name": __name__}))
print("heard", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    """A module that `python -m` finds in the folder that it runs in."""
    (tmp_path / "shows_itself.py").write_text(_SHOW)
    return "shows_itself"


def test_it_has_what_it_was_given(module: str, tmp_path: Path) -> None:
    """Arguments, environment and folder are those of the call, and so are the exit code and both outputs."""
    with start_warm("a", "b c", module=module, environment={"MODE": "odd"}, folder=tmp_path) as process:
        said, complained = process.communicate(30)
    shown = json.loads(said)
    assert shown == {"argv": ["a", "b c"], "mode": "odd", "folder": str(tmp_path), "name": "__main__"}
    assert (process.returncode, complained) == (7, "heard\n")


def test_it_is_the_command_that_is_installed() -> None:
    """The same words lead to the same output, error and exit code as in a process that starts from nothing."""
    for words in (["--version"], ["stroe"], ["status", "--home", "/nonexistent"], ["errors", "no_route", "-o", "json"]):
        warm = run_warm(*words, timeout=60)
        cold = subprocess.run([sys.executable, "-m", "agentpost", *words], capture_output=True, text=True, timeout=60)
        assert (warm.returncode, warm.stdout, warm.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert run_warm("--version", timeout=60).stdout == f"agentpost {__version__}\n"


def test_it_dies_by_its_own_id(tmp_path: Path) -> None:
    """A kill ends this one and no other, and its exit code says so."""
    homes = [tmp_path / "one", tmp_path / "two"]
    words = ("--node", "vps-jane", "--listen", "127.0.0.1:0", "-o", "json")
    one, two = (start_warm("up", "--home", str(home), *words) for home in homes)
    with one, two:
        for each in (one, two):
            assert each.stdout is not None
            while not each.stdout.readline().startswith("}"):
                pass
        os.kill(one.pid, signal.SIGKILL)
        assert one.wait(30) == -signal.SIGKILL
        assert two.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            two.wait(0.01)
        two.terminate()
        assert two.wait(30) == 0


def test_nothing_is_left_when_the_tests_are_gone(tmp_path: Path) -> None:
    """Whoever ran the tests may be killed: what was started for them ends with them."""
    code = (
        "import sys, time; from tests.warm.client import start_warm;"
        "print(start_warm('mailbox', 'serve', '--file', sys.argv[1], '--socket', sys.argv[2]).pid, flush=True);"
        "time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "mail.db"), str(tmp_path / "mail.sock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        started = int(tests.stdout.readline())
        assert is_running(started)
        tests.kill()
    deadline = time.monotonic() + 30
    while is_running(started) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(started)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
