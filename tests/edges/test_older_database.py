"""A gateway whose database was replaced by an older copy: it stops, says so, and loses nothing on its way back."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from agentpost.protocol.errors import Refusal
from tests.edges.mailing import Machine
from tests.edges.meshing import eventually, invite
from tests.edges.running import TIMEOUT_SECONDS, agentpost

_DATABASE = "agentpost.db"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """A seed with `sam`, and a laptop with `ada`, joined."""
    with ExitStack() as stack:
        seed, laptop = Machine(tmp_path, "vps-jane", "backbone"), Machine(tmp_path, "mbp-jane", "edge")
        for machine, agent_id in ((seed, "sam"), (laptop, "ada")):
            stack.callback(machine.stop)
            machine.start()
            machine.add_agent(agent_id)
        laptop.post("/operator/join", {"url": seed.gateway.url, "token": invite(seed.gateway, "mbp-jane")})
        eventually(lambda: laptop.knows("sam") and seed.knows("ada"))
        yield seed, laptop


def _send(sender: Machine, agent_id: str, to: str, count: int) -> list[str]:
    """Messages that the other gateway has taken."""
    sent = [sender.send(to, f"message {number}", sender=agent_id)["eventId"] for number in range(count)]
    eventually(lambda: all(sender.states(each) == ["Accepted"] for each in sent))
    return sent


def _inbox(machine: Machine, agent_id: str) -> list[str]:
    return sorted(each["eventId"] for each in machine.get(f"/ansible/agents/{agent_id}/inbox?limit=500"))


def _stopped(machine: Machine) -> None:
    assert machine.gateway.end(signal.SIGTERM) == 0


@pytest.mark.req("CUR-6", "PIPE-9", "RTY-3")
@pytest.mark.parametrize("loser", ["laptop", "seed"])
def test_an_older_database_is_shown_to_be_one_and_the_gateway_stops(pair: tuple[Machine, Machine], loser: str) -> None:
    """The first peer that has read more proves it; nothing is accepted until the outbox begins a new epoch."""
    old, other = pair if loser == "seed" else pair[::-1]
    me, them = ("sam", "ada") if loser == "seed" else ("ada", "sam")
    sent = _send(old, me, them, 2)
    _stopped(old)
    copy = old.home.parent / "older.db"
    shutil.copyfile(old.home / _DATABASE, copy)
    old.start()
    sent += _send(old, me, them, 3)
    _stopped(old)
    for beside in old.home.glob(f"{_DATABASE}*"):
        beside.unlink()
    shutil.copyfile(copy, old.home / _DATABASE)

    old.start()
    with suppress(Refusal):
        # What it still accepts is not lost, either.
        sent.append(old.send(them, "just before", sender=me)["eventId"])
    # It ends by itself, as soon as the other is linked to it.
    assert old.gateway.process.wait(TIMEOUT_SECONDS) != 0
    assert f"{other.node} has shown" in old.gateway.log
    eventually(lambda: [each["kind"] for each in other.get("/ansible/incidents")] == ["source_regressed"])
    for command in (("doctor",), ("status",)):
        shown = agentpost(*command, "--home", str(old.home))
        assert shown.returncode != 0
        said = " ".join((shown.stdout + shown.stderr).split())
        assert f"the database of {old.node} is an older one" in said
        assert "agentpost lake restore" in said
    again = agentpost("up", "--home", str(old.home))
    assert (again.returncode, again.stderr.split(":")[0]) == (1, "epoch_mismatch")

    # What the hint says.
    backup = old.home.parent / "to-restore.db"
    assert agentpost("store", "backup", str(backup), "--home", str(old.home)).returncode == 0
    for beside in old.home.glob(f"{_DATABASE}*"):
        beside.unlink()
    assert agentpost("store", "restore", str(backup), "--home", str(old.home)).returncode == 0
    old.start()
    eventually(lambda: old.knows(them))
    sent += _send(old, me, them, 2)
    got = _inbox(other, them)
    assert set(sent) <= set(got)
    assert len(got) == len(set(got))
    assert [each["kind"] for each in other.get("/ansible/incidents")] == ["epoch_changed"]
    assert old.get("/ansible/incidents") == []
