"""Everything that can happen to gateways and links, in any mixture: all mail is processed once, and in order."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentpost.protocol.lifecycle import DeliveryState
from tests.processes.machines import FaultyMachine, eventually, faulty_mesh, is_over
from tests.processes.proxy import DOWN, UP
from tests.processes.test_links import Post, repeat_and_swap

pytestmark = pytest.mark.waits

ROUNDS = int(os.environ.get("AGENTPOST_TEST_ROUNDS", "1"))


class _Faults:
    """What is done to a laptop, a lab and the seed between them. The lab is not killed: its agent would be, too."""

    def __init__(self, chance: random.Random, seed: FaultyMachine, laptop: FaultyMachine, lab: FaultyMachine) -> None:
        self._chance = chance
        self._seed = seed
        self._laptop = laptop
        self._lab = lab
        self.done: list[str] = []

    def one(self) -> None:
        wire = self._chance.choice((self._laptop, self._lab))
        choices: dict[str, Callable[[], None]] = {
            "meddle": lambda: self._meddle(wire),
            "cut": wire.proxy.cut,
            "hold": lambda: self._hold(wire),
            "abandon": wire.proxy.abandon,
            "slow down": lambda: setattr(wire.proxy, "delay_seconds", 0.05),
            "kill the seed": lambda: self._kill(self._seed),
            "kill the laptop": lambda: self._kill(self._laptop),
            "pause the seed": lambda: self._pause(self._seed, 2),
            "pause the lab": lambda: self._pause(self._lab, 7),
        }
        what = self._chance.choice(sorted(choices))
        self.done.append(f"{what} ({wire.node})")
        choices[what]()
        self._wait(0.3)

    def _wait(self, at_most_seconds: float) -> None:
        time.sleep(self._chance.random() * at_most_seconds)

    def _meddle(self, wire: FaultyMachine) -> None:
        wire.proxy.meddle = repeat_and_swap(random.Random(self._chance.random()), {"repeated": 0, "swapped": 0})

    def _hold(self, wire: FaultyMachine) -> None:
        wire.proxy.hold(self._chance.choice((UP, DOWN)))
        self._wait(3)
        wire.proxy.release()

    def _kill(self, machine: FaultyMachine) -> None:
        machine.kill()
        self._wait(1)
        machine.start()

    def _pause(self, machine: FaultyMachine, at_most_seconds: float) -> None:
        machine.pause()
        self._wait(at_most_seconds)
        machine.go_on()


@pytest.mark.req("CUR-1", "CUR-3", "PIPE-9", "RTY-3")
def test_whatever_happens_in_whatever_order_all_mail_is_processed_once(tmp_path: Path) -> None:
    """Links that are cut, held, slow, silent or swap what they carry, gateways that are killed or stand still."""
    chance = random.Random(17)
    with faulty_mesh(tmp_path, "mbp-jane", "lab-jane") as (seed, laptop, lab):
        post, faults = Post(laptop, lab), _Faults(chance, seed, laptop, lab)
        for _ in range(3 * ROUNDS):
            sent: list[str] = []
            faults.done.clear()
            for _ in range(chance.randint(3, 6)):
                sent += post.send(*(f"{len(sent)}.{each}" for each in range(chance.randint(1, 4))))
                faults.one()
            post.heal()
            eventually(lambda sent=sent: all(is_over(laptop, each) for each in sent))
            assert [each for each in lab.counted() if each in set(sent)] == sent, faults.done
            states = {state for each in sent for state in laptop.states(each)}
            assert states <= {DeliveryState.PROCESSED, DeliveryState.REPLIED}, faults.done
