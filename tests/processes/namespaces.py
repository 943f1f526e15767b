"""Network namespaces of Linux: machines on a switch, whose cables can be pulled without anybody being told.

A proxy ends TCP connections of its own, so what it holds back is still acknowledged by a kernel. Here nothing is: a
packet into a pulled cable is gone, and both ends see a link that is up. It takes root, or at least CAP_NET_ADMIN.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

__all__ = ["Switch", "a_switch", "why_not"]

_NET = "10.213.7"
_PREFIX = f"agp{os.getpid()}"


def why_not() -> str | None:
    """What keeps this machine from having namespaces; None if nothing does."""
    name = f"{_PREFIX}try"
    try:
        _ip("netns", "add", name)
    except FileNotFoundError:
        return "there is no `ip` command (install iproute2)"
    except subprocess.CalledProcessError as error:
        return f"namespaces cannot be made here: {error.stderr.strip()}"
    try:
        _ip("-n", name, "link", "add", "switch", "type", "bridge")
        _ip("-n", name, "link", "add", "name", "one", "type", "veth", "peer", "name", "two")
    except subprocess.CalledProcessError as error:
        return f"there are no bridges or veth pairs here: {error.stderr.strip()}"
    finally:
        _ip("netns", "del", name)
    return None


class Switch:
    """Machines are numbered from 1; each has an address, and a cable to the switch."""

    def __init__(self, machines: int) -> None:
        self._stack = ExitStack()
        self._hub = self._namespace("hub")
        _ip("-n", self._hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "switch", "up")
        for number in range(1, machines + 1):
            name = self._namespace(str(number))
            _ip(
                "link",
                "add",
                "name",
                "cable",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                f"port{number}",
                "netns",
                self._hub,
            )
            _ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", name, "link", "set", device, "up")
            _ip("-n", self._hub, "link", "set", f"port{number}", "up")
            self.plug(number)

    def address(self, number: int) -> str:
        return f"{_NET}.{number}"

    def within(self, number: int) -> Sequence[str]:
        """What to put before a command so that it runs on this machine."""
        return ("ip", "netns", "exec", f"{_PREFIX}{number}")

    def plug(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"port{number}", "master", "switch")

    def pull(self, number: int) -> None:
        """Nothing gets through any more, in either direction, and nobody is told."""
        _ip("-n", self._hub, "link", "set", f"port{number}", "nomaster")

    def close(self) -> None:
        self._stack.close()

    def _namespace(self, name: str) -> str:
        name = _PREFIX + name
        _ip("netns", "add", name)
        self._stack.callback(_ip, "netns", "del", name)
        return name


@contextmanager
def a_switch(machines: int) -> Iterator[Switch]:
    switch = Switch(machines)
    try:
        yield switch
    finally:
        switch.close()


def _ip(*words: str) -> None:
    # Wherever the distribution has put it.
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)  # noqa: S607 - see above
