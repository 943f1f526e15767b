"""One machine that plays several: a home and a PATH for each, and nothing else that they share but the loopback."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.quickstarts.pages import Step, is_shown

TIMEOUT_SECONDS = 120
# Commands that change nothing: until they show what the page says, they are run again.
_LOOKS = ("status", "doctor", "nodes", "agents list", "inbox", "show", "trace", "task list", "task show")
_BIN = ".local/bin"
# What an id on a page stands for: the one that this command printed last.
_IDS = {"evt_": "agentpost send ", "tsk_": "agentpost task create "}


class Machines:
    """Runs the steps of a page. What a person would copy from one machine to another is copied."""

    def __init__(self, directory: Path, replaced: dict[str, str], listen: dict[str, str]) -> None:
        self._directory = directory
        self._replaced = replaced
        self._listen = listen
        self._tokens: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def home(self, machine: str) -> Path:
        """The home of a person on this machine, with the commands that the pages call."""
        home = self._directory / machine
        if not home.exists():
            (home / _BIN).mkdir(parents=True)
            (home / "project").mkdir()
            systemctl = Path(__file__).with_name("systemctl.py")
            for name, line in (
                ("agentpost", f'exec {sys.executable} -m agentpost "$@"'),
                ("systemctl", f'exec {sys.executable} {systemctl} "$@"'),
                ("loginctl", 'test "$*" = enable-linger'),
            ):
                (home / _BIN / name).write_text(f"#!/bin/sh\n{line}\n")
                (home / _BIN / name).chmod(0o755)
        return home

    def run(self, step: Step) -> str:
        """What a step prints. It has to work, and to show what the page says."""
        script = self._filled(step)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            done = self._shell(step.machine, script)
            output = done.stdout + done.stderr
            missing = [line for line in step.shown if not is_shown(line, output)]
            if done.returncode == 0 and not missing:
                break
            assert _only_looks(script), f"{step.machine}: {script}\n{output}\nnot shown: {missing}"
            assert time.monotonic() < deadline, f"{step.machine}: {script}\n{output}\nnot shown: {missing}"
            time.sleep(0.5)
        self._note(script, output)
        return output

    def stop(self) -> None:
        for home in self._directory.iterdir():
            self._shell(home.name, "agentpost down || true")

    def _shell(self, machine: str, script: str) -> subprocess.CompletedProcess[str]:
        home = self.home(machine)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTPOST_", "XDG_"))}
        environment = kept | {
            "HOME": str(home),
            "PATH": f"{home / _BIN}:{os.environ['PATH']}",
            "AGENTPOST_LISTEN": self._listen.get(machine, "127.0.0.1:0"),
            # Wide enough for whole ids.
            "COLUMNS": "300",
        }
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],  # noqa: S607 - whichever bash there is
            cwd=home / "project",
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    def _filled(self, step: Step) -> str:
        script = step.script
        for text, replacement in self._replaced.items():
            script = script.replace(text, replacement)
        if "agp_…" in script:
            script = script.replace("agp_…", self._tokens.pop(step.machine))
        for prefix in _IDS:
            script = script.replace(f"{prefix}…", self._seen.get(prefix, ""))
        assert "…" not in script
        return script

    def _note(self, script: str, output: str) -> None:
        self._tokens |= dict(re.findall(r"^On (\S+), before .*\n.*--token (\S+)", output, re.MULTILINE))
        for prefix, command in _IDS.items():
            if command in script:
                self._seen[prefix] = re.findall(rf"{prefix}\w+", output)[0]


def _only_looks(script: str) -> bool:
    return all(line.removeprefix("agentpost ").startswith(_LOOKS) for line in script.splitlines())


@contextmanager
def machines(*, url: str | None = None, seed: str = "") -> Iterator[Machines]:
    """`url` is where a page has the gateway of `seed`; here it is on a free port of the loopback."""
    listen: dict[str, str] = {}
    replaced: dict[str, str] = {}
    if url is not None:
        listen[seed] = f"127.0.0.1:{_free_port()}"
        replaced[url] = f"http://{listen[seed]}"
    # Not pytest's directory: the path of a socket has to be short.
    with TemporaryDirectory(prefix="agentpost-") as directory:
        playing = Machines(Path(directory), replaced, listen)
        try:
            yield playing
        finally:
            playing.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
