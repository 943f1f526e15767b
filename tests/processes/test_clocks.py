"""The time of day is set by an hour, ahead and back, at sender, receiver and seed, with mail and leases under way."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.edges.running import agentpost
from tests.processes.machines import FaultyMachine, eventually, faulty_mesh, is_over

pytestmark = pytest.mark.waits

HOUR_MS = 3_600_000
IN_LONG = pytest.mark.skipif("AGENTPOST_TEST_ROUNDS" not in os.environ, reason="`make test-long` runs it")
# Fails the first time it is asked for something, and counts from then on.
_SECOND_TIME_LUCKY = """
import json, os, pathlib, sys
message = json.load(sys.stdin)
tried = pathlib.Path(sys.argv[1] + "." + message["eventId"])
if not tried.exists():
    tried.touch()
    sys.exit(75)
with open(sys.argv[1], "a") as file:
    file.write(message["eventId"] + "\\n")
"""

Machines = tuple[FaultyMachine, ...]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with faulty_mesh(tmp_path_factory.mktemp("clocks"), "mbp-jane", "lab-jane") as machines:
        _, sender, lab = machines
        argv = [sys.executable, "-I", "-S", "-c", _SECOND_TIME_LUCKY, str(lab.counts)]
        lab.post("/ansible/agents", {"agentId": "builder", "runtime": "command", "options": {"argv": argv}})
        lab.add_agent("reader")
        eventually(lambda: sender.knows("builder") and sender.knows("reader"))
        yield machines


@pytest.mark.req("RTY-3", "RTY-4", "ENV-7", "AUTH-4")
@pytest.mark.parametrize(
    ("who", "step_ms"),
    [
        ("seed", HOUR_MS),
        ("sender", HOUR_MS),
        ("receiver", -HOUR_MS),
        pytest.param("seed", -HOUR_MS, marks=IN_LONG),
        pytest.param("sender", -HOUR_MS, marks=IN_LONG),
        pytest.param("receiver", HOUR_MS, marks=IN_LONG),
    ],
)
def test_setting_a_clock_by_an_hour_loses_doubles_and_expires_nothing(
    machines: Machines, who: str, step_ms: int
) -> None:
    """Retries go on, leases stand, nobody seems silent, ids keep their order, and the links can be made anew."""
    _, sender, lab = machines
    stepped = dict(zip(("seed", "sender", "receiver"), machines, strict=True))[who]
    # One that an agent is working on, and one whose retry is pending, while the clock is set.
    leased = sender.send("reader", "with an agent", sender="architect", ttlSeconds=7200)["eventId"]
    eventually(lambda: leased in _fetched(lab))
    sent = [_send(sender, "before")]
    eventually(lambda: (lab.counts.parent / f"{lab.counts.name}.{sent[0]}").exists())
    stepped.set_clock(step_ms)
    try:
        sent.append(_send(sender, "after"))
        assert leased not in _fetched(lab), "it was given away a second time"
        for machine in (sender, lab):
            machine.proxy.cut()
        sent.append(_send(sender, "over a new link"))
        # Each fails once and is tried again after a pause of seconds.
        eventually(lambda: all(is_over(sender, each) for each in sent))
        lab.post(f"/ansible/agents/reader/inbox/{leased}/settle", {"kind": "processed"})
        eventually(lambda: is_over(sender, leased))
    finally:
        stepped.set_clock(0)
    sent.append(_send(sender, "set right"))
    eventually(lambda: is_over(sender, sent[-1]))
    counted = lab.counted()
    assert [counted.count(each) for each in sent] == [1] * len(sent)
    assert [leased, *sent] == sorted([leased, *sent]), "an id sorts before one that was made earlier"
    assert sender.get("/ansible/dead-letters") == []
    # A step makes what waits due at once, at most. A storm of resends would have spent all forty attempts.
    assert max(sender.delivery(each)["attempts"] for each in (leased, *sent)) < 20


@pytest.mark.req("ENV-7")
def test_a_receiver_set_ahead_gives_up_what_is_past_its_time_where_all_can_see_it(machines: Machines) -> None:
    """Its agent does not get what expired by its clock, the sender hears why, and a clock set right changes neither."""
    _, sender, lab = machines
    short = sender.send("reader", "for ten minutes", sender="architect", ttlSeconds=600)["eventId"]
    eventually(lambda: sender.delivery(short)["state"] == "Accepted")
    lab.set_clock(HOUR_MS)
    try:
        assert short not in _fetched(lab)
        eventually(lambda: is_over(sender, short))
    finally:
        lab.set_clock(0)
    assert short not in _fetched(lab)
    assert "expired" in str(sender.get(f"/ansible/trace/{short}"))


def _send(sender: FaultyMachine, text: str) -> str:
    sent = sender.send("builder", text, sender="architect", ttlSeconds=7200)
    (recipient,) = sent["recipients"]
    assert recipient["isOnline"], "who is heard from is taken for silent"
    return sent["eventId"]


def _fetched(lab: FaultyMachine) -> list[str]:
    return [each["eventId"] for each in lab.post("/ansible/agents/reader/fetch", {"limit": 10})]


def test_a_clock_that_is_off_is_told_everywhere_by_name(machines: Machines) -> None:
    """The incident at each gateway names the machine and by how much, `doctor` says it, and both end with the cause."""
    seed, sender, lab = machines
    lab.set_clock(HOUR_MS)
    try:
        for machine in machines:
            eventually(lambda machine=machine: machine.incidents("clock_off") == ["lab-jane"])
            said = _doctor(machine)
            whose = "this gateway's clock" if machine is lab else "the clock of lab-jane"
            assert f"{whose} is 3,600 s ahead" in said or f"{whose} is 3,599 s ahead" in said
    finally:
        lab.set_clock(0)
    for machine in (seed, sender, lab):
        eventually(lambda machine=machine: machine.incidents("clock_off") == [])
    assert "ok      clocks" in _doctor(lab)


def _doctor(machine: FaultyMachine) -> str:
    return agentpost("doctor", "--home", str(machine.home)).stdout
