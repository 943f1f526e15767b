"""Running `agentpost` as a person would, and reading what it says."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

__all__ = ["agentpost", "agentpost_at", "once"]

Found = TypeVar("Found")

_TIMEOUT_SECONDS: Final = 60
# A JVM starts for the first time, perhaps on a busy machine.
_PIPELINE_SECONDS: Final = 300


def agentpost(*words: str, home: Path, token: str | None = None, rest: tuple[str, ...] = ()) -> Any:
    """Run the command to its end, and read its JSON. `rest` is what follows a --."""
    environment = None if token is None else {"PATH": "/usr/bin:/bin", "AGENTPOST_TOKEN": token}
    command = [sys.executable, "-m", "agentpost", *words, "--home", str(home), "-o", "json"]
    if rest:
        command += ["--", *rest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, env=environment)
    return _read(done, words, may_fail=False)


def agentpost_at(*words: str, may_fail: bool = False) -> Any:
    """The same for a command without a home; one that says no with its exit code may still have something to say."""
    command = [sys.executable, "-m", "agentpost", *words, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PIPELINE_SECONDS)
    return _read(done, words, may_fail=may_fail)


def _read(done: "subprocess.CompletedProcess[str]", words: tuple[str, ...], *, may_fail: bool) -> Any:
    if done.returncode != 0 and not (may_fail and done.stdout):
        raise RuntimeError(f"agentpost {words[0]} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def once(look: Callable[[], Found], is_so: Callable[[Found], bool]) -> Found:
    """What is seen once it is so, or when the time is up: news needs a moment to arrive."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not is_so(found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
