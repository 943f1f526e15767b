"""A network that swallows every packet and says nothing, between gateways in network namespaces of their own."""

from pathlib import Path

import pytest

from tests.edges.mailing import Machine
from tests.edges.meshing import invite
from tests.edges.running import running_gateway
from tests.processes.machines import eventually
from tests.processes.namespaces import Switch, a_switch, why_not

pytestmark = pytest.mark.waits

REASON = why_not()


class OnSwitch(Machine):
    """A gateway on a machine of its own: it hears and reaches the others only through its cable."""

    def __init__(self, folder: Path, node: str, tier: str, switch: Switch, number: int) -> None:
        super().__init__(folder, node, tier)
        self._switch = switch
        self._number = number
        self._listen = f"{switch.address(number)}:0"

    def start(self) -> None:
        launched = running_gateway(
            self.home,
            node=self.node,
            tier=self.tier,
            listen=self._listen,
            module="tests.processes.launch",
            environment={"AGENTPOST_TEST_QUICK": "yes"},
            within=self._switch.within(self._number),
        )
        self.gateway = self._stack.enter_context(launched)

    def pull_cable(self) -> None:
        self._switch.pull(self._number)

    def plug_cable(self) -> None:
        self._switch.plug(self._number)


@pytest.mark.req("CUR-1", "RTY-3")
@pytest.mark.skipif(
    REASON is not None, reason=f"NOT SHOWN HERE: a truly silent link ({REASON}). The proxy's variants run everywhere."
)
def test_a_network_that_says_nothing_is_noticed_and_loses_nothing(tmp_path: Path) -> None:
    """The cable of the receiver, then of the sender, is pulled and plugged: both ends notice, all mail comes once."""
    with a_switch(3) as switch:
        seed = OnSwitch(tmp_path, "vps-jane", "backbone", switch, 1)
        sender = OnSwitch(tmp_path, "mbp-jane", "edge", switch, 2)
        lab = OnSwitch(tmp_path, "lab-jane", "edge", switch, 3)
        try:
            for machine in (seed, sender, lab):
                machine.start()
            for machine in (sender, lab):
                token = invite(seed.gateway, machine.node)
                machine.post("/operator/join", {"url": seed.gateway.url, "token": token})
            sender.add_agent("architect")
            lab.add_counting_agent("builder")
            eventually(lambda: sender.knows("builder"))
            sent: list[str] = []
            for machine in (lab, sender):
                sent.append(_send(sender, "while it was well"))
                machine.pull_cable()
                sent.append(_send(sender, "into the silence"))
                # Both ends give the connection up by themselves: the machine says so, and the others miss it.
                eventually(lambda machine=machine: not _is_linked(machine))
                eventually(lambda machine=machine: not _is_online(seed, machine.node))
                machine.plug_cable()
                eventually(lambda machine=machine: _is_linked(machine))
            eventually(lambda: all(sender.states(each)[0] in ("Processed", "Replied") for each in sent))
            assert lab.counted() == sent
        finally:
            for machine in (lab, sender, seed):
                machine.stop()


def _send(sender: Machine, text: str) -> str:
    return sender.send("builder", text, sender="architect")["eventId"]


def _is_linked(machine: Machine) -> bool:
    return all(seed["connected"] for seed in machine.get("/operator/nodes")["seeds"])


def _is_online(seed: Machine, node: str) -> bool:
    nodes = seed.get("/operator/nodes")["nodes"]
    return any(each["nodeId"] == node and each["status"] == "online" for each in nodes)
