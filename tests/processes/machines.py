"""Gateways behind proxies, each a process of its own: what a test needs to break the mesh, and to count."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.edges.mailing import Machine
from tests.edges.meshing import eventually as happens
from tests.edges.meshing import invite
from tests.edges.running import RunningGateway, running_gateway
from tests.processes.proxy import Proxy

__all__ = ["FaultyMachine", "Mesh", "eventually", "faulty_mesh", "is_over", "is_unclear"]

SEED: Final = "vps-jane"
_WAITS: Final = """
[delivery]
accepted_ack_timeout_seconds = 2
away_check_seconds = 2

[delivery.resend]
base_seconds = 0.5
max_delay_seconds = 2
max_attempts = 40
"""


def eventually(what: Callable[[], bool], *, patience_seconds: float = 180) -> None:
    """Wait for something that takes several gateways to start, on a machine that may have much else to do."""
    happens(what, patience_seconds=patience_seconds)


class FaultyMachine(Machine):
    """A gateway that can be killed, stopped for a while, cut off, and whose clock can be set.

    `proxy` stands between it and the seed; the seed itself has none.
    """

    def __init__(self, folder: Path, node: str, tier: str, *words: str, is_quick: bool = True) -> None:
        super().__init__(folder, node, tier)
        self.proxy: Proxy
        self._words = words
        self._clock = folder / f"{node}.clock"
        self.set_clock(0)
        self._environment = {"AGENTPOST_TEST_CLOCK": str(self._clock)}
        if is_quick:
            self._environment["AGENTPOST_TEST_QUICK"] = "yes"
        self.home.mkdir(mode=0o700)
        (self.home / "agentpost.toml").write_text(_WAITS)
        (self.home / "agentpost.toml").chmod(0o600)

    def start(self, *, die_at: str | None = None) -> None:
        """Start it, to die by itself where it first comes by a named point, if one is given."""
        dies = {} if die_at is None else {"AGENTPOST_TEST_DIE_AT": die_at}
        launched = running_gateway(
            self.home,
            *self._words,
            node=self.node,
            tier=self.tier,
            listen=self._listen,
            module="tests.processes.launch",
            environment={**self._environment, **dies},
        )
        self.gateway: RunningGateway = self._stack.enter_context(launched)
        self._listen = self.gateway.url.removeprefix("http://")

    def kill(self) -> None:
        self.gateway.end(signal.SIGKILL)

    def has_died(self) -> bool:
        return self.gateway.process.poll() is not None

    def pause(self) -> None:
        """The process stands still, as in a suspended machine; its connections stay as they are."""
        os.kill(self.gateway.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.gateway.process.pid, signal.SIGCONT)

    def set_clock(self, ahead_ms: int) -> None:
        """Set its time of day so far ahead of the real one, or back."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(ahead_ms))
        new.replace(self._clock)

    def incidents(self, kind: str) -> list[str]:
        """What is open of one kind."""
        found = self.get("/ansible/incidents?limit=500")
        return [each["subject"] for each in found if each["kind"] == kind]

    def sees(self, agent_id: str, *, online: bool) -> bool:
        return any(
            each["agentId"] == agent_id and each["isOnline"] is online for each in self.get("/ansible/directory")
        )

    def delivery(self, event_id: str) -> dict[str, Any]:
        (found,) = self.get(f"/ansible/messages/{event_id}")["deliveries"]
        return found


class Mesh:
    """A seed, and machines that reach it only through their proxies."""

    def __init__(self, folder: Path, *, is_quick: bool) -> None:
        self._folder = folder
        self._is_quick = is_quick
        self._stack = ExitStack()
        # Machines learn from the room where the seed is. Nobody answers there, so that no proxy is gone round.
        nobody = self._stack.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))
        at = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        self.seed = FaultyMachine(folder, SEED, "backbone", "--public-url", at, is_quick=is_quick)
        self.machines = [self.seed]

    def begin(self) -> None:
        self.seed.start()

    def join(self, node: str) -> FaultyMachine:
        machine = FaultyMachine(self._folder, node, "edge", is_quick=self._is_quick)
        self.machines.append(machine)
        port = int(self.seed.gateway.url.rpartition(":")[2])
        machine.proxy = self._stack.enter_context(Proxy(port))
        machine.start()
        token = invite(self.seed.gateway, node)
        machine.post("/operator/join", {"url": machine.proxy.url, "token": token})
        return machine

    def end(self) -> None:
        for machine in self.machines:
            machine.stop()
        self._stack.close()


@contextmanager
def faulty_mesh(folder: Path, *nodes: str, is_quick: bool = True) -> Iterator[tuple[FaultyMachine, ...]]:
    """The seed and these machines, joined. `architect` is at the first of them; tests add the other agents."""
    mesh = Mesh(folder, is_quick=is_quick)
    try:
        mesh.begin()
        joined = [mesh.join(node) for node in nodes]
        joined[0].add_agent("architect")
        yield (mesh.seed, *joined)
    finally:
        mesh.end()


def is_over(sender: FaultyMachine, event_id: str) -> bool:
    return sender.delivery(event_id)["state"] in ("Processed", "Replied")


def is_unclear(machine: FaultyMachine, event_id: str) -> bool:
    """Whether it is shown that nobody knows if the agent has had it."""
    return any(event_id in subject for subject in machine.incidents("indeterminate"))
